"""`regard what-if`: change one thing, decode again, and compare."""

import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from rich.console import Console

from regard import api
from regard.cli.commands import WhatIfArgs
from regard.cli.compare import SAME, side_by_side
from regard.cli.console import note, one_line, print_json, print_table, result_console
from regard.cli.input_lines import one_source
from regard.decoding_options import given_options
from regard.errors import ArgumentError
from regard.messages import message
from regard.seeing.attribution.interventions import WhatIf
from regard.seeing.draw.shapes import fit, printable

#: rows of the table of heads
MOST_ROWS: Final = 8
#: cells of a label in it
CELL: Final = 24


def what_if(args: WhatIfArgs) -> None:
    """Compare an answer with the one after a change."""
    changes: dict[str, Any] = {
        "replace": dict(_parsed("--replace", one, _replacement) for one in args.replace or ()),
        "prefix": args.prefix,
        "heads_off": [_parsed("--off", one, _head) for one in args.off or ()],
        "cells": [_parsed("--set", one, _cell) for one in args.set_cell or ()],
    }
    model = api.load_own(args.run, device=args.device, precision=args.precision)
    options = given_options(beam=args.beam, max_len=args.max_len)
    found = model.what_if(one_source(model, args.text), **changes, **options)
    if args.output is not None:
        found.save(args.output)
        note(message("show.saved", path=args.output))
    if args.as_json:
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
