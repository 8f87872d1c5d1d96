"""`regard show`."""

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from regard import api
from regard.cli.tables import result_console
from regard.data import read_lines
from regard.errors import ArgumentError
from regard.seeing import Trace, View, select_all, storage, terminal
from regard.seeing.alignment import parse_links
from regard.seeing.files import check_ending, save
from regard.seeing.ink import BLOCKS, LETTERS, takes_blocks

VIEWS = ("matrix", "list", "heads")
#: maps that are printed at most
MOST_MAPS = 16


def show(
    run: Annotated[
        Path,
        typer.Argument(
            metavar="RUN",
            help="A run folder, a bundled model (g2p), or a trace that was saved (.json).",
        ),
    ],
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="TEXT",
            help="A source, or what a language model reads; '-' reads one from each line of stdin.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--output",
            metavar="FILE",
            help="Write a file instead: .html, .svg, .png, .pdf, .csv or .json.",
            show_default=False,
        ),
    ] = None,
    view: Annotated[str, typer.Option(help="matrix, list or heads.")] = "matrix",
    as_list: Annotated[bool, typer.Option("--list", help="The same as --view list.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="Sentences.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="The whole trace as JSON.")] = False,
    kind: Annotated[
        str, typer.Option(help="cross, encoder-self, decoder-self, ...; auto is cross if any.")
    ] = "auto",
    layer: Annotated[
        str, typer.Option(help="A number from 0, all, or auto for that with the sharpest rows.")
    ] = "auto",
    head: Annotated[
        str,
        typer.Option(help="A number from 0, mean, all, or auto for that with the sharpest rows."),
    ] = "auto",
    words: Annotated[
        bool | None,
        typer.Option("--words/--tokens", help="Merge sub-words.", show_default="auto"),
    ] = None,
    special: Annotated[
        str, typer.Option(help="Tokens like </s>: dim, hide (their mass is printed) or show.")
    ] = "dim",
    scale: Annotated[
        str, typer.Option(help="Full ink for 1 (fixed), or for the strongest of each row (row).")
    ] = "fixed",
    target: Annotated[
        str | None,
        typer.Option(help="What the model is made to write.", show_default="its own answer"),
    ] = None,
    gold: Annotated[
        str | None,
        typer.Option(help="Source-target links of words, as in '0-0 1-2 2p1'.", show_default=False),
    ] = None,
    beam: Annotated[
        int | None,
        typer.Option(help="Width of the search; 1 is greedy.", show_default="that of the run"),
    ] = None,
    ascii: Annotated[bool, typer.Option("--ascii", help="Draw with ASCII alone.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
) -> None:
    """Draw where each output looked."""
    form = _form(view, as_list, plain, as_json)
    choice = {
        "kind": kind,
        "layer": layer,
        "head": head,
        "words": "auto" if words is None else words,
        "special": special,
    }
    if output is not None:
        check_ending(output)
    if scale not in terminal.SCALES:
        raise ArgumentError("scale", "be fixed or row", repr(scale), "choose one")
    traces = _traces(run, text, target, beam, device)
    if gold is not None:
        traces = (_with_gold(trace, gold) for trace in traces)
    if output is not None:
        save(_only(traces), output, scale=scale, **choice)  # type: ignore[arg-type]
        typer.echo(f"saved {output}", err=True)
        return
    between = "" if form == "json" else "\n"
    for number, trace in enumerate(traces):
        text = drawn(trace, form, choice, scale, ascii)
        # codes are there only where they are wanted: they shall not be taken out again
        typer.echo((between if number else "") + text, color=True)


def drawn(
    trace: Trace, form: str, choice: dict[str, Any], scale: Any = "fixed", ascii: bool = False
) -> str:
    """A trace as text that fits stdout: its width, its encoding, and whether it shows colours."""
    if form == "json":
        return json.dumps(storage.to_json(trace), ensure_ascii=False)
    console = result_console()
    ascii = ascii or not takes_blocks(sys.stdout.encoding)
    if form == "heads":
        return terminal.heads(trace, kind=choice["kind"], width=_width(console), ascii=ascii)
    views = select_all(trace, **choice)
    maps = [_one(view, form, scale, ascii, console) for view in views[:MOST_MAPS]]
    signs = LETTERS if ascii else BLOCKS
    return "\n\n".join([*maps, *signs.more(len(views) - MOST_MAPS, "maps")])


def _form(view: str, as_list: bool, plain: bool, as_json: bool) -> str:
    if view not in VIEWS:
        raise ArgumentError("view", f"be one of {', '.join(VIEWS)}", repr(view), "choose one")
    asked = [name for name, on in (("list", as_list), ("plain", plain), ("json", as_json)) if on]
    if len(asked) > 1:
        options = " and ".join(f"--{name}" for name in asked)
        raise ArgumentError("the form", "be one of --list, --plain, --json", options, "choose one")
    return asked[0] if asked else view


def _traces(
    run: Path, text: str | None, target: str | None, beam: int | None, device: str
) -> Iterator[Trace]:
    """Of each text; or the one that was saved."""
    if run.suffix == ".json" and not run.is_dir():
        if text is not None or target is not None or beam is not None:
            raise ArgumentError(
                "TEXT, --target and --beam",
                "be left out for a saved trace, which has its own",
                "given",
                "leave them out, or name a run folder",
            )
        yield storage.load(run)
        return
    if text is None:
        raise ArgumentError("TEXT", "be given", "missing", f"try `regard show {run} 'some text'`")
    model = api.load(run, device=device)
    texts = read_lines("-", max_chars=model.config.max_chars) if text == "-" else [text]
    options: dict[str, Any] = {} if beam is None else {"beam": beam}
    if not model.config.reads_texts:
        yield from (model.trace(one, target, **options) for one in texts)
        return
    if target is not None or beam is not None:
        raise ArgumentError(
            "--target and --beam",
            "be left out for a language model, which is made to write TEXT",
            "given",
            "leave them out",
        )
    yield from (model.trace("", one) for one in texts)


def _only(traces: Iterator[Trace]) -> Trace:
    """The trace, if it is one: a file holds no more."""
    found = list(islice(traces, 2))
    if len(found) != 1:
        many = "several" if found else "none"
        raise ArgumentError("TEXT", "be one line for a file", many, "give one, or leave -o out")
    return found[0]


def _with_gold(trace: Trace, line: str) -> Trace:
    """The trace with links that a person has made."""
    try:
        found = parse_links(line)
    except ValueError as error:
        raise ArgumentError("gold", "be links like 0-0 1-2 2p1", repr(line), str(error)) from None
    links = sorted(found.sure | found.possible)
    sizes = [_words(side.tokens) for side in (trace.source, trace.target)]
    for link in links:
        if any(number >= size for number, size in zip(link, sizes, strict=True)):
            raise ArgumentError(
                "gold",
                f"link words from 0 to {sizes[0] - 1} with words from 0 to {sizes[1] - 1}",
                f"{link[0]}-{link[1]}",
                "count words from 0, the source first",
            )
    return replace(trace, gold=tuple((t, s, (s, t) in found.sure) for s, t in links))


def _words(tokens: Any) -> int:
    return max((token.word + 1 for token in tokens if token.word is not None), default=0)


def _one(view: View, form: str, scale: Any, ascii: bool, console: Console) -> str:
    color = console.is_terminal and not console.no_color and console.color_system is not None
    if form == "plain":
        return terminal.plain(view, ascii)
    if form == "list":
        return terminal.listing(view, _width(console), ascii, color)
    return terminal.matrix(view, _width(console), ascii, color, scale=scale)


def _width(console: Console) -> int:
    """Of the terminal; where there is none, what `COLUMNS` says, or wide enough."""
    asked = os.environ.get("COLUMNS", "")
    return int(asked) if asked.isdecimal() and int(asked) else console.width
