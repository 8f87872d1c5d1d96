"""`regard evaluate`: metrics of a model's predictions, or the perplexity of a language model."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from typing import Any, Final

from rich.console import Console

from regard import api
from regard.api.evaluate_pairs import (
    EvaluationResult,
    MetricRow,
    metric_names,
    references_of,
    score_predictions,
)
from regard.atomic_files import incremental_output
from regard.cli.commands import EvaluateArgs
from regard.cli.console import (
    one_line,
    print_json,
    print_table,
    progress_bar,
    refuse,
    result_console,
)
from regard.cli.input_lines import metric_words, pairs_for, texts_for
from regard.data import Pair
from regard.evaluation import ClassReport, Perplexity, by_length, format_metric
from regard.messages import interval_text, message, translated, use_language
from regard.tasks import ScoreTable

CHOOSE_SAVE: Final = "choose another with --save"
#: classes of a table
MOST_CLASSES_PRINTED: Final = 40
#: pairs of classes that are printed
MOST_MISTAKES: Final = 10


def evaluate(args: EvaluateArgs) -> None:
    """Score a model's predictions: BLEU and chrF, error rates and exact match, or perplexity."""
    model = api.load_run(args.run, device=args.device, precision=args.precision)
    if not model.task.has_sources:
        return _evaluate_texts(model, args)
    label = message("evaluate.predicting")
    with progress_bar(label, 1) as advance, use_language("en" if args.as_json else None):
        table = None
        if (numbers := model.task.numbers) is not None:
            table = numbers.scores(model.trained, args.file, model.device, advance)
    if table is not None:
        return _print_scores(table, as_json=args.as_json)
    names = metric_names(model.task.tokens.metrics(), metric_words(args.metrics))
    save = args.save
    with nullcontext() if save is None else incremental_output(save, CHOOSE_SAVE) as write:
        pairs = pairs_for(model, args.file, args)
        predictions = _predict(model, pairs, args.beam)
        if write is not None:
            write("".join(one_line(line) + "\n" for line in predictions).encode())
    with use_language("en" if args.as_json else None):
        result = score_predictions(model.task, names, predictions, pairs)
        notes = [*result.notes, *_interval_notes(result.rows)]
    if args.lengths:
        sizes, references = list(map(model.task.source_size, pairs)), references_of(pairs)
        rows = by_length(names[:1], sizes, predictions, references, normalizer=model.tgt_tokenizer)
        result = result._replace(lengths=rows)
    if args.as_json:
        return _print_json(result, args.precision, notes)
    return _print_result(result, notes, model.task.unit, args)


def _predict(model: api.Model, pairs: Sequence[Pair], beam: int | None) -> list[str]:
    texts = []
    with progress_bar(message("evaluate.predicting"), len(pairs)) as advance:
        for output in model.predict_pairs(pairs, beam=beam):
            texts.append(output.text)
            advance(1)
    return texts


def _in_words(precision: str) -> str:
    """Return the precision for a sentence; nothing for that of the saved weights."""
    if precision in ("32", "auto"):
        return ""
    return message("evaluate.precision", precision=precision)


def _as_object(row: MetricRow) -> dict[str, Any]:
    return {name: value for name, value in row._asdict().items() if name != "counted" or value}


def _interval_notes(rows: Sequence[Any]) -> list[str]:
    return [message("interval.note")] * any(row.low is None for row in rows)


def _print_metrics(rows: Sequence[MetricRow], console: Console) -> None:
    """Print metrics with their intervals and signatures; of a perplexity, also what it is per."""
    titles = [message(f"card.column.{name}") for name in ("metric", "value", "interval")]
    titles += [message("evaluate.counted")] * (rows[0].counted is not None)
    cells = []
    for row in rows:
        ends = interval_text(row.low, row.high, partial(format_metric, row.name))
        cells.append([row.name, format_metric(row.name, row.value), ends])
        cells[-1] += [] if row.counted is None else [f"{row.counted:,}"]
        cells[-1].append(row.signature)
    print_table(console, [*titles, message("card.column.signature")], cells)


def _print_json(result: EvaluationResult, precision: str, notes: list[str]) -> None:
    by_class: dict[str, Any] = {}
    if (report := result.classes) is not None:
        counts = sorted(report.confusion.counts.items())
        by_class = {
            "unit": report.unit,
            "classes": [row._asdict() for row in report.rows],
            "confusion": [
                {"class": gold, "predicted": predicted, "count": count}
                for (gold, predicted), count in counts
            ],
        }
        notes = [*notes, *report.notes]
    print_json(
        {
            "pairs": result.pairs,
            "precision": precision,
            "metrics": [_as_object(row) for row in result.rows],
            "by_length": [asdict(row) for row in result.lengths],
            **by_class,
            "notes": notes,
        }
    )


def _print_result(
    result: EvaluationResult, notes: Sequence[str], unit: str, args: EvaluateArgs
) -> None:
    console = result_console()
    said = message("evaluate.pairs", count=result.pairs, precision=_in_words(args.precision))
    console.print(said, highlight=False)
    _print_metrics(result.rows, console)
    name = result.rows[0].name
    if result.lengths:
        by_length = [
            [
                message("check.range", low=row.shortest, high=row.longest),
                str(row.count),
                format_metric(name, row.values[name]),
            ]
            for row in result.lengths
        ]
        titles = [translated("evaluate.unit", unit), message("train.examples.pairs"), name]
        print_table(console, titles, by_length)
    for sentence in notes:
        console.print(sentence, highlight=False)
    if result.classes is not None:
        _print_classes(result.classes, console)


def _print_classes(report: ClassReport, console: Console) -> None:
    """Print results by class, and which class was taken for which."""
    cells = [
        [
            one_line(row.label),
            *(f"{100 * share:.2f}%" for share in (row.precision, row.recall, row.f1)),
            f"{row.support:,}",
            f"{row.predicted:,}",
        ]
        for row in report.rows[:MOST_CLASSES_PRINTED]
    ]
    console.print()
    titles = [translated("evaluate.class", report.unit)]
    titles += [message("table.precision"), message("table.recall"), "F1"]
    titles += [message("evaluate.examples"), message("evaluate.predicted")]
    print_table(console, titles, cells)
    if (more := len(report.rows) - MOST_CLASSES_PRINTED) > 0:
        console.print(message("evaluate.more-classes", count=more), highlight=False)
    for sentence in report.notes:
        console.print(message("sentence", text=sentence), highlight=False, markup=False)
    console.print()
    mistakes = report.confusion.mistakes()
    rows = [[f"{n:,}", one_line(gold), one_line(found)] for gold, found, n in mistakes]
    if not rows:
        # a label that is missing from several, with none in its place, is taken for no other
        right = all(row.f1 == 1 for row in report.rows)
        return console.print(message("evaluate.no-mistakes"), highlight=False) if right else None
    unit = "label" if report.unit == "label" else "tag"
    titles = [message("evaluate.mistakes"), translated("evaluate.class", unit)]
    print_table(console, [*titles, message("evaluate.taken-for")], rows[:MOST_MISTAKES])
    if len(rows) > MOST_MISTAKES:
        more = len(rows) - MOST_MISTAKES
        console.print(message("evaluate.more-mistakes", count=more), highlight=False)
    return None


def _print_scores(table: ScoreTable, *, as_json: bool) -> None:
    """Print the scores of a model beside those of baselines."""
    if as_json:
        rows = [
            {"model": name, **dict(zip(table.columns, values, strict=True))}
            for name, values in table.rows
        ]
        return print_json({"examples": table.examples, "scores": rows, "notes": table.notes})
    console = result_console()
    console.print(table.examples, highlight=False)
    cells = []
    for name, values in table.rows:
        baseline, space, period = name.partition(" (")  # as in "seasonal naive (24)"
        scores = ("" if math.isnan(value) else f"{value:.4g}" for value in values)
        cells.append([translated("evaluate.model", baseline) + space + period, *scores])
    print_table(console, (message("models.model"), *table.columns), cells)
    for sentence in table.notes:
        console.print(sentence, highlight=False)
    return None


def _evaluate_texts(model: api.Model, args: EvaluateArgs) -> None:
    """Print the perplexity of a language model."""
    refuse(
        "be left out for a language model",
        "its texts have a perplexity",
        TGT=args.tgt,
        metrics=None if args.metrics == "perplexity" else args.metrics,
        beam=args.beam,
        by_length=args.lengths,
        columns=args.columns,
        save=args.save,
    )
    found = model.perplexity(texts_for(model, args.file, skip_bad=args.skip_bad))
    rows = _perplexity_rows(found, model)
    if args.as_json:
        return print_json(
            {
                "texts": found.texts,
                "precision": args.precision,
                "tokens": found.tokens,
                "words": found.words,
                "unknown": found.unknown,
                "nats": found.nats,
                "metrics": [_as_object(row) for row in rows],
            }
        )
    console = result_console()
    said = message(
        "evaluate.texts",
        texts=found.texts,
        tokens=found.tokens,
        unknown=found.unknown,
        precision=_in_words(args.precision),
    )
    console.print(said, highlight=False)
    _print_metrics(rows, console)
    for sentence in _interval_notes(rows):
        console.print(sentence, highlight=False)
    return None


def _perplexity_rows(found: Perplexity, model: api.Model) -> list[MetricRow]:
    """Return the perplexity per token and, if words are not the tokens, per word."""
    lines = f"context:{context}" if (context := model.task.input.context) else "lines:1"
    how = f"eos:counted|unk:{found.unknown}|tok:{model.tgt_tokenizer.kind}|{lines}"
    low, high = found.interval()
    signature = f"perplexity|per:token|{how}"
    rows = [MetricRow("perplexity", found.value, low, high, signature, found.tokens)]
    if found.words != found.tokens:
        low, high = found.interval(per_word=True)
        name, signature = "perplexity per word", f"perplexity|per:word|{how}"
        rows.append(MetricRow(name, found.per_word, low, high, signature, found.words))
    return rows
