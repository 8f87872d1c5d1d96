"""Views as tables of numbers."""

import csv
import io
from collections.abc import Iterable

from regard.seeing.view import View

COLUMNS = (
    "kind",
    "layer",
    "head",
    "row",
    "output",
    "probability",
    "column",
    "input",
    "weight",
    "hidden",
)


def to_csv(views: Iterable[View]) -> str:
    """A line for each cell, weights as exact as they are.

    Rows, columns, layers and heads are counted from 0; the mean of all heads is `mean`. Tokens are
    written as they are: where a cell could be taken for a formula, that is for its reader to mind.
    `hidden` is the mass of the row that no column shows.
    """
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(COLUMNS)
    for view in views:
        head = "mean" if view.head is None else view.head
        for i, (output, prob) in enumerate(zip(view.rows, view.probs, strict=True)):
            start = (view.kind, view.layer, head, i, output, "" if prob is None else prob)
            for j, given in enumerate(view.columns):
                # numpy writes the fewest digits that give the same number again
                writer.writerow((*start, j, given, str(view.weights[i, j]), str(view.hidden[i])))
    return file.getvalue()
