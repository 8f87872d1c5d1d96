"""Word alignments of many pairs, from the attention of a model or from the words of its data."""

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
from regard.seeing.trace.trace import Weights
from regard.seeing.trace.view import Links, merge_units, strongest
from regard.tasks import Task
from regard.training.config import Config
from regard.training.guided_attention import corpus_texts, guided_head
from regard.training.run_folder import RunFolder

#: at the end of a name: an output is aligned by the row of the step after it
NEXT: Final = "+1"
#: training pairs that statistics are made of at most
MAX_TRAINING_PAIRS: Final = 200_000
T = TypeVar("T")


def head_names(heads: Sequence[int]) -> list[str]:
    """Return the names of all maps, given the heads of each layer.

    The mean of all layers is `mean`, that of layer 1 is `1`, and its first head is `1:0`, each also
    by the next step, as `1:0+1`.
    """
    layers = [str(layer) for layer in range(len(heads))]
    places = ["mean", *layers]
    places += [f"{layer}:{head}" for layer in layers for head in range(heads[int(layer)])]
    return [place + shift for place in places for shift in ("", NEXT)]


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


def fill_gaps(found: Sequence[T], bad: Sequence[bool], empty: T) -> list[T]:
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


def align_by_attention(
    predictor: Predictor,
    pairs: Sequence[Pair],
    choose: Callable[[Sequence[int]], Sequence[str]],
    *,
    units: Units,
    batch: int = 32,
    done: Callable[[float], None] = lambda pairs: None,
) -> dict[str, list[Links]]:
    """Return the links of each pair by each map that is chosen, given the heads of each layer."""
    sides = [_sides(predictor.task, pair, units)[0] for pair in pairs]
    found: dict[str, list[Links]] = {}
    for i, maps in _cross_attention(predictor, pairs, batch, done):
        if not found:
            names = choose([len(layer) for layer in maps])
            found = {name: [frozenset()] * len(pairs) for name in names}
        source, target = sides[i]
        for name in found:
            found[name][i] = strongest(merge_units(_map_of(maps, name), target, source)[0])
    return found


def align_by_statistics(
    predictor: Predictor,
    pairs: Sequence[Pair],
    *,
    units: Units,
    done: Callable[[float], None] = lambda pairs: None,
) -> list[Links]:
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
    return links


def training_texts(predictor: Predictor) -> list[tuple[str, str]]:
    """Return the training pairs that a run keeps, as text; none if it keeps none."""
    path = RunFolder(predictor.paths[0]).data / "train.arrow"
    if corpus_problem(path) is not None:
        return []
    source = require_tokenizer(predictor.task.input.encoder, "an alignment")
    return corpus_texts(Corpus(path), source, predictor.task.target, MAX_TRAINING_PAIRS)


def align(
    predictor: Predictor,
    pairs: Sequence[Pair],
    units: Units,
    by: str = "auto",
    *,
    tries_all: bool = False,
    batch: int = 32,
    done: Callable[[float], None] = lambda pairs: None,
) -> dict[str, list[Links]]:
    """Return the links of each pair, by the name of what they are made from.

    Args:
        predictor: of the model.
        pairs: to align.
        units: what is linked.
        by: `statistics`, `attention`, one of `head_names`, or `auto`: the guided head, or else
            statistics for words if the run has its training data, or else the mean.
        tries_all: whether `auto` and `attention` mean all that they may be.
        batch: pairs at a time.
        done: told how many pairs are done; those of both ways count.
    """
    guided = cast(Config, predictor.task.settings).guide is not None
    known = (RunFolder(predictor.paths[0]).data / "train.arrow").exists()

    def choose(heads: Sequence[int]) -> list[str]:
        names = head_names(heads)
        if by in ("auto", "attention"):
            return names if tries_all else [guided_head(heads) if guided else "mean"]
        if by not in names:
            rule = f"be auto, statistics, attention, or one of {', '.join(names)}"
            raise ArgumentError("--by", rule, repr(by), "choose one")
        return [by]

    found: dict[str, list[Links]] = {}
    if (by == "auto" and all(units) and known and (tries_all or not guided)) or by == "statistics":
        found["statistics"] = align_by_statistics(predictor, pairs, units=units, done=done)
    if not found or (by == "auto" and tries_all):
        found |= align_by_attention(predictor, pairs, choose, units=units, batch=batch, done=done)
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
    (found,) = align(predictor, pairs, Units.of(predictor.task, words)).values()
    return fill_gaps(found, left_out(pairs, bad), frozenset())


def unit_counts(task: Task, pairs: Sequence[Pair], units: Units) -> list[tuple[int, int]]:
    """Return the number of source and target units of each pair."""
    return [_sides(task, pair, units)[1] for pair in pairs]


def _map_of(maps: Sequence[Weights], name: str) -> Weights:
    """Return the map of a name, with an axis of one head, in which each output has its row."""
    place = name.removesuffix(NEXT)
    layer, _, head = place.partition(":")
    if layer == "mean":
        found: Weights = np.mean([layer.mean(axis=0) for layer in maps], axis=0)[None]
    else:
        found = maps[int(layer)]
        found = found[int(head)][None] if head else found.mean(axis=0, keepdims=True)
    return found if place == name else np.pad(found[:, 1:], ((0, 0), (0, 1), (0, 0)))


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
