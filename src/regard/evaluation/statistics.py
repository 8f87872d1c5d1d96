"""What each sentence contributes to a metric, and what sums of contributions are worth.

All metrics here are functions of sums over sentences. So a metric is two functions: one that reads
the sentences once, and one that turns any number of sums into values at once, which makes thousands
of resamples cheap.
"""

from collections.abc import Sequence
from typing import Any, Final

import jiwer
import numpy as np
from jaxtyping import Float
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

#: One row for each sentence, and as many columns as the metric needs.
Statistics = Float[np.ndarray, "sentences columns"]
Sums = Float[np.ndarray, "samples columns"]
Values = Float[np.ndarray, " samples"]

ORDERS: Final = 4  # of n-grams in BLEU
BETA: Final = 2  # of chrF: recall weighs twice as much as precision


def streams(references: list[list[str]]) -> list[list[str | None]]:
    """References as sacrebleu takes them: all first ones, all second ones, None where missing."""
    most = max(map(len, references))
    padded = [[*several, *[None] * (most - len(several))] for several in references]
    return [list(stream) for stream in zip(*padded, strict=True)]


def sacrebleu_statistics(
    metric: BLEU | CHRF | TER, predictions: Sequence[str], references: list[list[str]]
) -> Statistics:
    """The columns that sacrebleu itself sums up."""
    # no public function returns them; a test holds what is made of them to sacrebleu's own results
    rows: Any = metric._extract_corpus_statistics(predictions, streams(references))  # type: ignore[arg-type]
    return np.asarray(rows, dtype=np.float64)


def bleu_values(sums: Sums) -> Values:
    """BLEU, 0 to 100, from (system length, reference length, 4 matches, 4 totals) of each sample.

    Papineni et al. (2002), https://aclanthology.org/P02-1040, with the smoothing that sacrebleu
    calls "exp": the first order without a match counts as half a match, the next as a quarter.
    """
    lengths, correct, total = np.split(sums, [2, 2 + ORDERS], axis=1)
    missing = correct == 0
    halves = 0.5 ** np.cumsum(missing, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        precision = np.where(missing, halves, correct) / total
        log_brevity = np.minimum(0.0, 1.0 - lengths[:, 1] / lengths[:, 0])
        values = 100.0 * np.exp(log_brevity + np.log(precision).mean(axis=1))
    # what has no match at all, or no 4-gram, scores 0
    return np.where((correct > 0).any(axis=1) & (total > 0).all(axis=1), values, 0.0)


def chrf_values(sums: Sums) -> Values:
    """chrF, 0 to 100, from (n-grams of the system, of the reference, in both) of each order.

    Popović (2015), https://aclanthology.org/W15-3049.
    """
    system, reference, both = sums.reshape(len(sums), -1, 3).transpose(2, 0, 1)
    there = (system > 0) & (reference > 0)
    orders = np.maximum(there.sum(axis=1), 1)
    precision = np.divide(both, system, out=np.zeros_like(both), where=there).sum(axis=1) / orders
    recall = np.divide(both, reference, out=np.zeros_like(both), where=there).sum(axis=1) / orders
    top = (1 + BETA**2) * precision * recall
    bottom = BETA**2 * precision + recall
    values: Values = np.divide(top, bottom, out=np.zeros_like(top), where=bottom > 0)
    return 100.0 * values


def word_edits(predictions: Sequence[str], references: list[list[str]]) -> Statistics:
    """Edits of words against the nearest reference, and its number of words."""
    pairs = _pairs(predictions, references)
    return _nearest(jiwer.process_words(*pairs), references)


def character_edits(predictions: Sequence[str], references: list[list[str]]) -> Statistics:
    """Edits of characters against the nearest reference, and its number of characters."""
    pairs = _pairs(predictions, references)
    return _nearest(jiwer.process_characters(*pairs), references)


def exact_matches(predictions: Sequence[str], references: list[list[str]]) -> Statistics:
    """Whether a prediction is one of its references, and 1."""
    right = [p in several for p, several in zip(predictions, references, strict=True)]
    return np.stack([np.array(right, dtype=np.float64), np.ones(len(right))], axis=1)


def ratio(sums: Sums) -> Values:
    """The first column divided by the second; the first itself where the second is 0."""
    first, second = sums.T
    values: Values = first / np.where(second == 0, 1.0, second)
    return values


def _pairs(predictions: Sequence[str], references: list[list[str]]) -> tuple[list[str], list[str]]:
    """Each reference, and the prediction that it is compared with."""
    again = [p for p, several in zip(predictions, references, strict=True) for _ in several]
    return [reference for several in references for reference in several], again


def _nearest(
    out: jiwer.WordOutput | jiwer.CharacterOutput, references: list[list[str]]
) -> Statistics:
    """Edits against the reference with the fewest, the first one among equals; and its length."""
    edits = [
        sum(
            max(chunk.ref_end_idx - chunk.ref_start_idx, chunk.hyp_end_idx - chunk.hyp_start_idx)
            for chunk in alignment
            if chunk.type != "equal"
        )
        for alignment in out.alignments
    ]
    compared = iter(zip(edits, map(len, out.references), strict=True))
    nearest = [min((next(compared) for _ in several), key=lambda c: c[0]) for several in references]
    return np.array(nearest, dtype=np.float64)
