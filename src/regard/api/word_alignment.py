"""Word alignments of many pairs, from the attention of a model that is made to write the target."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeVar

import numpy as np

from regard.api.predictor import Predictor
from regard.api.read_pairs import known_pairs, read_for
from regard.data import Pair, Tokenizer, require_tokenizer, source_ids
from regard.data.lookup_codecs import words_of
from regard.decoding import force_decode
from regard.errors import ArgumentError, RegardError
from regard.messages import message
from regard.seeing.trace import Weights
from regard.seeing.trace.alignment import Links, above, merge_units, shift_rows, strongest
from regard.tasks import Task

SHIFTS: Final = (0, 1, -1)
T = TypeVar("T")


class HeadChoice(NamedTuple):
    """The attention that alignments are read from.

    Attributes:
        layer: counted from 0; None for the mean of all.
        head: counted from 0; None for the mean of all.
        shift: output t is aligned by the row of step t + shift.
    """

    layer: int | None
    head: int | None
    shift: int

    def __str__(self) -> str:
        if self.layer is None:
            where = message("align.choice.all-layers")
        elif self.head is None:
            where = message("align.choice.all-heads", layer=self.layer)
        else:
            where = message("align.choice.head", layer=self.layer, head=self.head)
        if not self.shift:
            return message("align.choice.no-shift", where=where)
        return message("align.choice.shift", where=where, shift=self.shift)


#: a layer or head by number, the mean of all, or None for the best
Selector = int | Literal["mean"] | None


class AlignOptions(NamedTuple):
    """Options of reading alignments from attention; None where the gold decides.

    Attributes:
        layer: number, or the mean of all layers.
        head: number, or the mean of all heads.
        shift: 0, 1 or -1.
        threshold: link all words with at least this weight; None links the strongest one.
        batch: pairs at a time.
    """

    layer: Selector
    head: Selector
    shift: int | None
    threshold: float | None
    batch: int

    @property
    def link(self) -> Callable[[Weights], Links]:
        """The function from a map of words to links."""
        return strongest if self.threshold is None else above(self.threshold)

    def without_gold(self) -> "AlignOptions":
        """Return the options with defaults for what only gold can decide: the mean, no shift."""
        return self._replace(
            layer="mean" if self.layer is None else self.layer,
            head="mean" if self.head is None else self.head,
            shift=self.shift or 0,
        )

    def choices(self, heads: Sequence[int]) -> list[HeadChoice]:
        """Return the candidates that match the options, given the number of heads per layer.

        They are every head, the mean of each layer's heads, and the mean of all, by each shift.
        """
        places: list[tuple[int | None, int | None]] = []
        for layer, total in enumerate(heads):
            places += [(layer, head) for head in range(total)]
            places += [(layer, None)] if total > 1 else []
        places += [(None, None)] if len(heads) > 1 else []
        shifts = SHIFTS if self.shift is None else [self.shift]
        every = [HeadChoice(layer, head, shift) for layer, head in places for shift in shifts]
        found = [choice for choice in every if self._matches(choice, heads)]
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

    def _matches(self, choice: HeadChoice, heads: Sequence[int]) -> bool:
        is_mean = choice.layer is None or len(heads) == 1
        if not (self.layer in (None, choice.layer) or (self.layer == "mean" and is_mean)):
            return False
        is_mean = choice.head is None or heads[choice.layer or 0] == 1
        return self.head in (None, choice.head) or (self.head == "mean" and is_mean)


class Units(NamedTuple):
    """The linked units of each side: True for words, False for tokens."""

    source: bool
    target: bool

    @property
    def turned(self) -> "Units":
        """The units of a model of the opposite direction."""
        return Units(self.target, self.source)

    @staticmethod
    def of(task: Task, words: bool | None) -> "Units":
        """Return words or tokens; if None, words, but letters of a side that is read by letters."""
        if words is not None:
            return Units(words, words)
        return Units(_source_tokenizer(task).kind != "char", task.target.kind != "char")


class SideUnits(NamedTuple):
    """One side of a pair: the word (or token, if these are linked) of each of its tokens."""

    units: list[int | None]
    total: int

    @staticmethod
    def of(tokenizer: Tokenizer, text: str, words: bool, *, features: int = 0) -> "SideUnits":
        """Return the units of a text; the features and `eos` that follow it are of no word."""
        own: list[int | None] = list(tokenizer.word_ids(text))
        total = len(words_of(text))
        if not words:
            own, total = list(range(len(own))), len(own)
        return SideUnits([*own, *[None] * (features + 1)], total)


class Places(NamedTuple):
    """Lines of a file, with and without a pair, so that outputs keep the numbers of their lines.

    Attributes:
        bad: for each line, whether it was left out.
    """

    bad: list[bool]

    @staticmethod
    def of(pairs: Sequence[Pair], bad: Sequence[int]) -> "Places":
        """Return the places of pairs, and of the line numbers that could not be read."""
        lines = sorted([*((pair.line, False) for pair in pairs), *((line, True) for line in bad)])
        return Places([is_bad for _, is_bad in lines])

    @property
    def total(self) -> int:
        """The number of lines."""
        return len(self.bad)

    def spread(self, found: Sequence[T], empty: T) -> list[T]:
        """Return the values of the pairs, with `empty` for each bad line."""
        rest = iter(found)
        return [empty if bad else next(rest) for bad in self.bad]


def check_can_align(predictor: Predictor) -> None:
    """Raises for a language model, for one that reads frames, which have no words, and for labels,
    which are of the whole source."""
    if not predictor.task.has_sources:
        raise _cannot_align(predictor)
    if predictor.task.labels:
        raise RegardError(
            f"an alignment must be of words with words, but targets of {predictor.paths[0]} are "
            f"labels of whole sources: `regard show` says where the model looked."
        )
    require_tokenizer(predictor.task.input.encoder, "an alignment")


def align(
    predictor: Predictor,
    pairs: Sequence[Pair],
    choose: Callable[[Sequence[int]], Sequence[HeadChoice]],
    *,
    units: Units,
    link: Callable[[Weights], Links] = strongest,
    batch: int = 32,
    done: Callable[[int], None] = lambda pairs: None,
) -> dict[HeadChoice, list[Links]]:
    """Return the links of each pair, for each choice of attention.

    Args:
        predictor: of the model that is made to write the targets.
        pairs: to align.
        choose: returns the choices for a model with these numbers of heads in its layers.
        units: what is linked.
        link: makes links of a map of words.
        batch: pairs at a time.
        done: called with the number of pairs after each batch.
    """
    sides = [_sides(predictor.task, pair, units) for pair in pairs]
    found: dict[HeadChoice, list[Links]] = {}
    for i, maps in _cross_attention(predictor, pairs, batch, done):
        if not found:
            choices = choose([len(layer) for layer in maps])
            found = {choice: [frozenset()] * len(pairs) for choice in choices}
        source, target = sides[i]
        for choice in found:
            weights = shift_rows(_chosen(maps, choice), choice.shift)
            words = merge_units(weights, target.units, source.units)[0]
            found[choice][i] = link(words)
    return found


def align_by_mean(
    predictor: Predictor, source: Any, words: bool | None, **reading: Any
) -> list[Links]:
    """Return the links of each pair by the mean of all heads; none for a bad line left out.

    Args:
        predictor: of the model that is made to write the targets.
        source: as for `read_for`.
        words: whether to link words, or tokens; see `Units.of`.
        reading: the further arguments of `read_for`.
    """
    check_can_align(predictor)
    bad: list[int] = []
    reader = read_for(
        predictor, source, on_bad=lambda error: bad.append(error.line or 0), forced=True, **reading
    )
    pairs, mean = known_pairs(predictor.task, reader), HeadChoice(None, None, 0)
    units = Units.of(predictor.task, words)
    found = align(predictor, pairs, lambda heads: [mean], units=units)[mean]
    return Places.of(pairs, bad).spread(found, frozenset())


def unit_counts(task: Task, pairs: Sequence[Pair], units: Units) -> list[tuple[int, int]]:
    """Return the number of source and target units of each pair."""
    sides = (_sides(task, pair, units) for pair in pairs)
    return [(source.total, target.total) for source, target in sides]


def _chosen(maps: Sequence[Weights], choice: HeadChoice) -> Weights:
    """Return the map of a choice, with an axis of one head."""
    if choice.layer is not None and choice.head is not None:
        return maps[choice.layer][choice.head : choice.head + 1]
    layers = maps if choice.layer is None else [maps[choice.layer]]
    mean: Weights = np.mean([layer.mean(axis=0) for layer in layers], axis=0)
    return mean[None]


def _source_tokenizer(task: Task) -> Tokenizer:
    return require_tokenizer(task.input.encoder, "an alignment")


def _sides(task: Task, pair: Pair, units: Units) -> tuple[SideUnits, SideUnits]:
    count = len(pair.features)
    return (
        SideUnits.of(_source_tokenizer(task), pair.src, units.source, features=count),
        SideUnits.of(task.target, pair.tgt, units.target),
    )


def _cross_attention(
    predictor: Predictor, pairs: Sequence[Pair], batch: int, done: Callable[[int], None]
) -> Iterator[tuple[int, list[Weights]]]:
    """Yield the number of each pair and its cross-attention by layer; like lengths together."""
    task = predictor.task
    src = source_ids(_source_tokenizer(task), [p.src for p in pairs], [p.features for p in pairs])
    tgt = task.target.encode_batch([pair.tgt for pair in pairs])
    order = sorted(range(len(pairs)), key=lambda i: (len(tgt[i]), len(src[i])))
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        ids, lengths = predictor.batch([src[i] for i in rows])
        hypotheses = force_decode(predictor.module, ids, lengths, [tgt[i] for i in rows])
        for i, found in zip(rows, hypotheses, strict=True):
            if not found.attention.get("cross"):
                raise _cannot_align(predictor)
            yield i, [layer.float().numpy() for layer in found.attention["cross"]]
        done(len(rows))


def _cannot_align(predictor: Predictor) -> RegardError:
    return RegardError(
        f"a model must have attention between source and target to align, but "
        f"{predictor.paths[0]} is of preset {predictor.presets[0]}: train another."
    )
