"""A run on disk: what it needs, and what it says when that is missing."""

import json
import os

import pytest
import torch

from regard.errors import DataError
from regard.tasks import Task
from regard.training import RunError, RunFolder


@pytest.fixture
def folder(make_task):
    """A run that could be used."""
    task = make_task()
    task.folder.write_config(task.config)
    task.folder.write_model(task.learner.module.state_dict())
    return task.folder, task


def test_a_folder_below_a_file_or_with_a_name_that_is_no_text(tmp_path):
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "run", tmp_path / "\udcff"):
        with pytest.raises(RunError, match="must be writable") as caught:
            RunFolder(path).create()
        assert str(path) in str(caught.value)


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


def test_no_model_yet(folder):
    run, _ = folder
    run.model_file.unlink()
    with pytest.raises(RunError, match=f"regard train --resume {run.path}"):
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


def test_one_process_trains_at_a_time(tmp_path):
    mine, other = RunFolder(tmp_path), RunFolder(tmp_path)
    refused = pytest.raises(RunError, match=f"another one is at work in {tmp_path}")
    with mine.held(), refused, other.held():
        pass
    with other.held():
        assert list(tmp_path.iterdir()) == []
