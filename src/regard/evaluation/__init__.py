"""How good predictions are: metrics, how sure they are, and where they differ."""

from regard.evaluation.bootstrap import (
    Comparison,
    Interval,
    confidence_interval,
    paired_bootstrap,
)
from regard.evaluation.by_length import LengthRow, by_length
from regard.evaluation.language import Perplexity, perplexity
from regard.evaluation.metrics import METRICS, SHARES, Score, choose_metrics, score
from regard.evaluation.references import PLAIN_TEXT, Normalizer

__all__ = [
    "METRICS",
    "PLAIN_TEXT",
    "SHARES",
    "Comparison",
    "Interval",
    "LengthRow",
    "Normalizer",
    "Perplexity",
    "Score",
    "by_length",
    "choose_metrics",
    "confidence_interval",
    "paired_bootstrap",
    "perplexity",
    "score",
]
