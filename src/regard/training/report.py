"""report.html of a run: written anew after each evaluation, and kept up when a run goes on."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from regard.atomic_files import write_atomic
from regard.seeing.report import render_report
from regard.seeing.storage import from_json, to_json
from regard.seeing.trace import Trace, TraceError
from regard.training.config import Config
from regard.training.run_folder import REPORT, RunFolder

#: the page, and what is kept of each evaluation, one line each, so that it survives a stop
PAGE, ROWS = REPORT


class Report:
    """The report of a run, and what earlier evaluations have left for it.

    Args:
        folder: of the run.
        step: where the run stands; rows of later steps are dropped.
        card: names and values to head the page with.
    """

    def __init__(self, folder: Path, step: int, card: Mapping[str, object]) -> None:
        self.folder, self.card, self.rows = folder, card, RunFolder(folder).report
        self.rows.cut(None, step)
        lines = self.rows.rows()
        self.history = [line["row"] for line in lines]
        self.examples = [_examples(line) for line in lines]
        self.start, self.starts = step, [int(line.get("start", 0)) for line in lines]

    def write(self, row: Mapping[str, Any], lr: float, traces: Sequence[Trace]) -> None:
        """Adds an evaluation and writes the page."""
        line = {
            "row": {**row, "lr": lr},
            "start": self.start,
            "traces": [to_json(trace) for trace in traces],
        }
        self.rows.append(line)
        self.history.append({**row, "lr": lr})
        self.starts.append(self.start)
        self.examples.append((int(row["step"]), list(traces)))
        title, starts = self.folder.resolve().name, sorted({*self.starts} - {0})
        page = render_report(self.history, self.examples, self.card, title, starts)
        # the name of a file need not be text
        write_atomic(self.folder / PAGE, page.encode(errors="backslashreplace"))


def open_report(
    config: Config, folder: Path, step: int, card: Mapping[str, object]
) -> Report | None:
    """The report of a run, or None if none is wanted."""
    return Report(folder, step, card) if config.report else None


def _examples(line: Mapping[str, Any]) -> tuple[int, list[Trace]]:
    try:
        return int(line["row"]["step"]), [from_json(content) for content in line["traces"]]
    except (TraceError, KeyError):
        return int(line["row"]["step"]), []
