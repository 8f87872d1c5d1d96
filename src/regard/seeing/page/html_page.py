"""The HTML page of traces: one file that works offline, and the same page for `regard serve`."""

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from regard.errors import ArgumentError
from regard.messages import TAGS, language, message, page_catalogues
from regard.seeing.draw.figure import PAGE, pooled, remarks, svg
from regard.seeing.draw.labels import fit, font_safe, printable
from regard.seeing.page.page_modules import MAIN, join, modules, text_of
from regard.seeing.trace.storage import to_json
from regard.seeing.trace.trace import Trace
from regard.seeing.trace.view import View, select
from regard.version import __version__

if TYPE_CHECKING:
    from jinja2 import Template

__all__ = [
    "embedded",
    "modules",
    "page_parts",
    "render",
    "render_live",
    "script_hash",
    "template",
    "texts_of",
    "title_of",
]

#: traces that are also drawn for readers without scripts, and links that are listed of each
MOST_STATIC: Final = 12
MOST_LINKS: Final = 40
#: cells of a label in a table
LABEL: Final = 18


def render(traces: Sequence[Trace], *, title: str | None = None, live: bool = False) -> str:
    """Return a page that shows traces and loads nothing from anywhere.

    Args:
        traces: one, or several to choose from.
        title: of the page; source and target by default.
        live: whether the page may ask the server that it comes from; see `render_live`.
    """
    if live:
        return render_live({}, traces, title=title)
    if not traces:
        raise ArgumentError("traces", "be at least one", "an empty list", "pass a trace")
    parts = page_parts(title or _title(traces), list(map(_example, traces)))
    return template("page.html").render(parts)


def page_parts(title: str, examples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the template of a saved page is filled with, its script among it.

    Args:
        title: of the page.
        examples: what `_example` returns for each trace.
    """
    script = join(modules())
    return {
        "title": title,
        "title_key": "",
        "policy": _policy(script_hash(script)),
        "live": False,
        "chosen_by_reader": False,
        "examples": examples,
        "script": script,
        **_constants(),
    }


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
    return template("page.html").render(
        title=title or message("page.live.title"),
        title_key="" if title else "page.live.title",
        chosen_by_reader=chosen_by_reader,
        policy=_policy("'self'") + "; connect-src 'self'",
        live=True,
        info=embedded(dict(info)),
        examples=list(map(_example, traces)),
        main=MAIN,
        **_constants(),
    )


@cache
def template(name: str) -> "Template":
    """Return a template of this package, which escapes whatever is filled in."""
    from jinja2 import Environment, PackageLoader, StrictUndefined  # only needed to write pages
    from markupsafe import Markup

    environment = Environment(
        loader=PackageLoader("regard.seeing.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )

    def label(text: str, width: int = LABEL) -> str:
        return fit(printable(text), width)

    def token(text: str, width: int = LABEL) -> Markup:
        # its direction does not turn the text around it
        return Markup("<bdi>{}</bdi>").format(label(text, width))

    environment.globals |= {"say": message, "lang": lambda: TAGS[language()]}
    environment.filters |= {
        "label": label,
        "token": token,
        "figure": lambda view: Markup(svg(view, theme=PAGE)),
    }
    return environment.get_template(name)


def embedded(content: Any, *, ascii: bool = True) -> str:
    """Return JSON for a script element, which nothing in it can close.

    NaN and infinities, which JSON does not have, become null. Tokens may hold half of a surrogate
    pair, which no file can have: in ASCII it is escaped.
    """
    try:
        text = json.dumps(content, separators=(",", ":"), allow_nan=False, ensure_ascii=ascii)
    except ValueError:
        finite = json.loads(json.dumps(content), parse_constant=lambda _: None)
        text = json.dumps(finite, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def script_hash(script: str) -> str:
    """Return the source expression by which a content security policy allows a script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


def _policy(scripts: str) -> str:
    return (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src {scripts}; "
        f"img-src data: blob:; base-uri 'none'; form-action 'none'"
    )


def _constants() -> dict[str, Any]:
    return {
        "version": __version__,
        "messages": embedded(page_catalogues(), ascii=False),
        "style": text_of("style.css"),
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
    return " → ".join(fit(font_safe(text), 40) for text in texts_of(source, target))


def texts_of(source: str, target: str) -> list[str]:
    """Return source and target; one of them if the target is the source, or continues it."""
    return [target] if source and target.startswith(source) else [source, target]


def _example(trace: Trace) -> dict[str, Any]:
    """Return the data of a trace, and the head that is shown first, as on every surface."""
    view = select(trace) if trace.maps else None
    best: dict[str, Any] = {}
    notes: list[str] = []
    if view is not None:
        notes = list(remarks(pooled(view, PAGE.most)))
        head = "mean" if view.head is None else view.head
        best = {"kind": view.kind, "layer": view.layer, "head": head}
    data = embedded(to_json(trace))
    return {
        "trace": trace,
        "texts": texts_of(trace.source.text, trace.target.text),
        "view": view,
        "links": [] if view is None else list(_strongest_links(view)),
        "notes": notes,
        "best": json.dumps(best),
        "data": data,
    }


def _strongest_links(view: View) -> Iterator[tuple[str, str, float]]:
    """Yield the largest weight of each row with its labels."""
    for row, weights in zip(view.rows[:MOST_LINKS], view.weights, strict=False):
        if len(weights):
            best = int(weights.argmax())
            yield row, view.columns[best], float(weights[best])
