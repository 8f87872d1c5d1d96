"""Evaluation of a model on pairs: metrics of its predictions, with confidence intervals."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from regard.api.predictor import Predictor
from regard.api.tables import table_rows
from regard.data import Pair, PairReader, base_folder, read_pairs
from regard.data.error_hints import PYTHON_HINTS, BadLine, ErrorHints
from regard.data.file_formats import ALL
from regard.data.pair_reader import SourceTransform
from regard.data.pairs import column_names, run_columns
from regard.data.text_files import is_read_once
from regard.errors import ArgumentError, DataError
from regard.evaluation import (
    ClassReport,
    LengthRow,
    confidence_interval,
    score,
    text_metrics,
)
from regard.tasks import DataPlace, Task
from regard.tasks.inputs.base import is_table

#: the arguments of `Model.evaluate` and `Model.align`
ARGUMENTS: Final = PYTHON_HINTS._replace(longer="shorten it")


def read_for(
    predictor: Predictor,
    source: str | os.PathLike[str] | Iterable[Any],
    tgt_file: str | os.PathLike[str] | None = None,
    *,
    columns: Sequence[int | str] | None = None,
    skip_bad: bool = False,
    on_bad: Callable[[DataError], None] | None = None,
    advice: ErrorHints = ARGUMENTS,
    forced: bool = False,
) -> PairReader:
    """Read pairs for a model.

    Further columns are features if the model has some, else further accepted targets.

    Args:
        predictor: of the model, whose settings say how its own data were laid out.
        source: a file with both sides, or the sources; or pairs, as for `regard.fit`.
        tgt_file: the targets, if they are another file.
        columns: names or numbers; those of the run if None.
        skip_bad: whether bad lines are counted and left out.
        on_bad: called with the error of each line that is left out.
        advice: how errors write these options.
        forced: whether the model is made to write the targets, so that these must fit it, too.
    """
    source = check_pairs(source)
    task = predictor.task
    is_file = isinstance(source, str | os.PathLike)
    if not is_file:
        source, columns = _peek_columns(task, source, columns)
    elif columns is None and tgt_file is None:
        columns = column_names(run_columns(task.settings.columns))
    layout = tgt_file is None and columns is None
    features = bool(task.input.feature_names)
    place = DataPlace(source, None, PYTHON_HINTS, base_folder(source), task.input.encoder)
    parse = type(task.input).reader(task.settings, place)
    return read_pairs(
        source,
        tgt_file=tgt_file,
        columns=columns,
        features=layout and features,
        references=layout and not features and not (is_file and _has_features(source, advice)),
        skip_bad=skip_bad,
        on_bad=on_bad,
        max_chars=task.settings.max_chars,
        advice=advice,
        sources=_fitting(predictor, parse, forced),
    )


def check_pairs(pairs: Any) -> Any:
    """Return pairs; of a table of pandas, polars, pyarrow or datasets, a dictionary for each row.

    Raises ArgumentError unless given a file or an iterable of pairs: not for bytes, nor for a dict.
    """
    if is_table(pairs):
        rows = table_rows(pairs)
        # a single column holds texts
        one = all(len(row) == 1 for row in rows)
        pairs = [tuple(row.values()) for row in rows] if one else rows
    if isinstance(pairs, Mapping | bytes) or not isinstance(pairs, str | Path | Iterable):
        raise ArgumentError(
            "pairs",
            "be a file, or tuples of source and target",
            f"{pairs!r:.40}",
            'give "pairs.tsv", or [("a", "b"), ("c", "d")]',
        )
    return pairs


def pair_row(pair: Any) -> Any:
    """Return a pair as readers take it: a tuple, or a dictionary; they reject anything else."""
    if isinstance(pair, str):
        return (pair,)
    if isinstance(pair, Mapping):
        return {str(name): value for name, value in pair.items()}
    return tuple(pair) if isinstance(pair, Iterable) and not isinstance(pair, Set) else pair


def known_pairs(task: Task, pairs: Iterable[Pair]) -> list[Pair]:
    """Return the pairs, without features if the model has none."""
    return list(pairs) if task.input.feature_names else [p._replace(features=()) for p in pairs]


def _fitting(predictor: Predictor, parse: SourceTransform, forced: bool) -> SourceTransform:
    """Return a parser that also rejects pairs with more positions than the model has.

    Labels that are integers may be written as floats, as tables have them that lack some.
    """
    module, labels = predictor.module, predictor.task.labels
    whole = {f"{label}.0": label for label in labels if label.lstrip("-").isdecimal()}
    whole |= {label: label for label in whole.keys() & {*labels}}
    has_room = module.src_positions is None and module.tgt_positions is None
    if has_room and not whole:
        return parse

    def parse_fitting(pair: Pair) -> Pair:
        pair = parse(pair)
        if pair.tgt in whole:
            pair = pair._replace(tgt=whole[pair.tgt])
        if has_room:
            return pair
        try:
            (known,) = known_pairs(predictor.task, [pair])
            predictor.check_source(predictor.task.input.of_pair(known))
            if forced:
                predictor.target_ids(pair.tgt)
        except DataError as error:
            raise BadLine(error.kind, error.reason, error.fix) from None
        return pair

    return parse_fitting


def _peek_columns(
    task: Task, pairs: Any, columns: Sequence[int | str] | None
) -> tuple[Any, Sequence[int | str] | None]:
    """Return the pairs, and the run's columns if the first pair is a dictionary that has them."""
    rest = map(pair_row, pairs)
    first = list(islice(rest, 1))
    own = task.settings.columns
    if columns is None and own is not None and first and isinstance(first[0], Mapping):
        columns = column_names(own) if {*own} - {ALL} <= first[0].keys() else None
    return chain(first, rest), columns


def _has_features(file: Any, advice: ErrorHints) -> bool:
    """Return whether a third column looks like features rather than like a further target."""
    return not is_read_once(file) and read_pairs(file, advice=advice).format.features is not None


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
        classes: results by class, if targets are labels or tags.
        notes: sentences about what was compared.
    """

    pairs: int
    rows: list[MetricRow]
    lengths: list[LengthRow]
    classes: ClassReport | None = None
    notes: tuple[str, ...] = ()

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
    task: Task, names: Sequence[str], predictions: Sequence[str], pairs: Sequence[Pair]
) -> EvaluationResult:
    """Return each metric with its interval, of texts normalised by the target tokeniser."""
    target, output, references = task.target, task.tokens, references_of(pairs)
    rows = []
    for name in names:
        found = score(name, predictions, references, normalizer=target)
        interval = confidence_interval(name, predictions, references, normalizer=target)
        rows.append(MetricRow(name, found.value, interval.low, interval.high, found.signature))
    classes = output.class_report(predictions, references)
    return EvaluationResult(len(pairs), rows, [], classes, output.output_notes(predictions, pairs))
