"""Run experiments one after another and save what they measured."""

import importlib
import json
import os
import platform
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from regard import checkout, lab, safe_read
from regard.atomic_files import atomic_output
from regard.errors import ArgumentError
from regard.lab.context import ExperimentContext, device_name
from regard.lab.experiment import Experiment, describe
from regard.version import __version__

RESULTS_DIR: Final = "results"
#: number of similar names that are suggested for an unknown one
MAX_SUGGESTIONS: Final = 3
#: lowest similarity of a suggestion, from 0 to 1
MIN_SIMILARITY: Final = 0.5


SavedResult = dict[str, Any]
"""Measured `data` of an experiment with its `name` and its `facts`: where and how it was run."""


def pick(names: Iterable[str]) -> list[str]:
    """Return the named experiments in the order of running; all of them for no names."""
    wanted = set(names)
    for name in wanted:
        if name not in lab.EXPERIMENTS:
            raise ArgumentError("NAME", "be an experiment", repr(name), _suggestion(name))
    return [name for name in lab.EXPERIMENTS if name in wanted or not wanted]


def _suggestion(name: str) -> str:
    spelled = name.replace("_", "-").lower()
    near = [known for known in lab.EXPERIMENTS if known.startswith(spelled)]
    near += get_close_matches(spelled, lab.EXPERIMENTS, MAX_SUGGESTIONS, MIN_SIMILARITY)
    names = list(dict.fromkeys(near))[:MAX_SUGGESTIONS] or list(lab.EXPERIMENTS)
    return f"try {', '.join(names)}; `regard lab --list` has them all"


def find(name: str) -> Experiment:
    """Return an experiment by name, importing its module alone."""
    return describe(name, importlib.import_module(lab.EXPERIMENTS[name]))


def measure(name: str, context: ExperimentContext, folder: Path) -> float:
    """Measure an experiment, save its result, and return the seconds that it took."""
    start = time.perf_counter()
    data = find(name).measure(context)
    seconds = time.perf_counter() - start
    result = {"name": name, "data": data, "facts": _facts(context, name, seconds=seconds)}
    path = folder / RESULTS_DIR / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_output(path) as file:
        file.write(json.dumps(safe_read.json_value(result), indent=1, ensure_ascii=False).encode())
    return seconds


def load(folder: Path, name: str) -> SavedResult | None:
    """Return the result of an experiment, or None if it is missing or damaged."""
    try:
        saved = safe_read.read_json(folder / RESULTS_DIR / f"{name}.json")
        return {key: saved[key] for key in ("name", "data", "facts")}
    except (OSError, ValueError, LookupError, TypeError):  # it has to be measured again
        return None


def _facts(context: ExperimentContext, name: str, *, seconds: float) -> dict[str, Any]:
    """Return where, when and how an experiment was measured; its keys are those of the file."""
    mode = context.choose("quick", "full")
    # no path of this machine is part of the command, so that it can be repeated elsewhere
    command = f"regard lab {name} --{mode} --seeds {len(context.seeds)} --device {context.device}"
    return {
        "command": command + (" --data DATA" if context.data is not None else ""),
        "mode": mode,
        "seeds": list(context.seeds),
        "device": device_name(context.device),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
        "threads": torch.get_num_threads(),
        "versions": {
            "regard": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
        },
        "commit": checkout.given() or checkout.git("rev-parse", "HEAD"),
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "seconds": round(seconds, 2),
    }
