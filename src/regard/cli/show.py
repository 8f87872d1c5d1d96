"""`regard show`."""

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import typer
from rich.console import Console

from regard import api
from regard.api.word_alignment import Units
from regard.cli.console import result_console
from regard.cli.features import told_of_features
from regard.cli.gold_alignments import units_of, with_gold
from regard.cli.pairs import one_source, source_lines
from regard.data import FrameScaler
from regard.errors import ArgumentError
from regard.seeing import Trace, View, select_all, storage, terminal
from regard.seeing.display import check_ending, save
from regard.seeing.terminal import ASCII_GLYPHS, BLOCK_GLYPHS, supports_blocks
from regard.seeing.view import check_scale

VIEWS = ("matrix", "list", "heads")
#: maps that are printed at most
MOST_MAPS = 16
#: what the gold of a trace counts, for --words, --tokens or neither
Count = Callable[[bool | None], Units]
Counted = tuple[Trace, Count]


def show(
    *,
    run: Path,
    text: str | None,
    output: Path | None,
    view: str,
    as_list: bool,
    plain: bool,
    as_json: bool,
    kind: str,
    layer: str,
    head: str,
    words: bool | None,
    special: str,
    scale: str,
    target: str | None,
    gold: str | None,
    beam: int | None,
    line: int | None,
    ascii: bool,
    device: str,
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
    check_scale(scale)
    asked = _TraceRequest(text, target, beam)
    found = _reopened(run, asked, line) if _is_file(run) else _made(run, asked, line, device)
    traces = (trace for trace, _ in found)
    if gold is not None:
        traces = (with_gold(trace, gold, count(words)) for trace, count in found)
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
    ascii = ascii or not supports_blocks(sys.stdout.encoding)
    if form == "heads":
        return terminal.heads(trace, kind=choice["kind"], width=_width(console), ascii=ascii)
    views = select_all(trace, **choice)
    maps = [_one(view, form, scale, ascii, console) for view in views[:MOST_MAPS]]
    glyphs = ASCII_GLYPHS if ascii else BLOCK_GLYPHS
    return "\n\n".join([*maps, *glyphs.more(len(views) - MOST_MAPS, "maps")])


def _form(view: str, as_list: bool, plain: bool, as_json: bool) -> str:
    if view not in VIEWS:
        raise ArgumentError("view", f"be one of {', '.join(VIEWS)}", repr(view), "choose one")
    asked = [name for name, on in (("list", as_list), ("plain", plain), ("json", as_json)) if on]
    if len(asked) > 1:
        options = " and ".join(f"--{name}" for name in asked)
        raise ArgumentError("the form", "be one of --list, --plain, --json", options, "choose one")
    return asked[0] if asked else view


class _TraceRequest(NamedTuple):
    """What a run is asked for."""

    text: str | None
    target: str | None
    beam: int | None


def _is_file(run: Path) -> bool:
    """Whether traces are saved there."""
    return run.suffix in (".json", ".jsonl") and not run.is_dir()


def _reopened(path: Path, asked: _TraceRequest, line: int | None) -> Iterator[Counted]:
    """The trace that was saved; of several, one."""
    if any(value is not None for value in asked):
        raise ArgumentError(
            "TEXT, --target and --beam",
            "be left out for a saved trace, which has its own",
            "given",
            "leave them out, or name a run folder",
        )
    found = storage.find(path, 1 if line is None else line)
    if line is None and found.total > 1:
        typer.echo(f"trace 1 of {found.total:,}: --line N shows another", err=True)
    yield found.trace, partial(units_of, found.trace)


def _made(run: Path, asked: _TraceRequest, line: int | None, device: str) -> Iterator[Counted]:
    """A trace of each text."""
    if line is not None:
        fix = "leave it out, or name a file of traces"
        raise ArgumentError("--line", "be left out for a run", line, fix)
    if asked.text is None:
        raise ArgumentError(
            "TEXT", "be given", "missing", f"try `regard show {shlex.quote(str(run))} 'some text'`"
        )
    model = api.load(run, device=device)
    count = partial(Units.of, model)
    in_file = asked.text == "-" or isinstance(model.source, FrameScaler)
    sources = source_lines(model, asked.text) if in_file else [one_source(model, asked.text)]
    texts = told_of_features(model, sources)
    options: dict[str, Any] = {} if asked.beam is None else {"beam": asked.beam}
    if not model.config.reads_texts:
        yield from ((model.trace(one, asked.target, **options), count) for one in texts)
        return
    if asked.target is not None or asked.beam is not None:
        raise ArgumentError(
            "--target and --beam",
            "be left out for a language model, which is made to write TEXT",
            "given",
            "leave them out",
        )
    yield from ((model.trace("", one), count) for one in texts)


def _only(traces: Iterator[Trace]) -> Trace:
    """The trace, if it is one: a file holds no more."""
    found = list(islice(traces, 2))
    if len(found) != 1:
        many = "several" if found else "none"
        raise ArgumentError("TEXT", "be one line for a file", many, "give one, or leave -o out")
    return found[0]


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
