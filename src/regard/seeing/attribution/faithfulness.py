"""Faithfulness of attribution methods: whether inputs that score high decide the output.

A method orders the inputs. Taking them away from the highest score down should soon change the
output, and putting them back in this order should soon restore it. Inputs are taken away as in
ablation: other tokens stand in their places, drawn at random, the same ones for every method. With
v the probability of the token that is asked about (or, with `versus`, of it rather than the other):

- comprehensiveness: what v loses without the highest inputs, and sufficiency: what it loses with
  nothing but them; means over 1, 5, 10, 20 and 50% of the inputs (DeYoung et al., 2020,
  https://aclanthology.org/2020.acl-main.408);
- deletion and insertion: areas under the curves of v while inputs are taken away and put back
  (Petsiuk et al., 2018, https://arxiv.org/abs/1806.07421);
- gain: insertion less deletion. A random order has an expected gain of exactly zero, since keeping
  k random inputs is the same as removing all but k random ones.

Ablation takes inputs away in the same manner as these measures, which favours it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, NamedTuple

import numpy as np
from jaxtyping import Float

from regard.errors import ArgumentError
from regard.messages import interval_text, message
from regard.seeing.attribution.input_scorer import Array, InputScorer, Question
from regard.seeing.attribution.methods import (
    QUICK_METHODS,
    Scores,
    attribute,
    method_title,
)
from regard.seeing.trace.trace import Trace, Weights

#: shares of the inputs over which comprehensiveness and sufficiency are means
SHARES: Final = (0.01, 0.05, 0.1, 0.2, 0.5)
#: intervals of the curves
INTERVALS: Final = 10
#: random replacements of the inputs that are taken away
DRAWS: Final = 4
#: texts, outputs or draws that an interval needs, as in `evaluation.bootstrap`
MIN_UNITS: Final = 5
#: random orders that methods are compared with
RANDOM_ORDERS: Final = 4
#: outputs of a text that are judged, since each takes hundreds of passes
MAX_JUDGED: Final = 16
RESAMPLES: Final = 1000
RANDOM: Final = "random"


class Measures(NamedTuple):
    """Measures of faithfulness; numbers or intervals."""

    comprehensiveness: Any
    sufficiency: Any
    deletion: Any
    insertion: Any
    gain: Any


class MeasureInterval(NamedTuple):
    """A mean and the ends of its 95% interval; these are NaN if there is no interval."""

    mean: float
    low: float
    high: float


#: of one text, by the name of the method: (questions, measures), NaN without removable inputs
Measured = Mapping[str, Float[np.ndarray, "questions measures"]]


def measure(
    scorer: InputScorer,
    questions: Sequence[Question],
    scores: Mapping[str, Scores],
    *,
    seed: int = 0,
) -> dict[str, Float[np.ndarray, "questions measures"]]:
    """Return the measures of each method for each question; `random` is the mean of random orders.

    Args:
        scorer: the model with its input.
        questions: about its outputs.
        scores: by the name of the method, as `attribute` returns them.
        seed: of replacements and random orders; each text of a corpus needs its own, or else chance
            would favour the same positions in all of them.
    """
    rng = np.random.default_rng(seed)
    others = scorer.replacements.others
    drawn = [
        {i: ids[int(rng.integers(len(ids)))] for i, ids in enumerate(others) if len(ids) > 1}
        for _ in range(DRAWS)
    ]
    removable = scorer.visible() & np.array([len(ids) > 1 for ids in others])
    curves: dict[tuple[int, str], list[_Curves]] = {}
    for q, question in enumerate(questions):
        places = rng.permutation(np.flatnonzero(removable[question.output]))  # order of ties
        for name, rows in scores.items():
            curves[q, name] = [_Curves(places[np.argsort(-rows[q, places], kind="stable")])]
        curves[q, RANDOM] = [_Curves(rng.permutation(places)) for _ in range(RANDOM_ORDERS)]
    known = _removed_values(scorer, questions, drawn, curves)
    return {
        name: np.array(
            [
                np.mean([found.measures(known[q]) for found in curves[q, name]], axis=0)
                for q in range(len(questions))
            ]
        )
        for name in (*scores, RANDOM)
    }


class _Curves:
    """Sets of inputs that are removed to judge one order of the inputs, best first."""

    def __init__(self, order: Array) -> None:
        self.order = [int(place) for place in order]
        count = len(order)
        half = [round(i * count / INTERVALS) for i in range(INTERVALS // 2 + 1)]
        # symmetric, or else a random order would not gain exactly nothing on average
        self.steps = sorted({*half, *(count - step for step in half)})
        self.tops = [math.ceil(share * count) for share in SHARES]

    def without_top(self, count: int) -> frozenset[int]:
        """Return the inputs to remove so that the first `count` are missing."""
        return frozenset(self.order[:count])

    def only_top(self, count: int) -> frozenset[int]:
        """Return the inputs to remove so that only the first `count` are left."""
        return frozenset(self.order[count:])

    def sets(self) -> set[frozenset[int]]:
        """Return all sets that `measures` needs."""
        counts = {*self.steps, *self.tops}
        return {f(count) for count in counts for f in (self.without_top, self.only_top)}

    def measures(self, known: Mapping[frozenset[int], float]) -> list[float]:
        """Return the measures, given v after the removal of each set."""
        if not self.order:
            return [math.nan] * len(Measures._fields)
        whole = known[frozenset()]
        lost = [[known[f(k)] for k in self.tops] for f in (self.without_top, self.only_top)]
        x = np.array(self.steps) / len(self.order)
        deletion, insertion = (
            float(np.trapezoid([known[f(k)] for k in self.steps], x))
            for f in (self.without_top, self.only_top)
        )
        comprehensiveness, sufficiency = (whole - float(np.mean(values)) for values in lost)
        return [comprehensiveness, sufficiency, deletion, insertion, insertion - deletion]


def _removed_values(
    scorer: InputScorer,
    questions: Sequence[Question],
    drawn: Sequence[Mapping[int, int]],
    curves: Mapping[tuple[int, str], Sequence[_Curves]],
) -> list[dict[frozenset[int], float]]:
    """Return v of each question after the removal of each set that its curves need."""
    wanted = [set[frozenset[int]]() for _ in questions]
    for (q, _), found in curves.items():
        wanted[q].update(*(one.sets() for one in found))
    every = sorted(set().union(*wanted), key=sorted)
    changes = [{i: choice[i] for i in removed} for removed in every for choice in drawn]
    values = scorer.replaced(changes, questions)
    contrasted = np.array([question.versus is not None for question in questions])
    # a difference of logits is the log-odds of one token rather than the other
    shares = np.where(contrasted, 1 / (1 + np.exp(-values)), np.exp(np.minimum(values, 0.0)))
    means = shares.reshape(len(every), len(drawn), -1).mean(axis=1)
    place = {removed: i for i, removed in enumerate(every)}
    return [
        {removed: float(means[place[removed], q]) for removed in sets}
        for q, sets in enumerate(wanted)
    ]


def summarize(texts: Sequence[Measured]) -> dict[str, Measures]:
    """Return the mean and the 95% interval of each measure by method, most faithful first.

    The interval is that of bootstrap resamples of the texts; of one text, of its outputs. Fewer
    than `MIN_UNITS`, or some that are all alike, have no interval.

    Args:
        texts: measures of each text; all must have the same methods.
    """
    rows = {name: _of_units([text[name] for text in texts]) for name in texts[0]}
    count = len(next(iter(rows.values())))
    chosen = np.random.default_rng(0).integers(count, size=(RESAMPLES, count))
    found = {}
    for name, table in rows.items():
        low, high = np.quantile(table[chosen].mean(axis=1), [0.025, 0.975], axis=0)
        if count < MIN_UNITS:
            low = high = np.full_like(low, np.nan)
        low, high = (np.where(np.isclose(low, high), np.nan, end) for end in (low, high))
        means = zip(table.mean(axis=0).tolist(), low.tolist(), high.tolist(), strict=True)
        found[name] = Measures(*(MeasureInterval(*row) for row in means))
    return dict(sorted(found.items(), key=lambda item: -item[1].gain.mean))


def _of_units(tables: Sequence[Array]) -> Array:
    """Return a row for each text, or for each output of a single text; those of NaN left out."""
    kept = [table[~np.isnan(table).any(axis=1)] for table in tables]
    if len(kept) == 1 and len(kept[0]):
        return kept[0]
    means = [table.mean(axis=0) for table in kept if len(table)]
    return np.array(means) if means else np.full((1, len(Measures._fields)), np.nan)


def add_scores(trace: Trace, scorer: InputScorer) -> Trace:
    """Return the trace with scores of `QUICK_METHODS`, whose faithfulness is not measured."""
    asked = scorer.questions()[: len(trace.target.tokens)]
    found = attribute(scorer, asked, QUICK_METHODS)
    sentences = [*trace.checks.get("sentences", []), *_unavailable(found.unavailable)]
    return replace(
        trace,
        derived={**trace.derived, **_matrices(trace, asked, found.scores)},
        checks={**trace.checks, "sentences": sentences},
    )


def add_methods(
    trace: Trace,
    scorer: InputScorer,
    methods: str,
    versus: tuple[int, str] | None = None,
) -> Trace:
    """Return the trace with the scores of several methods, and the faithfulness of each.

    Scores are added to `derived` by the name of the method, or "NAME versus TOKEN"; measures and
    sentences to `checks`. Outputs that are `versus` itself have scores of zero and are not judged.

    Args:
        trace: whose target tokens are the outputs of the scorer, from the first on, and whose
            source tokens are its inputs.
        scorer: the model with its input.
        methods: names separated by commas, or `all`.
        versus: id and text of the token that each output is compared with.
    """
    asked = scorer.questions(None if versus is None else versus[0])[: len(trace.target.tokens)]
    asked = [question for question in asked if question.token != question.versus]
    if not asked:
        raise ArgumentError(
            "versus", "differ from an output or more", repr(versus and versus[1]), "choose another"
        )
    found = attribute(scorer, asked, methods)
    suffix = "" if versus is None else f" versus {versus[1]}"
    derived = _matrices(trace, asked, found.scores)
    judged = sorted({round(i) for i in np.linspace(0, len(asked) - 1, min(len(asked), MAX_JUDGED))})
    part = {name: scores[judged] for name, scores in found.scores.items()}
    summary = summarize([measure(scorer, [asked[q] for q in judged], part)])
    checks = {
        "methods": list(found.scores),
        "unavailable_methods": found.unavailable,
        "versus": None if versus is None else versus[1],
        "faithfulness": {name: as_numbers(measures) for name, measures in summary.items()},
    }
    sentences = [*trace.checks.get("sentences", []), *_sentences(summary)]
    sentences += [*_unavailable(found.unavailable)]
    sentences += found.notes
    if len(judged) < MIN_UNITS:
        sentences.append(message("interval.note"))
    if len(judged) < len(asked):
        sentences.append(message("check.some-outputs", count=len(judged), total=len(asked)))
    return replace(
        trace,
        derived={**trace.derived, **{name + suffix: one for name, one in derived.items()}},
        checks={**trace.checks, **checks, "sentences": list(dict.fromkeys(sentences))},
    )


def _matrices(
    trace: Trace, asked: Sequence[Question], scores: Mapping[str, Scores]
) -> dict[str, Weights]:
    """Return the scores of each method for all outputs; zero for those that are not asked about."""
    found = {}
    for name, rows in scores.items():
        matrix = np.zeros((len(trace.target.tokens), len(trace.source.tokens)), dtype=np.float32)
        matrix[[question.output for question in asked]] = rows
        found[name] = matrix
    return found


def as_numbers(measures: Measures) -> dict[str, float | None]:
    """Return means and intervals for JSON, as `gain`, `gain_low`, `gain_high`."""
    found: dict[str, float | None] = {}
    for name, (mean, low, high) in measures._asdict().items():
        numbers = {name: mean, f"{name}_low": low, f"{name}_high": high}
        found |= {key: None if math.isnan(x) else round(x, 6) for key, x in numbers.items()}
    return found


def _sentences(summary: Mapping[str, Measures]) -> list[str]:
    ranked = [(name, found.gain) for name, found in summary.items() if name != RANDOM]
    sentences = []
    if ranked and not math.isnan(ranked[0][1].mean):
        (name, best), *rest = ranked
        comma = message("check.comma")
        close = [method_title(other) for other, gain in rest if not gain.high < best.low]
        others = message("check.not-clearly-less", methods=comma.join(close)) if close else ""
        low, high = (None if math.isnan(end) else end for end in best[1:])
        sentences.append(
            message(
                "check.most-faithful",
                method=method_title(name),
                gain=best.mean,
                range=interval_text(low, high, "{:.2f}".format),
                others=others,
            )
        )
        useless = [method_title(other) for other, gain in ranked if not gain.low > 0]
        if useless:
            sentences.append(message("check.not-clearly-better", methods=comma.join(useless)))
    elif ranked:
        sentences.append(message("check.not-measurable"))
    return sentences


def _unavailable(methods: Mapping[str, str]) -> list[str]:
    return [
        message("check.no-scores", method=method_title(name), reason=reason)
        for name, reason in methods.items()
    ]
