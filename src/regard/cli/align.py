"""`regard align`: word alignments from attention, and their error rates against gold."""

import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from regard import api
from regard.api import word_alignment
from regard.api.word_alignment import AlignOptions, HeadChoice, Places, Selector, Units
from regard.atomic_files import atomic_output
from regard.cli.commands import AlignArgs
from regard.cli.console import print_json, print_table, progress_bar, result_console
from regard.cli.error_handling import refuse
from regard.cli.gold_alignments import read_gold_file
from regard.cli.input_lines import pairs_for
from regard.cli.jobs import names_shards, run_shards
from regard.data import Pair
from regard.errors import ArgumentError, RegardError
from regard.messages import message, translated
from regard.seeing.trace.alignment import (
    SYMMETRIZE,
    Gold,
    Links,
    Quality,
    diagonal,
    flip,
    format_links,
    uniform_quality,
)


class Direction(NamedTuple):
    """Alignments of one model: the chosen layer, head and shift, and the quality of all tried."""

    chosen: HeadChoice
    links: list[Links]
    tried: dict[HeadChoice, Quality]

    @staticmethod
    def best(found: dict[HeadChoice, list[Links]], golds: Sequence[Gold] | None) -> "Direction":
        """Return the candidate with the lowest error rate, or the only one if there is no gold."""
        if golds is None:
            chosen, links = next(iter(found.items()))
            return Direction(chosen, links, {})
        tried = {choice: Quality.of(links, golds) for choice, links in found.items()}
        chosen = min(tried, key=lambda choice: tried[choice].aer)
        return Direction(chosen, found[chosen], tried)


class AlignmentResult(NamedTuple):
    """Alignments of a file.

    Attributes:
        sizes: numbers of source and target words of each pair.
        golds: gold links of each pair, if there are any.
        forward: alignments from source to target.
        backward: alignments of a model from target to source.
        symmetry: method that joins both directions.
    """

    sizes: list[tuple[int, int]]
    golds: Sequence[Gold] | None
    forward: Direction
    backward: Direction | None = None
    symmetry: str = ""

    def symmetrized(self, symmetry: str) -> list[Links]:
        """Return both directions joined by one method."""
        assert self.backward is not None
        return list(map(SYMMETRIZE[symmetry], self.forward.links, self.backward.links))

    @property
    def links(self) -> list[Links]:
        """The alignment of each pair."""
        return self.forward.links if self.backward is None else self.symmetrized(self.symmetry)

    def baselines(self) -> dict[str, Quality]:
        """Return the quality without a model, and of each way to join both directions."""
        if self.golds is None:
            return {}
        found = {
            "uniform": uniform_quality(self.golds, self.sizes),
            "diagonal": Quality.of([diagonal(*size) for size in self.sizes], self.golds),
        }
        if self.backward is not None:
            found |= {name: Quality.of(self.symmetrized(name), self.golds) for name in SYMMETRIZE}
        return found


def align(args: AlignArgs) -> None:
    """Align the words of pairs by attention: Pharaoh format on stdout, error rates on stderr."""
    options = AlignOptions(
        layer=_selector("layer", args.layer),
        head=_selector("head", args.head),
        shift=_shift(args.shift),
        threshold=args.threshold,
        batch=args.batch,
    )
    if names_shards(args.file, args.ray, args.workers):
        refuse(
            "be left out where pairs are shards",
            TGT=args.tgt,
            gold=args.gold,
            reverse_run=args.reverse_run,
            skip_bad=args.skip_bad,
            json=args.as_json,
        )
        if args.output is None:
            fix = "add -o FOLDER"
            raise ArgumentError("-o", "name a folder for the alignments of shards", "missing", fix)
        how = {"pairs": True, "align": options, "batch": args.batch, "words": args.words}
        return run_shards(args, [args.run], [args.file], args.output, **how)
    model = api.load_run(args.run, device=args.device)
    other = args.reverse_run
    reverse = None if other is None else api.load_run(other, device=args.device)
    for one in (model, reverse):
        if one is not None:
            word_alignment.check_can_align(one.predictor)
    bad: list[int] = []
    pairs = pairs_for(model, args.file, args, bad)
    places, units = Places.of(pairs, bad), Units.of(model.task, args.words)
    sizes = word_alignment.unit_counts(model.task, pairs, units)
    golds = None if args.gold is None else read_gold_file(args.gold, args.gold_first, sizes, places)
    if reverse is not None:
        _check_units(reverse, pairs, units, sizes)
    found = _aligned(model, pairs, units, options, has_gold=golds is not None)
    result = AlignmentResult(sizes, golds, Direction.best(found, golds))
    if reverse is not None:
        backward = _backward(reverse, pairs, units, options, golds)
        result = result._replace(backward=backward, symmetry=args.symmetrize.value)
    return _write(result, places, args.output, as_json=args.as_json)


def _selector(name: str, word: str) -> Selector:
    if word == "auto":
        return None
    if word == "mean":
        return "mean"
    if word.isdecimal() and word.isascii():
        return int(word)
    raise ArgumentError(f"--{name}", "be auto, mean or a number from 0", repr(word), "choose one")


def _shift(word: str) -> int | None:
    if word == "auto":
        return None
    if word.removeprefix("+") in ("0", "1", "-1"):
        return int(word)
    raise ArgumentError("--shift", "be auto, 0, 1 or -1", repr(word), "choose one")


def _swapped(pairs: Sequence[Pair]) -> list[Pair]:
    return [Pair(pair.tgt, pair.src, pair.line) for pair in pairs]


def _check_units(
    reverse: api.Model, pairs: Sequence[Pair], units: Units, sizes: Sequence[tuple[int, int]]
) -> None:
    own = word_alignment.unit_counts(reverse.task, _swapped(pairs), units.turned)
    if own != [(target, source) for source, target in sizes]:
        raise RegardError(
            f"both runs must cut texts into the same units to be joined, but {reverse.path} cuts "
            f"them otherwise: link words with --words."
        )


def _aligned(
    model: api.Model, pairs: Sequence[Pair], units: Units, options: AlignOptions, *, has_gold: bool
) -> dict[HeadChoice, list[Links]]:
    """Return the links of each candidate layer, head and shift."""
    options = options if has_gold else options.without_gold()
    with progress_bar(message("align.progress", model=model.path), len(pairs)) as done:
        return word_alignment.align(
            model.predictor,
            pairs,
            options.choices,
            units=units,
            link=options.link,
            batch=options.batch,
            done=done,
        )


def _backward(
    model: api.Model,
    pairs: Sequence[Pair],
    units: Units,
    options: AlignOptions,
    golds: Sequence[Gold] | None,
) -> Direction:
    """Return the alignments of a target-to-source model, turned to source-to-target links."""
    found = _aligned(model, _swapped(pairs), units.turned, options, has_gold=golds is not None)
    flipped = golds and [Gold(flip(gold.sure), flip(gold.possible)) for gold in golds]
    backward = Direction.best(found, flipped)
    return backward._replace(links=[flip(links) for links in backward.links])


def _write(result: AlignmentResult, places: Places, output: Path | None, *, as_json: bool) -> None:
    lines = places.spread([format_links(links) for links in result.links], "")
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
    directions = [("", result.forward)]
    if result.backward is not None:
        directions = [
            (message("align.forward"), result.forward),
            (message("align.backward"), result.backward),
        ]
    for name, direction in directions:
        if result.golds is None:
            said = message("align.read-from", choice=direction.chosen)
            console.print(f"{name}{said}", highlight=False)
        else:
            _print_tried(console, name, direction, len(result.golds))
    if result.golds is not None:
        rows = [
            [
                translated("align.scale", name),
                *(f"{100 * value:.1f}" for value in _rates(quality).values()),
                message("align.written") if name == result.symmetry else "",
            ]
            for name, quality in result.baselines().items()
        ]
        rates = [message(f"table.{name}") for name in ("precision", "recall")]
        print_table(console, [message("align.scale"), message("heads.aer"), *rates, ""], rows)


def _print_tried(console: Console, name: str, direction: Direction, pairs: int) -> None:
    """Print the error rate of each head in one column per shift, then the best in a sentence."""
    shifts = list(dict.fromkeys(choice.shift for choice in direction.tried))
    rows = []
    for layer_and_head, same in groupby(direction.tried, key=lambda choice: choice[:2]):
        found = list(same)
        labels = ("mean" if number is None else str(number) for number in layer_and_head)
        cells = [f"{100 * direction.tried[choice].aer:.1f}" for choice in found]
        rows.append([*labels, *cells, message("align.best") if direction.chosen in found else ""])
    titles = [message("table.layer"), message("table.head")]
    titles += [message("align.aer-shift", shift=n) if n else message("align.aer") for n in shifts]
    print_table(console, [*titles, ""], rows)
    count = len(direction.tried)
    said = message(
        "align.rates",
        where=f"{name}{direction.chosen}",
        best=message("align.rates-best", count=count, pairs=pairs) if count > 1 else "",
        **{key: 100 * rate for key, rate in _rates(direction.tried[direction.chosen]).items()},
    )
    console.print(said, highlight=False, soft_wrap=True)


def _as_object(result: AlignmentResult) -> dict[str, Any]:
    """Return the result for `--json`; rates are from 0 to 1."""
    directions = {"forward": result.forward, "backward": result.backward}
    return {
        "pairs": len(result.sizes),
        "symmetrize": result.symmetry or None,
        **{
            name: None
            if direction is None
            else {
                "chosen": direction.chosen._asdict(),
                "tried": [c._asdict() | _rates(quality) for c, quality in direction.tried.items()],
            }
            for name, direction in directions.items()
        },
        "scale": {name: _rates(quality) for name, quality in result.baselines().items()},
    }


def _rates(quality: Quality) -> dict[str, float]:
    return {"aer": quality.aer, "precision": quality.precision, "recall": quality.recall}
