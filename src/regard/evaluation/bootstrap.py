"""Bootstrap resampling: confidence intervals of scores, and paired tests (Koehn, 2004).

https://aclanthology.org/W04-3250. Sentences are drawn with replacement from those at hand. Fewer
than `MIN_UNITS` say nothing about others, and neither do those that all give one value: there is no
interval then. The interval of a share of sentences, which may be 0 or 1, is Wilson's (1927,
https://doi.org/10.1080/01621459.1927.10502953).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
from jaxtyping import Float

from regard.evaluation.metrics import (
    PLAIN_TEXT,
    Normalizer,
    References,
    Statistics,
    Sums,
    compared,
    find_metric,
    ratio,
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
    buckets: int = 6,
    normalizer: Normalizer = PLAIN_TEXT,
) -> list[LengthRow]:
    """Return metrics of sources of like lengths, shortest first; no row is empty.

    Metrics, texts and options are those of `score`. `src_lengths` may be in any unit. `buckets` is
    the number of rows, of about as many sources each; fewer if many lengths are equal.
    """
    texts = compared(predictions, references, normalizer)
    lengths = np.asarray(src_lengths)
    metrics = {name: find_metric(name, texts.references) for name in names}
    measured = {name: metric.measure(*texts) for name, metric in metrics.items()}
    shares = np.arange(1, buckets) / buckets
    edges = np.unique(np.quantile(lengths, shares, method="inverted_cdf"))
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


#: sentences, texts or other units that an interval or a test needs
MIN_UNITS: Final = 5
#: the share of resamples within an interval, and their number
CONFIDENCE, SAMPLES = 0.95, 1000
#: ends of an interval, or none
Ends = tuple[float, float] | tuple[None, None]
#: maximum number of draws in memory
DRAWS: Final = 1 << 22
#: limit of nats per unit, so that their exponential is finite
MAX_NATS: Final = 700.0
#: values of a metric for two systems
TwoValues = tuple[Float[np.ndarray, " _n"], Float[np.ndarray, " _n"]]


@dataclass(frozen=True)
class ConfidenceInterval:
    """The value of a metric with its 95% interval, whose ends are None if there is none."""

    name: str
    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Comparison:
    """A comparison of two systems on the same sentences.

    Attributes:
        name: of the metric.
        first: value of the first system,
        second: and of the second.
        wins: the share of resamples in which the first is better; ties count half.
        p_value: probability of a difference this large, either way, if both are equally good.
            Both are None for fewer than `MIN_UNITS` sentences.
        low: the lower end,
        high: and the upper end of the 95% interval of `first - second`; None if there is none.
    """

    name: str
    first: float
    second: float
    wins: float | None
    p_value: float | None
    low: float | None
    high: float | None


def confidence_interval(
    name: str,
    predictions: Sequence[str],
    references: References,
    *,
    normalizer: Normalizer = PLAIN_TEXT,
) -> ConfidenceInterval:
    """Return the interval that holds the score of 95% of all resamples; arguments as of `score`."""
    texts = compared(predictions, references, normalizer)
    metric = find_metric(name, texts.references)
    statistics = metric.measure(*texts)
    if metric.values is ratio and _is_share(statistics):
        low, high = _wilson(statistics)
    else:
        low, high = _ends(metric.values(_resampled(statistics)), len(statistics))
    whole = float(metric.values(statistics.sum(axis=0, keepdims=True))[0])
    return ConfidenceInterval(name, whole, low, high)


def ratio_interval(statistics: Statistics) -> Ends:
    """Return the interval of the sum of the first column over that of the second, or None twice."""
    return _ends(ratio(_resampled(statistics)), len(statistics))


def ratio_differences(
    first: Statistics, others: Iterable[Statistics]
) -> list[tuple[float, float | None, float | None]]:
    """Return how far the ratios of others are above that of the first, each with its interval.

    A ratio is the sum of the first column over that of the second, of a row for each text. All are
    computed on the same resamples of rows.
    """
    base, whole = ratio(_resampled(first)), ratio(first.sum(axis=0)[None])[0]
    found = []
    for other in others:
        low, high = _ends(ratio(_resampled(other)) - base, len(first))
        found.append((float(ratio(other.sum(axis=0)[None])[0] - whole), low, high))
    return found


def paired_bootstrap(
    name: str,
    first: Sequence[str],
    second: Sequence[str],
    references: References,
    *,
    normalizer: Normalizer = PLAIN_TEXT,
) -> Comparison:
    """Compare two systems on the same resamples.

    The p-value is that of a two-sided test: the share of resamples whose difference is as far from
    the mean difference as the difference at hand is from 0 (Riezler and Maxwell, 2005,
    https://aclanthology.org/W05-0908), with 1 added to both counts. Where n sentences differ, it is
    at least 2 of 2**n: of all ways to swap the outputs of the systems, these two put one ahead in
    every sentence, and resamples of sentences that all favour one system show no spread.
    """
    texts = [compared(system, references, normalizer) for system in (first, second)]
    metric = find_metric(name, texts[0].references)
    both = np.concatenate([metric.measure(*system) for system in texts], axis=1)
    columns = both.shape[1] // 2

    def values(sums: Sums) -> TwoValues:
        return metric.values(sums[:, :columns]), metric.values(sums[:, columns:])

    return _compared(name, both, values, 1.0 if metric.higher_is_better else -1.0)


def paired_perplexity(name: str, first: Statistics, second: Statistics) -> Comparison:
    """Compare the perplexities of two models, of nats and counted units of each text."""

    def values(sums: Sums) -> TwoValues:
        return perplexities(*sums[:, :2].T), perplexities(*sums[:, 2:].T)

    return _compared(name, np.concatenate([first, second], axis=1), values, -1.0)


def perplexities(
    nats: Float[np.ndarray, " n"], units: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """Return the exponential of nats per unit; finite, and 1 where there is no unit."""
    means = nats / np.maximum(units, 1)
    found: Float[np.ndarray, " n"] = np.exp(np.minimum(means, MAX_NATS))
    return found


def _compared(
    name: str, both: Statistics, values: Callable[[Sums], TwoValues], sign: float
) -> Comparison:
    """Return the comparison of two systems by their values on all texts and on resamples.

    `both` has the statistics of the second system after those of the first; `sign` is 1 if higher
    values are better, else -1.
    """
    (here,), (there,) = values(both.sum(axis=0)[None])
    one, other = values(_resampled(both))
    gain = sign * (one - other)
    as_far = np.abs(gain - gain.mean()) >= abs(here - there)
    differ = int((np.subtract(*np.hsplit(both, 2)) != 0).any(axis=1).sum())
    p_value = min(1.0, max((as_far.sum() + 1) / (len(gain) + 1), 2.0 ** (1 - differ)))
    low, high = _ends(one - other, len(both))
    if len(both) < MIN_UNITS:
        return Comparison(name, float(here), float(there), None, None, low, high)
    wins = float((gain > 0).mean() + 0.5 * (gain == 0).mean())
    return Comparison(name, float(here), float(there), wins, float(p_value), low, high)


def _resampled(statistics: Statistics) -> Sums:
    """Return sums over resamples of all sentences."""
    return np.concatenate([w @ statistics for w in _weights(len(statistics))])


def _weights(sentences: int) -> Iterator[Float[np.ndarray, "some sentences"]]:
    """Yield how often each sentence is drawn, some resamples at a time."""
    draw = np.random.default_rng(1)
    at_a_time = max(1, DRAWS // sentences)
    for start in range(0, SAMPLES, at_a_time):
        some = min(at_a_time, SAMPLES - start)
        drawn = draw.integers(sentences, size=(some, sentences))
        places = (drawn + np.arange(0, some * sentences, sentences)[:, None]).ravel()
        counts = np.bincount(places, minlength=some * sentences)
        yield counts.reshape(some, sentences).astype(np.float64)


def _ends(values: Float[np.ndarray, " samples"], units: int) -> Ends:
    low, high = np.quantile(values, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    if units < MIN_UNITS or np.isclose(low, high, rtol=1e-9, atol=0.0):
        return None, None
    return float(low), float(high)


def _is_share(statistics: Statistics) -> bool:
    """Return whether each sentence is a 0 or a 1 that counts once."""
    first, second = statistics.T
    return bool((second == 1).all() and np.isin(first, (0, 1)).all())


def _wilson(statistics: Statistics) -> Ends:
    n, share = len(statistics), float(statistics[:, 0].mean())
    if n < MIN_UNITS:
        return None, None
    z2 = NormalDist().inv_cdf((1 + CONFIDENCE) / 2) ** 2 / n
    middle = (share + z2 / 2) / (1 + z2)
    reach = (z2 * share * (1 - share) + z2**2 / 4) ** 0.5 / (1 + z2)
    # exact at 0 and 1, where rounding would leave the score outside of its interval
    return max(0.0, min(share, middle - reach)), min(1.0, max(share, middle + reach))
