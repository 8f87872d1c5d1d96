"""`regard evaluate`."""

from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import track

from regard import api
from regard.api import evaluate_pairs
from regard.api.output import EvaluationResult
from regard.atomic_files import incremental_output
from regard.cli.console import on_one_line, print_json, print_table, result_console
from regard.cli.pairs import pairs_for
from regard.cli.perplexity import check_options, show_perplexity
from regard.data import FrameScaler, Pair
from regard.evaluation import SHARES, by_length, paired_bootstrap

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
    device: str,
) -> None:
    """Score a model's answers: BLEU and chrF, error rates and exact match, or perplexity."""
    # what can go wrong comes before what takes long
    model = api.load(run, device=device)
    if model.config.reads_texts:
        options = {"TGT": tgt, "--metrics": metrics, "--beam": beam, "--by-length": lengths}
        check_options(options | {"--against": against, "--columns": columns, "--save": save})
        show_perplexity(model, file, skip_bad=skip_bad, as_json=as_json)
        return
    second = None if against is None else api.load(against, device=device)
    names = evaluate_pairs.metric_names(model, _metrics(metrics))
    with nullcontext() if save is None else incremental_output(save, CHOOSE_SAVE) as write:
        pairs = pairs_for(model, file, tgt, columns=columns, skip_bad=skip_bad)
        predictions = evaluate_pairs.answers(model, pairs, beam, _shown)
        if write is not None:
            write("".join(on_one_line(line) + "\n" for line in predictions).encode())
    references, normalizer = evaluate_pairs.references_of(pairs), model.tgt_tokenizer
    result = evaluate_pairs.scored(model, names, predictions, pairs)
    if lengths:
        sizes = [_size(model, p) for p in pairs]
        rows = by_length(names[:1], sizes, predictions, references, normalizer=normalizer)
        result = result._replace(lengths=rows)
    if second is not None:
        other = evaluate_pairs.answers(second, pairs, beam, _shown)
        comparison = paired_bootstrap(
            names[0], predictions, other, references, normalizer=normalizer
        )
        result = result._replace(against=comparison)
    if as_json:
        print_json(_as_json(result))
    else:
        unit = "source frames" if isinstance(model.source, FrameScaler) else "source tokens"
        _show(result, result_console(), unit)


def _size(model: api.Model, pair: Pair) -> int:
    """Tokens of a source, or its frames."""
    return len(model.src_tokenizer.encode(pair.src) if pair.frames is None else pair.frames)


def _metrics(words: str | None) -> list[str]:
    return [name for name in map(str.strip, (words or "").lower().split(",")) if name]


def _shown(answers: Iterable[api.Output], total: int) -> Iterable[api.Output]:
    """A bar on stderr, where that is a terminal."""
    console = Console(stderr=True)
    return track(
        answers,
        "answering",
        total=total,
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def _value(name: str, value: float) -> str:
    return f"{100 * value:.2f}%" if name in SHARES else f"{value:.2f}"


def _as_json(result: EvaluationResult) -> dict[str, Any]:
    return {
        "pairs": result.pairs,
        "metrics": [row._asdict() for row in result.rows],
        "by_length": [asdict(row) for row in result.lengths],
        "against": None if result.against is None else asdict(result.against),
    }


def _show(result: EvaluationResult, console: Console, unit: str) -> None:
    console.print(f"{result.pairs:,} pairs", highlight=False)
    rows = [
        [
            row.name,
            _value(row.name, row.value),
            f"{_value(row.name, row.low)} to {_value(row.name, row.high)}",
            row.signature,
        ]
        for row in result.rows
    ]
    print_table(console, ("metric", "value", "95% interval", "signature"), rows)
    name = result.rows[0].name
    if result.lengths:
        shown = [
            [f"{row.shortest} to {row.longest}", str(row.count), _value(name, row.values[name])]
            for row in result.lengths
        ]
        print_table(console, (unit, "pairs", name), shown)
    if result.against is not None:
        c = result.against
        console.print(
            f"{name}: {_value(name, c.first)} against {_value(name, c.second)}; better in "
            f"{c.wins:.0%} of resamples, p = {c.p_value:.3f}",
            highlight=False,
        )
