"""Run experiments one after another and save what they measured."""

import importlib
import json
import os
import platform
import time
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
import torch

from regard import checkout, lab, safe_read
from regard.atomic_files import atomic_output
from regard.errors import ArgumentError
from regard.lab.context import ExperimentContext, device_name, to_json_types
from regard.lab.experiment import Data, Experiment, describe
from regard.messages import message
from regard.version import __version__

RESULTS_DIR: Final = "results"
#: number of similar names that are suggested for an unknown one
MAX_SUGGESTIONS: Final = 3
#: lowest similarity of a suggestion, from 0 to 1
MIN_SIMILARITY: Final = 0.5


@runtime_checkable
class RunObserver(Protocol):
    """Receives the progress of a run."""

    def on_start(self, name: str) -> None:
        """Called when an experiment starts."""

    def on_piece(self, name: str, label: str) -> None:
        """Called when a piece of it is finished."""

    def on_end(self, name: str, status: str) -> None:
        """Called when it has finished or failed."""


@dataclass(frozen=True)
class RunOutcome:
    """Outcome of a run of several experiments.

    Attributes:
        done: names of the experiments that were measured.
        failed: one sentence for each that failed.
        interrupted: whether the user stopped the run.
    """

    done: Sequence[str]
    failed: dict[str, str]
    interrupted: bool


@dataclass(frozen=True)
class ExperimentResult:
    """Measured data of an experiment with its provenance.

    Attributes:
        name: name of the experiment.
        data: what was measured.
        facts: machine, versions, device, seeds, time and command.
    """

    name: str
    data: Data
    facts: Mapping[str, Any]


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


def run(
    names: Sequence[str], context: ExperimentContext, folder: Path, observer: RunObserver
) -> RunOutcome:
    """Measure experiments and save their results; a failure does not stop the others.

    Args:
        names: experiments, in the order of running.
        context: settings of the run.
        folder: receives the results, and the traceback of an experiment that fails.
        observer: receives the progress.
    """
    done: list[str] = []
    failed: dict[str, str] = {}
    for name in names:
        observer.on_start(name)
        try:
            status = _measure(name, context, folder, observer)
            done.append(name)
        except KeyboardInterrupt:
            observer.on_end(name, message("lab.stopped"))
            return RunOutcome(done, failed, interrupted=True)
        except Exception as error:
            failed[name] = log_failure(error, folder, name)
            status = message("lab.failed")
        observer.on_end(name, status)
    return RunOutcome(done, failed, interrupted=False)


def _measure(name: str, context: ExperimentContext, folder: Path, observer: RunObserver) -> str:
    """Measure one experiment, save its result and return its status."""
    start = time.perf_counter()
    watched = replace(context, on_piece=partial(observer.on_piece, name))
    data = to_json_types(find(name).measure(watched))
    seconds = time.perf_counter() - start
    facts = _facts(context, name, seconds=seconds)
    save(ExperimentResult(name, data, facts), folder)
    log_path(folder, name).unlink(missing_ok=True)
    return message("lab.done", seconds=seconds)


def log_path(folder: Path, name: str) -> Path:
    """Return the path of the traceback of a failed experiment."""
    return folder / f"{name}.log"


def log_failure(error: Exception, folder: Path, name: str) -> str:
    """Write the traceback to the log of an experiment and return a sentence about the failure."""
    first = next(iter(str(error).splitlines()), "").rstrip(".")
    reason = f"{type(error).__name__}: {first}" if first else type(error).__name__
    sentence = f"{name} failed ({reason})"
    trace = "".join(traceback.format_exception(error))
    log_path(folder, name).write_text(f"{sentence}\n\n{trace}", encoding="utf-8")
    return sentence


def save(result: ExperimentResult, folder: Path) -> None:
    """Write a result to the folder, where `load` finds it."""
    path = _result_path(folder, result.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_output(path) as file:
        text = json.dumps(to_json_types(asdict(result)), indent=1, ensure_ascii=False)
        file.write(text.encode())


def load(folder: Path, name: str) -> ExperimentResult | None:
    """Return the result of an experiment, or None if it is missing or damaged."""
    try:
        saved = safe_read.read_json(_result_path(folder, name))
        return ExperimentResult(saved["name"], saved["data"], saved["facts"])
    except (OSError, ValueError, LookupError, TypeError):  # it has to be measured again
        return None


def _result_path(folder: Path, name: str) -> Path:
    return folder / RESULTS_DIR / f"{name}.json"


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
    }


def _processor() -> str:
    """Return the processor's name from Linux, or else from Python."""
    try:
        with safe_read.open_regular("/proc/cpuinfo") as file:  # whose size is said to be 0
            lines = file.read(1 << 20).decode().splitlines()
    except (OSError, ValueError):
        lines = []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _commit() -> str | None:
    """Return the commit of this code if it is in a git tree; `+` marks uncommitted changes."""
    if (commit := checkout.given()) is not None:
        return commit
    commit = checkout.git("rev-parse", "HEAD")
    package = str(checkout.HERE.parent)
    changed = checkout.git("status", "--porcelain", "--untracked-files=no", "--", package)
    return f"{commit}+" if commit and changed else commit
