"""Faithfulness of attention: agreement with ablation and gradient, and the effect of shuffling it.

Kendall's tau compares two orders of the inputs, for each output. Weights and shares below
`LEAST_WEIGHT`, and costs below `LEAST_COST`, count as zero, and zeros as ties: otherwise a row with
one weight of 0.99 and seven of a millionth would be judged by the order of the seven.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from regard.messages import message
from regard.models.protocol import SequenceModel
from regard.preemption import in_turn
from regard.seeing.attribution import methods as attribution
from regard.seeing.attribution.input_scorer import AttentionRecord, SourceScorer
from regard.seeing.attribution.interventions import shuffle
from regard.seeing.attribution.replacements import Replacements, Source
from regard.seeing.trace.trace import Trace, Weights

Array = npt.NDArray[Any]

#: weights, and shares of a gradient, that count: those that figures show
LEAST_WEIGHT: Final = 0.05
#: costs that count, in nats: a tenth of a nat is a probability of 0.90 instead of 1
LEAST_COST: Final = 0.1
#: random orders that tau is compared with
RANDOM_ORDERS: Final = 200
#: pairs that they compare at most, which takes a second or two
MOST_PAIRS: Final = 400_000_000
#: pairs of a batch of random orders, whose signs fit into the cache of a core
PAIRS_AT_ONCE: Final = 20_000


def kendall_tau(a: Array, b: Array) -> float:
    """Return Kendall's tau-b of two rows of numbers; NaN if one of them is constant.

    `sum sign(a_i - a_j) sign(b_i - b_j)` over all pairs, over the geometric mean of the numbers of
    pairs that are not tied in each (Kendall, 1945, https://doi.org/10.1093/biomet/33.3.239).
    """
    return float(_tau(_signs(a), _signs(b)))


def _signs(rows: Array) -> Array:
    """Return the signs of all differences, (..., n) to (..., n, n)."""
    signs: Array = np.sign(rows[..., :, None] - rows[..., None, :])
    return signs


def _tau(a: Array, b: Array) -> Array:
    untied = np.sqrt(np.count_nonzero(a, axis=(-2, -1)) * np.count_nonzero(b, axis=(-2, -1)))
    together = (a * b).sum(axis=(-2, -1))
    return np.where(untied > 0, together / np.maximum(untied, 1), np.nan)


@dataclass(frozen=True)
class Agreement:
    """Agreement of two matrices on the order of the inputs.

    Attributes:
        tau: mean of Kendall's tau-b over the rows that have an order; None if none has.
        exact: the same with every difference counting, however small.
        random: mean of tau for random orders.
        low: 2.5th percentile of tau for random orders.
        high: 97.5th percentile.
        rows: number of rows that have an order in both matrices.
        of: number of rows.
    """

    tau: float | None
    exact: float | None
    random: float | None
    low: float | None
    high: float | None
    rows: int
    of: int


def agreement(
    weights: Weights, other: Weights, *, least: float = LEAST_COST, seed: int = 0
) -> Agreement:
    """Return how far attention and an attribution agree on the order of the inputs, row by row.

    Args:
        weights: of attention; those below `LEAST_WEIGHT` count as zero.
        other: the attribution; values below `least` count as zero.
        least: smallest value that counts in `other`.
        seed: of the random orders.
    """
    seen, mattered = _counting(weights, LEAST_WEIGHT), _counting(other, least)
    taus, exact = _taus(seen, mattered), _taus(weights, other)
    there = ~np.isnan(taus)
    drawn = _random_taus(seen[there], mattered[there], seed)
    low, high = np.quantile(drawn, [0.025, 0.975]) if len(drawn) else (np.nan, np.nan)
    return Agreement(
        tau=_mean(taus),
        exact=_mean(exact),
        random=_mean(drawn),
        low=_number(low),
        high=_number(high),
        rows=int(there.sum()),
        of=len(taus),
    )


def _taus(a: Array, b: Array) -> Array:
    """Return tau of each row."""
    return np.array([kendall_tau(*rows) for rows in in_turn(zip(a, b, strict=True))])


def _counting(matrix: Weights, least: float) -> Array:
    """Set values to zero that are too small to count."""
    values = matrix.astype(np.float64)
    return np.where(np.abs(values) < least, 0.0, values)


def _random_taus(seen: Array, mattered: Array, seed: int) -> Array:
    """Return means over the rows, with the weights of each row in random order, many times."""
    if not seen.size:
        return np.empty(0)
    rng = np.random.default_rng(seed)
    count = max(20, min(RANDOM_ORDERS, MOST_PAIRS // (seen.size * seen.shape[1])))
    at_once = max(1, PAIRS_AT_ONCE // seen.shape[1] ** 2)
    total = np.zeros(count)
    for a, b in zip(seen, mattered, strict=True):
        b_signs = _signs(b)
        for start in in_turn(range(0, count, at_once)):
            part = total[start : start + at_once]
            orders = np.stack([rng.permutation(a) for _ in part])
            part += _tau(_signs(orders), b_signs)
    return total / len(seen)


def _mean(values: Array) -> float | None:
    found = values[~np.isnan(values)]
    return float(found.mean()) if len(found) else None


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def check(
    model: SequenceModel,
    src: Source,
    tgt: Sequence[int],
    trace: Trace,
    unknown: Replacements,
) -> Trace:
    """Return the trace with attributions and the results of the checks.

    Attention is the mean over all layers and heads of the cross-attention.

    Args:
        model: that the trace is of.
        src: source ids as the model reads them, `eos` last; or a table of frames.
        tgt: target ids, without `bos` and `eos`.
        trace: with all kinds of maps that the model has.
        unknown: replacements of each input for the ablation.
    """
    rows = len(trace.target.tokens)  # one fewer than steps if it was cut off
    scorer = SourceScorer(model, src, tgt, unknown)
    asked = scorer.questions()
    derived: dict[str, Weights] = {
        "ablation": attribution.ablation(scorer, asked)[:rows].astype(np.float32),
        "gradient": attribution.gradient(scorer, asked)[:rows].astype(np.float32),
    }
    looked = looked_at(trace)
    if looked is None:
        nothing = {"sentences": [message("check.nothing")]}
        return replace(trace, derived={**trace.derived, **derived}, checks=nothing)
    layers = [found.weights for found in trace.of_kind("encoder-self")]
    if layers:
        wide = [layer.astype(np.float64) for layer in (looked[None], *layers)]
        followed = attribution.attention_rollout(AttentionRecord(wide[:1], wide[1:], []))
        derived["rollout"] = followed.astype(np.float32)
    compared = {
        "ablation": agreement(looked, derived["ablation"]),
        "gradient": agreement(looked, shares(derived["gradient"]), least=LEAST_WEIGHT),
    }
    before, after, kept = shuffle(scorer)
    checks: dict[str, Any] = {
        f"tau_{name}" if part == "tau" else f"tau_{name}_{part}": value
        for name, found in compared.items()
        for part, value in asdict(found).items()
    }
    checks["tau_ablation_by_head"] = [
        _by_head(found.weights, derived["ablation"]) for found in trace.of_kind("cross")
    ]
    checks |= {"log_prob": before, "shuffled_log_prob": after, "shuffled_kept": kept}
    checks["sentences"] = [
        *(_in_words(message(f"check.the-{name}"), found) for name, found in compared.items()),
        message("check.shuffled", before=before, after=after, kept=kept),
        *[message("check.no-rollout")] * (not layers),
        *unknown.notes,
    ]
    return replace(trace, derived={**trace.derived, **derived}, checks=checks)


def _by_head(heads: Weights, costs: Weights) -> list[float | None]:
    """Return tau of each head against ablation, without the slow random orders."""
    mattered = _counting(costs, LEAST_COST)
    return [_mean(_taus(_counting(head, LEAST_WEIGHT), mattered)) for head in heads]


def looked_at(trace: Trace) -> Weights | None:
    """Return the mean over all layers and heads of the cross-attention; None if there is none."""
    maps = [found.weights.mean(axis=0) for found in trace.of_kind("cross")]
    return np.mean(maps, axis=0, dtype=np.float32) if maps else None


def shares(matrix: Weights) -> Weights:
    """Normalise rows to sum to 1; a row of zeros stays as it is."""
    total = matrix.sum(axis=1, keepdims=True)
    return (matrix / np.where(total > 0, total, 1.0)).astype(np.float32)


def _in_words(other: str, found: Agreement) -> str:
    if found.tau is None or found.low is None or found.high is None:
        return message("check.not-comparable", other=other)
    if found.tau > found.high:
        verdict = message("check.more-alike")
    elif found.tau < found.low:
        verdict = message("check.less-alike")
    else:
        verdict = message("check.no-more-alike")
    exact = "" if found.exact is None else message("check.exact", tau=found.exact)
    numbers = {name: getattr(found, name) for name in ("tau", "rows", "of", "random", "low")}
    numbers |= {"high": found.high, "exact": exact}
    return message("check.alike", other=other, verdict=verdict, **numbers)
