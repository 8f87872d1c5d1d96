"""Metrics by the length of the source."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from regard.errors import ArgumentError
from regard.evaluation.metrics import (
    PLAIN_TEXT,
    Normalizer,
    References,
    bleu_tokenize,
    compared,
    find_metric,
)


@dataclass(frozen=True)
class LengthRow:
    """Metrics of the sources within a range of lengths.

    Attributes:
        shortest: length of the shortest of them,
        longest: and of the longest.
        count: how many they are.
        values: by name of the metric, as in `score`.
    """

    shortest: int
    longest: int
    count: int
    values: dict[str, float]


def by_length(
    names: Sequence[str],
    src_lengths: Sequence[int],
    predictions: Sequence[str],
    references: References,
    *,
    buckets: int | Sequence[int] = 6,
    tokenize: str = "auto",
    normalizer: Normalizer = PLAIN_TEXT,
) -> list[LengthRow]:
    """Return metrics of sources of like lengths, shortest first; no row is empty.

    Metrics, texts and options are those of `score`. `src_lengths` may be in any unit. `buckets` is
    the number of rows, of about as many sources each, or the largest length of each row but the
    last.
    """
    texts = compared(predictions, references, normalizer)
    if len(src_lengths) != len(predictions):
        raise ArgumentError(
            "src_lengths",
            f"have a length for each of the {len(predictions)} predictions",
            f"a list of {len(src_lengths)}",
            "count the tokens of each source",
        )
    lengths = np.asarray(src_lengths)
    tokenize = bleu_tokenize(tokenize, texts.references)
    metrics = {name: find_metric(name, tokenize) for name in names}
    measured = {name: metric.measure(*texts) for name, metric in metrics.items()}
    edges = _edges(lengths, buckets) if isinstance(buckets, int) else np.sort(buckets)
    # a source as long as an edge belongs below it
    bucket = np.searchsorted(edges, lengths, side="left")
    rows = []
    for which in np.unique(bucket):
        inside = bucket == which
        values = {
            name: float(metric.values(measured[name][inside].sum(axis=0, keepdims=True))[0])
            for name, metric in metrics.items()
        }
        here = lengths[inside]
        rows.append(LengthRow(int(here.min()), int(here.max()), int(inside.sum()), values))
    return rows


def _edges(lengths: np.ndarray, buckets: int) -> np.ndarray:
    """Return lengths that split the sources into about equal buckets; fewer if many are equal."""
    if buckets < 1:
        raise ArgumentError("buckets", "be at least 1", buckets, "6 give a short table")
    shares = np.arange(1, buckets) / buckets
    return np.unique(np.quantile(lengths, shares, method="inverted_cdf"))
