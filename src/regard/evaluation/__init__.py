"""Evaluation of predictions: metrics, confidence intervals, and results by source length."""

from regard.evaluation.bootstrap import (
    Comparison,
    ConfidenceInterval,
    LengthRow,
    by_length,
    confidence_interval,
    paired_bootstrap,
    paired_perplexity,
    ratio_differences,
)
from regard.evaluation.classification import ClassReport, ClassRow, Confusion, confusion
from regard.evaluation.metrics import (
    METRICS,
    PLAIN_TEXT,
    Metric,
    MetricScore,
    Normalizer,
    copied_share,
    format_metric,
    score,
    text_metrics,
)
from regard.evaluation.text_perplexity import Perplexity, perplexity

__all__ = [
    "METRICS",
    "PLAIN_TEXT",
    "ClassReport",
    "ClassRow",
    "Comparison",
    "ConfidenceInterval",
    "Confusion",
    "LengthRow",
    "Metric",
    "MetricScore",
    "Normalizer",
    "Perplexity",
    "by_length",
    "confidence_interval",
    "confusion",
    "copied_share",
    "format_metric",
    "paired_bootstrap",
    "paired_perplexity",
    "perplexity",
    "ratio_differences",
    "score",
    "text_metrics",
]
