"""Checkpoints that survive being killed: written aside, synced, renamed, and checked when read.

A checkpoint is two files: `step-N.safetensors` with every tensor, and `step-N.json`, written after
it, with every number and the checksum of the first. Neither is a pickle.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from regard import safe_read
from regard.atomic_files import content_checksum, write_atomic
from regard.errors import RegardError
from regard.training.weights_file import physical_memory

KEPT: Final = 2
NAME: Final = r"(step-\d+)\.(?:safetensors|json)"


class CheckpointError(RegardError):
    """The checkpoints of a run cannot be read, whether they are whole or not."""


class Checkpoint(NamedTuple):
    """Tensors by name, and everything else."""

    tensors: dict[str, Tensor]
    numbers: dict[str, Any]


class Found(NamedTuple):
    """The checkpoints of a folder.

    Attributes:
        checkpoint: the newest that is whole, or None.
        complaints: a sentence for each one that is not whole.
        damaged: names of finished checkpoints that are newer than that and no longer whole. A kill
            leaves none of these: it leaves unfinished ones.
    """

    checkpoint: Checkpoint | None
    complaints: list[str]
    damaged: list[str]


def save_checkpoint(folder: Path, step: int, checkpoint: Checkpoint, *, kept: int = KEPT) -> Path:
    """Write a checkpoint and remove others until `kept` are left, unfinished ones first."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: t.detach().cpu().contiguous() for name, t in checkpoint.tensors.items()}
    content = save(tensors)
    path = folder / f"step-{step:08d}.safetensors"
    checksum = content_checksum(content)
    record = {"step": step, "checksum": checksum, "numbers": checkpoint.numbers}
    if not _holds(path, checksum):
        path.with_suffix(".json").unlink(missing_ok=True)  # it is of other tensors
        write_atomic(path, content)
    text = json.dumps(record, sort_keys=True)
    sealed = json.dumps(
        {"record": record, "checksum": content_checksum(text.encode())}, sort_keys=True
    )
    write_atomic(path.with_suffix(".json"), sealed.encode())
    others = [other for other in _paths(folder) if other != path]
    finished = [other for other in others if _is_finished(other)]
    for old in set(others).difference(finished[: kept - 1]):
        remove_tensors(old)
    for leftover in folder.glob(".*.part"):
        leftover.unlink(missing_ok=True)
    return path


def remove_tensors(path: Path) -> None:
    """Remove a file of tensors, and the record of a checkpoint."""
    path.with_suffix(".json").unlink(missing_ok=True)  # first: without it the other is unfinished
    path.unlink(missing_ok=True)


def has_checkpoint(folder: Path) -> bool:
    """Whether any was finished, be it whole or damaged by now."""
    return any(map(_is_finished, _paths(folder)))


def load_checkpoint(folder: Path) -> Found:
    """Read the newest checkpoint that is whole, and verify those beside it.

    Raises CheckpointError for files that may not be read: these need not be damaged.
    """
    found: Checkpoint | None = None
    complaints: list[str] = []
    damaged: list[str] = []
    try:
        for path in _paths(folder):
            if not _is_finished(path):
                if found is None:
                    complaints.append(f"checkpoint {path.stem} was never finished and is not used.")
                continue
            try:
                content, numbers = _verified(path)
                found = Checkpoint(load(content), numbers) if found is None else found
            except (ValueError, KeyError, TypeError, SafetensorError, FileNotFoundError) as error:
                complaints.append(f"checkpoint {path.stem} is damaged ({error}) and is not used.")
                if found is None:
                    damaged.append(path.stem)
    except OSError as error:
        raise CheckpointError(
            f"{error.filename or folder} must be readable to go on with a run, but it is not "
            f"({error.strerror or error}): check its permissions and the disk."
        ) from None
    return Found(found, complaints, damaged)


def _paths(folder: Path) -> list[Path]:
    """Return the tensor files, newest first, of every checkpoint of which any file is there."""
    try:
        names = os.listdir(folder)  # `glob` would find nothing where it may not look
    except FileNotFoundError:
        return []
    stems = {match[1] for name in names if (match := re.fullmatch(NAME, name))}
    newest_first = sorted(stems, key=lambda stem: int(stem.removeprefix("step-")), reverse=True)
    return [folder / f"{stem}.safetensors" for stem in newest_first]


def _is_finished(path: Path) -> bool:
    """Whether a tensor file has its record, which is written after it."""
    return path.with_suffix(".json").exists()


def _holds(path: Path, checksum: str) -> bool:
    """Whether a finished checkpoint has these tensors already."""
    try:
        return _is_finished(path) and content_checksum(path.read_bytes()) == checksum
    except OSError:
        return False


def _verified(path: Path) -> tuple[bytes, dict[str, Any]]:
    """Return the content of a tensor file and its numbers; raises unless both are whole."""
    record = path.with_suffix(".json")
    for file, limit in ((record, safe_read.MAX_JSON), (path, physical_memory())):
        if not file.is_file():
            raise ValueError(f"{file.name} is not a regular file")
        if file.stat().st_size > limit:
            raise ValueError(f"{file.name} has {file.stat().st_size:,} bytes, more than {limit:,}")
    sealed = safe_read.parse_json(record.read_bytes())
    text = json.dumps(sealed["record"], sort_keys=True)
    if content_checksum(text.encode()) != sealed["checksum"]:
        raise ValueError("its record does not match its checksum")
    content = path.read_bytes()
    if content_checksum(content) != sealed["record"]["checksum"]:
        raise ValueError("its tensors do not match their checksum")
    return content, sealed["record"]["numbers"]


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
