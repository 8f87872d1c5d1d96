"""`regard runs`: the run folders below a folder, without loading any of them.

Only small files and headers are read, and torch is not imported: sizes of files are compared with
their headers, and checksums are left to `regard train --resume` and `regard.load`.
"""

import os
import re
from collections.abc import Iterator
from datetime import datetime
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple

from regard import safe_read
from regard.cli.commands import RunsArgs
from regard.cli.console import note, print_json, print_table, result_console
from regard.cli.options import folders_in
from regard.errors import ArgumentError, RegardError
from regard.messages import message, use_language

#: folders that are opened at most
MOST_FOLDERS: Final = 20_000
#: bytes of config.json, of a model card and of the header of a file of weights, at most
MOST_BYTES: Final = 1 << 22
#: files by which a folder with a damaged config.json is still known as a run
MARKS: Final = ("tokenizer.src.json", "metrics.jsonl", "checkpoints")
CHECKPOINT: Final = re.compile(r"step-(\d+)\.json")
#: a row of the table of two columns that a model card begins with
CARD_ROW: Final = re.compile(r"^\| ([^|\s][^|]*) \| ([^|]+) \|$", re.MULTILINE)

FINISHED: Final = "finished"
RESUMABLE: Final = "can be resumed"
DAMAGED: Final = "damaged"


class _DamagedRunError(Exception):
    """A part of a run that is missing or cannot be read: says which."""


class RunListing(NamedTuple):
    """Facts about a run folder.

    Attributes:
        path: the folder.
        preset: name of the model's preset; None if the settings cannot be read, as for `size`,
        size: and `data`.
        weights: number of weights; None if no model was written yet.
        data: file of the training data; "-" is stdin, "" was given in Python.
        best: the best figure with its name; None before the first evaluation.
        state: `finished`, `can be resumed` or `damaged`.
        detail: the step to resume from, or the damage.
        changed: time of the last change of the settings, the metrics or the model card.
    """

    path: Path
    preset: str | None
    size: str | None
    weights: int | None
    data: str | None
    best: str | None
    state: str
    detail: str
    changed: datetime


def runs(args: RunsArgs) -> None:
    """List the run folders below a folder, the last changed first."""
    if not args.folder.is_dir():
        fix = "name one that holds runs"
        raise ArgumentError("FOLDER", "be a folder", args.folder, fix)
    with use_language("en" if args.as_json else None):
        found = sorted(
            find_runs(args.folder, args.depth), key=lambda run: run.changed, reverse=True
        )
    if args.as_json:
        times = [run.changed.isoformat(timespec="seconds") for run in found]
        rows = zip(found, times, strict=True)
        return print_json([r._asdict() | {"path": str(r.path), "changed": t} for r, t in rows])
    if not found:
        return note(message("runs.none", folder=args.folder))
    names = ("run", "preset", "size", "weights", "data", "best", "changed", "state")
    titles = [message(f"runs.column.{name}") for name in names]
    return print_table(result_console(), titles, [_row(run) for run in found])


def find_runs(folder: Path, depth: int) -> Iterator[RunListing]:
    """Yield the runs in a folder and, down to a depth, in those below it.

    Hidden folders, links to folders and the inside of runs are left out. A note says that folders
    are left unread once `MOST_FOLDERS` have been.
    """
    queue = [(folder, 0)]
    for opened, (path, below) in enumerate(queue):
        if opened == MOST_FOLDERS:
            note(message("runs.first", count=MOST_FOLDERS))
            return
        run = describe_run(path)
        if run is not None:
            yield run
        elif below < depth:
            inner = [path / name for name in folders_in(path, links=False)]
            queue += [(folder, below + 1) for folder in inner]


def describe_run(path: Path) -> RunListing | None:
    """Return what is known of a run folder; None for a folder that is no run."""
    if not (path / "config.json").exists():
        return None
    facts: dict[str, Any] = {"preset": None, "size": None, "weights": None, "data": None}
    facts["best"] = None
    try:
        record = _json(path / "config.json")
        if not isinstance(record, dict) or not {"format", "config"} <= record.keys():
            return None  # settings of something else
        if not isinstance(record["config"], dict):
            raise _DamagedRunError(message("runs.damage.settings", name="config.json"))
        facts |= {n: str(record["config"].get(n) or "") for n in ("preset", "size", "data")}
        steps, finished = _checkpoint_steps(path), (path / "README.md").exists()
        card = _card(path) if finished else {}
        facts["data"] = facts["data"] or card.get("data", "")
        facts["best"] = _best_of_card(card) if finished else _best_of_checkpoint(path, steps)
        facts["weights"] = _count_weights(path / "model.safetensors", needed=finished)
        state, detail = _state(path, steps, finished)
    except _DamagedRunError as error:
        if facts["preset"] is None and not any((path / mark).exists() for mark in MARKS):
            return None
        state, detail = DAMAGED, str(error)
    names = ("config.json", "metrics.jsonl", "README.md")
    times = [(path / name).stat().st_mtime for name in names if (path / name).exists()]
    changed = datetime.fromtimestamp(max(times, default=0.0)).astimezone()
    return RunListing(path, **facts, state=state, detail=detail, changed=changed)


def _read(file: Path) -> bytes:
    try:
        return safe_read.read_bytes(file, MOST_BYTES, inside=file.parent)
    except RegardError:
        raise _unreadable(file) from None


def _json(file: Path) -> Any:
    try:
        return safe_read.parse_json(_read(file))
    except safe_read.InvalidJSONError:
        raise _unreadable(file) from None


def _unreadable(file: Path) -> _DamagedRunError:
    return _DamagedRunError(message("runs.damage.unreadable", name=file.name))


def _checkpoint_steps(path: Path) -> list[int]:
    """Return the steps of the finished checkpoints, newest first."""
    names = (file.name for file in (path / "checkpoints").glob("step-*.json"))
    return sorted((int(m[1]) for name in names if (m := CHECKPOINT.fullmatch(name))), reverse=True)


def _checkpoint(path: Path, step: int) -> Path:
    return path / "checkpoints" / f"step-{step:08d}.json"


def _state(path: Path, steps: list[int], finished: bool) -> tuple[str, str]:
    """Return the state of a run and its detail; raises _DamagedRunError."""
    needed = ["tokenizer.src.json", "tokenizer.tgt.json"] if finished or steps else []
    if missing := next((name for name in needed if not (path / name).exists()), None):
        raise _DamagedRunError(message("runs.damage.missing", name=missing))
    if finished:
        return FINISHED, ""
    for step in steps:
        _count_weights(_checkpoint(path, step).with_suffix(".safetensors"), needed=True)
    made = [n for n in ("model.safetensors", "metrics.jsonl") if (path / n).exists()]
    if made and not steps:
        names = message("runs.and").join(made)
        raise _DamagedRunError(message("runs.damage.no-checkpoint", names=names))
    return RESUMABLE, message("runs.from-step", step=max(steps, default=0))


def _count_weights(file: Path, *, needed: bool = False) -> int | None:
    """Return the number of weights by the header of a safetensors file; None if it is missing.

    Raises _DamagedRunError unless the file is as long as its header says.
    """
    if not file.exists():
        if needed:
            raise _DamagedRunError(message("runs.damage.missing", name=file.name))
        return None
    try:
        with safe_read.open_regular(file, inside=file.parent) as opened:
            size = os.fstat(opened.fileno()).st_size
            length = int.from_bytes(opened.read(8), "little")
            header = safe_read.parse_json(opened.read(min(length, MOST_BYTES)))
        header.pop("__metadata__", None)
        ends = [tensor["data_offsets"][1] for tensor in header.values()]
        whole = 8 + length + max(ends, default=0)
        count = sum(prod(tensor["shape"]) for tensor in header.values())
    except (RegardError, OSError, ValueError, KeyError, TypeError, AttributeError):
        raise _unreadable(file) from None
    if size != whole:
        raise _DamagedRunError(message("runs.damage.cut", name=file.name, size=size, whole=whole))
    return int(count)


def _card(path: Path) -> dict[str, str]:
    """Return the facts on the model card."""
    return dict(CARD_ROW.findall(_read(path / "README.md").decode(errors="replace")))


def _best_of_card(card: dict[str, str]) -> str | None:
    """Return the last dev score on the card with its name, or the score of a bundled model."""
    scores = {name: value for name, value in card.items() if name.partition("dev ")[1]}
    if not scores:
        return card.get("score")
    name, value = list(scores.items())[-1]
    return f"{name.removeprefix('best ')} {value}"


def _best_of_checkpoint(path: Path, steps: list[int]) -> str | None:
    """Return the best dev score in the newest checkpoint, or None before the first evaluation."""
    if not steps:
        return None
    file = _checkpoint(path, steps[0])
    try:
        best = _json(file)["record"]["numbers"]["progress"]["best"]
        if not best:
            return None
        score, step, *_ = best[0]
        return message("runs.best", metric=message("runs.dev-score"), score=score, step=step)
    except (IndexError, KeyError, TypeError, ValueError):
        raise _unreadable(file) from None


def _row(run: RunListing) -> list[str]:
    named = {"-": message("runs.stdin"), "": message("runs.from-python"), None: "?"}
    data = named.get(run.data, run.data)
    state = message(f"runs.state.{run.state.replace(' ', '-')}", detail=run.detail)
    return [
        str(run.path),
        run.preset or "?",
        run.size or "?",
        "" if run.weights is None else f"{run.weights:,}",
        str(data),
        run.best or "",
        f"{run.changed:%Y-%m-%d %H:%M}",
        state,
    ]
