"""`regard what-if`: change one thing, decode again, and compare."""

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from regard import api
from regard.cli.compare import SAME, side_by_side
from regard.cli.console import note, one_line, print_json, print_table, result_console
from regard.cli.input_lines import one_source
from regard.errors import ArgumentError
from regard.messages import message
from regard.pretrained import PretrainedModel
from regard.seeing.attribution.what_if import WhatIf
from regard.seeing.draw.labels import fit, printable

#: rows of the table of heads
MOST_ROWS: Final = 8
#: cells of a label in it
CELL: Final = 24


def what_if(
    *,
    run: Path,
    text: str,
    replace: list[str] | None,
    prefix: str | None,
    off: list[str] | None,
    set_cell: list[str] | None,
    beam: int | None,
    max_len: int | None,
    output: Path | None,
    as_json: bool,
    device: str,
    allow_pickle: bool,
    precision: str,
) -> None:
    """Compare an answer with the one after a change."""
    if output is not None and output.suffix.lower() not in (".html", ".htm"):
        raise ArgumentError("--output", "end in .html", repr(str(output)), "choose such a name")
    changes: dict[str, Any] = {
        "replace": dict(_parsed("--replace", one, _replacement) for one in replace or ()),
        "prefix": prefix,
        "heads_off": [_parsed("--off", one, _head) for one in off or ()],
        "cells": [_parsed("--set", one, _cell) for one in set_cell or ()],
    }
    loaded = api.load(run, device=device, precision=precision, allow_pickle=allow_pickle)
    model = api.text_model(loaded, "regard what-if")
    source = text if isinstance(model, PretrainedModel) else one_source(model, text)
    options: dict[str, Any] = {"beam": beam, "max_len": max_len}
    given = {name: value for name, value in options.items() if value is not None}
    found = model.what_if(source, **changes, **given)
    if output is not None:
        found.save(output)
        note(message("show.saved", path=output))
    if as_json:
        return print_json(found.to_json())
    return _print(found, result_console())


def _print(found: WhatIf, console: Console) -> None:
    for sentence in found.changes:
        asked = message("what-if.question", change=printable(sentence))
        console.print(asked, highlight=False, markup=False)
    for name, answer in zip("AB", found.answers, strict=True):
        console.print(f"{name}  {printable(one_line(answer))}", highlight=False, markup=False)
    heads = found.distance.heads
    if heads and heads[0].distance <= SAME:
        console.print(message("compare.all-same"))
    elif heads:
        console.print(f"\n{message('what-if.change-most')}", style="bold")
        rows = [
            [one.kind, str(one.layer), str(one.head), f"{one.distance:.3f}", fit(one.row, CELL)]
            for one in heads[:MOST_ROWS]
        ]
        titles = [message(f"table.{name}") for name in ("kind", "layer", "head", "distance")]
        print_table(console, [*titles, message("what-if.most-at")], rows)
        console.print(f"\n{heads[0].name}", style="bold", highlight=False)
        sys.stdout.write(side_by_side(found.traces, heads[0], console.width) + "\n")
    for remark in (*found.notes, *found.distance.notes):
        console.print(message("sentence", text=remark), highlight=False, markup=False)


def _parsed(option: str, text: str, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(text)
    except ValueError:
        rule, example = FORMS[option]
        raise ArgumentError(option, f"be {rule}", repr(text), f"as in {example}") from None


def _replacement(text: str) -> tuple[int, str]:
    place, equals, new = text.partition("=")
    if not equals:
        raise ValueError(text)
    return int(place), new


def _head(text: str) -> tuple[str, int, int]:
    kind, layer, head = text.split(":")
    return kind, int(layer), int(head)


def _cell(text: str) -> Sequence[Any]:
    place, weight = text.split("=")
    kind, layer, head, row, column = place.split(":")
    number = None if head == "all" else int(head)
    return kind, int(layer), number, int(row), int(column), float(weight)


#: form of each option, and an example
FORMS: Final = {
    "--replace": ("NUMBER=TEXT", "--replace 1=dog"),
    "--off": ("KIND:LAYER:HEAD", "--off cross:0:1"),
    "--set": ("KIND:LAYER:HEAD:ROW:COLUMN=WEIGHT", "--set cross:0:all:2:3=0.9"),
}
