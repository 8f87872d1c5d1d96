"""Parts of a run without any training: its state on disk, its settings, workers and processes."""

import json
import re
import signal
import struct
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from safetensors.torch import save

from regard.errors import ArgumentError
from regard.training import RunError, RunFolder, make_config, setup
from regard.training.checkpoint import Checkpoint, save_checkpoint, tensor_file
from regard.training.console_reporter import ConsoleReporter
from regard.training.distributed import Processes
from regard.training.loop import StopRequest, _stop_on_signal
from regard.training.progress import Progress, RankedEvaluation
from regard.training.run import describe_limits, read_state
from regard.training.run_folder import RowLog
from regard.training.weights_file import (
    UnusableWeightsError,
    check_sizes,
    read_shapes,
    read_weights,
    write_weights,
)


@pytest.fixture
def folder(tmp_path):
    """A run that was evaluated at steps 1 and 2, of which the second is the best."""
    folder = RunFolder(tmp_path / "run")
    folder.create()
    folder.best.mkdir()
    for file in (folder.src_tokenizer_file, folder.tgt_tokenizer_file):
        file.write_text("{}")
    for step in (1, 2):
        write_weights(tensor_file(folder.best, step), {"w": torch.full((1,), float(step))})
        folder.append_metrics({"step": step})
    folder.write_model({"w": torch.full((1,), 2.0)})
    progress = Progress(
        step=3, evaluated=2, best=[RankedEvaluation(0.5, 2), RankedEvaluation(0.25, 1)], stale=4
    )
    checkpoint(folder, 3, progress)
    return folder


def checkpoint(folder, step, progress):
    logs = {log.path.name: log.seal() for log in (folder.metrics, folder.report)}
    numbers = {"progress": progress.as_numbers(), "logs": logs}
    save_checkpoint(folder.checkpoints, step, Checkpoint({"w": torch.ones(1)}, numbers))


def test_a_whole_run(folder):
    state = read_state(folder)
    assert (state.notes, state.damage, state.unusable) == ([], [], [])
    assert state.model_problem is None
    assert state.model_source == tensor_file(folder.best, 2)
    assert [found[:2] for found in state.progress.best] == [(0.5, 2), (0.25, 1)]
    assert state.seals["report.jsonl"] is None
    assert state.seals["metrics.jsonl"]["bytes"] == len(folder.metrics_file.read_bytes())
    state.check(accept_loss=False)


def test_the_model_is_restored_from_the_best_weights(folder):
    folder.model_file.unlink()
    state = read_state(folder)
    assert state.model_problem == "is missing"
    assert state.notes == [
        f"{folder.model_file} is missing, and is written again from {tensor_file(folder.best, 2)}."
    ]
    assert state.damage == []


def test_damaged_best_weights_are_forgotten(folder):
    tensor_file(folder.best, 1).write_bytes(b"x")
    state = read_state(folder)
    assert [found[:2] for found in state.progress.best] == [(0.5, 2)]
    assert state.unusable == [tensor_file(folder.best, 1)]
    assert state.damage[0][1] == "the weights of step 1, with dev score 0.25, are gone"
    with pytest.raises(RunError, match="go on with --accept-loss, and the weights of step 1"):
        state.check(accept_loss=False)
    state.check(accept_loss=True)


def test_results_without_a_checkpoint(folder, tmp_path):
    for path in folder.checkpoints.iterdir():
        path.unlink()
    (damage, *_) = read_state(folder).damage
    assert damage[0] == f"{folder.checkpoints} has no checkpoint"
    assert damage[1] == (
        "it trains from step 0 and replaces model.safetensors, best, 2 rows of metrics.jsonl"
    )
    empty = RunFolder(tmp_path / "other")
    empty.create()
    assert read_state(empty).damage == []
    empty.append_metrics({"step": 1})
    assert read_state(empty).damage[0][1].endswith(" replaces 1 row of metrics.jsonl")
    empty.metrics_file.unlink()
    empty.best.mkdir()
    assert read_state(empty).damage == []
    save_checkpoint(empty.checkpoints, 1, Checkpoint({"w": torch.ones(1)}, {}))
    (empty.checkpoints / "step-00000001.safetensors").write_bytes(b"x")
    (damage,) = read_state(empty).damage
    assert damage[0].endswith(" are damaged (step-00000001)")
    assert damage[1].endswith(" replaces all that it has learned")


def test_a_damaged_newest_checkpoint_costs_later_evaluations(folder):
    progress = Progress(step=9, evaluated=9)
    folder.append_metrics({"step": 9})
    checkpoint(folder, 9, progress)
    newest = folder.checkpoints / "step-00000009.safetensors"
    newest.write_bytes(b"x")
    state = read_state(folder)
    assert state.damage[0][1] == "it trains again from step 3 and makes the evaluations of 9 anew"
    assert state.unusable == [newest]
    assert state.progress.step == 3


def log_of(tmp_path, *steps):
    log = RowLog(tmp_path / "log.jsonl", lambda row: row["step"])
    for step in steps:
        log.append({"step": step})
    return log


def test_problems_of_logs(tmp_path):
    log = log_of(tmp_path, 1, 2)
    seal = log.seal()
    log.append({"step": 3})
    assert log.problem(seal) is None, "it may be longer"
    content = log.path.read_bytes()
    log.path.write_bytes(content[:20])
    assert log.problem(seal) == f"it has 20 bytes of {seal['bytes']}"
    log.path.write_bytes(content.replace(b"2", b"7"))
    assert log.problem(seal) == "a row was changed, and its content does not match its checksum"
    log.path.write_bytes(content.replace(b'"step": 2', b'"stop": 2'))
    assert log.problem(seal).startswith("line 2 is not a row of it, and its content")
    assert log.problem(None) == "line 2 is not a row of it"
    assert log.damaged_lines() == [2]
    log.path.unlink()
    assert log.problem(seal) == "it is missing"
    assert log.problem(None) is None
    assert log.seal() is None
    assert log.lines() == []
    log.cut(seal, 1)
    assert not log.path.exists()


def test_logs_are_cut_to_their_checkpoint(tmp_path):
    log = log_of(tmp_path, 1, 2)
    seal = log.seal()
    log.append({"step": 3})
    log.cut(seal, 0)
    assert [row["step"] for row in log.rows()] == [1, 2], "the seal counts, not the step"
    log.append({"step": 3})
    with open(log.path, "ab") as file:
        file.write(b"no row\n" + b'{"step": 4}')
    assert [number for number, _, _ in log.lines()] == [1, 2, 3, 4], "the last was cut off"
    log.cut(None, 2)
    assert log.path.read_bytes() == b'{"step": 1}\n{"step": 2}\n'
    before = log.path.stat().st_ino
    log.cut(None, 2)
    assert log.path.stat().st_ino == before, "nothing is written again"


def test_records_of_settings(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(RunError, match="must be a run folder, but it is no folder"):
        folder.read_config()
    folder.create()
    with pytest.raises(RunError, match=r"must be a run folder, but it has no config\.json"):
        folder.read_config()
    config = make_config({"data": "x.tsv", "seed": 7})
    folder.write_config(config)
    assert folder.started
    assert folder.read_config() == config
    record = json.loads(folder.config_file.read_text())

    def read(**changes):
        folder.config_file.write_text(json.dumps(record | changes))
        return folder.read_config()

    with pytest.raises(RunError, match="does not match its checksum"):
        read(regard="9.9")
    with pytest.raises(RunError, match="it has an entry 'more'"):
        read(more=1)
    checksum = record.pop("checksum")
    assert read().seed == 7, "records of old runs have no checksum"
    assert checksum
    with pytest.raises(RunError, match="it has no settings"):
        read(config=None)
    with pytest.raises(RunError, match=r"\(seed must be at least 0.*\): copy"):
        read(config={"seed": -1})
    del record["format"]
    with pytest.raises(RunError, match="does not say which format"):
        read()
    folder.config_file.write_text("{")
    with pytest.raises(RunError, match="cannot be read"):
        folder.read_config()


def test_weights_are_verified(tmp_path):
    path = tmp_path / "w.safetensors"
    path.write_bytes(save({"a": torch.ones(2, 3)}))
    assert read_weights(path)["a"].shape == (2, 3), "a file without metadata"
    assert read_shapes(path, inside=tmp_path) == {"a": (2, 3)}
    path.write_bytes(save({"a": torch.ones(2)}, metadata={"other": "1"}))
    with pytest.raises(UnusableWeightsError, match="its header has no checksum"):
        read_weights(path)
    for content, words in (
        (b"1234567", "claims .* bytes of 7"),
        (struct.pack("<Q", 1) + b"{}", "claims 1 bytes of 10"),
        (struct.pack("<Q", 3) + b"{}", "claims 3 bytes of 10"),
        (save({"a": torch.ones(2, dtype=torch.int32)}), "'a' does not hold floating point"),
    ):
        path.write_bytes(content)
        with pytest.raises(UnusableWeightsError, match=words):
            read_shapes(path, inside=tmp_path)
    path.write_bytes(struct.pack("<Q", 2) + b"{}")
    with pytest.raises(UnusableWeightsError):
        check_sizes({"hidden": 1}, read_shapes(path, inside=tmp_path))


@pytest.mark.parametrize(
    ("settings", "progress", "words"),
    [
        ({"steps": 5}, {"step": 5}, "steps=5 .* steps=10"),
        ({"epochs": 2}, {"epoch": 2, "step": 9}, "epochs=2 .* epochs=4"),
        ({"minutes": 1.5}, {"seconds": 90.0, "step": 9}, r"minutes=1\.5 .* minutes=3"),
        ({"steps": 5, "epochs": 2}, {"step": 5, "epoch": 2}, "epochs=2 and steps=5 "),
        ({"patience": 3, "steps": 99}, {"step": 9, "stale": 3}, "patience=3.* patience=6"),
        ({"steps": 99}, {"step": 9}, "steps=9 .* steps=18"),
        ({"epochs": 3, "minutes": 2}, {"epoch": 2, "seconds": 119.0, "step": 7}, "steps=7 "),
        (
            {"steps": 99},
            {"step": 10, "evaluated": 10, "improved": 6, "stale": 2},
            "patience=2.* patience=4",
        ),
    ],
)
def test_limits_that_were_reached(settings, progress, words, tmp_path):
    said = describe_limits(make_config(settings), Progress(**progress), tmp_path)
    head, _, command = said.partition(str(tmp_path))
    assert re.search(words, head + command)


def test_pipes_are_refused(monkeypatch):
    monkeypatch.setattr(setup, "is_read_once", lambda file: file == "pipe")
    setup._check_files(make_config({"data": "file", "dev": "file"}))
    setup._check_files(make_config({"data": "-"}))
    setup._check_files(make_config({}))
    for given in ({"data": "pipe"}, {"data": ["file", "pipe"]}, {"data": "file", "dev": "pipe"}):
        with pytest.raises(ArgumentError, match="be a file that can be read more than once") as e:
            setup._check_files(make_config(given))
        assert ("or pipe it to" in str(e.value)) == ("dev" not in given)


def processes(count, *, first=True):
    found = object.__new__(Processes)
    found.count, found.is_first, found.rank = count, first, 0 if first else 1
    found.fabric = SimpleNamespace(all_reduce=lambda mine, reduce_op: 2 * mine)
    return found


def test_stop_requests(monkeypatch, default_signals):
    """A second signal within a second counts as the first; a later one stops at once."""
    clock, asked = SimpleNamespace(now=5.0, monotonic=lambda: clock.now), []
    monkeypatch.setattr("regard.training.loop.time", clock)
    monkeypatch.setattr(ConsoleReporter, "stopping", lambda self: asked.append(1))
    reporter = ConsoleReporter(Console(quiet=True), lambda progress: 0.0)
    before = signal.getsignal(signal.SIGTERM)
    assert StopRequest() == StopRequest(asked=False, at=0.0, number=signal.SIGINT)
    with _stop_on_signal(reporter) as stop:
        assert not stop.asked
        signal.raise_signal(signal.SIGTERM)
        assert (stop.asked, stop.at, stop.number) == (True, 5.0, signal.SIGTERM)
        clock.now = 6.0
        signal.raise_signal(signal.SIGINT)
        assert (stop.number, asked) == (signal.SIGTERM, [1])
        clock.now = 6.1
        if hasattr(signal, "SIGHUP"):
            signal.raise_signal(signal.SIGHUP)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before
