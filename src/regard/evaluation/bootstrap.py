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

from regard.errors import ArgumentError
from regard.evaluation.metrics import (
    PLAIN_TEXT,
    Normalizer,
    References,
    Statistics,
    Sums,
    bleu_tokenize,
    compared,
    find_metric,
    ratio,
)

#: sentences, texts or other units that an interval or a test needs
MIN_UNITS: Final = 5
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
    """A score with its confidence interval.

    Attributes:
        value: of the metric `name` on the given sentences.
        low: the lower end,
        high: and the upper end of the interval; both None if there is no interval.
        confidence: the share of resamples between them.
    """

    name: str
    value: float
    low: float | None
    high: float | None
    confidence: float


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
        high: and the upper end of the interval of `first - second`; None if there is no interval.
        confidence: the share of resamples between them.
    """

    name: str
    first: float
    second: float
    wins: float | None
    p_value: float | None
    low: float | None
    high: float | None
    confidence: float


def confidence_interval(
    name: str,
    predictions: Sequence[str],
    references: References,
    *,
    confidence: float = 0.95,
    samples: int = 1000,
    seed: int = 1,
    tokenize: str = "auto",
    normalizer: Normalizer = PLAIN_TEXT,
) -> ConfidenceInterval:
    """Return the interval that holds the score of a share `confidence` of all resamples.

    A share of sentences that are right has Wilson's interval, which does not need `samples`.
    `name`, `tokenize` and `normalizer` are those of `score`; `samples` is the number of resamples.
    """
    _check(confidence, samples)
    texts = compared(predictions, references, normalizer)
    metric = find_metric(name, bleu_tokenize(tokenize, texts.references))
    statistics = metric.measure(*texts)
    if metric.values is ratio and _is_share(statistics):
        low, high = _wilson(statistics, confidence)
    else:
        values = metric.values(_resampled(statistics, samples, seed))
        low, high = _ends(values, confidence, len(statistics))
    whole = float(metric.values(statistics.sum(axis=0, keepdims=True))[0])
    return ConfidenceInterval(name, whole, low, high, confidence)


def ratio_interval(
    statistics: Statistics, *, confidence: float = 0.95, samples: int = 1000, seed: int = 1
) -> Ends:
    """Return the interval of the sum of the first column over that of the second, or None twice."""
    _check(confidence, samples)
    return _ends(ratio(_resampled(statistics, samples, seed)), confidence, len(statistics))


def ratio_differences(
    first: Statistics,
    others: Iterable[Statistics],
    *,
    confidence: float = 0.95,
    samples: int = 1000,
    seed: int = 1,
) -> list[tuple[float, float | None, float | None]]:
    """Return how far the ratios of others are above that of the first, each with its interval.

    A ratio is the sum of the first column over that of the second, and all are computed on the same
    resamples of rows.

    Args:
        first: two columns, a row for each text.
        others: of the same texts.
        confidence: the share of resamples in the interval.
        samples: number of resamples.
        seed: of the resamples.

    Returns:
        the difference, the lower end and the upper end of its interval or None, for each.
    """
    _check(confidence, samples)
    weights = np.concatenate(list(_weights(len(first), samples, seed)))
    base, whole = ratio(weights @ first), ratio(first.sum(axis=0)[None])[0]
    found = []
    for other in others:
        low, high = _ends(ratio(weights @ other) - base, confidence, len(first))
        found.append((float(ratio(other.sum(axis=0)[None])[0] - whole), low, high))
    return found


def paired_bootstrap(
    name: str,
    first: Sequence[str],
    second: Sequence[str],
    references: References,
    *,
    confidence: float = 0.95,
    samples: int = 1000,
    seed: int = 1,
    tokenize: str = "auto",
    normalizer: Normalizer = PLAIN_TEXT,
) -> Comparison:
    """Compare two systems on the same resamples.

    The p-value is that of a two-sided test: the share of resamples whose difference is as far from
    the mean difference as the difference at hand is from 0 (Riezler and Maxwell, 2005,
    https://aclanthology.org/W05-0908), with 1 added to both counts. Where n sentences differ, it is
    at least 2 of 2**n: of all ways to swap the outputs of the systems, these two put one ahead in
    every sentence, and resamples of sentences that all favour one system show no spread.

    Arguments are those of `confidence_interval`, with the predictions of two systems.
    """
    _check(confidence, samples)
    texts = [compared(system, references, normalizer) for system in (first, second)]
    metric = find_metric(name, bleu_tokenize(tokenize, texts[0].references))
    both = np.concatenate([metric.measure(*system) for system in texts], axis=1)
    columns = both.shape[1] // 2

    def values(sums: Sums) -> TwoValues:
        return metric.values(sums[:, :columns]), metric.values(sums[:, columns:])

    sign = 1.0 if metric.higher_is_better else -1.0
    return _compared(name, both, values, sign, confidence, samples, seed)


def paired_perplexity(
    name: str,
    first: Statistics,
    second: Statistics,
    *,
    confidence: float = 0.95,
    samples: int = 1000,
    seed: int = 1,
) -> Comparison:
    """Compare the perplexities of two models on the same resamples of texts.

    Args:
        name: of the metric.
        first: nats and counted units of each text under the first model,
        second: and under the second.
        confidence: as for `paired_bootstrap`, and so are the others.
        samples: as there.
        seed: as there.
    """
    _check(confidence, samples)
    both = np.concatenate([first, second], axis=1)

    def values(sums: Sums) -> TwoValues:
        return perplexities(*sums[:, :2].T), perplexities(*sums[:, 2:].T)

    return _compared(name, both, values, -1.0, confidence, samples, seed)


def perplexities(
    nats: Float[np.ndarray, " n"], units: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " n"]:
    """Return the exponential of nats per unit; finite, and 1 where there is no unit."""
    means = nats / np.maximum(units, 1)
    found: Float[np.ndarray, " n"] = np.exp(np.minimum(means, MAX_NATS))
    return found


def _compared(
    name: str,
    both: Statistics,
    values: Callable[[Sums], TwoValues],
    sign: float,
    confidence: float,
    samples: int,
    seed: int,
) -> Comparison:
    """Return the comparison of two systems by their values on all texts and on resamples.

    Args:
        name: of the metric.
        both: statistics of each text, those of the second system after those of the first.
        values: turns sums of them into the values of both systems.
        sign: 1 if higher is better, else -1.
        confidence: of the interval.
        samples: number of resamples.
        seed: of the resamples.
    """
    (here,), (there,) = values(both.sum(axis=0)[None])
    one, other = values(_resampled(both, samples, seed))
    gain = sign * (one - other)
    as_far = np.abs(gain - gain.mean()) >= abs(here - there)
    differ = int((np.subtract(*np.hsplit(both, 2)) != 0).any(axis=1).sum())
    p_value = min(1.0, max((as_far.sum() + 1) / (len(gain) + 1), 2.0 ** (1 - differ)))
    low, high = _ends(one - other, confidence, len(both))
    enough = len(both) >= MIN_UNITS
    return Comparison(
        name=name,
        first=float(here),
        second=float(there),
        wins=float((gain > 0).mean() + 0.5 * (gain == 0).mean()) if enough else None,
        p_value=float(p_value) if enough else None,
        low=low,
        high=high,
        confidence=confidence,
    )


def _resampled(statistics: Statistics, samples: int, seed: int) -> Sums:
    """Return sums over resamples of all sentences."""
    return np.concatenate([w @ statistics for w in _weights(len(statistics), samples, seed)])


def _weights(
    sentences: int, samples: int, seed: int
) -> Iterator[Float[np.ndarray, "some sentences"]]:
    """Yield how often each sentence is drawn, some resamples at a time."""
    draw = np.random.default_rng(seed)
    at_a_time = max(1, DRAWS // sentences)
    for start in range(0, samples, at_a_time):
        some = min(at_a_time, samples - start)
        drawn = draw.integers(sentences, size=(some, sentences))
        places = (drawn + np.arange(0, some * sentences, sentences)[:, None]).ravel()
        counts = np.bincount(places, minlength=some * sentences)
        yield counts.reshape(some, sentences).astype(np.float64)


def _ends(values: Float[np.ndarray, " samples"], confidence: float, units: int) -> Ends:
    low, high = np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2])
    if units < MIN_UNITS or np.isclose(low, high, rtol=1e-9, atol=0.0):
        return None, None
    return float(low), float(high)


def _is_share(statistics: Statistics) -> bool:
    """Return whether each sentence is a 0 or a 1 that counts once."""
    first, second = statistics.T
    return bool((second == 1).all() and np.isin(first, (0, 1)).all())


def _wilson(statistics: Statistics, confidence: float) -> Ends:
    n, share = len(statistics), float(statistics[:, 0].mean())
    if n < MIN_UNITS:
        return None, None
    z2 = NormalDist().inv_cdf((1 + confidence) / 2) ** 2 / n
    middle = (share + z2 / 2) / (1 + z2)
    reach = (z2 * share * (1 - share) + z2**2 / 4) ** 0.5 / (1 + z2)
    # exact at 0 and 1, where rounding would leave the score outside of its interval
    return max(0.0, min(share, middle - reach)), min(1.0, max(share, middle + reach))


def _check(confidence: float, samples: int) -> None:
    if not 0 < confidence < 1:
        raise ArgumentError("confidence", "be above 0 and below 1", confidence, "0.95 is usual")
    if samples < 1:
        raise ArgumentError("samples", "be at least 1", samples, "1000 are usual")
