"""`regard show`: attention maps in the terminal or as a file."""

import json
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

import typer
from rich.console import Console

from regard import api
from regard.api.word_alignment import Units
from regard.cli.console import result_console
from regard.cli.gold_alignments import units_of, with_gold
from regard.cli.input_lines import (
    one_source,
    refuse_pretrained_options,
    sources_of,
    warn_if_bare,
)
from regard.data.media_files import reject_media
from regard.data.word_segmentation import check_segmenter
from regard.errors import ArgumentError
from regard.messages import message
from regard.pretrained import MediaModel, PretrainedModel
from regard.seeing import Trace, View, select_all
from regard.seeing.draw import terminal
from regard.seeing.draw.files import check_ending
from regard.seeing.draw.forecast import ForecastView
from regard.seeing.draw.terminal import ASCII_GLYPHS, BLOCK_GLYPHS, supports_blocks
from regard.seeing.trace import storage
from regard.seeing.trace.long_trace import LongTrace
from regard.seeing.trace.view import check_scale
from regard.seeing.trace.words import with_segmented_words

VIEWS: Final = ("matrix", "list", "heads")
#: maps that are printed at most
MAX_MAPS: Final = 16
#: returns the units of the gold of a trace, for --words, --tokens or neither
UnitsFor = Callable[[bool | None], Units]
TraceAndUnits = tuple[Trace, UnitsFor]


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
    segmenter: str,
    special: str,
    scale: str,
    target: str | None,
    gold: str | None,
    beam: int | None,
    max_len: int | None,
    chat: bool,
    queries: bool,
    allow_pickle: bool,
    precision: str,
    top_k_weights: int | None,
    layers: str | None,
    heads: str | None,
    line: int | None,
    ascii: bool,
    device: str,
) -> None:
    """Draw attention maps: where each output looked."""
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
    check_segmenter(segmenter)
    if top_k_weights is not None:
        _check_strongest(form, output, gold)
    chosen = [numbers(name, given) for name, given in (("--layers", layers), ("--heads", heads))]
    request = _TraceRequest(
        text, target, beam, max_len, chat or None, queries or None, top_k_weights, *chosen
    )
    is_file = run.suffix in (".json", ".jsonl") and not run.is_dir()
    loading = {"device": device, "precision": precision, "allow_pickle": allow_pickle}
    found = _saved(run, request, line) if is_file else _new(run, request, line, loading)
    if segmenter != "auto":
        found = ((_segmented(trace, segmenter), units) for trace, units in found)
    traces = (trace for trace, _ in found)
    if gold is not None:
        traces = (with_gold(trace, gold, count(words)) for trace, count in found)
    if output is not None:
        _only(traces).save(output, scale=scale, **choice)
        typer.echo(message("show.saved", path=output), err=True)
        return
    between = "" if form == "json" else "\n"
    for number, trace in enumerate(traces):
        text = drawn(trace, form, choice, scale, ascii)
        # colour codes are there only if the terminal shows them, so that click must not strip them
        typer.echo((between if number else "") + text, color=True)


def drawn(
    trace: Any, form: str, choice: dict[str, Any], scale: Any = "fixed", ascii: bool = False
) -> str:
    """Return a trace as text that fits stdout: its width, its encoding, its colours."""
    if isinstance(trace, ForecastView):
        if form == "json":
            return json.dumps(trace.as_json(), ensure_ascii=False)
        plain = ascii or not supports_blocks(sys.stdout.encoding)
        return trace.text(_width(result_console()), ascii=plain)
    if isinstance(trace, LongTrace):
        trace = trace.one_head(choice["kind"], choice["layer"], choice["head"])
        choice = {**choice, "kind": "auto", "layer": "auto", "head": "auto"}
    if form == "json":
        return json.dumps(storage.to_json(trace), ensure_ascii=False)
    console = result_console()
    ascii = ascii or not supports_blocks(sys.stdout.encoding)
    if form == "heads":
        return terminal.heads(trace, kind=choice["kind"], width=_width(console), ascii=ascii)
    views = select_all(trace, **choice)
    maps = [_one(view, form, scale, ascii, console) for view in views[:MAX_MAPS]]
    glyphs = ASCII_GLYPHS if ascii else BLOCK_GLYPHS
    return "\n\n".join([*maps, *glyphs.more(len(views) - MAX_MAPS, "maps")])


def _segmented(trace: Any, segmenter: str) -> Trace:
    """Return a trace with the words that a segmenter finds."""
    if isinstance(trace, Trace):
        return with_segmented_words(trace, segmenter)
    rule = "be auto for a forecast, and with --top-k-weights, whose words are not merged"
    raise ArgumentError("--segmenter", rule, repr(segmenter), "leave it out")


def _form(view: str, as_list: bool, plain: bool, as_json: bool) -> str:
    if view not in VIEWS:
        raise ArgumentError("view", f"be one of {', '.join(VIEWS)}", repr(view), "choose one")
    given = [name for name, on in (("list", as_list), ("plain", plain), ("json", as_json)) if on]
    if len(given) > 1:
        options = " and ".join(f"--{name}" for name in given)
        raise ArgumentError("the form", "be one of --list, --plain, --json", options, "choose one")
    return given[0] if given else view


def _check_strongest(form: str, output: Path | None, gold: str | None) -> None:
    """Raise for what cannot be done with the strongest weights alone, before a model reads."""
    if gold is not None:
        fix = "leave one of them out"
        raise ArgumentError("--gold", "be left out with --top-k-weights", repr(gold), fix)
    if output is None and form in ("json", "heads"):
        rule = "be matrix, list or plain with --top-k-weights"
        raise ArgumentError("the form", rule, form, "save all heads with -o x.html")
    if output is not None and output.suffix.lower() == ".json":
        rule = "not be .json with --top-k-weights"
        raise ArgumentError("file", rule, repr(str(output)), "save all heads as .html")


class _TraceRequest(NamedTuple):
    """The trace that a run is to make."""

    text: str | None
    target: str | None
    beam: int | None
    max_len: int | None
    chat: bool | None
    queries: bool | None = None
    top_k_weights: int | None = None
    layers: list[int] | None = None
    heads: list[int] | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Options of decoding that were given."""
        given = {"beam": self.beam, "max_len": self.max_len}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def recording(self) -> dict[str, Any]:
        """Options of recording that were given."""
        given = {
            "top_k_weights": self.top_k_weights,
            "layers": self.layers,
            "heads": self.heads,
        }
        return {name: value for name, value in given.items() if value is not None}


def _saved(path: Path, request: _TraceRequest, line: int | None) -> Iterator[TraceAndUnits]:
    """Yield the saved trace with this number, or the first."""
    if any(value is not None for value in request):
        raise ArgumentError(
            "TEXT and options of a model",
            "be left out for a saved trace, which has its own",
            "given",
            "leave them out, or name a run folder",
        )
    found = storage.find(path, 1 if line is None else line)
    if line is None and found.total > 1:
        typer.echo(message("show.trace-of", total=found.total), err=True)
    yield found.trace, partial(units_of, found.trace)


def _new(
    run: Path, request: _TraceRequest, line: int | None, loading: dict[str, Any]
) -> Iterator[TraceAndUnits]:
    """Yield a trace of each source."""
    if line is not None:
        fix = "leave it out, or name a file of traces"
        raise ArgumentError("--line", "be left out for a run", line, fix)
    if request.text is None:
        raise ArgumentError(
            "TEXT", "be given", "missing", f"try `regard show {shlex.quote(str(run))} 'some text'`"
        )
    model = api.load(run, **loading)
    if isinstance(model, PretrainedModel | MediaModel):
        if isinstance(model, PretrainedModel):
            reject_media(request.text)
        texts = sources_of(model, "-") if request.text == "-" else [request.text]
        given = {"chat": bool(request.chat), **request.options, **request.recording}
        given |= {"queries": True} if request.queries else {}
        made = (model.trace(one, request.target, **given) for one in texts)
        yield from ((trace, partial(units_of, trace)) for trace in made)
        return
    refuse_pretrained_options(chat=request.chat, queries=request.queries, **request.recording)
    yield from _of_run(model, request.text, request)


def _of_run(model: api.Model, text: str, request: _TraceRequest) -> Iterator[TraceAndUnits]:
    count = partial(Units.of, model.task)
    in_file = text == "-" or model.task.input.facts.is_file
    sources = sources_of(model, text) if in_file else [one_source(model, text)]
    texts = warn_if_bare(model, sources)
    if model.task.has_sources:
        made = (model.trace(one, request.target, **request.options) for one in texts)
        yield from ((trace, count) for trace in made)
        return
    if request.target is not None or request.options:
        raise ArgumentError(
            "--target, --beam and --max-len",
            "be left out for a language model of a run, which is made to write TEXT",
            "given",
            "leave them out",
        )
    yield from ((model.trace("", one), count) for one in texts)


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


def _only(traces: Iterator[Trace]) -> Any:
    """Return the only trace; raises if there are several, since a file holds one."""
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
    """Return the width of the terminal; without one, that of `COLUMNS` or a large default."""
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) else console.width
