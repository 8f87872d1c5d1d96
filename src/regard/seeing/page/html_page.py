"""The HTML page of traces: one file that works offline, and the same page for `regard serve`."""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from regard.errors import ArgumentError
from regard.messages import message, page_catalogues
from regard.seeing.draw.figure import pooled
from regard.seeing.draw.shapes import PAGE, fit, printable
from regard.seeing.page.writer import (
    MAIN,
    embedded,
    join,
    render_page,
)
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


def render_live(info: Mapping[str, Any]) -> str:
    """Return the page that asks its server and loads its modules from `page/`.

    Args:
        info: response of `/api/info`: `models`, each with a `name`, and `limits`.
    """
    name, asked = message("page.live.title"), embedded(dict(info))
    return render_page("page.html", name, live=True, info=asked, main=MAIN, **_constants([]))


def _constants(examples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "examples": examples,
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
    texts = _texts_of(first.source.text, first.target.text)
    return " → ".join(fit(printable(text), 40) for text in texts)


def _texts_of(source: str, target: str) -> list[str]:
    """Return source and target; one of them if the target is the source, or continues it."""
    return [target] if target.startswith(source) else [source, target]


def _example(trace: Trace) -> dict[str, Any]:
    """Return the data of a trace, and the head that is shown first, as on every surface."""
    view = select(trace) if trace.maps else None
    best = {}
    if view is not None:
        head = "mean" if view.head is None else view.head
        best = {"kind": view.kind, "layer": view.layer, "head": head}
    return {
        "trace": trace,
        "texts": _texts_of(trace.source.text, trace.target.text),
        "view": view,
        "links": [] if view is None else list(_strongest_links(view)),
        "notes": [] if view is None else [*map(printable, pooled(view, PAGE.most).notes)],
        "best": json.dumps(best),
        "data": embedded(to_json(trace)),
    }


def _strongest_links(view: View) -> Iterator[tuple[str, str, float]]:
    """Yield the largest weight of each row with its labels."""
    for row, weights in zip(view.rows[:MOST_LINKS], view.weights, strict=False):
        if len(weights):
            best = int(weights.argmax())
            yield row, view.columns[best], float(weights[best])
