"""Checkpoints: what is written is read, and what is damaged is noticed."""

import errno
import json
import os
import random

import pytest
import torch

from regard.training.checkpoint import (
    Checkpoint,
    CheckpointError,
    _averaged,
    has_checkpoint,
    load_checkpoint,
    save_checkpoint,
)


def make(step):
    tensors = {
        "weights": torch.full((3, 5), float(step)),
        "turned": torch.arange(14).reshape(2, 7).T,
        "half": torch.ones(11, dtype=torch.bfloat16),
    }
    return Checkpoint(tensors, {"progress": {"step": step, "score": 1 / 3}, "scaler": None})


@pytest.fixture
def folder(tmp_path):
    """Two checkpoints, of steps 1 and 2."""
    for step in (1, 2):
        save_checkpoint(tmp_path / "checkpoints", step, make(step))
    return tmp_path / "checkpoints"


def step_of(checkpoint):
    return checkpoint.numbers["progress"]["step"]


def test_a_pair_that_was_not_finished(folder):
    tensors = (folder / "step-00000002.safetensors").read_bytes()
    (folder / "step-00000003.safetensors").write_bytes(tensors)
    found, complaints, damaged = load_checkpoint(folder)
    assert step_of(found) == 2
    assert complaints == ["checkpoint step-00000003 was never finished and is not used."]
    assert damaged == [], "a kill may leave it"


def test_none_that_was_finished(tmp_path):
    """What kills leave that come before the first checkpoint is whole: the run has to start."""
    for step in (3, 4):
        (tmp_path / f"step-{step:08d}.safetensors").write_bytes(b"whole, without a record")
    assert not has_checkpoint(tmp_path)
    found, complaints, damaged = load_checkpoint(tmp_path)
    assert damaged == []
    assert found is None
    assert complaints == [
        f"checkpoint step-0000000{step} was never finished and is not used." for step in (4, 3)
    ]
    save_checkpoint(tmp_path, 2, make(2))
    assert has_checkpoint(tmp_path)
    assert step_of(load_checkpoint(tmp_path)[0]) == 2
    found = sorted(path.name for path in tmp_path.iterdir())
    assert found == ["step-00000002.json", "step-00000002.safetensors"]


def check_that_the_first_is_used(folder):
    found, complaints, damaged = load_checkpoint(folder)
    assert step_of(found) == 1
    assert torch.equal(found.tensors["weights"], make(1).tensors["weights"])
    (sentence,) = complaints
    assert sentence.startswith("checkpoint step-00000002 is damaged (")
    assert sentence.endswith(") and is not used.")
    assert "\n" not in sentence
    assert damaged == ["step-00000002"]


def test_damage_of_the_older_one_is_named_and_costs_nothing(folder):
    path = folder / "step-00000001.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    found, (sentence,), damaged = load_checkpoint(folder)
    assert step_of(found) == 2
    assert "step-00000001 is damaged" in sentence
    assert damaged == []


@pytest.mark.parametrize("end", ["safetensors", "json"])
@pytest.mark.parametrize("seed", range(4))
def test_a_flipped_bit(folder, end, seed):
    path, draw = folder / f"step-00000002.{end}", random.Random(seed)
    content = bytearray(path.read_bytes())
    place, bit = draw.randrange(len(content)), draw.randrange(8)
    content[place] ^= 1 << bit
    path.write_bytes(content)
    if end == "json" and same_record(content, folder):
        return  # a space or the case of an escape: the record says what it said
    check_that_the_first_is_used(folder)


def same_record(content, folder):
    save_checkpoint(folder / "whole", 2, make(2))
    try:
        return json.loads(content) == json.loads((folder / "whole/step-00000002.json").read_bytes())
    except ValueError:
        return False


@pytest.mark.parametrize("name", ["checkpoints", "step-00000002.json", "step-00000002.safetensors"])
def test_no_permission_is_not_damage(folder, name, monkeypatch):
    """As root everything may be read, so that the refusal is played."""
    refused = folder if name == "checkpoints" else folder / name
    listdir, read = os.listdir, os.open

    def refuse(path):
        if str(path) == str(refused):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("os.listdir", lambda path: refuse(path) or listdir(path))
    monkeypatch.setattr("os.open", lambda path, *rest: refuse(path) or read(path, *rest))
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(folder)
    said = str(caught.value)
    assert said.startswith(f"{refused} must be readable")
    assert "(Permission denied)" in said
    assert said.endswith(": check its permissions and the disk.")
    assert "damaged" not in said
    assert "remove" not in said


def test_the_same_step_twice_with_other_tensors(folder, monkeypatch):
    """Between the two files the pair is unfinished, never a record of other tensors."""
    seen = []
    replace = os.replace

    def look(source, target):
        seen.append(sorted(path.name for path in folder.glob("step-00000002.*")))
        replace(source, target)

    monkeypatch.setattr(os, "replace", look)
    save_checkpoint(folder, 2, make(3))
    assert seen == [["step-00000002.safetensors"]] * 2
    seen.clear()
    save_checkpoint(folder, 2, make(3))
    assert seen == [["step-00000002.json", "step-00000002.safetensors"]], "one file is enough"


def test_a_step_has_the_average_of_its_weights_also_for_a_shared_one():
    own = {"a": torch.ones(2, 3), "shared": torch.ones(2, 3), "buffer": torch.zeros(5)}
    found = _averaged(own, {"a": torch.full((2, 3), 7.0)})
    assert {name: weight[0].sum().item() for name, weight in found.items() if weight.ndim > 1} == {
        "a": 21.0,
        "shared": 21.0,
    }
    assert torch.equal(found["buffer"], own["buffer"])
