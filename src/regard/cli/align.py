"""`regard align`: word alignments by attention or statistics, and their error rates."""

import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, Final, NamedTuple

from rich.console import Console

from regard import api
from regard.api import word_alignment
from regard.api.word_alignment import (
    Choice,
    HeadChoice,
    Units,
    left_out,
    spread,
)
from regard.atomic_files import atomic_output
from regard.cli.commands import AlignArgs
from regard.cli.console import print_json, print_table, progress_bar, result_console
from regard.cli.input_lines import pairs_for
from regard.data import read_lines
from regard.data.text_files import display_name
from regard.messages import message, translated
from regard.seeing.trace.view import (
    Gold,
    Links,
    Quality,
    check_gold,
    diagonal,
    format_links,
    read_gold,
    uniform_quality,
)

#: longest line of a file of gold, in characters
MAX_CHARS: Final = 1_000_000
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
    check_gold(display_name(file), found, spread(sizes, bad, (0, 0)))
    return [gold for left, gold in zip(bad, found, strict=True) if not left]


class AlignmentResult(NamedTuple):
    """Alignments of a file.

    Attributes:
        sizes: numbers of source and target words of each pair.
        golds: gold links of each pair, if there are any.
        chosen: what links are made from: the best by the gold, or the only one.
        links: of each pair.
        tried: the quality of each layer, head and shift, and of statistics, if there is gold.
    """

    sizes: list[tuple[int, int]]
    golds: Sequence[Gold] | None
    chosen: Choice
    links: list[Links]
    tried: dict[Choice, Quality]

    def baselines(self) -> dict[str, Quality]:
        """Return the quality of alignments without a model."""
        if self.golds is None:
            return {}
        found = Quality.of([diagonal(*size) for size in self.sizes], self.golds)
        return {"uniform": uniform_quality(self.golds, self.sizes), "diagonal": found}


def align(args: AlignArgs) -> None:
    """Align the words of pairs: Pharaoh format on stdout, error rates on stderr."""
    if args.by not in ("auto", "statistics", "attention"):
        HeadChoice.parse(args.by)  # before a model is loaded
    model = api.load_run(args.run, device=args.device)
    word_alignment.check_can_align(model.predictor)
    bad: list[int] = []
    pairs = pairs_for(model, args.file, args, bad)
    lines, units = left_out(pairs, bad), Units.of(model.task, args.words)
    sizes = word_alignment.unit_counts(model.task, pairs, units)
    golds = None if args.gold is None else read_gold_file(args.gold, args.gold_first, sizes, lines)
    with progress_bar(message("align.progress", model=model.path), len(pairs)) as done:
        found = word_alignment.align_by(
            model.predictor,
            pairs,
            units,
            args.by,
            tries_all=golds is not None,
            batch=args.batch,
            done=done,
        )
    tried: dict[Choice, Quality] = {}
    chosen = next(iter(found))
    if golds is not None:
        tried = {choice: Quality.of(links, golds) for choice, links in found.items()}
        chosen = min(tried, key=lambda choice: tried[choice].aer)
    result = AlignmentResult(sizes, golds, chosen, found[chosen], tried)
    return _write(result, lines, args.output, as_json=args.as_json)


def _write(result: AlignmentResult, bad: list[bool], output: Path | None, *, as_json: bool) -> None:
    lines = spread([format_links(links) for links in result.links], bad, "")
    text = "".join(line + "\n" for line in lines)
    if output is not None:
        with atomic_output(output) as file:
            file.write(text.encode())
    if as_json:
        return print_json(_as_object(result) | {"alignments": lines})
    if output is None:
        sys.stdout.write(text)
        sys.stdout.flush()
    return _print_tables(result, result_console(stderr=True))


def _print_tables(result: AlignmentResult, console: Console) -> None:
    if result.golds is None:
        said = message("align.read-from", choice=result.chosen)
        return console.print(said, highlight=False)
    _print_tried(console, result)
    rows = [
        [translated("align.scale", name), *(f"{100 * value:.1f}" for value in rates.values())]
        for name, rates in _scale(result).items()
    ]
    titles = [message("align.scale"), message("heads.aer")]
    titles += [message(f"table.{name}") for name in ("precision", "recall")]
    return print_table(console, titles, rows)


def _print_tried(console: Console, result: AlignmentResult) -> None:
    """Print the error rate of each head in one column per shift, then the best in a sentence."""
    shifts = list(dict.fromkeys(choice.shift for choice in result.tried))
    rows = []
    for labels, same in groupby(result.tried, key=lambda choice: choice.labels):
        found = list(same)
        cells = [f"{100 * result.tried[choice].aer:.1f}" for choice in found]
        cells += [""] * (len(shifts) - len(cells))
        rows.append([*labels, *cells, message("align.best") if result.chosen in found else ""])
    titles = [message("table.layer"), message("table.head")]
    titles += [message("align.aer-shift", shift=n) if n else message("align.aer") for n in shifts]
    print_table(console, [*titles, ""], rows)
    count, pairs = len(result.tried), len(result.sizes)
    said = message(
        "align.rates",
        where=result.chosen,
        best=message("align.rates-best", count=count, pairs=pairs) if count > 1 else "",
        **{key: 100 * rate for key, rate in _rates(result.tried[result.chosen]).items()},
    )
    console.print(said, highlight=False, soft_wrap=True)


def _as_object(result: AlignmentResult) -> dict[str, Any]:
    """Return the result for `--json`; rates are from 0 to 1."""
    return {
        "pairs": len(result.sizes),
        "chosen": result.chosen._asdict(),
        "tried": [choice._asdict() | _rates(found) for choice, found in result.tried.items()],
        "scale": _scale(result),
    }


def _scale(result: AlignmentResult) -> dict[str, dict[str, float]]:
    return {name: _rates(quality) for name, quality in result.baselines().items()}


def _rates(quality: Quality) -> dict[str, float]:
    return {"aer": quality.aer, "precision": quality.precision, "recall": quality.recall}
