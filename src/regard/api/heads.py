"""Attention heads of a model over a corpus: habits, importance by ablation, and alignment."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from regard.api.model import Model
from regard.api.word_alignment import Units, align, all_choices, check_can_align, unit_counts
from regard.data import Pair
from regard.decoding import force_decode
from regard.evaluation import ratio_differences
from regard.evaluation.metrics import Statistics
from regard.seeing import Trace
from regard.seeing.alignment import Gold, Quality, diagonal
from regard.seeing.head_habits import HeadHabits, HeadKey, head_habits
from regard.seeing.head_switches import HeadSwitch, heads_off, transformer_switches

#: traces that are computed at once, and targets that are scored at once
BATCH: Final = 8
SCORED: Final = 32
#: examples that are kept to be drawn, and tokens along a side of them
EXAMPLES: Final = 4
LONGEST: Final = 40


class HeadImportance(NamedTuple):
    """Cost of switching a head off: nats per target token, with a 95% interval over the texts."""

    cost: float
    low: float
    high: float


class HeadAlignment(NamedTuple):
    """Alignment error rate of one head, by the shift of its rows that is best."""

    aer: float
    shift: int


class HeadProfile(NamedTuple):
    """One head: its habits, and what else was measured.

    Attributes:
        habits: over the corpus.
        importance: None if it was not measured, or the attention cannot be switched off.
        alignment: None without gold, and for all but cross-attention.
    """

    habits: HeadHabits
    importance: HeadImportance | None = None
    alignment: HeadAlignment | None = None

    @property
    def key(self) -> HeadKey:
        """Kind, layer and head."""
        return self.habits.key


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
    heads: list[HeadProfile]
    examples: list[Trace]
    diagonal_aer: float | None
    notes: list[str]

    @property
    def best_aligned(self) -> HeadProfile | None:
        """The head with the lowest alignment error rate; None without gold."""
        aligned = [head for head in self.heads if head.alignment is not None]
        return min(aligned, key=_error_rate, default=None)


def _error_rate(head: HeadProfile) -> float:
    return 1.0 if head.alignment is None else head.alignment.aer


def profile_heads(
    model: Model,
    sources: Sequence[Any],
    targets: Sequence[str] | None = None,
    *,
    ablate: int = 64,
    pairs: Sequence[Pair] | None = None,
    golds: Sequence[Gold] | None = None,
    done: Callable[[int], None] = lambda texts: None,
) -> HeadReport:
    """Return the habits of each head over some texts, and its importance.

    Args:
        model: of a run.
        sources: texts that the model reads; of a language model, texts that it is made to write.
        targets: what the model is made to write; its own answers if None.
        ablate: number of texts on which heads are switched off, one after another; 0 for none.
        pairs: the pairs of `golds`.
        golds: gold links of each pair; with them each head of the cross-attention is scored.
        done: called with a number of texts whenever some are done.
    """
    if not model.kind.has_sources:
        sources, targets = [""] * len(sources), list(sources)
    examples: list[Trace] = []
    written: list[str] = []
    traces = _traces(model, sources, targets, done)
    habits = head_habits(_noted(traces, examples, written))
    switches = transformer_switches(model.module)
    switches = {one.key: switches[one.key] for one in habits if one.key in switches}
    count = min(ablate, len(sources))
    costs: dict[HeadKey, HeadImportance] = {}
    if count and switches:
        first = slice(count)
        costs = head_importance(
            switches, lambda: target_nats(model, sources[first], written[first])
        )
    aligned = _alignments(model, pairs, golds) if pairs and golds else {}
    heads = [HeadProfile(one, costs.get(one.key), aligned.get(one.key)) for one in habits]
    if costs:
        heads.sort(key=lambda head: -head.importance.cost if head.importance else np.inf)
    notes = []
    if count and len(switches) < len(habits):
        notes.append(
            "Only heads of multi-head attention can be switched off: others have no importance"
        )
    scale = None
    if pairs and golds:
        sizes = unit_counts(model.kind, pairs, Units.of(model.kind, None))
        scale = Quality.of([diagonal(*size) for size in sizes], golds).aer
    return HeadReport(len(sources), count if costs else 0, heads, examples, scale, notes)


def head_importance(
    switches: Mapping[HeadKey, HeadSwitch], score: Callable[[], Statistics]
) -> dict[HeadKey, HeadImportance]:
    """Return what switching off each head costs.

    Args:
        switches: of the heads.
        score: runs the model, and returns nats and number of tokens of each text.
    """
    whole = score()

    def scores() -> Iterator[Statistics]:
        for switch in switches.values():
            with heads_off(switch):
                yield score()

    costs = ratio_differences(whole, scores())
    return {key: HeadImportance(*cost) for key, cost in zip(switches, costs, strict=True)}


def target_nats(model: Model, sources: Sequence[Any], targets: Sequence[str]) -> Statistics:
    """Return the negative log-probability and the number of tokens of each target."""
    predictor = model.predictor
    rows = predictor.kind.sources.rows(sources)
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
    model: Model, sources: Sequence[Any], targets: Sequence[str] | None, done: Callable[[int], None]
) -> Iterator[Trace]:
    for start in range(0, len(sources), BATCH):
        part = slice(start, start + BATCH)
        yield from model.traces(sources[part], None if targets is None else targets[part])
        done(len(sources[part]))


def _noted(traces: Iterable[Trace], examples: list[Trace], written: list[str]) -> Iterator[Trace]:
    """Yield the traces; keep their targets, and the first that fit a picture as examples."""
    for trace in traces:
        written.append(trace.target.text)
        size = max(len(trace.source.tokens), len(trace.target.tokens))
        if not examples or (len(examples) < EXAMPLES and 3 <= size <= LONGEST):
            examples.append(trace)
        yield trace


def _alignments(
    model: Model, pairs: Sequence[Pair], golds: Sequence[Gold]
) -> dict[HeadKey, HeadAlignment]:
    """Return the error rate of each head of the cross-attention, by its best shift."""
    check_can_align(model.predictor)
    found = align(
        model.predictor,
        pairs,
        lambda heads: [c for c in all_choices(heads) if None not in (c.layer, c.head)],
        units=Units.of(model.kind, None),
    )
    best: dict[HeadKey, HeadAlignment] = {}
    for choice, links in found.items():
        assert choice.layer is not None
        assert choice.head is not None
        key = ("cross", choice.layer, choice.head)
        one = HeadAlignment(Quality.of(links, golds).aer, choice.shift)
        if key not in best or one.aer < best[key].aer:
            best[key] = one
    return best
