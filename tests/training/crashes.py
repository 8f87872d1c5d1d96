"""Breaks training runs on purpose: stopped at one file operation, or with a flipped bit of a file.

A run that was stopped is resumed, and its weights, metrics and report must be those of a run that
nothing has stopped. A flipped bit must be noticed by name when the run is loaded or resumed.
Everything is forked from one process that has imported torch already.
"""

import builtins
import io
import json
import multiprocessing
import os
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console

from regard.errors import RegardError
from regard.training import RunFolder, make_config, resume_run, start_run
from training.tools import import_all, write_pairs

#: a model so small that what takes time is what a run does around it
SETTINGS = {
    "size": "tiny",
    "hidden": 8,
    "embed": 4,
    "dropout": 0.2,
    "batch_sentences": 8,
    "steps": 8,
    "eval_every": 3,
    "save_every": 2,
    "warmup": 2,
    "average": 2,
    "precision": "32",
    "device": "cpu",
    "max_tgt_len": 8,
}
KILLED = 77
FORK = multiprocessing.get_context("fork")


class Verdict(NamedTuple):
    """What came of one trial; `problem` is empty if all is as it must be."""

    name: str
    problem: str


def run(data: Path, output: Path) -> None:
    """Starts a run, or goes on with it if it has begun."""
    torch.set_num_threads(1)
    if RunFolder(output).started:
        resume_run(output, quiet=True)
    else:
        start_run(make_config({"data": str(data), **SETTINGS}), output, quiet=True)


def results(output: Path) -> dict[str, Any]:
    """All that must be the same: but for the clock, every byte."""
    folder = RunFolder(output)
    weights = [folder.model_file, *sorted(folder.best.glob("*"))]
    weights += sorted(folder.checkpoints.glob("*.safetensors"))
    metrics = [json.loads(line) for line in folder.metrics_file.read_text().splitlines()]
    report = [json.loads(line) for line in folder.report.path.read_text().splitlines()]
    for row in (*metrics, *(line["row"] for line in report)):
        row.pop("seconds")
        row.pop("evaluation_seconds", None)
    for line in report:
        line.pop("start")  # the step of the last resume, which the page marks
    found = {str(path.relative_to(output)): path.read_bytes() for path in weights}
    return found | {"metrics.jsonl": metrics, "report.jsonl": report, "done": folder.finished}


def different(output: Path, expected: dict[str, Any]) -> str:
    """The first thing that is not as expected."""
    try:
        found = results(output)
    except (OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    names = [n for n in found.keys() | expected.keys() if found.get(n) != expected.get(n)]
    return f"other {min(names)}" if names else ""


def aside(work: Callable[[], None]) -> int:
    """Runs something in a fork; its exit code, or minus the signal."""
    process = FORK.Process(target=_silently, args=(work,))
    process.start()
    process.join(300)
    return -1000 if process.exitcode is None else process.exitcode


def _silently(work: Callable[[], None]) -> None:
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - until the process ends
    work()


def _resumed(name: str, data: Path, output: Path, expected: dict[str, Any]) -> Verdict:
    code = aside(lambda: run(data, output))
    problem = different(output, expected) if code == 0 else f"resuming it ends with {code}"
    shutil.rmtree(output, ignore_errors=not problem)
    return Verdict(name, problem)


class Operations:
    """Counts what changes files below a folder, and stops at one such operation.

    Args:
        home: the folder.
        stop_at: the number of the operation, counted from 1; 0 for none.
        how: "kill" ends the process before it, "after" ends it after it, "fail" lets it raise.
    """

    def __init__(self, home: Path, stop_at: int = 0, how: str = "kill") -> None:
        self.home, self.stop_at, self.how = str(home), stop_at, how
        self.names: list[str] = []

    def install(self) -> None:
        """Puts itself in the way of this process."""
        for module, name in (
            *((os, name) for name in ("replace", "rename", "unlink", "remove", "mkdir", "rmdir")),
            (os, "fsync"),
            (builtins, "open"),
        ):
            setattr(module, name, self._guarded(name, getattr(module, name)))
        io.open = builtins.open

    def _guarded(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def guarded(*args: Any, **more: Any) -> Any:
            if not self._counts(name, args, more):
                return function(*args, **more)
            self.names.append(name)
            here = len(self.names) == self.stop_at
            if here and self.how == "kill":
                os._exit(KILLED)
            if here and self.how == "fail":
                raise OSError(5, "Input/output error", str(args[0]))
            try:
                return function(*args, **more)
            finally:  # a file that is to be removed need not be there
                if here:
                    os._exit(KILLED)

        return guarded

    def _counts(self, name: str, args: tuple[Any, ...], more: dict[str, Any]) -> bool:
        if name == "fsync":
            return True
        if name == "open":
            mode = args[1] if len(args) > 1 else more.get("mode", "r")
            if not set(mode) & set("wax+"):
                return False
        return isinstance(args[0], str | Path) and str(args[0]).startswith(self.home)


def operations(data: Path, home: Path) -> list[str]:
    """The operations of a whole run."""
    reader, writer = FORK.Pipe(duplex=False)
    output = home / "counted"

    def work() -> None:
        counted = Operations(output)
        counted.install()
        run(data, output)
        writer.send(counted.names)

    assert aside(work) == 0
    shutil.rmtree(output)
    return list(reader.recv())


def stopped(data: Path, home: Path, expected: dict[str, Any], point: int, how: str) -> Verdict:
    """Stops a run at one operation, and lets it go on."""
    output = home / f"{how}-{point}"

    def work() -> None:
        Operations(output, point, how).install()
        run(data, output)

    code = aside(work)
    if code not in ((KILLED,) if how != "fail" else (0, 1)):
        return Verdict(f"{how} {point}", f"it was not stopped: {code}")
    return _resumed(f"{how} {point}", data, output, expected)


#: what a run keeps, by kind; README.md and report.html are made anew of what is here
KINDS = {
    "model": "model.safetensors",
    "best": "best/step-*.safetensors",
    "checkpoint tensors": "checkpoints/step-*.safetensors",
    "checkpoint record": "checkpoints/step-*.json",
    "settings": "config.json",
    "source tokeniser": "tokenizer.src.json",
    "target tokeniser": "tokenizer.tgt.json",
    "metrics": "metrics.jsonl",
    "report": "report.jsonl",
    "data": "data/*.arrow",
    "data notes": "data/*.arrow.json",
    "data record": "data/sources.json",
}


def flipped(whole: Path, home: Path, seed: int) -> Verdict:
    """Flips one bit of one file of a finished run; loading or resuming it must name the file."""
    draw, output = random.Random(seed), home / f"flipped-{seed}"
    kind = list(KINDS)[seed % len(KINDS)]
    shutil.copytree(whole, output)
    file = draw.choice(sorted(output.glob(KINDS[kind])))
    before = file.read_bytes()
    content = bytearray(before)
    place, bit = draw.randrange(len(content)), draw.randrange(8)
    content[place] ^= 1 << bit
    file.write_bytes(content)
    told = file.stem if "checkpoint" in kind else file.name
    said = _said(output)
    shutil.rmtree(output)
    if told in said or _means_the_same(before, bytes(content)):
        return Verdict(kind, "")
    return Verdict(kind, f"bit {bit} of byte {place} of {file.name}: {said.strip()[-300:]!r}")


def _said(output: Path) -> str:
    """What loading a run and going on with it say together."""
    notes = io.StringIO()
    torch.set_num_threads(1)
    for use in (
        lambda: RunFolder(output).load(),
        lambda: resume_run(output, {"steps": 9}, console=Console(file=notes, width=10_000)),
    ):
        try:
            use()
        except RegardError as error:
            notes.write(f"{error}\n")
    return notes.getvalue()


def _means_the_same(before: bytes, after: bytes) -> bool:
    """Whether two JSON files say the same, as 1e-05 and 1E-05 do."""
    try:
        return bool(json.loads(before) == json.loads(after))
    except ValueError:
        return False


def run_trials(what: str, count: int, home: Path) -> list[Verdict]:
    """Does some trials: "points" stops runs, "flips" damages files."""
    torch.set_num_threads(1)
    data, whole = write_pairs(home / "pairs.tsv", count=60), home / "whole"
    import_all()  # so that no fork has to
    assert aside(lambda: run(data, whole)) == 0
    if what == "flips":
        return [flipped(whole, home, seed) for seed in range(count)]
    expected, points = results(whole), range(1, len(operations(data, home)) + 1)
    every = [(point, how) for how in ("kill", "after", "fail") for point in points]
    chosen = every[:: max(1, len(every) // count)]
    return [stopped(data, home, expected, point, how) for point, how in chosen]
