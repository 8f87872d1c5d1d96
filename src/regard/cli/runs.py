"""`regard runs`: the run folders below a folder, without loading any of them.

Only small files and headers are read, and torch is not imported: that files are whole is left to
`regard train --resume` and `regard.load`.
"""

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
#: bytes of config.json, of metrics and of the header of a file of weights, at most
MOST_BYTES: Final = 1 << 22
CHECKPOINT: Final = re.compile(r"step-(\d+)\.json")

FINISHED: Final = "finished"
RESUMABLE: Final = "can be resumed"


class RunListing(NamedTuple):
    """Facts about a run folder.

    Attributes:
        path: the folder.
        preset: name of the model's preset.
        size: of the preset.
        weights: number of weights; None if no model was written yet.
        data: file of the training data; "-" is stdin, "" was given in Python.
        score: the dev score of the last evaluation with its name; None before the first.
        state: `finished` or `can be resumed`.
        detail: the step to resume from.
        changed: time of the last change of the settings, the metrics or the model card.
    """

    path: Path
    preset: str
    size: str
    weights: int | None
    data: str
    score: str | None
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
    names = ("run", "preset", "size", "weights", "data", "score", "changed", "state")
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
    record = _json(path / "config.json")
    if not isinstance(record, dict) or not {"format", "config"} <= record.keys():
        return None
    settings = record["config"] if isinstance(record["config"], dict) else {}
    preset, size, data = (str(settings.get(name) or "") for name in ("preset", "size", "data"))
    names = ("config.json", "metrics.jsonl", "README.md")
    times = [(path / name).stat().st_mtime for name in names if (path / name).exists()]
    changed = datetime.fromtimestamp(max(times)).astimezone()
    weights = _count_weights(path / "model.safetensors")
    score = _last_score(path)
    if (path / "README.md").exists():
        return RunListing(path, preset, size, weights, data, score, FINISHED, "", changed)
    files = (path / "checkpoints").glob("step-*.json")
    step = max((int(m[1]) for file in files if (m := CHECKPOINT.fullmatch(file.name))), default=0)
    detail = message("runs.from-step", step=step)
    return RunListing(path, preset, size, weights, data, score, RESUMABLE, detail, changed)


def _json(file: Path) -> Any:
    """Return the content of a JSON file; None if it is missing or cannot be read."""
    try:
        return safe_read.read_json(file, MOST_BYTES, inside=file.parent)
    except (RegardError, OSError, ValueError):
        return None


def _count_weights(file: Path) -> int | None:
    """Return the number of weights by the header of a safetensors file; None without one."""
    try:
        with safe_read.open_regular(file, inside=file.parent) as opened:
            length = int.from_bytes(opened.read(8), "little")
            header = safe_read.parse_json(opened.read(min(length, MOST_BYTES)))
        header.pop("__metadata__", None)
        return int(sum(prod(tensor["shape"]) for tensor in header.values()))
    except (RegardError, OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _last_score(path: Path) -> str | None:
    """Return the dev score of the last evaluation; None before the first, or if unreadable."""
    try:
        text = safe_read.read_text(path / "metrics.jsonl", MOST_BYTES, inside=path)
        row = safe_read.parse_json(text.splitlines()[-1])
        # the loss comes first, then the metric of the data
        name = [name for name in row if name.startswith("dev_")][:2][-1]
        return f"{name.replace('_', ' ')} {row[name]:.4f}"
    except (RegardError, OSError, ValueError, IndexError, TypeError):
        return None


def _row(run: RunListing) -> list[str]:
    named = {"-": message("runs.stdin"), "": message("runs.from-python")}
    state = message(f"runs.state.{run.state.replace(' ', '-')}", detail=run.detail)
    return [
        str(run.path),
        run.preset,
        run.size,
        "" if run.weights is None else f"{run.weights:,}",
        named.get(run.data, run.data),
        run.score or "",
        f"{run.changed:%Y-%m-%d %H:%M}",
        state,
    ]
