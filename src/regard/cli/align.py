"""`regard align`: word alignments by attention or statistics, and their error rates."""

import sys
from collections.abc import Sequence
from typing import Final

from rich.console import Console

from regard import api
from regard.api import word_alignment
from regard.api.word_alignment import Units, fill_gaps, left_out
from regard.atomic_files import atomic_output
from regard.cli.commands import AlignArgs
from regard.cli.console import print_json, print_table, progress_bar, result_console
from regard.cli.input_lines import pairs_for
from regard.data import read_lines
from regard.data.text_files import display_name
from regard.messages import message
from regard.seeing.trace.view import (
    Gold,
    Quality,
    check_gold,
    diagonal,
    format_links,
    read_gold,
)

#: longest line of a file of gold, in characters
MAX_CHARS: Final = 1_000_000
#: ways to make links whose rates are shown, the best first
SHOWN: Final = 10
NO_GOLD: Final = Gold(frozenset(), frozenset())


def read_gold_file(
    file: str, first: int, sizes: Sequence[tuple[int, int]], bad: Sequence[bool]
) -> list[Gold]:
    """Return the gold of each pair; a bad line of the pairs has a line here that is not used."""
    lines = list(read_lines(file, max_chars=MAX_CHARS))
    while len(lines) > len(bad) and not lines[-1].strip():
        lines.pop()
    found = read_gold(display_name(file), lines, first=first)
    if len(found) == len(bad):
        found = [NO_GOLD if left else gold for left, gold in zip(bad, found, strict=True)]
    check_gold(display_name(file), found, fill_gaps(sizes, bad, (0, 0)))
    return [gold for left, gold in zip(bad, found, strict=True) if not left]


def align(args: AlignArgs) -> None:
    """Align the words of pairs: Pharaoh format on stdout, error rates on stderr."""
    model = api.load_run(args.run, device=args.device)
    word_alignment.check_can_align(model.predictor)
    bad: list[int] = []
    pairs = pairs_for(model, args.file, args, bad)
    lines, units = left_out(pairs, bad), Units.of(model.task, args.words)
    sizes = word_alignment.unit_counts(model.task, pairs, units)
    golds = None if args.gold is None else read_gold_file(args.gold, args.gold_first, sizes, lines)
    with progress_bar(message("align.progress", model=model.path), len(pairs)) as done:
        found = word_alignment.align(
            model.predictor,
            pairs,
            units,
            args.by,
            tries_all=golds is not None,
            batch=args.batch,
            done=done,
        )
    chosen, tried = next(iter(found)), {}
    if golds is not None:
        tried = {name: Quality.of(links, golds) for name, links in found.items()}
        chosen = min(tried, key=lambda name: tried[name].aer)
        tried["diagonal"] = Quality.of([diagonal(*size) for size in sizes], golds)
    links = fill_gaps([format_links(links) for links in found[chosen]], lines, "")
    text = "".join(line + "\n" for line in links)
    if args.output is not None:
        with atomic_output(args.output) as file:
            file.write(text.encode())
    if args.as_json:
        rates = {name: _rates(quality) for name, quality in tried.items()}
        found_all = {"pairs": len(pairs), "chosen": chosen, "tried": rates, "alignments": links}
        return print_json(found_all)
    if args.output is None:
        sys.stdout.write(text)
        sys.stdout.flush()
    console = result_console(stderr=True)
    console.print(message("align.read-from", choice=chosen), highlight=False)
    return _print_rates(console, tried) if tried else None


def _print_rates(console: Console, tried: dict[str, Quality]) -> None:
    """Print the rates of the best, and those of the diagonal, which needs no model."""
    best = sorted(tried, key=lambda name: tried[name].aer)[:SHOWN]
    names = [*best, *({"diagonal"} - {*best})]
    rows = [
        [name, *(f"{100 * rate:.1f}" for rate in _rates(tried[name]).values())] for name in names
    ]
    titles = [message("align.by"), message("heads.aer")]
    titles += [message(f"table.{name}") for name in ("precision", "recall")]
    print_table(console, titles, rows)


def _rates(quality: Quality) -> dict[str, float]:
    return {"aer": quality.aer, "precision": quality.precision, "recall": quality.recall}
