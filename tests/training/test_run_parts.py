"""Parts of a run without any training: its state on disk, its settings, workers and processes."""

import json
import re
import struct

import pytest
import torch
from safetensors.torch import save

from regard.training import RunError, RunFolder, make_config
from regard.training.row_log import RowLog
from regard.training.run import describe_limits
from regard.training.schedule import Progress
from regard.training.weights_file import (
    UnusableWeightsError,
    check_sizes,
    read_shapes,
    read_weights,
)


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
    check_sizes({"max_positions": 9, "positions": "rotary"}, {})


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
