"""How far a score would move if other sentences had been drawn (Koehn, 2004).

https://aclanthology.org/W04-3250. Sentences are drawn with replacement from those at hand.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
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
    compared,
    find_metric,
    ratio,
)

# Draws that are held in memory at a time.
DRAWS: Final = 1 << 22


@dataclass(frozen=True)
class ConfidenceInterval:
    """A score and where it would lie in other samples.

    Attributes:
        name: of the metric.
        value: of the sentences at hand.
        low: the lower end,
        high: and the upper end of the interval.
        confidence: the share of resamples between them.
    """

    name: str
    value: float
    low: float
    high: float
    confidence: float


@dataclass(frozen=True)
class Comparison:
    """Two systems on the same sentences.

    Attributes:
        name: of the metric.
        first: value of the first system,
        second: and of the second.
        wins: the share of resamples in which the first is better; ties count half.
        p_value: how often a difference as large as this, either way, would come about if the two
            were equally good.
        low: the lower end,
        high: and the upper end of the interval of `first - second`.
        confidence: the share of resamples between them.
    """

    name: str
    first: float
    second: float
    wins: float
    p_value: float
    low: float
    high: float
    confidence: float


def confidence_interval(
    name: str,
    predictions: Sequence[str],
    references: References,
    *,
    confidence: float = 0.95,
    samples: int = 1000,
    seed: int = 1,
    tokenize: str = "13a",
    normalizer: Normalizer = PLAIN_TEXT,
) -> ConfidenceInterval:
    """The interval that holds the score of `confidence` of all resamples.

    Args:
        name: of the metric, as in `score`.
        predictions: one text for each source.
        references: one text for each source, or a list of them.
        confidence: above 0 and below 1.
        samples: number of resamples.
        seed: of the draws.
        tokenize: as in `score`.
        normalizer: as in `score`.
    """
    _check(confidence, samples)
    metric = find_metric(name, tokenize)
    statistics = metric.measure(*compared(predictions, references, normalizer))
    values = metric.values(_resampled(statistics, samples, seed))
    low, high = _ends(values, confidence)
    whole = float(metric.values(statistics.sum(axis=0, keepdims=True))[0])
    return ConfidenceInterval(name, whole, low, high, confidence)


def ratio_interval(
    statistics: Statistics, *, confidence: float = 0.95, samples: int = 1000, seed: int = 1
) -> tuple[float, float]:
    """The ends of the interval for the sum of the first column over that of the second."""
    _check(confidence, samples)
    return _ends(ratio(_resampled(statistics, samples, seed)), confidence)


def paired_bootstrap(
    name: str,
    first: Sequence[str],
    second: Sequence[str],
    references: References,
    *,
    confidence: float = 0.95,
    samples: int = 1000,
    seed: int = 1,
    tokenize: str = "13a",
    normalizer: Normalizer = PLAIN_TEXT,
) -> Comparison:
    """Compares two systems on the same resamples.

    The p-value is that of a two-sided test: the share of resamples whose difference is as far from
    the mean difference as the difference at hand is from 0 (Riezler and Maxwell, 2005,
    https://aclanthology.org/W05-0908), with 1 added to both counts.

    Args:
        name: of the metric, as in `score`.
        first: predictions of one system,
        second: and of the other.
        references: one text for each source, or a list of them.
        confidence: above 0 and below 1.
        samples: number of resamples.
        seed: of the draws.
        tokenize: as in `score`.
        normalizer: as in `score`.
    """
    _check(confidence, samples)
    metric = find_metric(name, tokenize)
    texts = [compared(system, references, normalizer) for system in (first, second)]
    both = np.concatenate([metric.measure(*system) for system in texts], axis=1)
    columns = both.shape[1] // 2

    def values(sums: Sums) -> tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]:
        return metric.values(sums[:, :columns]), metric.values(sums[:, columns:])

    (here,), (there,) = values(both.sum(axis=0, keepdims=True))
    one, other = values(_resampled(both, samples, seed))
    sign = 1.0 if metric.higher_is_better else -1.0
    gain = sign * (one - other)
    as_far = np.abs(gain - gain.mean()) >= abs(here - there)
    low, high = _ends(one - other, confidence)
    return Comparison(
        name=name,
        first=float(here),
        second=float(there),
        wins=float((gain > 0).mean() + 0.5 * (gain == 0).mean()),
        p_value=float((as_far.sum() + 1) / (samples + 1)),
        low=low,
        high=high,
        confidence=confidence,
    )


def _resampled(statistics: Statistics, samples: int, seed: int) -> Sums:
    """Sums over samples of as many sentences as there are."""
    return np.concatenate([w @ statistics for w in _weights(len(statistics), samples, seed)])


def _weights(
    sentences: int, samples: int, seed: int
) -> Iterator[Float[np.ndarray, "some sentences"]]:
    """How often each sentence is drawn, some samples at a time."""
    draw = np.random.default_rng(seed)
    at_a_time = max(1, DRAWS // sentences)
    for start in range(0, samples, at_a_time):
        some = min(at_a_time, samples - start)
        drawn = draw.integers(sentences, size=(some, sentences))
        places = (drawn + np.arange(0, some * sentences, sentences)[:, None]).ravel()
        counts = np.bincount(places, minlength=some * sentences)
        yield counts.reshape(some, sentences).astype(np.float64)


def _ends(values: Float[np.ndarray, " samples"], confidence: float) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def _check(confidence: float, samples: int) -> None:
    if not 0 < confidence < 1:
        raise ArgumentError("confidence", "be above 0 and below 1", confidence, "0.95 is usual")
    if samples < 1:
        raise ArgumentError("samples", "be at least 1", samples, "1000 are usual")
