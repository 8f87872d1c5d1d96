"""The page of a `LongTrace`, written a layer at a time.

It is the page of `html_page`, in which the weights of each layer are a script element of their own,
which the browser unpacks when the layer is shown. They are base64 of deflated bytes: of each row
the columns of its strongest weights, their bytes (see `trace.top_weights`), and in half precision
its strongest weight and the mass that was kept. The low bytes of all columns come before the high
ones, which deflate better alone.
"""

import base64
import json
import zlib
from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from regard.messages import message
from regard.seeing.draw.figure import PAGE
from regard.seeing.draw.labels import fit, font_safe
from regard.seeing.page.html_page import (
    MOST_LINKS,
    embedded,
    page_parts,
    template,
    texts_of,
    title_of,
)
from regard.seeing.trace.long_trace import LongTrace, pooled_head
from regard.seeing.trace.storage import FORMAT, VERSION
from regard.seeing.trace.top_weights import StrongestRows, TopMap
from regard.seeing.trace.view import View, kind_title

#: cells of a label in the static figure
LABEL: Final = 18


def render_long(trace: LongTrace, *, title: str | None = None) -> Iterator[str]:
    """Yield a page that shows a long trace, in pieces, with one layer in memory at a time."""
    name = title or title_of(trace.source.text, trace.target.text)
    parts = page_parts(name, [_example(trace)])
    weights = (packed_rows(found.read(), found.shape[2]) for found in trace.maps)
    yield from template("page.html").generate(parts, weight_parts=weights)


def packed_rows(rows: StrongestRows, width: int) -> str:
    """Return the strongest weights of a map of `width` columns as base64 of deflated bytes."""
    columns = rows.columns.astype("<u2" if width <= 1 << 16 else "<u4")
    planes = columns.reshape(-1, 1).view(np.uint8)
    stream = zlib.compressobj(6)
    raw = (np.ascontiguousarray(planes.T), rows.levels, *(
        part.astype("<f2") for part in (rows.peak, rows.kept)
    ))  # fmt: skip
    deflated = [stream.compress(part.tobytes()) for part in raw] + [stream.flush()]
    return base64.b64encode(b"".join(deflated)).decode("ascii")


def _example(trace: LongTrace) -> dict[str, Any]:
    """Return the data of a trace without its weights, and a static figure of its sharpest head."""
    found, place = trace.choose()
    assert place is not None
    rows = found.read()
    view = _view(trace, found, rows, place)
    best = {"kind": found.kind, "layer": found.layer, "head": place}
    notes = (trace.kept_note, *trace.notes)
    content = {
        "format": FORMAT,
        "version": VERSION,
        "source": {**vars(trace.source), "tokens": [dict(vars(t)) for t in trace.source.tokens]},
        "target": {**vars(trace.target), "tokens": [dict(vars(t)) for t in trace.target.tokens]},
        "maps": [_map(one, i) for i, one in enumerate(trace.maps)],
        "model": dict(vars(trace.model)),
        "decoded": dict(vars(trace.decoded)),
        "derived": {},
        "checks": {},
        "gold": [],
        "gold_units": ["words", "words"],
        "notes": list(notes),
    }
    return {
        "trace": trace,
        "texts": texts_of(trace.source.text, trace.target.text),
        "view": view,
        "links": list(_links(trace, found, rows, place)),
        "notes": [font_safe(note) for note in (*view.notes, *notes)],
        "best": json.dumps(best if len(found.heads) > 1 else {**best, "head": "mean"}),
        "data": embedded(content),
    }


def _map(found: TopMap, number: int) -> dict[str, Any]:
    return {
        "kind": found.kind,
        "layer": found.layer,
        "rows": found.rows,
        "columns": found.columns,
        "causal": found.causal,
        "strongest": {
            "shape": list(found.shape),
            "k": found.recorded.parts[0].block.shape[3],
            "heads": list(found.heads),
            "element": f"weights-{number}",
        },
    }


def _view(trace: LongTrace, found: TopMap, rows: StrongestRows, place: int) -> View:
    """Return the map of a head, max-pooled to what the static figure of a page can hold."""
    weights, down, across = pooled_head(rows, place, found.shape[1:], PAGE.most)
    sides = [trace.tokens(side) for side in (found.rows, found.columns)]
    labels = [
        [fit(font_safe(token.text), LABEL) for token in tokens[::step]]
        for tokens, step in zip(sides, (down, across), strict=True)
    ]
    notes = [
        f"{many} {what} to a cell, which shows the strongest"
        for many, what in ((down, "outputs"), (across, "inputs"))
        if many > 1
    ]
    return View(
        title=message(
            "heads.long", kind=kind_title(found.kind), layer=found.layer, head=found.heads[place]
        ),
        rows=labels[0],
        columns=labels[1],
        weights=weights,
        hidden=(1.0 - rows.kept[place])[::down],
        probs=[None] * len(labels[0]),
        row_special=[False] * len(labels[0]),
        column_special=[False] * len(labels[1]),
        notes=tuple(notes),
        kind=found.kind,
        layer=found.layer,
        head=found.heads[place],
    )


def _links(
    trace: LongTrace, found: TopMap, rows: StrongestRows, place: int
) -> Iterator[tuple[str, str, float]]:
    """Yield the strongest weight of each of the first rows, with its labels."""
    outputs, inputs = (trace.tokens(side) for side in (found.rows, found.columns))
    for i, token in enumerate(outputs[:MOST_LINKS]):
        if rows.peak[place, i] > 0:
            column = int(rows.columns[place, i, 0])
            yield token.text, inputs[column].text, float(rows.peak[place, i])
