"""Figures that need no script: a map as inline SVG, and its strongest links as a table.

A saved page shows them until its script runs, and where none does.
"""

from html import escape
from typing import Final

import numpy as np
from rich.cells import cell_len

from regard.seeing.labels import fit, safe
from regard.seeing.trace import Trace, Weights
from regard.seeing.view import View, select

#: shades of a figure; each is one path, however many cells have it
SHADES: Final = 9
#: rows and columns of a figure at most, and those that have room for labels
MOST_CELLS: Final = 128
MOST_LABELS: Final = 48
MOST_LINKS: Final = 40
LABEL: Final = 18


def section(trace: Trace, *, heading: bool = True) -> str:
    """The figure of a trace and its table, as a section of a page, with or without its texts."""
    if not trace.maps:
        return "<section><p>This trace holds no attention.</p></section>"
    view = select(trace)
    texts = f"<h2>{token(trace.source.text, 60)} → {token(trace.target.text, 60)}</h2>"
    return (
        f"<section>{texts if heading else ''}"
        f'<p class="dim">{escape(view.title)}. Each row is an output and says where it looked; '
        f'the stronger the colour, the more.</p><div class="beside-each-other">'
        f"<div>{figure(view)}</div>{links(view)}</div>{_notes(view.notes)}</section>"
    )


def token(text: str, width: int = LABEL) -> str:
    """A text of somebody else as HTML; its direction does not turn the words around it."""
    return f"<bdi>{escape(fit(safe(text), width))}</bdi>"


def figure(view: View) -> str:
    """A map as SVG; a long one is pooled, so that a single peak survives."""
    rows, columns = len(view.rows), len(view.columns)
    height, width = min(rows, MOST_CELLS), min(columns, MOST_CELLS)
    labelled = rows <= MOST_LABELS and columns <= MOST_LABELS
    cell = 22.0 if labelled else 5.0
    left, top = (_room(view.rows), _room(view.columns) * 0.75 + 8) if labelled else (4, 4)
    lean = top * 0.9 if labelled else 0
    size = (round(left + width * cell + lean), round(top + height * cell + 4))
    scale = 1.0 if columns <= 64 else max(float(view.weights.max(initial=0.0)), 1e-9)
    cells = paths(pooled(view.weights, height, width) / scale, float(cell))
    names = _labels(view, left, top, cell) if labelled else ""
    cut = "" if (height, width) == (rows, columns) else _cut(rows, columns)
    return (
        f'<svg viewBox="0 0 {size[0]} {size[1]}" width="{size[0]}" height="{size[1]}" role="img" '
        f'aria-label="Map of {rows} outputs and {columns} inputs">'
        f'<g transform="translate({left:.0f} {top:.0f})">{cells}</g>{names}</svg>{cut}'
    )


def paths(shares: Weights, cell: float) -> str:
    """The cells of a map, one path for each shade."""
    shades = np.clip(np.round(shares * (SHADES - 1)), 0, SHADES - 1).astype(int)
    side = cell - 1 if cell > 3 else cell
    found = []
    for shade in range(SHADES):
        places = np.argwhere(shades == shade)
        if len(places):
            steps = "".join(
                f"M{c * cell:g} {r * cell:g}h{side:g}v{side:g}h-{side:g}z" for r, c in places
            )
            found.append(f'<path class="q{shade}" d="{steps}"/>')
    return "".join(found)


def pooled(weights: Weights, height: int, width: int) -> Weights:
    """A smaller map whose cells hold the strongest weight that they stand for."""
    rows, columns = weights.shape
    if not weights.size or (rows, columns) == (height, width):
        return weights
    by_row = np.maximum.reduceat(weights, np.arange(height) * rows // height, axis=0)
    found: Weights = np.maximum.reduceat(by_row, np.arange(width) * columns // width, axis=1)
    return found


def links(view: View) -> str:
    """The strongest weight of each row, as a table."""
    shown = view.rows[:MOST_LINKS]
    body = "".join(_link(view, r) for r in range(len(shown)) if view.columns)
    rest = len(view.rows) - len(shown)
    cut = f" The first {MOST_LINKS} of {len(view.rows)} outputs." if rest else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="Strongest links">'
        f'<table class="links"><caption>Where each output looked most.{cut}'
        '</caption><thead><tr><th scope="col">output</th><th scope="col">looked most at</th>'
        f'<th scope="col">weight</th></tr></thead><tbody>{body}</tbody></table></div>'
    )


def _link(view: View, row: int) -> str:
    best = int(view.weights[row].argmax())
    return (
        f'<tr><th scope="row">{token(view.rows[row])}</th><td>{token(view.columns[best])}</td>'
        f"<td>{view.weights[row, best]:.2f}</td></tr>"
    )


def _room(labels: list[str]) -> float:
    return 16 + 7.2 * max((cell_len(fit(safe(label), LABEL)) for label in labels), default=1)


def _labels(view: View, left: float, top: float, cell: float) -> str:
    rows = "".join(
        f'<text x="{left - 7:.0f}" y="{top + (r + 0.68) * cell:.0f}" text-anchor="end" '
        f'font-size="13"{_dim(special)}>{escape(fit(safe(label), LABEL))}</text>'
        for r, (label, special) in enumerate(zip(view.rows, view.row_special, strict=True))
    )
    columns = "".join(
        f'<text transform="translate({left + (c + 0.6) * cell:.0f} {top - 6:.0f}) rotate(-45)" '
        f'font-size="13"{_dim(special)}>{escape(fit(safe(label), LABEL))}</text>'
        for c, (label, special) in enumerate(zip(view.columns, view.column_special, strict=True))
    )
    return rows + columns


def _dim(special: bool) -> str:
    return ' class="dim"' if special else ""


def _cut(rows: int, columns: int) -> str:
    return (
        f'<p class="note">All {rows} × {columns} weights in at most {MOST_CELLS} × {MOST_CELLS} '
        f"cells, each with the colour of the strongest weight in it.</p>"
    )


def _notes(notes: tuple[str, ...]) -> str:
    return "".join(f'<p class="note">{escape(note)}</p>' for note in notes)
