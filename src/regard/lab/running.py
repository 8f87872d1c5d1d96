"""Runs experiments one after another; what one does, another does not suffer from."""

import importlib
import time
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Final, Protocol, runtime_checkable

from regard import lab
from regard.errors import ArgumentError
from regard.lab import results
from regard.lab.bench import Bench, plain
from regard.lab.experiment import Experiment

#: near matches of an unknown name that are offered
OFFERED: Final = 3
#: how alike they are at least; from 0 to 1
ALIKE: Final = 0.5


@runtime_checkable
class Watch(Protocol):
    """Who is told how the work goes."""

    def begins(self, name: str) -> None:
        """An experiment begins."""

    def piece(self, name: str, label: str, kept: bool) -> None:
        """A piece of it is there; `kept` says that it was there before."""

    def ends(self, name: str, sentence: str) -> None:
        """It is done, or it failed."""


@dataclass(frozen=True)
class Outcome:
    """How a run of experiments ended.

    Attributes:
        done: The experiments that were measured.
        failed: One sentence for each that was not.
        interrupted: Whether the user stopped it.
    """

    done: Sequence[str]
    failed: dict[str, str]
    interrupted: bool


def pick(names: Iterable[str]) -> list[str]:
    """The experiments called so, in the order of running; all of them if no name is given."""
    wanted = set(names)
    for name in wanted:
        if name not in lab.EXPERIMENTS:
            raise ArgumentError("NAME", "be an experiment", repr(name), _advice(name))
    return [name for name in lab.EXPERIMENTS if name in wanted or not wanted]


def find(name: str) -> Experiment:
    """An experiment by its name; only its own module is imported."""
    found: Experiment = importlib.import_module(lab.EXPERIMENTS[name]).EXPERIMENT
    return found


def run(names: Sequence[str], bench: Bench, folder: Path, watch: Watch) -> Outcome:
    """Measures experiments and keeps their results; one that fails leaves the others alone.

    Args:
        names: Which, in this order.
        bench: On what.
        folder: Results go into it, and the traceback of one that fails.
        watch: Is told how it goes.
    """
    done: list[str] = []
    failed: dict[str, str] = {}
    for name in names:
        watch.begins(name)
        try:
            sentence = _measure(name, bench, folder, watch)
            done.append(name)
        except KeyboardInterrupt:
            watch.ends(name, "stopped")
            return Outcome(done, failed, interrupted=True)
        except Exception as error:
            failed[name] = note_failure(error, folder, name)
            sentence = "failed"
        watch.ends(name, sentence)
    return Outcome(done, failed, interrupted=False)


def log_path(folder: Path, name: str) -> Path:
    """Where the traceback of an experiment that failed lies."""
    return folder / f"{name}.log"


def note_failure(error: Exception, folder: Path, name: str) -> str:
    """Writes the traceback to the experiment's log; a sentence that says so."""
    path = log_path(folder, name)
    first = next(iter(str(error).splitlines()), "").rstrip(".")
    said = f"{type(error).__name__}: {first}" if first else type(error).__name__
    sentence = f"{name} failed ({said})"
    trace = "".join(traceback.format_exception(error))
    path.write_text(f"{sentence}\n\n{trace}", encoding="utf-8")
    return sentence


def _measure(name: str, bench: Bench, folder: Path, watch: Watch) -> str:
    """Measures one and keeps its result; a sentence on how it went."""
    count: Counter[bool] = Counter()

    def finished(label: str, kept: bool) -> None:
        count[kept] += 1
        watch.piece(name, label, kept)

    start = time.perf_counter()
    data = plain(find(name).measure(replace(bench, finished=finished)))
    seconds = time.perf_counter() - start
    facts = results.gather(bench, name, seconds=seconds, pieces=count.total(), kept=count[True])
    results.save(results.Result(name, data, facts), folder)
    log_path(folder, name).unlink(missing_ok=True)
    return f"done in {seconds:.0f} s"


def _advice(name: str) -> str:
    spelled = name.replace("_", "-").lower()
    near = [known for known in lab.EXPERIMENTS if known.startswith(spelled)]
    near += get_close_matches(spelled, lab.EXPERIMENTS, OFFERED, ALIKE)
    names = list(dict.fromkeys(near))[:OFFERED] or list(lab.EXPERIMENTS)
    return f"try {', '.join(names)}; `regard lab --list` has them all"
