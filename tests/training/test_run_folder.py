"""A run on disk: what it needs, and what it says when that is missing."""

import errno
import fcntl
import json
import os

import pytest
import torch

from regard.data import FrameScaler
from regard.errors import DataError
from regard.tasks import Task
from regard.training import RunError, RunFolder, make_config, resume_run, start_run


@pytest.fixture
def folder(make_task):
    """A run that could be used."""
    task = make_task()
    task.folder.write_config(task.config)
    task.folder.write_model(task.learner.module.state_dict())
    return task.folder, task


def test_round_trip(folder):
    run, task = folder
    saved = RunFolder(run.path).load()
    assert saved.config == task.config
    assert saved.src_tokenizer.fingerprint == task.evaluator.task.encoders.source.fingerprint
    assert not saved.model.training
    for name, weight in task.learner.module.state_dict().items():
        assert torch.equal(saved.model.state_dict()[name], weight)


def test_a_run_begins_with_its_config(tmp_path):
    run = RunFolder(tmp_path / "a" / "b")
    assert not run.started
    run.create()
    assert not run.started
    run.write_config(make_config({"steps": 7}))
    assert run.started
    assert not run.finished
    assert run.read_config().steps == 7
    run.card_file.write_text("done")
    assert run.finished


def test_a_folder_below_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(RunError, match="must be writable") as caught:
            RunFolder(path).create()
        assert str(path) in str(caught.value)


def test_new_folders_are_new(tmp_path):
    run = RunFolder(tmp_path / "run")
    run.check_new()
    run.create()
    run.check_new()
    (run.path / "notes.txt").write_text("mine")
    run.check_new()
    run.write_config(make_config({}))
    with pytest.raises(RunError, match=f"regard train --resume {run.path}"):
        run.check_new()


#: what a run would write over, or take for its own: a checkpoint of another model, old metrics
TAKEN = (
    *("README.md", "tokenizer.src.json", "data/train.arrow", "metrics.jsonl", "model.safetensors"),
    *("report.html", "report.jsonl", "checkpoints", "best"),
)


@pytest.mark.parametrize("name", TAKEN)
def test_files_that_would_be_lost(tmp_path, name):
    (tmp_path / "data").mkdir()
    (tmp_path / name).write_text("mine")
    with pytest.raises(RunError, match=name.split("/")[-1]):
        RunFolder(tmp_path).check_new()


def test_a_run_that_was_killed_before_stdin_was_kept_does_not_wait_for_more(tmp_path):
    run = RunFolder(tmp_path)
    run.create()
    run.write_config(make_config({"data": "-"}))
    with pytest.raises(RunError, match=f"{tmp_path} must hold .* from stdin.*: remove the folder"):
        resume_run(tmp_path, quiet=True)
    assert not run.stdin_file.exists()


def test_what_could_not_begin_leaves_no_trace(make_task):
    run = make_task().folder
    run.write_config(make_config({}))
    assert run.src_tokenizer_file.exists()
    run.discard()
    assert not run.path.exists()


def test_discarding_keeps_what_is_not_ours(make_task):
    run = make_task().folder
    (run.path / "notes.txt").write_text("mine")
    (run.data / "more.tsv").write_text("mine")
    run.discard()
    left = sorted(path.relative_to(run.path) for path in run.path.rglob("*.*"))
    assert [str(path) for path in left] == ["data/more.tsv", "notes.txt"]
    run.check_new()


def test_no_config(tmp_path):
    with pytest.raises(RunError, match=r"no config\.json"):
        RunFolder(tmp_path).read_config()
    with pytest.raises(RunError, match="is no folder"):
        RunFolder(tmp_path / "missing").read_config()


@pytest.mark.plain
@pytest.mark.parametrize(
    "content", ["", "{", "[]", "{}", '{"config": 5}', '{"config": {"preset": "foo"}}']
)
def test_a_damaged_config(tmp_path, content):
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(RunError, match="cannot be read") as caught:
        RunFolder(tmp_path).read_config()
    assert "\n" not in str(caught.value)


def test_no_model_yet(folder):
    run, _ = folder
    run.model_file.unlink()
    with pytest.raises(RunError, match=f"regard train --resume {run.path}"):
        run.load()


@pytest.mark.parametrize("content", [b"", b"nothing", b"\0" * 64])
def test_a_damaged_model(folder, content):
    run, _ = folder
    run.model_file.write_bytes(content)
    with pytest.raises(RunError, match="must hold the weights of the preset bahdanau") as caught:
        run.load()
    assert "\n" not in str(caught.value)


def test_weights_of_another_model(folder):
    run, task = folder
    config = json.loads(run.config_file.read_text())
    config["config"]["model"]["hidden"] = 2 * task.config.model["hidden"]
    del config["checksum"]  # as whoever edits the file is told
    run.config_file.write_text(json.dumps(config))
    with pytest.raises(RunError, match="must hold the weights"):
        run.load()


def rewrite_config(run, change):
    config = json.loads(run.config_file.read_text())
    del config["checksum"]  # as whoever edits the file is told
    change(config)
    run.config_file.write_text(json.dumps(config))


def test_a_run_of_a_newer_version(folder):
    run, _ = folder
    rewrite_config(run, lambda c: c.update(format=99, regard="7.0"))
    with pytest.raises(DataError, match=r"format 99, written by regard 7\.0, .*: update regard"):
        run.load()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"layers": 1_000_000}, "layers=1000000, and the largest size"),
        ({"hidden": 10**30}, "hidden=1000000000000000000000000000000, and"),
        ({"embed": 17}, "of shape"),
        ({"dropout": 5}, "dropout"),
    ],
)
def test_sizes_that_the_weights_do_not_have(folder, monkeypatch, settings, said):
    run, _ = folder
    rewrite_config(run, lambda c: c["config"]["model"].update(settings))

    build = Task.build_model

    def without_memory(*given):
        assert torch.get_default_device().type == "meta"
        return build(*given)

    monkeypatch.setattr("regard.tasks.Task.build_model", without_memory)
    with pytest.raises(RunError, match=f"must hold the weights .*{said}"):
        run.load()


def header(tensors):
    raw = json.dumps(tensors).encode()
    return len(raw).to_bytes(8, "little") + raw


@pytest.mark.parametrize(
    "content",
    [
        (1 << 40).to_bytes(8, "little") + b"{}",
        (1 << 63).to_bytes(8, "little") + b"{}",
        header({"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 4]}}) + bytes(4),
        header({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 1 << 50]}}) + bytes(4),
        header({"a": {"dtype": "I64", "shape": [1], "data_offsets": [0, 8]}}) + bytes(8),
        header({"a": 5}),
        header([]),
    ],
)
def test_a_header_that_lies(folder, content):
    run, _ = folder
    run.model_file.write_bytes(content)
    with pytest.raises(RunError, match="must hold the weights of the preset bahdanau"):
        run.load()


def test_weights_that_are_larger_than_the_memory(folder):
    run, _ = folder
    raw = header({"a": {"dtype": "F32", "shape": [1 << 41], "data_offsets": [0, 1 << 43]}})
    with open(run.model_file, "wb") as file:  # it takes no room on the disk
        file.write(raw)
        file.truncate(len(raw) + (1 << 43))
    with pytest.raises(RunError, match=r"they take 8,796\.1 GB, and this machine has"):
        run.load()


def test_weights_that_are_no_numbers(folder):
    run, task = folder
    weights = {name: weight.clone() for name, weight in task.learner.module.state_dict().items()}
    next(iter(weights.values())).view(-1)[0] = float("nan")
    run.write_model(weights)
    with pytest.raises(RunError, match="some of them are not finite"):
        run.load()


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "name", ["config.json", "model.safetensors", "tokenizer.src.json", "tokenizer.tgt.json"]
)
def test_pipes_and_links_in_a_folder_from_elsewhere(folder, tmp_path, name):
    run, _ = folder
    file = run.path / name
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="a link out of"):
        run.load()
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(DataError, match="it is a pipe"):
        run.load()


def test_vectors_for_a_model_that_reads_tokens(folder):
    run, _ = folder
    FrameScaler(2, 1, (0.0, 0.0), (1.0, 1.0)).save(run.src_tokenizer_file)
    rewrite_config(run, lambda c: c["config"].update(preset="lm-rnn", metric="loss"))
    with pytest.raises(RunError, match="must hold the weights of the preset lm-rnn"):
        run.load()


def test_metrics(tmp_path):
    run = RunFolder(tmp_path)
    assert run.read_metrics() == []
    for step in (1, 2, 3):
        run.append_metrics({"step": step, "dev_loss": step / 7})
    assert [row["step"] for row in run.read_metrics()] == [1, 2, 3]
    run.metrics.cut(None, 2)
    assert run.read_metrics() == [{"step": 1, "dev_loss": 1 / 7}, {"step": 2, "dev_loss": 2 / 7}]


def test_a_line_of_metrics_that_was_cut_off(tmp_path):
    run = RunFolder(tmp_path)
    run.append_metrics({"step": 1})
    with open(run.metrics_file, "a") as file:
        file.write('{"step": 2, "dev')
    assert run.read_metrics() == [{"step": 1}]


def test_one_process_trains_at_a_time(tmp_path):
    mine, other = RunFolder(tmp_path), RunFolder(tmp_path)
    refused = pytest.raises(RunError, match=f"another one is at work in {tmp_path}")
    with mine.held(), refused, other.held():
        pass
    with other.held():
        assert list(tmp_path.iterdir()) == []


def test_a_file_system_without_locks(tmp_path, monkeypatch):
    def refuse(handle, kind):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with RunFolder(tmp_path).held(), RunFolder(tmp_path).held():
        pass


def test_a_new_run_sweeps_too(tmp_path):
    """A kill before the settings are there leaves a folder that is new, but for a part of them."""
    (tmp_path / "data").mkdir()
    (tmp_path / ".config.json.12.tmp").write_text("")
    with pytest.raises(DataError):
        start_run(make_config({"data": "missing.tsv"}), tmp_path, quiet=True)
    assert not tmp_path.exists()


def test_what_a_kill_has_cut_off_is_swept_away(tmp_path):
    run = RunFolder(tmp_path)
    left = [".model.safetensors.12.tmp", "data/.train.arrow.12.part", "best/.step-7.x.12.tmp"]
    mine = [".hidden.tmp", "data/notes.12.part", "best/step-00000007.safetensors"]
    for name in (*left, *mine):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    run.sweep()
    found = [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(found) == sorted(mine)
