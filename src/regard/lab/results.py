"""Results on the disk: what was measured, and where, when and how."""

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from regard import checkout
from regard.atomic_files import atomic_output
from regard.lab.bench import Bench, plain
from regard.lab.experiment import Data
from regard.version import __version__

FOLDER: Final = "results"


@dataclass(frozen=True)
class Result:
    """What an experiment measured.

    Attributes:
        name: Of the experiment.
        data: What was measured.
        facts: Machine, versions, device, seeds, time and command.
    """

    name: str
    data: Data
    facts: Mapping[str, Any]


def save(result: Result, folder: Path) -> None:
    """Writes a result where `load` finds it."""
    path = _path(folder, result.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_output(path) as file:
        file.write(json.dumps(plain(asdict(result)), indent=1, ensure_ascii=False).encode())


def load(folder: Path, name: str) -> Result | None:
    """The result of an experiment; None where there is none, or the file is broken."""
    try:
        kept = json.loads(_path(folder, name).read_text(encoding="utf-8"))
        return Result(kept["name"], kept["data"], kept["facts"])
    except (OSError, ValueError, LookupError, TypeError):  # to be measured again
        return None


def gather(bench: Bench, name: str, *, seconds: float, pieces: int, kept: int) -> dict[str, Any]:
    """The facts of a measurement.

    Args:
        bench: On which it ran.
        name: Of the experiment.
        seconds: How long it took.
        pieces: How many pieces of work it has.
        kept: How many of them were kept from before, and took no time.
    """
    return {
        "command": _command(bench, name),
        "mode": bench.choose("quick", "full"),
        "seeds": list(bench.seeds),
        "device": _device(bench.device),
        "machine": f"{_processor()}, {os.cpu_count()} cores, {platform.system()}",
        "threads": torch.get_num_threads(),
        "versions": {
            "regard": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
        "commit": _commit(),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 2),
        "pieces": pieces,
        "kept_pieces": kept,
    }


def _path(folder: Path, name: str) -> Path:
    return folder / FOLDER / f"{name}.json"


def _command(bench: Bench, name: str) -> str:
    """What repeats this measurement elsewhere: no path of this machine is in it."""
    mode = bench.choose("--quick", "--full")
    words = f"regard lab {name} {mode} --seeds {len(bench.seeds)} --device {bench.device}"
    return words + (" --data DATA" if bench.data is not None else "")


def _device(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _processor() -> str:
    """What Linux calls the processor, or else what Python does."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _commit() -> str | None:
    """The commit of this code, if it is kept in a git tree; `+` where it was changed since."""
    if (commit := checkout.given()) is not None:
        return commit
    commit = checkout.git("rev-parse", "HEAD")
    package = str(checkout.HERE.parent)
    changed = checkout.git("status", "--porcelain", "--untracked-files=no", "--", package)
    return f"{commit}+" if commit and changed else commit
