"""Word alignments of many pairs, from where a model looks while it is made to write the target."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np

from regard.api.model import Model
from regard.api.read_pairs import pairs_of, read_for
from regard.data import Pair, Tokenizer, require_tokenizer, source_ids
from regard.data.lookup_codecs import words_of
from regard.decoding import force_decode
from regard.errors import RegardError
from regard.seeing.alignment import Links, merge_units, shift_rows, strongest
from regard.seeing.trace import Weights

SHIFTS: Final = (0, 1, -1)
T = TypeVar("T")


class HeadChoice(NamedTuple):
    """Which attention is read.

    Attributes:
        layer: counted from 0; None for the mean of all.
        head: counted from 0; None for the mean of all.
        shift: output t is aligned by the row of step t + shift.
    """

    layer: int | None
    head: int | None
    shift: int

    def __str__(self) -> str:
        layer = "mean of all layers" if self.layer is None else f"layer {self.layer}"
        head = "mean of its heads" if self.head is None else f"head {self.head}"
        where = layer if self.layer is None else f"{layer}, {head}"
        return f"{where}, shift {self.shift:+d}" if self.shift else f"{where}, no shift"


class Units(NamedTuple):
    """Whether the words of a side are linked, or its tokens."""

    source: bool
    target: bool

    @property
    def turned(self) -> "Units":
        """For a model that goes the other way."""
        return Units(self.target, self.source)

    @staticmethod
    def of(model: Model, words: bool | None) -> "Units":
        """As asked for; if None, words, but single letters of a side that is read by letters."""
        if words is not None:
            return Units(words, words)
        return Units(model.src_tokenizer.kind != "char", model.tgt_tokenizer.kind != "char")


class Side(NamedTuple):
    """One side of a pair: the word (or the token, if these are linked) of each of its tokens."""

    units: list[int | None]
    total: int

    @staticmethod
    def of(tokenizer: Tokenizer, text: str, words: bool, *, features: int = 0) -> "Side":
        """Features and `eos` follow the text, and are part of no word."""
        own: list[int | None] = list(tokenizer.word_ids(text))
        total = len(words_of(text))
        if not words:
            own, total = list(range(len(own))), len(own)
        return Side([*own, *[None] * (features + 1)], total)


class Places(NamedTuple):
    """Which lines of a file have a pair, so that each line has its place in what is written.

    Attributes:
        bad: for each line, whether it was left out.
    """

    bad: list[bool]

    @staticmethod
    def of(pairs: Sequence[Pair], bad: Sequence[int]) -> "Places":
        """For pairs that were read, and the numbers of the lines that could not be."""
        lines = sorted([*((pair.line, False) for pair in pairs), *((line, True) for line in bad)])
        return Places([is_bad for _, is_bad in lines])

    @property
    def total(self) -> int:
        """How many lines there are."""
        return len(self.bad)

    def spread(self, found: Sequence[T], empty: T) -> list[T]:
        """What was found for the pairs, with something empty where a line was bad."""
        rest = iter(found)
        return [empty if bad else next(rest) for bad in self.bad]


def check_model(model: Model) -> None:
    """Raises where a model has learned from texts alone, or reads vectors, which have no words."""
    if model.config.reads_texts:
        raise _cannot_align(model)
    require_tokenizer(model.source, "an alignment")


def _cannot_align(model: Model) -> RegardError:
    return RegardError(
        f"a model must have attention between source and target to align, but {model.path} is of "
        f"preset {model.config.preset}: train another."
    )


def align(
    model: Model,
    pairs: Sequence[Pair],
    choose: Callable[[Sequence[int]], Sequence[HeadChoice]],
    *,
    units: Units,
    link: Callable[[Weights], Links] = strongest,
    batch: int = 32,
    done: Callable[[int], None] = lambda pairs: None,
) -> dict[HeadChoice, list[Links]]:
    """Aligns pairs in every way that is asked for: for each way, the links of each pair.

    Args:
        model: it is made to write the targets.
        pairs: to align.
        choose: the ways to read attention, for a model with these numbers of heads in its layers.
        units: what is linked.
        link: makes links of a map of words.
        batch: pairs at a time.
        done: called with the number of pairs after each batch.
    """
    sides = [_sides(model, pair, units) for pair in pairs]
    found: dict[HeadChoice, list[Links]] = {}
    for i, maps in _maps(model, pairs, batch, done):
        if not found:
            wanted = choose([len(layer) for layer in maps])
            found = {choice: [frozenset()] * len(pairs) for choice in wanted}
        source, target = sides[i]
        for choice in found:
            weights = shift_rows(_chosen(maps, choice), choice.shift)
            words = merge_units(weights, target.units, source.units)[0]
            found[choice][i] = link(words)
    return found


def align_by_mean(model: Model, source: Any, words: bool | None, **reading: Any) -> list[Links]:
    """The links of each pair by the mean of all heads; a bad line that is left out has none.

    Args:
        model: it is made to write the targets.
        source: as for `read_for`.
        words: whether to link words, or tokens; see `Units.of`.
        reading: which file has the targets, which columns, and whether bad lines are left out.
    """
    check_model(model)
    bad: list[int] = []
    reader = read_for(
        model, source, on_bad=lambda error: bad.append(error.line or 0), forced=True, **reading
    )
    pairs, mean = pairs_of(model, reader), HeadChoice(None, None, 0)
    found = align(model, pairs, lambda heads: [mean], units=Units.of(model, words))[mean]
    return Places.of(pairs, bad).spread(found, frozenset())


def sizes(model: Model, pairs: Sequence[Pair], units: Units) -> list[tuple[int, int]]:
    """How many words of the source and of the target of each pair can be linked."""
    sides = (_sides(model, pair, units) for pair in pairs)
    return [(source.total, target.total) for source, target in sides]


def all_choices(heads: Sequence[int], shifts: Sequence[int] = SHIFTS) -> list[HeadChoice]:
    """Every head, the mean of the heads of each layer, the mean of all layers; each shift."""
    found: list[tuple[int | None, int | None]] = []
    for layer, total in enumerate(heads):
        found += [(layer, head) for head in range(total)]
        found += [(layer, None)] if total > 1 else []
    found += [(None, None)] if len(heads) > 1 else []
    return [HeadChoice(layer, head, shift) for layer, head in found for shift in shifts]


def _chosen(maps: Sequence[Weights], choice: HeadChoice) -> Weights:
    """The map of a choice, with an axis of one head."""
    if choice.layer is not None and choice.head is not None:
        return maps[choice.layer][choice.head : choice.head + 1]
    layers = maps if choice.layer is None else [maps[choice.layer]]
    mean: Weights = np.mean([layer.mean(axis=0) for layer in layers], axis=0)
    return mean[None]


def _sides(model: Model, pair: Pair, units: Units) -> tuple[Side, Side]:
    count = len(pair.features)
    return (
        Side.of(model.src_tokenizer, pair.src, units.source, features=count),
        Side.of(model.tgt_tokenizer, pair.tgt, units.target),
    )


def _maps(
    model: Model, pairs: Sequence[Pair], batch: int, done: Callable[[int], None]
) -> Iterator[tuple[int, list[Weights]]]:
    """The cross-attention of each pair, layer by layer; like lengths go together."""
    src = source_ids(model.src_tokenizer, [p.src for p in pairs], [p.features for p in pairs])
    tgt = model.tgt_tokenizer.encode_batch([pair.tgt for pair in pairs])
    order = sorted(range(len(pairs)), key=lambda i: (len(tgt[i]), len(src[i])))
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        ids, lengths = model.on_device([src[i] for i in rows])
        hypotheses = force_decode(model.module, ids, lengths, [tgt[i] for i in rows])
        for i, found in zip(rows, hypotheses, strict=True):
            if not found.attention.get("cross"):
                raise _cannot_align(model)
            yield i, [layer.float().numpy() for layer in found.attention["cross"]]
        done(len(rows))
