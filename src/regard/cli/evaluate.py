"""`regard evaluate`: metrics of a model's predictions, or the perplexity of a language model."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Final, NamedTuple

from rich.console import Console

from regard import api
from regard.api.evaluate_pairs import (
    EvaluationResult,
    metric_names,
    references_of,
    score_predictions,
)
from regard.atomic_files import incremental_output
from regard.cli.console import one_line, print_json, print_table, progress_bar, result_console
from regard.cli.input_lines import pairs_for, texts_for
from regard.data import Pair
from regard.errors import ArgumentError
from regard.evaluation import SHARES, Perplexity, by_length, paired_bootstrap

CHOOSE_SAVE: Final = "choose another with --save"


def evaluate(
    *,
    run: Path,
    file: str,
    tgt: str | None,
    metrics: str | None,
    beam: int | None,
    lengths: bool,
    against: Path | None,
    columns: str | None,
    skip_bad: bool,
    save: Path | None,
    as_json: bool,
    precision: str,
    device: str,
) -> None:
    """Score a model's predictions: BLEU and chrF, error rates and exact match, or perplexity."""
    # what can go wrong comes before what takes long
    model = api.load_run(run, device=device, precision=precision)
    if not model.kind.has_sources:
        for option, value in {
            "TGT": tgt,
            "--metrics": None if metrics == "perplexity" else metrics,
            "--beam": beam,
            "--by-length": lengths or None,
            "--against": against,
            "--columns": columns,
            "--save": save,
        }.items():
            if value is not None:
                fix = "its texts have a perplexity"
                raise ArgumentError(option, "be left out for a language model", "given", fix)
        return _evaluate_texts(model, file, precision, skip_bad=skip_bad, as_json=as_json)
    second = None if against is None else api.load_run(against, device=device)
    names = metric_names(model.tgt_tokenizer.kind, _split_names(metrics))
    with nullcontext() if save is None else incremental_output(save, CHOOSE_SAVE) as write:
        pairs = pairs_for(model, file, tgt, columns=columns, skip_bad=skip_bad)
        predictions = _predict(model, pairs, beam)
        if write is not None:
            write("".join(one_line(line) + "\n" for line in predictions).encode())
    references, normalizer = references_of(pairs), model.tgt_tokenizer
    result = score_predictions(model.tgt_tokenizer, names, predictions, pairs)
    if lengths:
        sizes = list(map(model.kind.sources.size, pairs))
        rows = by_length(names[:1], sizes, predictions, references, normalizer=normalizer)
        result = result._replace(lengths=rows)
    if second is not None:
        other = _predict(second, pairs, beam)
        comparison = paired_bootstrap(
            names[0], predictions, other, references, normalizer=normalizer
        )
        result = result._replace(against=comparison)
    if as_json:
        return print_json(
            {
                "pairs": result.pairs,
                "precision": precision,
                "metrics": [row._asdict() for row in result.rows],
                "by_length": [asdict(row) for row in result.lengths],
                "against": None if result.against is None else asdict(result.against),
            }
        )
    console = result_console()
    console.print(f"{result.pairs:,} pairs{_in_words(precision)}", highlight=False)
    return _print_result(result, console, model.kind.sources.unit)


def _split_names(words: str | None) -> list[str]:
    return [name for name in map(str.strip, (words or "").lower().split(",")) if name]


def _predict(model: api.Model, pairs: Sequence[Pair], beam: int | None) -> list[str]:
    texts = []
    with progress_bar("predicting", len(pairs)) as advance:
        for output in model.predict_pairs(pairs, beam=beam):
            texts.append(output.text)
            advance(1)
    return texts


def _in_words(precision: str) -> str:
    """Return the precision for a sentence; nothing for that of the saved weights."""
    return "" if precision in ("32", "auto") else f", weights in {precision}"


def _format(name: str, value: float) -> str:
    return f"{100 * value:.2f}%" if name in SHARES else f"{value:.2f}"


def _print_result(result: EvaluationResult, console: Console, unit: str) -> None:
    rows = [
        [
            row.name,
            _format(row.name, row.value),
            f"{_format(row.name, row.low)} to {_format(row.name, row.high)}",
            row.signature,
        ]
        for row in result.rows
    ]
    print_table(console, ("metric", "value", "95% interval", "signature"), rows)
    name = result.rows[0].name
    if result.lengths:
        by_length = [
            [f"{row.shortest} to {row.longest}", str(row.count), _format(name, row.values[name])]
            for row in result.lengths
        ]
        print_table(console, (unit, "pairs", name), by_length)
    if result.against is not None:
        c = result.against
        console.print(
            f"{name}: {_format(name, c.first)} against {_format(name, c.second)}; better in "
            f"{c.wins:.0%} of resamples, p = {c.p_value:.3f}",
            highlight=False,
        )


class PerplexityRow(NamedTuple):
    """A perplexity with its confidence interval, and how it was counted."""

    name: str
    value: float
    low: float
    high: float
    counted: int
    signature: str


def _evaluate_texts(
    model: api.Model, file: str, precision: str, *, skip_bad: bool, as_json: bool
) -> None:
    found = model.perplexity(texts_for(model, file, skip_bad=skip_bad))
    rows = _perplexity_rows(found, model)
    if as_json:
        return print_json(
            {
                "texts": found.texts,
                "precision": precision,
                "tokens": found.tokens,
                "words": found.words,
                "unknown": found.unknown,
                "nats": found.nats,
                "metrics": [row._asdict() for row in rows],
            }
        )
    console = result_console()
    console.print(
        f"{found.texts:,} texts, {found.tokens:,} tokens with an end of each line, "
        f"{found.unknown:,} of them unknown{_in_words(precision)}",
        highlight=False,
    )
    cells = [
        [
            row.name,
            f"{row.value:.2f}",
            f"{row.low:.2f} to {row.high:.2f}",
            f"{row.counted:,}",
            row.signature,
        ]
        for row in rows
    ]
    return print_table(console, ("metric", "value", "95% interval", "counted", "signature"), cells)


def _perplexity_rows(found: Perplexity, model: api.Model) -> list[PerplexityRow]:
    """Return the perplexity per token and, if words are not the tokens, per word."""
    kind, join = model.tgt_tokenizer.kind, model.config.join_lines
    how = f"eos:counted|unk:{found.unknown}|tok:{kind}|lines:{join}"
    low, high = found.interval()
    signature = f"perplexity|per:token|{how}"
    rows = [PerplexityRow("perplexity", found.value, low, high, found.tokens, signature)]
    if found.words != found.tokens:
        low, high = found.interval(per_word=True)
        name, signature = "perplexity per word", f"perplexity|per:word|{how}"
        rows.append(PerplexityRow(name, found.per_word, low, high, found.words, signature))
    return rows
