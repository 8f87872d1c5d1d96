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
#: bytes of config.json, of a model card and of the header of a file of weights, at most
MOST_BYTES: Final = 1 << 22
CHECKPOINT: Final = re.compile(r"step-(\d+)\.json")
#: a row of the table of two columns that a model card begins with
CARD_ROW: Final = re.compile(r"^\| ([^|\s][^|]*) \| ([^|]+) \|$", re.MULTILINE)

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
        best: the best figure with its name; None before the first evaluation.
        state: `finished` or `can be resumed`.
        detail: the step to resume from.
        changed: time of the last change of the settings, the metrics or the model card.
    """

    path: Path
    preset: str
    size: str
    weights: int | None
    data: str
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
    record = _json(path / "config.json")
    if not isinstance(record, dict) or not {"format", "config"} <= record.keys():
        return None
    settings = record["config"] if isinstance(record["config"], dict) else {}
    preset, size, data = (str(settings.get(name) or "") for name in ("preset", "size", "data"))
    names = ("config.json", "metrics.jsonl", "README.md")
    times = [(path / name).stat().st_mtime for name in names if (path / name).exists()]
    changed = datetime.fromtimestamp(max(times)).astimezone()
    weights = _count_weights(path / "model.safetensors")
    if (path / "README.md").exists():
        card = _card(path)
        data, best = data or card.get("data", ""), _best_of_card(card)
        return RunListing(path, preset, size, weights, data, best, FINISHED, "", changed)
    files = (path / "checkpoints").glob("step-*.json")
    step = max((int(m[1]) for file in files if (m := CHECKPOINT.fullmatch(file.name))), default=0)
    best, detail = _best_of_checkpoint(path, step), message("runs.from-step", step=step)
    return RunListing(path, preset, size, weights, data, best, RESUMABLE, detail, changed)


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


def _card(path: Path) -> dict[str, str]:
    """Return the facts on the model card; none if it cannot be read."""
    try:
        text = safe_read.read_bytes(path / "README.md", MOST_BYTES, inside=path)
    except (RegardError, OSError):
        return {}
    return dict(CARD_ROW.findall(text.decode(errors="replace")))


def _best_of_card(card: dict[str, str]) -> str | None:
    """Return the last dev score on the card with its name, or the score of a bundled model."""
    scores = {name: value for name, value in card.items() if name.partition("dev ")[1]}
    if not scores:
        return card.get("score")
    name, value = list(scores.items())[-1]
    return f"{name.removeprefix('best ')} {value}"


def _best_of_checkpoint(path: Path, step: int) -> str | None:
    """Return the best dev score in a checkpoint, or None before the first evaluation."""
    found = _json(path / "checkpoints" / f"step-{step:08d}.json")
    try:
        score, step, *_ = found["record"]["numbers"]["progress"]["best"][0]
        return message("runs.best", metric=message("runs.dev-score"), score=score, step=step)
    except (IndexError, KeyError, TypeError, ValueError):
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
        run.best or "",
        f"{run.changed:%Y-%m-%d %H:%M}",
        state,
    ]
