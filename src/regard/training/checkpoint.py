"""Checkpoints that survive being killed: written aside, synced, renamed, and checked when read.

A checkpoint is two files: `step-N.safetensors` with every tensor, and `step-N.json`, written after
it, with every number and the checksum of the first. Neither is a pickle.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from regard.data.files import write_whole
from regard.errors import RegardError

KEPT: Final = 2


class CheckpointError(RegardError):
    """No checkpoint of a run can be read."""


class Checkpoint(NamedTuple):
    """Tensors by name, and everything else."""

    tensors: dict[str, Tensor]
    numbers: dict[str, Any]


def save_checkpoint(folder: Path, step: int, checkpoint: Checkpoint, *, kept: int = KEPT) -> Path:
    """Writes a checkpoint and removes others until `kept` are left, unfinished ones first."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: t.detach().cpu().contiguous() for name, t in checkpoint.tensors.items()}
    content = save(tensors)
    path = folder / f"step-{step:08d}.safetensors"
    write_whole(path, content)
    record = {"step": step, "checksum": _checksum(content), "numbers": checkpoint.numbers}
    text = json.dumps(record, sort_keys=True)
    sealed = json.dumps({"record": record, "checksum": _checksum(text.encode())}, sort_keys=True)
    write_whole(path.with_suffix(".json"), sealed.encode())
    others = [other for other in _paths(folder) if other != path]
    finished = [other for other in others if _is_finished(other)]
    for old in set(others).difference(finished[: kept - 1]):
        old.with_suffix(".json").unlink(missing_ok=True)
        old.unlink(missing_ok=True)
    for leftover in folder.glob(".*.part"):
        leftover.unlink(missing_ok=True)
    return path


def has_checkpoint(folder: Path) -> bool:
    """Whether any was finished, be it whole or damaged by now."""
    return any(map(_is_finished, _paths(folder)))


def load_checkpoint(folder: Path) -> tuple[Checkpoint | None, list[str]]:
    """The newest checkpoint that is whole, and a sentence for each newer one that is not.

    None if none was ever finished, which is what a kill in the middle of the first one leaves; an
    error if some were and all of them are damaged.
    """
    if not has_checkpoint(folder):
        begun = [path.stem for path in _paths(folder)]
        return None, [f"checkpoint {stem} was never finished and is not used." for stem in begun]
    complaints: list[str] = []
    for path in _paths(folder):
        try:
            return _read(path), complaints
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            complaints.append(
                f"checkpoint {path.stem} is damaged ({error}); the one before it is used."
            )
    raise CheckpointError(
        f"{folder} must hold a checkpoint that can be read, but all {len(complaints)} are "
        f"damaged: remove the folder to start afresh."
    )


def _paths(folder: Path) -> list[Path]:
    """Tensor files, newest first."""
    found = [p for p in folder.glob("step-*.safetensors") if re.fullmatch(r"step-\d+", p.stem)]
    return sorted(found, reverse=True)


def _is_finished(path: Path) -> bool:
    """Whether a tensor file has its record, which is written after it."""
    return path.with_suffix(".json").exists()


def _read(path: Path) -> Checkpoint:
    sealed = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
    text = json.dumps(sealed["record"], sort_keys=True)
    if _checksum(text.encode()) != sealed["checksum"]:
        raise ValueError("its record does not match its checksum")
    content = path.read_bytes()
    if _checksum(content) != sealed["record"]["checksum"]:
        raise ValueError("its tensors do not match their checksum")
    return Checkpoint(load(content), sealed["record"]["numbers"])


def _checksum(content: bytes) -> str:
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def pack_optimizer(optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """An optimiser's state as tensors by name; its rates follow from the step."""
    return {
        f"{index}.{name}": value
        for index, slots in optimizer.state_dict()["state"].items()
        for name, value in slots.items()
    }


def unpack_optimizer(optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]) -> None:
    """Puts back what `pack_optimizer` has taken."""
    state = optimizer.state_dict()
    slots: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        index, name = key.split(".", 1)
        slots.setdefault(int(index), {})[name] = value
    optimizer.load_state_dict({"state": slots, "param_groups": state["param_groups"]})


def random_states(device: torch.device) -> dict[str, Tensor]:
    """The states of torch's random generators, of the CPU and of the device of this process."""
    states = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_random_states(states: Mapping[str, Tensor], device: torch.device) -> None:
    """Puts back what `random_states` has taken."""
    torch.set_rng_state(states["cpu"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
