"""`regard align`."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

from rich.console import Console
from rich.progress import Progress

from regard import api
from regard.api import word_alignment
from regard.api.word_alignment import SHIFTS, HeadChoice, Places, Units
from regard.atomic_files import atomic_output
from regard.cli.alignments import AlignmentResult, Direction, as_object, best, show
from regard.cli.commands import Symmetry
from regard.cli.console import print_json
from regard.cli.pairs import pairs_for
from regard.data import Pair, read_lines
from regard.data.text_files import display_name
from regard.errors import ArgumentError, RegardError
from regard.seeing.alignment import (
    Gold,
    Links,
    above,
    check_gold,
    flip,
    format_links,
    read_gold,
    strongest,
)
from regard.seeing.trace import Weights

#: the most characters of a line of gold
GOLD_CHARS = 1_000_000
#: of a line that cannot be used
NO_GOLD = Gold(frozenset(), frozenset())
Selector = int | Literal["mean"] | None


class AlignOptions(NamedTuple):
    """How attention is read; None where that is left open.

    Attributes:
        layer: which, or the mean of all.
        head: which, or the mean of all.
        shift: 0, 1 or -1.
        link: makes links of a map of words.
        batch: pairs at a time.
    """

    layer: Selector
    head: Selector
    shift: int | None
    link: Callable[[Weights], Links]
    batch: int

    def without_gold(self) -> "AlignOptions":
        """Nothing can be found to be best: what is open is the mean, not shifted."""
        return self._replace(
            layer="mean" if self.layer is None else self.layer,
            head="mean" if self.head is None else self.head,
            shift=self.shift or 0,
        )

    def choices(self, heads: Sequence[int]) -> list[HeadChoice]:
        """The ways to read attention that are left, for these numbers of heads in the layers."""
        every = word_alignment.all_choices(heads, SHIFTS if self.shift is None else [self.shift])
        found = [choice for choice in every if self._fits(choice, heads)]
        if found:
            return found
        layers, most = len(heads) - 1, max(heads) - 1
        raise ArgumentError(
            "layer and head",
            f"be mean or numbers from 0 to {layers} and from 0 to {most}, the layer a number where "
            f"the head is one",
            f"{self.layer} and {self.head}",
            "choose with --layer and --head",
        )

    def _fits(self, choice: HeadChoice, heads: Sequence[int]) -> bool:
        is_mean = choice.layer is None or len(heads) == 1
        if not (self.layer in (None, choice.layer) or (self.layer == "mean" and is_mean)):
            return False
        is_mean = choice.head is None or heads[choice.layer or 0] == 1
        return self.head in (None, choice.head) or (self.head == "mean" and is_mean)


def align(
    *,
    run: Path,
    file: str,
    tgt: str | None,
    gold: str | None,
    gold_first: int,
    reverse_run: Path | None,
    symmetrize: Symmetry,
    layer: str,
    head: str,
    shift: str,
    threshold: float | None,
    words: bool | None,
    columns: str | None,
    skip_bad: bool,
    output: Path | None,
    as_json: bool,
    batch: int,
    device: str,
) -> None:
    """Align the words of pairs by attention: Pharaoh format on stdout, error rates on stderr."""
    options = AlignOptions(
        layer=_pick("layer", layer),
        head=_pick("head", head),
        shift=_shift(shift),
        link=strongest if threshold is None else above(threshold),
        batch=batch,
    )
    model = api.load(run, device=device)
    other = None if reverse_run is None else api.load(reverse_run, device=device)
    for one in (model, other):
        if one is not None:
            word_alignment.check_model(one)
    bad: list[int] = []
    pairs = pairs_for(
        model,
        file,
        tgt,
        columns=columns,
        skip_bad=skip_bad,
        on_bad=lambda error: bad.append(error.line or 0),
        forced=True,
    )
    places, units = Places.of(pairs, bad), Units.of(model, words)
    sizes = word_alignment.sizes(model, pairs, units)
    golds = None if gold is None else _gold(gold, gold_first, sizes, places)
    if other is not None:
        _check_units(other, pairs, units, sizes)
    found = _aligned(model, pairs, units, options, judged=golds is not None)
    result = AlignmentResult(sizes, golds, best(found, golds))
    if other is not None:
        back = _backward(other, pairs, units, options, golds)
        result = result.joined(back, symmetrize.value)
    _write(result, places, output, as_json=as_json)


def _pick(name: str, word: str) -> Selector:
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


def _gold(file: str, first: int, sizes: Sequence[tuple[int, int]], places: Places) -> list[Gold]:
    """The gold of each pair. A bad line has a line of gold, too, of which nothing is asked."""
    lines = list(read_lines(file, max_chars=GOLD_CHARS))
    while len(lines) > places.total and not lines[-1].strip():
        lines.pop()
    found = read_gold(display_name(file), lines, first=first)
    if len(found) == places.total:
        found = [NO_GOLD if bad else gold for bad, gold in zip(places.bad, found, strict=True)]
    check_gold(display_name(file), found, places.spread(sizes, (0, 0)))
    return [gold for bad, gold in zip(places.bad, found, strict=True) if not bad]


def _turned(pairs: Sequence[Pair]) -> list[Pair]:
    return [Pair(pair.tgt, pair.src, pair.line) for pair in pairs]


def _check_units(
    other: api.Model, pairs: Sequence[Pair], units: Units, sizes: Sequence[tuple[int, int]]
) -> None:
    own = word_alignment.sizes(other, _turned(pairs), units.turned)
    if own != [(target, source) for source, target in sizes]:
        raise RegardError(
            f"both runs must cut texts into the same units to be joined, but {other.path} cuts "
            f"them otherwise: link words with --words."
        )


def _aligned(
    model: api.Model, pairs: Sequence[Pair], units: Units, options: AlignOptions, *, judged: bool
) -> dict[HeadChoice, list[Links]]:
    options = options if judged else options.without_gold()
    with _progress(f"aligning with {model.path}", len(pairs)) as done:
        return word_alignment.align(
            model,
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
    """The alignments of a model that goes the other way, told the way that the first one goes."""
    judged = golds is not None
    found = _aligned(model, _turned(pairs), units.turned, options, judged=judged)
    back = best(found, golds and [Gold(flip(one.sure), flip(one.possible)) for one in golds])
    return back._replace(links=[flip(links) for links in back.links])


@contextmanager
def _progress(name: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar on stderr, where that is a terminal."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=total)
        yield lambda pairs: bar.advance(task, pairs)


def _write(result: AlignmentResult, places: Places, output: Path | None, *, as_json: bool) -> None:
    lines = places.spread([format_links(links) for links in result.links], "")
    if output is not None:
        with atomic_output(output) as file:
            file.write("".join(line + "\n" for line in lines).encode())
    if as_json:
        found = as_object(result) | {"alignments": lines}
        print_json(found)
        return
    if output is None:
        sys.stdout.write("".join(line + "\n" for line in lines))
        sys.stdout.flush()
    show(result)
