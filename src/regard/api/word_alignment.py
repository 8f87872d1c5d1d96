"""Word alignments of many pairs, from the attention of a model or from the words of its data."""

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, NamedTuple, TypeVar, cast

import numpy as np

from regard.api.evaluate_pairs import known_pairs, read_for
from regard.api.predictor import Predictor
from regard.data import Corpus, Pair, require_tokenizer, source_ids
from regard.data.corpus import corpus_problem
from regard.data.lookup_codecs import words_of
from regard.data.word_aligner import align_texts, unit_links
from regard.decoding import force_decode
from regard.errors import ArgumentError, RegardError
from regard.messages import message
from regard.seeing.trace import Weights
from regard.seeing.trace.view import Links, merge_units, shift_rows, strongest
from regard.tasks import Task
from regard.training.config import Config
from regard.training.guided_attention import guided_head
from regard.training.run_folder import RunFolder

SHIFTS: Final = (0, 1, -1)
#: the mean of all layers, or a layer, a head and a shift
HEAD: Final = re.compile(r"(?:mean|(\d{1,4})(?::(\d{1,4}))?)([+-]1)?", re.ASCII)
#: training pairs that statistics are made of at most
MAX_TRAINING_PAIRS: Final = 200_000
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

    @property
    def labels(self) -> tuple[str, str]:
        """The layer and the head, as a table shows them."""
        layer, head = ("mean" if number is None else str(number) for number in self[:2])
        return layer, head

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

    @staticmethod
    def parse(word: str) -> "HeadChoice":
        """Return the choice that `mean`, `1`, `1:0` or `1:0+1` names: layer, head and shift."""
        match = HEAD.fullmatch(word)
        if match is None:
            rule = "be auto, statistics, attention, mean, or a layer and head, as 1, 1:0 or 1:0+1"
            raise ArgumentError("--by", rule, repr(word), "choose one")
        layer, head = (None if number is None else int(number) for number in match.groups()[:2])
        return HeadChoice(layer, head, int(match[3] or 0))

    def check(self, heads: Sequence[int]) -> "HeadChoice":
        """Return the choice if a model has it, given the number of heads of each layer."""
        layer, head = self.layer or 0, self.head or 0
        if layer < len(heads) and head < heads[layer]:
            return self
        rule = f"name a layer from 0 to {len(heads) - 1}, and a head from 0 to {max(heads) - 1}"
        raise ArgumentError("--by", rule, f"{layer}:{head}", "choose others")


def head_choices(heads: Sequence[int]) -> list[HeadChoice]:
    """Return all choices: every head, the mean of each layer and that of all, by each shift."""
    places: list[tuple[int | None, int | None]] = []
    for layer, total in enumerate(heads):
        places += [(layer, head) for head in range(total)]
        places += [(layer, None)] if total > 1 else []
    places += [(None, None)] if len(heads) > 1 else []
    return [HeadChoice(layer, head, shift) for layer, head in places for shift in SHIFTS]


class StatisticsChoice(NamedTuple):
    """Links without attention, by the statistics of texts: see `regard.data.word_aligner`.

    Attributes:
        pairs: number of training pairs that were counted besides the pairs themselves.
        shift: 0, as nothing is shifted.
    """

    pairs: int
    shift: int = 0

    @property
    def labels(self) -> tuple[str, str]:
        """The method, as a table shows it."""
        return message("align.statistics"), ""

    def __str__(self) -> str:
        return message("align.choice.statistics", pairs=self.pairs)


Choice = HeadChoice | StatisticsChoice


class Units(NamedTuple):
    """The linked units of each side: True for words, False for tokens."""

    source: bool
    target: bool

    @staticmethod
    def of(task: Task, words: bool | None) -> "Units":
        """Return words or tokens; if None, words, but letters of a side that is read by letters."""
        if words is not None:
            return Units(words, words)
        source = require_tokenizer(task.input.encoder, "an alignment")
        return Units(source.kind != "char", task.target.kind != "char")


def left_out(pairs: Sequence[Pair], bad: Sequence[int]) -> list[bool]:
    """Return for each line of a file whether it was left out, by the numbers of the bad lines."""
    lines = sorted([*((pair.line, False) for pair in pairs), *((line, True) for line in bad)])
    return [is_bad for _, is_bad in lines]


def spread(found: Sequence[T], bad: Sequence[bool], empty: T) -> list[T]:
    """Return the values of pairs by the lines of their file, with `empty` for each bad line."""
    rest = iter(found)
    return [empty if is_bad else next(rest) for is_bad in bad]


def check_can_align(predictor: Predictor) -> None:
    """Raise for a language model, for a model that reads no text, and for labels of whole texts."""
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
    batch: int = 32,
    done: Callable[[int], None] = lambda pairs: None,
) -> dict[HeadChoice, list[Links]]:
    """Return the links of each pair, for each choice of attention."""
    sides = [_sides(predictor.task, pair, units)[0] for pair in pairs]
    found: dict[HeadChoice, list[Links]] = {}
    for i, maps in _cross_attention(predictor, pairs, batch, done):
        if not found:
            choices = choose([len(layer) for layer in maps])
            found = {choice: [frozenset()] * len(pairs) for choice in choices}
        source, target = sides[i]
        for choice in found:
            weights = shift_rows(_chosen(maps, choice), choice.shift)
            found[choice][i] = strongest(merge_units(weights, target, source)[0])
    return found


def align_by_statistics(
    predictor: Predictor,
    pairs: Sequence[Pair],
    *,
    units: Units,
    done: Callable[[float], None] = lambda pairs: None,
) -> tuple[StatisticsChoice, list[Links]]:
    """Return the links of each pair by the statistics of these pairs and of the training data."""
    known = training_texts(predictor)
    share = len(pairs) / (len(pairs) + len(known))
    texts = [*((pair.src, pair.tgt) for pair in pairs), *known]
    found = align_texts(texts, lambda count: done(share * count))
    source = require_tokenizer(predictor.task.input.encoder, "an alignment")
    sides = ((source, units.source), (predictor.task.target, units.target))
    links = []
    for pair, own in zip(pairs, found, strict=False):
        spans = (
            words_of(text) if words else tokenizer.spans(text)
            for text, (tokenizer, words) in zip((pair.src, pair.tgt), sides, strict=True)
        )
        links.append(unit_links(own, *spans))
    return StatisticsChoice(len(known)), links


def training_texts(predictor: Predictor) -> list[tuple[str, str]]:
    """Return the training pairs that a run keeps, as text; none if it keeps none."""
    path = RunFolder(predictor.paths[0]).data / "train.arrow"
    if corpus_problem(path) is not None:
        return []
    corpus, source = Corpus(path), require_tokenizer(predictor.task.input.encoder, "an alignment")
    rows = range(min(len(corpus), MAX_TRAINING_PAIRS))
    target = predictor.task.target
    return [(source.decode(corpus.src(i)), target.decode(corpus.tgt(i))) for i in rows]


def align_by(
    predictor: Predictor,
    pairs: Sequence[Pair],
    units: Units,
    by: str = "auto",
    *,
    tries_all: bool = False,
    batch: int = 32,
    done: Callable[[float], None] = lambda pairs: None,
) -> dict[Choice, list[Links]]:
    """Return the links of each pair by each way that was asked for, the preferred one first.

    Args:
        predictor: of the model.
        pairs: to align.
        units: what is linked.
        by: `statistics`; `attention`; layer and head, see `HeadChoice.parse`; or `auto`: of a
            guided run, attention, and else statistics for words if there is training data.
        tries_all: whether `auto` and `attention` mean all of their ways.
        batch: pairs at a time.
        done: told how many pairs are done; those of both ways count.
    """
    guided = cast(Config, predictor.task.settings).guide is not None
    known = (RunFolder(predictor.paths[0]).data / "train.arrow").exists()
    counts = by == "statistics" or (by == "auto" and all(units) and known)
    if by == "auto" and not tries_all:
        counts = counts and not guided
    found: dict[Choice, list[Links]] = {}
    if counts:
        chosen, links = align_by_statistics(predictor, pairs, units=units, done=done)
        found[chosen] = links
    if not counts or (by == "auto" and tries_all):

        def choose(heads: Sequence[int]) -> Sequence[HeadChoice]:
            if by not in ("auto", "attention"):
                return [HeadChoice.parse(by).check(heads)]
            if tries_all:
                return head_choices(heads)
            return [HeadChoice(*guided_head(heads)) if guided else HeadChoice(None, None, 0)]

        looked = align(predictor, pairs, choose, units=units, batch=batch, done=done)
        found.update((choice, links) for choice, links in looked.items())
    return found


def align_best(
    predictor: Predictor, source: Any, words: bool | None, **reading: Any
) -> list[Links]:
    """Return the links of each pair by the best that the run has; none for a bad line left out."""
    check_can_align(predictor)
    bad: list[int] = []
    reader = read_for(
        predictor, source, on_bad=lambda error: bad.append(error.line or 0), forced=True, **reading
    )
    pairs = known_pairs(predictor.task, reader)
    (found,) = align_by(predictor, pairs, Units.of(predictor.task, words)).values()
    return spread(found, left_out(pairs, bad), frozenset())


def unit_counts(task: Task, pairs: Sequence[Pair], units: Units) -> list[tuple[int, int]]:
    """Return the number of source and target units of each pair."""
    return [_sides(task, pair, units)[1] for pair in pairs]


def _chosen(maps: Sequence[Weights], choice: HeadChoice) -> Weights:
    """Return the map of a choice, with an axis of one head."""
    if choice.layer is not None and choice.head is not None:
        return maps[choice.layer][choice.head : choice.head + 1]
    layers = maps if choice.layer is None else [maps[choice.layer]]
    mean: Weights = np.mean([layer.mean(axis=0) for layer in layers], axis=0)
    return mean[None]


def _sides(
    task: Task, pair: Pair, units: Units
) -> tuple[tuple[list[int | None], list[int | None]], tuple[int, int]]:
    """Return the unit of each token of source and target, and the units of each side."""
    source = require_tokenizer(task.input.encoder, "an alignment")
    found, totals = [], []
    for tokenizer, text, words in (
        (source, pair.src, units.source),
        (task.target, pair.tgt, units.target),
    ):
        own: list[int | None] = list(tokenizer.word_ids(text))
        totals.append(len(words_of(text)) if words else len(own))
        found.append(own if words else list(range(len(own))))
    # features and `eos` are of no unit
    src, tgt = [*found[0], *[None] * (len(pair.features) + 1)], [*found[1], None]
    return (src, tgt), (totals[0], totals[1])


def _cross_attention(
    predictor: Predictor, pairs: Sequence[Pair], batch: int, done: Callable[[int], None]
) -> Iterator[tuple[int, list[Weights]]]:
    """Yield the number of each pair and its cross-attention by layer; like lengths together."""
    task = predictor.task
    source = require_tokenizer(task.input.encoder, "an alignment")
    src = source_ids(source, [p.src for p in pairs], [p.features for p in pairs])
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
