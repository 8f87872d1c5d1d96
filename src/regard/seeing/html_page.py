"""The page: one file that works offline, and the same page for `regard serve`."""

import base64
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, Final

from regard.errors import ArgumentError
from regard.seeing import static
from regard.seeing.labels import fit, safe
from regard.seeing.page_modules import MAIN, join, modules, text_of
from regard.seeing.storage import to_json
from regard.seeing.trace import Trace
from regard.seeing.view import select
from regard.version import __version__

__all__ = ["modules", "render", "render_live"]

#: traces that are also drawn for readers without scripts
MOST_STATIC: Final = 12


def render(traces: Sequence[Trace], *, title: str | None = None, live: bool = False) -> str:
    """A page that shows traces and loads nothing from anywhere.

    Args:
        traces: one, or several to choose from.
        title: of the page; what was read and written, if None.
        live: whether the page may ask the server that it comes from; see `render_live`.
    """
    if live:
        return render_live({}, traces, title=title)
    if not traces:
        raise ArgumentError("traces", "be at least one", "an empty list", "pass a trace")
    script = join(modules())
    return _page(
        title=title or _title(traces),
        policy=_policy(script_hash(script)),
        static=_static(traces),
        data="\n".join(_data(trace) for trace in traces),
        script=f"<script>{script}</script>",
    )


def render_live(
    info: Mapping[str, Any], traces: Sequence[Trace] = (), *, title: str | None = None
) -> str:
    """The page that asks its server; modules are loaded from `page/`.

    Args:
        info: what `/api/info` says: `models`, each with a `name`, and `limits`.
        traces: to show before anything is typed.
        title: of the page.
    """
    about = f'<script type="application/json" id="live">{embedded(dict(info))}</script>'
    return _page(
        title=title or "regard: see what it looks at",
        policy=_policy("'self'") + "; connect-src 'self'",
        static='<noscript><p class="note">This page needs JavaScript to ask the model; '
        "`regard show` draws the same in a terminal.</p></noscript>",
        data="\n".join([about, *(_data(trace) for trace in traces)]),
        script=f'<script type="module" src="page/{MAIN}"></script>',
    )


def embedded(content: Any) -> str:
    """JSON that can stand inside a script element: nothing in it can end it, or open another.

    Numbers that JSON does not have, of which one would leave the page empty, are null.
    """
    try:
        text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    except ValueError:
        finite = json.loads(json.dumps(content), parse_constant=lambda _: None)
        text = json.dumps(finite, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def script_hash(script: str) -> str:
    """How a content security policy names a script that it allows."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _policy(scripts: str) -> str:
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src {scripts}; "
        f"img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _page(**parts: str) -> str:
    """The template, filled in one pass, so that what is filled in is never read as a place."""
    known = {**parts, "title": escape(parts["title"]), "policy": escape(parts["policy"])}
    known |= {"version": escape(__version__), "style": text_of("style.css")}
    return re.sub(r"\{\{(\w+)\}\}", lambda found: known[found[1]], text_of("index.html"))


def _title(traces: Sequence[Trace]) -> str:
    first = traces[0]
    if len(traces) > 1:
        return f"{len(traces)} examples" + (f" of {first.model.name}" if first.model.name else "")
    return f"{fit(safe(first.source.text), 40)} → {fit(safe(first.target.text), 40)}"


def _data(trace: Trace) -> str:
    label = escape(fit(safe(trace.source.text), 60))
    return (
        f'<script type="application/json" class="trace" data-label="{label}" '
        f'data-best="{escape(_best(trace))}">{embedded(to_json(trace))}</script>'
    )


def _best(trace: Trace) -> str:
    """The head to begin with, which is the one that every other surface shows."""
    if not trace.maps:
        return "{}"
    view = select(trace)
    head = "mean" if view.head is None else view.head
    return json.dumps({"kind": view.kind, "layer": view.layer, "head": head})


def _static(traces: Sequence[Trace]) -> str:
    several = len(traces) > 1
    sections = "".join(static.section(trace, heading=several) for trace in traces[:MOST_STATIC])
    rest = len(traces) - MOST_STATIC
    cut = f'<p class="note">{rest} more need JavaScript to be shown.</p>' if rest > 0 else ""
    return f'<div id="static" class="static">{sections}{cut}</div>'
