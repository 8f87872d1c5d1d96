"""The HTML page of traces: one file that works offline, and the same page for `regard serve`.

In the page of a `LongTrace` the weights of each layer are a script element of their own, which the
browser unpacks when the layer is shown. They are base64 of deflated bytes: of each row the columns
of its strongest weights, their bytes (see `trace.long_trace`), and in half precision its strongest
weight and the mass that was kept. The low bytes of all columns come before the high ones, which
deflate better alone.
"""

import base64
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from regard.errors import ArgumentError
from regard.messages import message, page_catalogues
from regard.seeing.draw.figure import pooled, remarks
from regard.seeing.draw.labels import fit, font_safe
from regard.seeing.draw.shapes import PAGE
from regard.seeing.page.writer import (
    LABEL,
    MAIN,
    embedded,
    join,
    modules,
    page_parts,
    render_page,
    template,
)
from regard.seeing.trace.long_trace import LongTrace, StrongestRows, TopMap, pooled_head
from regard.seeing.trace.storage import to_json
from regard.seeing.trace.trace import Trace
from regard.seeing.trace.view import View, kind_title, select

#: traces that are also drawn for readers without scripts, and links that are listed of each
MOST_STATIC: Final = 12
MOST_LINKS: Final = 40


def render(traces: Sequence[Trace], *, title: str | None = None) -> str:
    """Return a page that shows traces and loads nothing from anywhere.

    Args:
        traces: one, or several to choose from.
        title: of the page; source and target by default.
    """
    if not traces:
        raise ArgumentError("traces", "be at least one", "an empty list", "pass a trace")
    examples = list(map(_example, traces))
    name, script = title or _title(traces), join(modules())
    return render_page("page.html", name, script=script, **_constants(examples))


def render_long(trace: LongTrace, *, title: str | None = None) -> Iterator[str]:
    """Yield a page that shows a long trace, in pieces, with one layer in memory at a time."""
    name = title or title_of(trace.source.text, trace.target.text)
    weights = (packed_rows(found.read(), found.shape[2]) for found in trace.maps)
    parts = {**page_parts(name, join(modules())), **_constants([_long_example(trace)])}
    yield from template("page.html").generate(parts, weight_parts=weights)


def render_live(
    info: Mapping[str, Any],
    traces: Sequence[Trace] = (),
    *,
    title: str | None = None,
    chosen_by_reader: bool = True,
) -> str:
    """Return the page that asks its server and loads its modules from `page/`.

    Args:
        info: response of `/api/info`: `models`, each with a `name`, and `limits`.
        traces: to show before anything is typed.
        title: of the page.
        chosen_by_reader: whether a browser's language goes before that of this process.
    """
    data = _constants(list(map(_example, traces)))
    data |= {"title_key": "" if title else "page.live.title", "chosen_by_reader": chosen_by_reader}
    name, asked = title or message("page.live.title"), embedded(dict(info))
    return render_page("page.html", name, live=True, info=asked, main=MAIN, **data)


def _constants(examples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "examples": examples,
        "title_key": "",
        "chosen_by_reader": False,
        "messages": embedded(page_catalogues(), ascii=False),
        "most_static": MOST_STATIC,
        "most_links": MOST_LINKS,
    }


def _title(traces: Sequence[Trace]) -> str:
    first = traces[0]
    if len(traces) > 1:
        if not first.model.name:
            return message("page.examples", count=len(traces))
        return message("page.examples-of", count=len(traces), model=first.model.name)
    return title_of(first.source.text, first.target.text)


def title_of(source: str, target: str) -> str:
    """Return the title of a page of one trace."""
    return " → ".join(fit(font_safe(text), 40) for text in _texts_of(source, target))


def _texts_of(source: str, target: str) -> list[str]:
    """Return source and target; one of them if the target is the source, or continues it."""
    return [target] if target.startswith(source) else [source, target]


def _example(trace: Trace) -> dict[str, Any]:
    """Return the data of a trace, and the head that is shown first, as on every surface."""
    view = select(trace) if trace.maps else None
    best: dict[str, Any] = {}
    notes: list[str] = []
    links: list[tuple[str, str, float]] = []
    if view is not None:
        notes = list(remarks(pooled(view, PAGE.most)))
        head = "mean" if view.head is None else view.head
        best = {"kind": view.kind, "layer": view.layer, "head": head}
        links = list(_strongest_links(view))
    return _example_data(trace, to_json(trace), view, links, notes, best)


def _example_data(
    trace: Trace | LongTrace,
    content: Mapping[str, Any],
    view: View | None,
    links: Sequence[tuple[str, str, float]],
    notes: Sequence[str],
    best: Mapping[str, Any],
) -> dict[str, Any]:
    return {
        "trace": trace,
        "texts": _texts_of(trace.source.text, trace.target.text),
        "view": view,
        "links": links,
        "notes": notes,
        "best": json.dumps(best),
        "data": embedded(content),
    }


def _strongest_links(view: View) -> Iterator[tuple[str, str, float]]:
    """Yield the largest weight of each row with its labels."""
    for row, weights in zip(view.rows[:MOST_LINKS], view.weights, strict=False):
        if len(weights):
            best = int(weights.argmax())
            yield row, view.columns[best], float(weights[best])


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


def _long_example(trace: LongTrace) -> dict[str, Any]:
    """Return the data of a trace without its weights, and a static figure of its sharpest head."""
    found, place = trace.choose()
    assert place is not None
    rows = found.read()
    view = _long_view(trace, found, rows, place)
    notes = (trace.kept_note, *trace.notes)
    texts = Trace(trace.source, trace.target, (), trace.model, trace.decoded, notes=notes)
    content = {**to_json(texts), "maps": [_top_map(one, i) for i, one in enumerate(trace.maps)]}
    head = place if len(found.heads) > 1 else "mean"
    best = {"kind": found.kind, "layer": found.layer, "head": head}
    said = [font_safe(note) for note in (*view.notes, *notes)]
    links = list(_long_links(trace, found, rows, place))
    return _example_data(trace, content, view, links, said, best)


def _top_map(found: TopMap, number: int) -> dict[str, Any]:
    return {
        **{name: getattr(found, name) for name in ("kind", "layer", "rows", "columns", "causal")},
        "strongest": {
            "shape": list(found.shape),
            "k": found.k,
            "heads": list(found.heads),
            "element": f"weights-{number}",
        },
    }


def _long_view(trace: LongTrace, found: TopMap, rows: StrongestRows, place: int) -> View:
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
    head = found.heads[place]
    return View(
        title=message("heads.long", kind=kind_title(found.kind), layer=found.layer, head=head),
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
        head=head,
    )


def _long_links(
    trace: LongTrace, found: TopMap, rows: StrongestRows, place: int
) -> Iterator[tuple[str, str, float]]:
    """Yield the strongest weight of each of the first rows, with its labels."""
    outputs, inputs = (trace.tokens(side) for side in (found.rows, found.columns))
    for i, token in enumerate(outputs[:MOST_LINKS]):
        if rows.peak[place, i] > 0:
            column = int(rows.columns[place, i, 0])
            yield token.text, inputs[column].text, float(rows.peak[place, i])
