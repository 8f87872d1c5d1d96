"""Evaluation of a model on pairs: metrics of its predictions, with confidence intervals."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from regard.data import Pair, Tokenizer
from regard.errors import ArgumentError
from regard.evaluation import (
    ClassReport,
    Comparison,
    LengthRow,
    confidence_interval,
    score,
    text_metrics,
)


class MetricRow(NamedTuple):
    """A metric with its interval, None where there is none, and how it was computed.

    `counted` is what a perplexity is per: the number of tokens or words.
    """

    name: str
    value: float
    low: float | None
    high: float | None
    signature: str
    counted: int | None = None


class EvaluationResult(NamedTuple):
    """Metrics of predictions on a number of pairs.

    Attributes:
        pairs: how many.
        rows: the metrics.
        lengths: the main one by length of the source, if asked for.
        against: comparison with a second model, if asked for.
        classes: results by class, if targets are labels or tags.
    """

    pairs: int
    rows: list[MetricRow]
    lengths: list[LengthRow]
    against: Comparison | None
    classes: ClassReport | None = None

    def __repr__(self) -> str:
        rows = "".join(f", {row.name}={row.value:.4g}" for row in self.rows)
        return f"EvaluationResult(pairs={self.pairs}{rows})"


def metric_names(suitable: Sequence[str], metric: str | Sequence[str] | None) -> list[str]:
    """Return the names of metrics, checked; the suitable ones if none is given."""
    alone = isinstance(metric, str) or not isinstance(metric, Sequence | None)
    given: Sequence[Any] = [metric] if alone else metric or ()
    names = [str(name).lower() for name in given]
    known = text_metrics()
    for name in names:
        if name not in known:
            raise ArgumentError(
                "metric", f"be one of {', '.join(known)}", repr(name), "choose some of them"
            )
    return names or list(suitable)


def references_of(pairs: Iterable[Pair]) -> list[list[str]]:
    """Return the accepted targets of each pair."""
    return [[pair.tgt, *pair.more] for pair in pairs]


def score_predictions(
    target: Tokenizer, names: Sequence[str], predictions: Sequence[str], pairs: Sequence[Pair]
) -> EvaluationResult:
    """Return each metric with its interval, of texts normalised by the target tokeniser."""
    references = references_of(pairs)
    rows = []
    for name in names:
        found = score(name, predictions, references, normalizer=target)
        interval = confidence_interval(name, predictions, references, normalizer=target)
        rows.append(MetricRow(name, found.value, interval.low, interval.high, found.signature))
    return EvaluationResult(len(pairs), rows, [], None)
