"""How good a model's answers to pairs are."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from regard.api.model import Model
from regard.api.output import EvaluationResult, MetricRow, Output
from regard.api.read_pairs import pairs_of, read_for, source_of
from regard.data import Pair
from regard.errors import ArgumentError, RegardError
from regard.evaluation import (
    METRICS,
    choose_metrics,
    confidence_interval,
    score,
)

Shown = Callable[[Iterable[Output], int], Iterable[Output]]


def metric_names(model: Model, asked: Sequence[str]) -> list[str]:
    """The metrics that are asked for, if there are such; if none is, those that suit the target."""
    for name in asked:
        if name not in METRICS:
            raise ArgumentError(
                "metric", f"be one of {', '.join(METRICS)}", repr(name), "choose some of them"
            )
    return list(asked) or list(choose_metrics(model.tgt_tokenizer.kind))


def check_reads_pairs(model: Model) -> None:
    """Raises where a model has learned from texts, which have no targets."""
    if model.config.reads_texts:
        raise RegardError(
            f"a model must have learned from pairs to be judged by some, but {model.path} is of "
            f"preset {model.config.preset}: ask for Model.perplexity."
        )


def evaluate(
    model: Model, source: Any, metric: str | Sequence[str] | None, beam: int | None, **reading: Any
) -> EvaluationResult:
    """Reads pairs as `read_for` does, answers their sources, and scores the answers."""
    check_reads_pairs(model)
    alone = isinstance(metric, str) or not isinstance(metric, Sequence | None)
    asked: Sequence[Any] = [metric] if alone else metric or ()
    names = metric_names(model, [str(name).lower() for name in asked])
    pairs = pairs_of(model, read_for(model, source, **reading))
    return scored(model, names, answers(model, pairs, beam), pairs)


def answers(
    model: Model,
    pairs: Sequence[Pair],
    beam: int | None,
    shown: Shown = lambda outputs, total: outputs,
) -> list[str]:
    """What the model answers to the sources; `shown` may tell how far it is."""
    options: dict[str, Any] = {} if beam is None else {"beam": beam}
    texts = [source_of(pair) for pair in pairs]
    outputs = model.predict(texts, attention=False, **options)
    return [output.text for output in shown(outputs, len(texts))]


def references_of(pairs: Iterable[Pair]) -> list[list[str]]:
    """Return the accepted targets of each pair."""
    return [[pair.tgt, *pair.more] for pair in pairs]


def scored(
    model: Model, names: Sequence[str], predictions: Sequence[str], pairs: Sequence[Pair]
) -> EvaluationResult:
    """Return each metric with its interval, of texts in the form of the target tokeniser."""
    references, normalizer = references_of(pairs), model.tgt_tokenizer
    rows = []
    for name in names:
        found = score(name, predictions, references, normalizer=normalizer)
        interval = confidence_interval(name, predictions, references, normalizer=normalizer)
        rows.append(MetricRow(name, found.value, interval.low, interval.high, found.signature))
    return EvaluationResult(len(pairs), rows, [], None)
