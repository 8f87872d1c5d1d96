"""`regard show`: attention maps in the terminal or as a file."""

import json
import os
import shlex
import sys
from collections.abc import Iterator
from itertools import islice
from typing import Any

import typer
from rich.console import Console

from regard import api
from regard.cli.commands import ShowArgs
from regard.cli.console import refuse, result_console
from regard.cli.input_lines import (
    one_source,
    sources_of,
    warn_if_bare,
)
from regard.data.media_files import reject_media
from regard.decoding_options import given_options
from regard.errors import ArgumentError
from regard.messages import message
from regard.pretrained import PretrainedModel
from regard.seeing import select
from regard.seeing.draw import terminal
from regard.seeing.draw.forecast import ForecastView
from regard.seeing.draw.terminal import supports_blocks
from regard.seeing.trace import storage


def show(args: ShowArgs) -> None:
    """Draw attention maps: where each output looked."""
    form = _form(args)
    choice = {
        "kind": args.kind,
        "layer": args.layer,
        "head": args.head,
        "words": "auto" if args.words is None else args.words,
        "special": args.special,
    }
    is_file = args.run.suffix in (".json", ".jsonl") and not args.run.is_dir()
    traces = _saved(args) if is_file else _new(args)
    if args.output is not None:
        alone = list(islice(traces, 2))
        if len(alone) != 1:
            many = "several" if alone else "none"
            raise ArgumentError("TEXT", "be one line for a file", many, "give one, or leave -o out")
        alone[0].save(args.output, **choice)
        typer.echo(message("show.saved", path=args.output), err=True)
        return
    between = "" if form == "json" else "\n"
    for number, trace in enumerate(traces):
        text = drawn(trace, form, choice, args.ascii)
        # colour codes are there only if the terminal shows them, so that click must not strip them
        typer.echo((between if number else "") + text, color=True)


def drawn(trace: Any, form: str, choice: dict[str, Any], ascii: bool = False) -> str:
    """Return a trace as text that fits stdout: its width, its encoding, its colours."""
    ascii = ascii or not supports_blocks(sys.stdout.encoding)
    if isinstance(trace, ForecastView):
        if form == "json":
            return json.dumps(trace.as_json(), ensure_ascii=False)
        return trace.text(_width(result_console()), ascii=ascii)
    if form == "json":
        return json.dumps(storage.to_json(trace), ensure_ascii=False)
    view, console = select(trace, **choice), result_console()
    if form == "plain":
        return terminal.plain(view, ascii)
    color = console.is_terminal and not console.no_color and console.color_system is not None
    draw = terminal.listing if form == "list" else terminal.matrix
    return draw(view, _width(console), ascii, color)


def _form(args: ShowArgs) -> str:
    forms = {"list": args.as_list, "plain": args.plain, "json": args.as_json}
    chosen = [name for name, on in forms.items() if on]
    if len(chosen) > 1:
        options = " and ".join(f"--{name}" for name in chosen)
        raise ArgumentError("the form", "be one of --list, --plain, --json", options, "choose one")
    return chosen[0] if chosen else "matrix"


def _saved(args: ShowArgs) -> Iterator[Any]:
    """Yield the saved trace with this number, or the first."""
    texts = given_options(text=args.text, target=args.target, beam=args.beam, max_len=args.max_len)
    if texts or args.chat or args.layers:
        raise ArgumentError(
            "TEXT and options of a model",
            "be left out for a saved trace, which has its own",
            "given",
            "leave them out, or name a run folder",
        )
    found = storage.find(args.run, 1 if args.line is None else args.line)
    if args.line is None and found.total > 1:
        typer.echo(message("show.trace-of", total=found.total), err=True)
    yield found.trace


def _new(args: ShowArgs) -> Iterator[Any]:
    """Yield a trace of each source."""
    refuse("be left out for a run", "leave it out, or name a file of traces", line=args.line)
    if args.text is None:
        fix = f"try `regard show {shlex.quote(str(args.run))} 'some text'`"
        raise ArgumentError("TEXT", "be given", "missing", fix)
    options = given_options(beam=args.beam, max_len=args.max_len)
    recording = given_options(layers=numbers("--layers", args.layers))
    how = {"device": args.device, "precision": args.precision}
    model = api.load(args.run, **how)
    if isinstance(model, PretrainedModel):
        reject_media(args.text)
        texts = sources_of(model, "-") if args.text == "-" else [args.text]
        options |= {"chat": args.chat, **recording}
        yield from (model.trace(one, args.target, **options) for one in texts)
        return
    refuse("be left out for a run", chat=args.chat, **recording)
    in_file = args.text == "-" or model.task.input.facts.is_file
    sources = sources_of(model, args.text) if in_file else [one_source(model, args.text)]
    if not model.task.has_sources and (args.target is not None or options):
        raise ArgumentError(
            "--target, --beam and --max-len",
            "be left out for a language model of a run, which is made to write TEXT",
            "given",
            "leave them out",
        )
    for source in warn_if_bare(model, sources):
        if model.task.has_sources:
            yield model.trace(source, args.target, **options)
        else:
            yield model.trace("", source)


def numbers(name: str, given: str | None) -> list[int] | None:
    """Return the numbers of a list such as `0-3,31`; None if there is none."""
    if given is None:
        return None
    found: set[int] = set()
    for part in given.split(","):
        first, dash, last = part.strip().partition("-")
        ends = (first, last) if dash else (first, first)
        if not all(end.isascii() and end.isdecimal() and len(end) < 6 for end in ends):
            rule = "be numbers from 0 and ranges of them, separated by commas"
            raise ArgumentError(name, rule, repr(given), "write it as in 0-3,31")
        found |= set(range(int(ends[0]), int(ends[1]) + 1))
    if not found:
        raise ArgumentError(name, "name at least one", repr(given), "write it as in 0-3,31")
    return sorted(found)


def _width(console: Console) -> int:
    """Return the width of the terminal; without one, that of `COLUMNS` or a large default."""
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) else console.width
