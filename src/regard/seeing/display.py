"""A trace as a file, by the ending of its name."""

from collections.abc import Callable
from pathlib import Path
from typing import Final

from regard.errors import ArgumentError
from regard.seeing import figure, storage, tables
from regard.seeing.terminal import Scale
from regard.seeing.trace import Trace
from regard.seeing.view import Special, select, select_all
from regard.seeing.words import Merging

ENDINGS: Final = ("html", "svg", "png", "pdf", "csv", "json")
DRAWN: Final[dict[str, Callable[..., str | bytes]]] = {
    "svg": figure.svg,
    "png": figure.png,
    "pdf": figure.pdf,
}


def save(
    trace: Trace,
    path: str | Path,
    *,
    kind: str = "auto",
    layer: int | str = "auto",
    head: int | str = "auto",
    words: Merging = "auto",
    special: Special = "dim",
    scale: Scale = "fixed",
    title: str | None = None,
) -> None:
    """Writes html, svg, png, pdf, csv or json.

    A page (html) and a trace (json) hold all maps; there the options of the view have no say.

    Args:
        trace: what to write.
        path: the file; its ending says which kind it is.
        kind: of the map, as for `select`.
        layer: counted from 0, or `auto`; for csv also `all`.
        head: counted from 0, `mean` or `auto`; for csv also `all`.
        words: whether to merge sub-words.
        special: `dim`, `hide` or `show`.
        scale: `fixed` or `row`.
        title: of a page.
    """
    ending = check_ending(path)
    if ending == "html":
        _write(path, _page(trace, title))
    elif ending == "json":
        _write(path, storage.dumps(trace))
    elif ending == "csv":
        views = select_all(trace, kind=kind, layer=layer, head=head, words=words, special=special)
        _write(path, tables.to_csv(views))
    else:
        view = select(trace, kind=kind, layer=layer, head=head, words=words, special=special)
        _write(path, DRAWN[ending](view, scale=scale))


def check_ending(path: str | Path) -> str:
    """The ending of a file that can be written; raises for any other."""
    ending = Path(path).suffix.lower().removeprefix(".")
    if ending not in ENDINGS:
        raise ArgumentError(
            "file", f"end in .{', .'.join(ENDINGS)}", repr(str(path)), "choose one of these"
        )
    return ending


def _page(trace: Trace, title: str | None) -> str:
    from regard.seeing import html_page

    return html_page.render([trace], title=title)


def _write(path: str | Path, content: str | bytes) -> None:
    # the floor of data is heavy, and not needed to draw
    from regard.atomic_files import atomic_output

    # half a character, which a shell passes on for a byte that is no text, becomes `\udcff`: what
    # JSON reads as the same half again
    data = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    with atomic_output(path) as file:
        file.write(data)
