"""Pictures of a confusion: which class was predicted for examples of which class."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from jaxtyping import Int

from regard.messages import message, translated
from regard.seeing.draw.figure import pdf, png, svg
from regard.seeing.draw.shapes import csv_lines, write_by_ending
from regard.seeing.page.writer import render_page
from regard.seeing.trace.view import View

#: classes of a figure, and of a page, at most
MOST_DRAWN: Final = 100
MOST_CELLS: Final = 60
#: classes that a page lists at most
MOST_ROWS: Final = 1000
#: shades of the cells of a page, on all of which its text can be read
SHADES: Final = 4


class ConfusionTable(NamedTuple):
    """A confusion as it is drawn.

    Attributes:
        title: of the figure.
        unit: what a class is, such as "label".
        labels: the classes, those with most examples first.
        counts: examples by class and prediction, of the first classes.
        support: number of examples of each of these classes, with all predictions.
        total: number of all classes.
    """

    title: str
    unit: str
    labels: Sequence[str]
    counts: Int[np.ndarray, "classes classes"]
    support: Sequence[int]
    total: int

    def shares(self) -> np.ndarray:
        """Return the share of each class's examples with each prediction."""
        examples = np.maximum(np.array(self.support, dtype=np.float64), 1.0)
        shares: np.ndarray = self.counts / examples[:, None]
        return shares

    def first(self, most: int) -> "ConfusionTable":
        """Return the table of the first classes."""
        labels, support = self.labels[:most], self.support[:most]
        return self._replace(labels=labels, support=support, counts=self.counts[:most, :most])

    def view(self) -> View:
        """Return the shares as a map: a row for each class, a column for each prediction."""
        shares = self.shares().astype(np.float32)
        few, shown = len(self.labels), [False] * len(self.labels)
        notes = [message(f"confusion.rows.{self.unit}")]
        if self.total > few:
            notes.append(message(f"confusion.few.{self.unit}", few=few, total=self.total))
        # a row without examples hides nothing
        real = np.array(self.support) > 0
        return View(
            title=self.title,
            rows=[f"{n:,} {label}" for label, n in zip(self.labels, self.support, strict=True)],
            columns=list(self.labels),
            weights=shares,
            hidden=np.where(real, 1.0 - shares.sum(axis=1), 0.0).astype(np.float32),
            probs=[None] * few,
            row_special=shown,
            column_special=shown,
            notes=tuple(notes),
            what=message(f"confusion.what.{self.unit}"),
            unit=message("confusion.unit"),
        )


def save_confusion(
    path: str | Path,
    table: ConfusionTable,
    unit: str,
    classes: Sequence[Mapping[str, Any]],
    facts: Mapping[str, str],
    notes: Sequence[str] = (),
) -> None:
    """Write html, svg, png, pdf or csv, by the ending.

    Args:
        path: the file.
        table: to draw; a csv file has all of its classes.
        unit: what a class of the page's table is.
        classes: label, precision, recall, f1, support and predicted of each class, for a page.
        facts: names and values at the top of a page.
        notes: sentences of a page.
    """
    few = table.first(MOST_DRAWN)
    write_by_ending(
        path,
        {
            "html": lambda: _page(table, unit, classes, facts, notes),
            "svg": lambda: svg(few.view(), description=_description(table)),
            "png": lambda: png(few.view()),
            "pdf": lambda: pdf(few.view()),
            "csv": lambda: csv_lines(
                [table.unit, *table.labels],
                (
                    [label, *row]
                    for label, row in zip(table.labels, table.counts.tolist(), strict=True)
                ),
            ),
        },
    )


ENDINGS: Final = ("html", "svg", "png", "pdf", "csv")


def _description(table: ConfusionTable) -> str:
    parts = []
    for i, label in enumerate(table.labels[:MOST_DRAWN]):
        counts = {"right": table.counts[i, i], "total": table.support[i]}
        said = message("confusion.right", label=label, **counts)
        others = table.counts[i].copy()
        others[i] = 0
        worst = int(others.argmax())
        if others[worst]:
            other = table.labels[worst]
            said += message("confusion.wrong", count=others[worst], label=other)
        parts.append(message("sentence", text=said))
    return " ".join(parts)


def _page(
    table: ConfusionTable,
    unit: str,
    classes: Sequence[Mapping[str, Any]],
    facts: Mapping[str, str],
    notes: Sequence[str],
) -> str:
    drawn = table.first(MOST_CELLS)
    shades = np.ceil(drawn.shares() * SHADES).astype(int).tolist()
    cells = [
        list(zip(row, levels, strict=True))
        for row, levels in zip(drawn.counts.tolist(), shades, strict=True)
    ]
    return render_page(
        "confusion.html",
        table.title,
        unit=table.unit,
        class_unit=translated("evaluate.class", unit),
        facts=facts,
        drawn=drawn,
        cells=cells,
        total=table.total,
        classes=classes[:MOST_ROWS],
        left_out=max(0, len(classes) - MOST_ROWS),
        notes=notes,
    )
