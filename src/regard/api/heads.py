"""Attention heads of a model over a corpus: habits, importance by ablation, and alignment."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, Final, NamedTuple

import numpy as np

from regard.api.model import Model
from regard.api.word_alignment import SHIFTS, Units, check_can_align, unit_counts
from regard.data import Pair
from regard.data.pairs import draw_sample
from regard.decoding import force_decode
from regard.evaluation import ratio_differences
from regard.evaluation.metrics import Statistics
from regard.messages import message
from regard.seeing import Text, Trace
from regard.seeing.attribution.interventions import HeadSwitch, heads_off, transformer_switches
from regard.seeing.page.compare_page import HeadRow
from regard.seeing.trace.head_habits import HeadHabits, HeadKey, head_habits
from regard.seeing.trace.view import (
    Gold,
    Links,
    Quality,
    diagonal,
    merge_units,
    shift_rows,
    strongest,
)

#: traces that are computed at once, and targets that are scored at once
BATCH: Final = 8
SCORED: Final = 32
#: examples that are kept to be drawn, and tokens along a side of them
EXAMPLES: Final = 4
LONGEST: Final = 40


class HeadCost(NamedTuple):
    """Nats per target token that switching a head off costs, with a 95% interval over the texts.

    Its ends are None where texts are too few, or all have one cost.
    """

    cost: float
    low: float | None
    high: float | None


class HeadReport(NamedTuple):
    """All heads of a model.

    Attributes:
        texts: number of texts that the habits were counted in,
        ablated: and of those that heads were switched off for.
        heads: the most important first, or in the order of the model.
        examples: a few traces to draw.
        diagonal_aer: error rate of the diagonal against the gold, for scale.
        notes: sentences about what was not measured.
    """

    texts: int
    ablated: int
    heads: list[HeadRow]
    examples: list[Trace]
    diagonal_aer: float | None
    notes: list[str]

    @property
    def best_aligned(self) -> HeadRow | None:
        """The head with the lowest alignment error rate; None without gold."""
        aligned = [head for head in self.heads if head.aer is not None]
        return min(aligned, key=lambda head: head.aer or 0.0, default=None)


def profile_heads(
    model: Model,
    sources: Sequence[Any],
    targets: Sequence[str] | None = None,
    *,
    ablate: int = 64,
    golds: Sequence[Gold] | None = None,
    done: Callable[[int], None] = lambda texts: None,
) -> HeadReport:
    """Return the habits of each head over some texts, and its importance.

    Args:
        model: of a run, or imported.
        sources: texts that the model reads; of a language model, texts that it is made to write.
        targets: what the model is made to write; its own answers if None.
        ablate: number of texts, drawn from all, on which heads are switched off, one after another;
            0 for none.
        golds: gold links of each source and target; with them each head of the cross-attention has
            its alignment error rate.
        done: called with a number of texts whenever some are done.
    """
    if not model.task.has_sources:
        sources, targets = [""] * len(sources), list(sources)
    notes: list[str] = []
    units = Units(True, True) if golds is None else Units.of(model.task, None)
    corpus = _Corpus(golds, units)
    habits = head_habits(corpus.noting(_traces(model, sources, targets, done)))
    costs: dict[HeadKey, HeadCost] = {}
    several = min(ablate, len(sources))
    if several and habits:
        rows = sorted(draw_sample(range(len(sources)), several))
        texts = [sources[i] for i in rows], [corpus.written[i] for i in rows]
        costs, notes = _importance(model, habits, *texts)
    aligned = corpus.alignments()
    if golds is not None and not aligned:
        notes = [*notes, message("heads.note.no-cross")]
    heads = [HeadRow(h, costs.get(h.key), *aligned.get(h.key, (None, 0))) for h in habits]
    if costs:
        heads.sort(key=lambda head: -head.cost[0] if head.cost else np.inf)
    ablated, scale = several if costs else 0, corpus.diagonal_aer()
    return HeadReport(len(sources), ablated, heads, corpus.examples, scale, notes)


def _importance(
    model: Model,
    habits: Sequence[HeadHabits],
    sources: Sequence[Any],
    targets: Sequence[str],
) -> tuple[dict[HeadKey, HeadCost], list[str]]:
    """Return the importance of the heads that can be switched off, and notes on the others."""
    switches = transformer_switches(model.module)
    score = partial(target_nats, model, sources, targets)
    own = {one.key: switches[one.key] for one in habits if one.key in switches}
    costs = head_importance(own, score)
    distinct = len({(id(switch.projection), switch.start) for switch in own.values()})
    notes = [message("heads.note.no-switch")] * (len(own) < len(habits))
    notes += [message("heads.note.shared")] * (distinct < len(own))
    notes += [message("interval.note")] * any(low is None for _, low, _ in costs.values())
    return costs, notes


def head_importance(
    switches: Mapping[HeadKey, HeadSwitch], score: Callable[[], Statistics]
) -> dict[HeadKey, HeadCost]:
    """Return what switching off each head costs."""
    whole = score()

    def scores() -> Iterator[Statistics]:
        for switch in switches.values():
            with heads_off(switch):
                yield score()

    costs = ratio_differences(whole, scores())
    return {key: HeadCost(*cost) for key, cost in zip(switches, costs, strict=True)}


def target_nats(model: Model, sources: Sequence[Any], targets: Sequence[str]) -> Statistics:
    """Return the negative log-probability and the number of tokens of each target."""
    predictor = model.predictor
    rows = predictor.task.input.rows(sources)
    ids = [predictor.target_ids(target) for target in targets]
    nats = []
    for start in range(0, len(rows), SCORED):
        part = slice(start, start + SCORED)
        found = force_decode(
            predictor.module, *predictor.batch(rows[part]), ids[part], need_weights=False
        )
        nats += [-hypothesis.log_prob for hypothesis in found]
    return np.array([nats, [len(target) + 1 for target in ids]], dtype=np.float64).T


def _traces(
    model: Model,
    sources: Sequence[Any],
    targets: Sequence[str] | None,
    done: Callable[[int], None],
) -> Iterator[Trace]:
    for start in range(0, len(sources), BATCH):
        part = slice(start, start + BATCH)
        wanted = None if targets is None else targets[part]
        yield from model.traces(sources[part], wanted)
        done(len(sources[part]))


class _Corpus:
    """Notes on the traces that pass by: their targets, a few examples, the links of each head."""

    def __init__(self, golds: Sequence[Gold] | None, units: Units) -> None:
        self.golds, self.units = golds, units
        self.examples: list[Trace] = []
        self.written: list[str] = []
        self.sizes: list[tuple[int, int]] = []
        self.links: dict[tuple[HeadKey, int], list[Links]] = {}

    def noting(self, traces: Iterable[Trace]) -> Iterator[Trace]:
        """Yield the traces; the first that fit a picture are kept as examples."""
        for trace in traces:
            self.written.append(trace.target.text)
            size = max(len(trace.source.tokens), len(trace.target.tokens))
            if not self.examples or (len(self.examples) < EXAMPLES and 3 <= size <= LONGEST):
                self.examples.append(trace)
            if self.golds is not None:
                self._link(trace)
            yield trace

    def _link(self, trace: Trace) -> None:
        """Note the links of each head of the cross-attention, by each shift."""
        rows = _numbered(trace.target, words=self.units.target)
        columns = _numbered(trace.source, words=self.units.source)
        self.sizes.append((_count(columns), _count(rows)))
        for found in trace.of_kind("cross"):
            for shift in SHIFTS:
                merged = merge_units(shift_rows(found.weights, shift), rows, columns)
                for head, weights in enumerate(merged):
                    key = ("cross", found.layer, head), shift
                    self.links.setdefault(key, []).append(strongest(weights))

    def alignments(self) -> dict[HeadKey, tuple[float, int]]:
        """Return the error rate of each head by its best shift, and that shift."""
        best: dict[HeadKey, tuple[float, int]] = {}
        for (key, shift), links in self.links.items():
            rate = Quality.of(links, self.golds or ()).aer
            if key not in best or rate < best[key][0]:
                best[key] = (rate, shift)
        return best

    def diagonal_aer(self) -> float | None:
        """Return the error rate of the diagonal; None without gold."""
        if self.golds is None:
            return None
        return Quality.of([diagonal(*size) for size in self.sizes], self.golds).aer


def gold_sizes(model: Model, pairs: Sequence[Pair]) -> list[tuple[int, int]]:
    """Return the number of source and target units of each pair, as gold links count them."""
    check_can_align(model.predictor)
    return unit_counts(model.task, pairs, Units.of(model.task, None))


def _numbered(text: Text, *, words: bool) -> list[int | None]:
    """Return the word or the number of each token; None for special ones."""
    numbers = count()
    return [
        None if token.special else token.word if words else next(numbers) for token in text.tokens
    ]


def _count(units: Sequence[int | None]) -> int:
    return 1 + max((unit for unit in units if unit is not None), default=-1)
