"""A trace in a notebook: a finished figure and a table. Both stand without scripts."""

from typing import Final
from xml.sax.saxutils import escape

from regard.seeing.figure import svg
from regard.seeing.labels import fit, safe
from regard.seeing.terminal import Scale
from regard.seeing.trace import Trace
from regard.seeing.view import Special, View, select_all
from regard.seeing.words import Merging

#: cells that a table has at most; a larger one would slow the notebook down
MOST_CELLS: Final = 2500
#: figures at most
MOST_VIEWS: Final = 12
#: cells of a label at most
LABEL: Final = 40


def to_html(
    trace: Trace,
    *,
    kind: str = "auto",
    layer: int | str = "auto",
    head: int | str = "auto",
    words: Merging = "auto",
    special: Special = "dim",
    scale: Scale = "fixed",
) -> str:
    """The figure of each view, and its numbers in a table that can be opened."""
    views = select_all(trace, kind=kind, layer=layer, head=head, words=words, special=special)
    text = escape(safe(trace.target.text)) if trace.target.text else ""
    said = f'<div dir="auto"><strong>{text}</strong></div>' if text else ""
    figures = "".join(_figure(view, scale) for view in views[:MOST_VIEWS])
    more = f"<p>{len(views) - MOST_VIEWS} more are not drawn: save them as html.</p>"
    return f'<div class="regard">{said}{figures}{more if len(views) > MOST_VIEWS else ""}</div>'


def _figure(view: View, scale: Scale) -> str:
    return f'<div style="overflow-x:auto">{svg(view, scale=scale)}</div>{_table(view)}'


def _table(view: View) -> str:
    if view.weights.size > MOST_CELLS:
        rows, columns = view.weights.shape
        return f"<p>The {rows} × {columns} numbers are too many to list: save them as csv.</p>"
    head = "<td></td>" + "".join(f'<th scope="col">{_cell(label)}</th>' for label in view.columns)
    rows = "".join(_row(view, i) for i in range(len(view.rows)))
    return (
        f"<details><summary>numbers</summary><table><caption>{escape(view.title)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></details>"
    )


def _row(view: View, i: int) -> str:
    numbers = "".join(f"<td>{weight:.3f}</td>" for weight in view.weights[i])
    return f'<tr><th scope="row">{_cell(view.rows[i])}</th>{numbers}</tr>'


def _cell(label: str) -> str:
    return f"<bdi>{escape(fit(safe(label), LABEL))}</bdi>"
