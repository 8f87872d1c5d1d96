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
from regard.seeing.draw.shapes import PAGE, fit, printable
from regard.seeing.page.writer import (
    MAIN,
    embedded,
    join,
    page_parts,
    render_page,
    template,
)
from regard.seeing.trace.long_trace import LongTrace, TopMap
from regard.seeing.trace.storage import to_json
from regard.seeing.trace.trace import Trace
from regard.seeing.trace.view import View, select

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
    name, script = title or _title(traces), join(MAIN)
    return render_page("page.html", name, script=script, **_constants(examples))


def render_long(trace: LongTrace, *, title: str | None = None) -> Iterator[str]:
    """Yield a page that shows a long trace, in pieces, with one layer in memory at a time."""
    name = title or title_of(trace.source.text, trace.target.text)
    weights = (_packed_rows(found) for found in trace.maps)
    parts = {**page_parts(name, join(MAIN)), **_constants([_long_example(trace)])}
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
    return " → ".join(fit(printable(text), 40) for text in _texts_of(source, target))


def _texts_of(source: str, target: str) -> list[str]:
    """Return source and target; one of them if the target is the source, or continues it."""
    return [target] if target.startswith(source) else [source, target]


def _example(trace: Trace) -> dict[str, Any]:
    """Return the data of a trace, and the head that is shown first, as on every surface."""
    if not trace.maps:
        return _example_data(trace, to_json(trace))
    view = select(trace)
    head = "mean" if view.head is None else view.head
    best = view.kind, view.layer, head
    notes = list(remarks(pooled(view, PAGE.most)))
    return _example_data(trace, to_json(trace), best, view, notes)


def _long_example(trace: LongTrace) -> dict[str, Any]:
    """Return the data of a trace without its weights, and its sharpest head."""
    found, place = trace.choose()
    notes = (trace.kept_note, *trace.notes)
    texts = Trace(trace.source, trace.target, (), trace.model, trace.decoded, notes=notes)
    content = {**to_json(texts), "maps": [_top_map(one, i) for i, one in enumerate(trace.maps)]}
    head = "mean" if place is None or len(found.heads) == 1 else place
    return _example_data(trace, content, (found.kind, found.layer, head))


def _example_data(
    trace: Trace | LongTrace,
    content: Mapping[str, Any],
    best: Sequence[Any] = (),
    view: View | None = None,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    return {
        "trace": trace,
        "texts": _texts_of(trace.source.text, trace.target.text),
        "view": view,
        "links": [] if view is None else list(_strongest_links(view)),
        "notes": notes,
        "best": json.dumps(dict(zip(("kind", "layer", "head"), best, strict=False))),
        "data": embedded(content),
    }


def _strongest_links(view: View) -> Iterator[tuple[str, str, float]]:
    """Yield the largest weight of each row with its labels."""
    for row, weights in zip(view.rows[:MOST_LINKS], view.weights, strict=False):
        if len(weights):
            best = int(weights.argmax())
            yield row, view.columns[best], float(weights[best])


def _packed_rows(found: TopMap) -> str:
    """Return the strongest weights of a map as base64 of deflated bytes."""
    columns = found.places.astype("<u2" if found.shape[2] <= 1 << 16 else "<u4")
    planes = columns.reshape(-1, 1).view(np.uint8)
    halves = (found.peak.astype("<f2"), found.kept.astype("<f2"))
    stream = zlib.compressobj(6)
    deflated = [
        stream.compress(part.tobytes())
        for part in (np.ascontiguousarray(planes.T), found.levels, *halves)
    ]
    return base64.b64encode(b"".join([*deflated, stream.flush()])).decode("ascii")


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
