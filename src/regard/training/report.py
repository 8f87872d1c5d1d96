"""report.html of a run: written anew after each evaluation, and kept up when a run goes on."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.data.files import write_whole
from regard.seeing.report import render_report
from regard.seeing.storage import from_json, to_json
from regard.seeing.trace import Trace, TraceError
from regard.training.config import Config
from regard.training.run_folder import REPORT

#: the page, and what is kept of each evaluation, one line each, so that it survives a stop
PAGE, ROWS = REPORT


class Report:
    """The report of a run, and what earlier evaluations have left for it.

    Args:
        folder: of the run.
        step: where the run stands; what was kept of later steps is forgotten.
        card: names and values to head the page with.
    """

    def __init__(self, folder: Path, step: int, card: Mapping[str, object]) -> None:
        self.folder, self.card = folder, card
        lines = _read(folder / ROWS, step)
        self.history = [line["row"] for line in lines]
        self.examples = [_examples(line) for line in lines]
        self.start, self.starts = step, [int(line.get("start", 0)) for line in lines]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        write_whole(folder / ROWS, text.encode())

    def write(self, row: Mapping[str, Any], lr: float, traces: Sequence[Trace]) -> None:
        """Adds an evaluation and writes the page."""
        line = {
            "row": {**row, "lr": lr},
            "start": self.start,
            "traces": [to_json(trace) for trace in traces],
        }
        with open(self.folder / ROWS, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        self.history.append({**row, "lr": lr})
        self.starts.append(self.start)
        self.examples.append((int(row["step"]), list(traces)))
        title, starts = self.folder.resolve().name, sorted({*self.starts} - {0})
        page = render_report(self.history, self.examples, self.card, title, starts)
        # the name of a file need not be text
        write_whole(self.folder / PAGE, page.encode(errors="backslashreplace"))


def open_report(
    config: Config, folder: Path, step: int, card: Mapping[str, object]
) -> Report | None:
    """The report of a run, or None if none is wanted."""
    return Report(folder, step, card) if config.report else None


def _read(path: Path, step: int) -> list[dict[str, Any]]:
    """Lines up to a step; one that a stop has cut off, and all after it, are left out."""
    found: list[dict[str, Any]] = []
    if not path.exists():
        return found
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
            if line["row"]["step"] <= step:
                found.append(line)
        except (ValueError, KeyError, TypeError):
            break
    return found


def _examples(line: Mapping[str, Any]) -> tuple[int, list[Trace]]:
    try:
        return int(line["row"]["step"]), [from_json(content) for content in line["traces"]]
    except (TraceError, KeyError):
        return int(line["row"]["step"]), []
