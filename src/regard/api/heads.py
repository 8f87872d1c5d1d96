"""Attention heads of a model over a corpus: habits, importance by ablation."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from regard.api.model import Model
from regard.data.pairs import draw_sample
from regard.decoding import force_decode
from regard.evaluation import ratio_differences
from regard.evaluation.metrics import Statistics
from regard.messages import message
from regard.seeing import Trace
from regard.seeing.attribution.interventions import heads_muted, transformer_switches
from regard.seeing.page.compare_page import HeadRow
from regard.seeing.trace.head_habits import HeadHabits, HeadKey, head_habits

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
        notes: sentences about what was not measured.
    """

    texts: int
    ablated: int
    heads: list[HeadRow]
    examples: list[Trace]
    notes: list[str]


def profile_heads(
    model: Model,
    sources: Sequence[Any],
    targets: Sequence[str] | None = None,
    *,
    ablate: int = 64,
    done: Callable[[int], None] = lambda texts: None,
) -> HeadReport:
    """Return the habits of each head over some texts, and its importance.

    Args:
        model: of a run, or imported.
        sources: texts that the model reads; of a language model, texts that it is made to write.
        targets: what the model is made to write; its own answers if None.
        ablate: number of texts, drawn from all, on which heads are switched off, one after another;
            0 for none.
        done: called with a number of texts whenever some are done.
    """
    if not model.task.has_sources:
        sources, targets = [""] * len(sources), list(sources)
    notes: list[str] = []
    corpus = _Corpus()
    habits = head_habits(corpus.noting(_traces(model, sources, targets, done)))
    costs: dict[HeadKey, HeadCost] = {}
    several = min(ablate, len(sources))
    if several and habits:
        rows = sorted(draw_sample(range(len(sources)), several))
        texts = [sources[i] for i in rows], [corpus.written[i] for i in rows]
        costs, notes = _importance(model, habits, *texts)
    heads = [HeadRow(h, costs.get(h.key)) for h in habits]
    if costs:
        heads.sort(key=lambda head: -head.cost[0] if head.cost else np.inf)
    return HeadReport(len(sources), several if costs else 0, heads, corpus.examples, notes)


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
    whole = score()

    def without_each() -> Iterator[Statistics]:
        for switch in own.values():
            with heads_muted([switch]):
                yield score()

    found = ratio_differences(whole, without_each())
    costs = {key: HeadCost(*cost) for key, cost in zip(own, found, strict=True)}
    distinct = len({(id(switch.projection), switch.start) for switch in own.values()})
    notes = [message("heads.note.no-switch")] * (len(own) < len(habits))
    notes += [message("heads.note.shared")] * (distinct < len(own))
    few = any(low is None for _, low, _ in costs.values())
    notes += [message("interval.note").rstrip(".。")] * few
    return costs, notes


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
    counted = predictor.task.output.counted  # an end that is certain cannot be wrong
    return np.array([nats, [(len(target) + 1) / counted for target in ids]], np.float64).T


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
    """Notes on the traces that pass by: their targets, and a few examples."""

    def __init__(self) -> None:
        self.examples: list[Trace] = []
        self.written: list[str] = []

    def noting(self, traces: Iterable[Trace]) -> Iterator[Trace]:
        """Yield the traces; the first that fit a picture are kept as examples."""
        for trace in traces:
            self.written.append(trace.target.text)
            size = max(len(trace.source.tokens), len(trace.target.tokens))
            if not self.examples or (len(self.examples) < EXAMPLES and 3 <= size <= LONGEST):
                self.examples.append(trace)
            yield trace
