"""Sharded training gives what one process gives, and goes on with any number of processes."""

import json
import shutil
from functools import partial

import pytest
import torch

from regard.training import RunError, RunFolder, make_config, resume_run, start_run
from regard.training.checkpoint import load_checkpoint
from regard.training.run import _is_restart, _launch
from training.tools import import_all, last_checkpoint, run_processes, weights, write_pairs

BRIEF = {
    "size": "tiny",
    "dropout": 0.0,
    "steps": 6,
    "eval_every": 3,
    "save_every": 2,
    "batch_sentences": 15,
    "warmup": 2,
    "schedule": "constant",
    "max_tgt_len": 10,
    "precision": "32",
    "device": "cpu",
    "report": False,
}
SMALL = {"preset": "bahdanau", "hidden": 16, "embed": 8}
AVERAGED = {"accumulate": 2, "ema": 0.9, "rdrop": 1.0}
CHARS = {"max_src_len": 30, "max_tgt_len": 30}
SMALL_TRANSFORMER = {
    "preset": "transformer",
    "dim": 24,
    "heads": 2,
    "feed_forward": 16,
    "layers": 1,
}


def train(processes, data, output, **settings):
    config = make_config({"data": str(data), **BRIEF, **settings})
    codes = run_processes(processes, partial(start_run, config, output, quiet=True))
    assert codes == [0] * processes


def resume(processes, output, **settings):
    codes = run_processes(processes, partial(resume_run, output, settings, quiet=True))
    assert codes == [0] * processes


def losses(output):
    names = ("train_loss", "dev_loss", "tokens")
    return [[row[name] for name in names] for row in RunFolder(output).read_metrics()]


def assert_close(a, b):
    assert len(losses(a)) == 2
    for first, second in zip(losses(a), losses(b), strict=True):
        assert first == pytest.approx(second, abs=1e-5)
    for name, weight in weights(a).items():
        # softmax cancels a bias of keys: its gradient is rounding alone, which Adam magnifies
        if not name.endswith("key_proj.bias"):
            assert (weight - weights(b)[name]).abs().max() < 1e-4, name


@pytest.fixture(scope="module", autouse=True)
def imports():
    import_all()


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return write_pairs(tmp_path_factory.mktemp("sharded") / "pairs.tsv", count=97)


@pytest.fixture(scope="module")
def sharded_run(pairs):
    """A finished run of two processes with shards."""
    output = pairs.parent / "sharded"
    train(2, pairs, output, **SMALL, strategy="fsdp")
    return output


@pytest.fixture(scope="module")
def whole_run(pairs):
    """The same run of one process."""
    output = pairs.parent / "whole"
    train(1, pairs, output, **SMALL)
    return output


@pytest.mark.slow
def test_shards_train_like_one_process(whole_run, sharded_run):
    assert_close(whole_run, sharded_run)
    found = load_checkpoint(sharded_run / "checkpoints").checkpoint
    saved, expected = found.tensors, last_checkpoint(whole_run)
    assert saved.keys() == expected.keys()
    for name in saved:
        if not name.startswith("random."):
            assert torch.allclose(saved[name], expected[name], atol=1e-4), name


@pytest.mark.slow
def test_all_processes_have_the_options_that_the_first_chooses_by_the_data(tmp_path):
    rows = [f"2026-01-01 {i // 60:02}:{i % 60:02},{i % 7}" for i in range(300)]
    (tmp_path / "series.csv").write_text("\n".join(["time,a", *rows]))
    for count in (1, 2):
        train(count, tmp_path / "series.csv", tmp_path / str(count), horizon=2)
    assert_close(tmp_path / "1", tmp_path / "2")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "extra"),
    [
        (2, {**SMALL_TRANSFORMER, **AVERAGED, "recompute": True}),
        (2, {**SMALL, **AVERAGED, "shared_vocab": True, "tied": "all", "strategy": "ddp"}),
        (4, {**SMALL, "shared_vocab": True, "tied": "all", "src_tokenizer": "char", **CHARS}),
        (4, {**SMALL, "preset": "self-attentive", "ema": 0.9}),
        (4, {**SMALL_TRANSFORMER, "tied": "output"}),
    ],
)
def test_options_of_training_work_with_processes(pairs, tmp_path, processes, extra):
    extra = {"strategy": "fsdp", **extra, "steps": 4, "eval_every": 2}
    train(1, pairs, tmp_path / "one", **{**extra, "recompute": False, "strategy": "auto"})
    train(processes, pairs, tmp_path / "several", **extra)
    assert_close(tmp_path / "one", tmp_path / "several")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((2, "fsdp"), (3, "fsdp")),
        ((1, "auto"), (2, "fsdp")),
        ((2, "fsdp"), (1, "auto")),
        ((2, "fsdp"), (2, "ddp")),
        ((2, "ddp"), (2, "fsdp")),
    ],
)
def test_a_run_goes_on_with_other_processes(pairs, whole_run, tmp_path, before, after):
    train(before[0], pairs, tmp_path / "run", **SMALL, strategy=before[1], steps=3)
    resume(after[0], tmp_path / "run", steps=6, strategy=after[1])
    assert_close(whole_run, tmp_path / "run")


@pytest.mark.long
@pytest.mark.slow
def test_torchrun_restarts_go_on(pairs, sharded_run, tmp_path):
    """A run that was killed after a checkpoint, and whose last one was not finished."""
    output = tmp_path / "run"
    train(2, pairs, output, **SMALL, strategy="fsdp", steps=4)
    (output / "README.md").unlink()
    (output / "checkpoints" / "step-00000004.json").unlink()
    whole = output / "checkpoints" / "step-00000003.safetensors"
    shutil.copy(whole, whole.with_name(".step-00000005.safetensors.0.part"))
    config = make_config({"data": str(pairs), **BRIEF, **SMALL, "strategy": "fsdp", "steps": 6})
    with pytest.raises(RunError, match="must be new"):
        start_run(config, output, quiet=True)
    record = json.loads((output / "config.json").read_text())
    record["config"]["steps"] = 6
    del record["checksum"]
    (output / "config.json").write_text(json.dumps(record))
    work = partial(start_run, config, output, quiet=True)
    assert run_processes(2, work, TORCHELASTIC_RESTART_COUNT=1) == [0, 0]
    assert weights(output).keys() == weights(sharded_run).keys()
    for name, weight in weights(output).items():
        assert torch.equal(weight, weights(sharded_run)[name]), name
    assert not list((output / "checkpoints").glob(".*"))


def test_a_launch_is_known_by_its_name_and_settings(tmp_path, monkeypatch):
    folder, config = RunFolder(tmp_path / "run"), make_config({"data": "pairs.tsv"})
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    assert not _is_restart(folder, config)
    folder.create()
    folder.write_config(config)
    assert not _is_restart(folder, config), "somebody else's run"
    folder.launch_file.write_text(json.dumps(_launch(config)))
    assert _is_restart(folder, config)
    assert not _is_restart(folder, make_config({"data": "others.tsv"}))
    monkeypatch.setenv("RANK", "1")
    assert not _is_restart(folder, config), "there is no checkpoint to read"
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "another")
    assert not _is_restart(folder, config)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    assert _is_restart(folder, config)
