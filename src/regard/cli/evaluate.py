"""`regard evaluate`."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

from regard import api
from regard.data import Pair, read_pairs
from regard.evaluation import (
    Comparison,
    LengthRow,
    by_length,
    choose_metrics,
    confidence_interval,
    paired_bootstrap,
    score,
)

#: metrics that are shares, shown in per cent
SHARES = ("per", "wer", "cer", "exact")


class Row(NamedTuple):
    """A metric with its interval, and how it was computed."""

    name: str
    value: float
    low: float
    high: float
    signature: str


class Result(NamedTuple):
    """What was found, on how many pairs."""

    pairs: int
    rows: list[Row]
    lengths: list[LengthRow]
    against: Comparison | None


def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    file: Annotated[
        str,
        typer.Argument(help="Pairs to judge it by; further columns are further accepted targets."),
    ],
    tgt: Annotated[
        str | None, typer.Argument(help="The targets, if the sides are two files.")
    ] = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            help="Comma-separated: bleu, chrf, wer, cer, per, exact. [default: by target]"
        ),
    ] = None,
    beam: Annotated[
        int | None, typer.Option(help="Width of the search; 1 is greedy. [default: 5]")
    ] = None,
    lengths: Annotated[
        bool, typer.Option("--by-length", help="Also by length of the source.")
    ] = False,
    against: Annotated[
        Path | None, typer.Option(help="A second run, compared by a paired bootstrap.")
    ] = None,
    columns: Annotated[
        str | None, typer.Option(help="Two columns by name or number, as in 0,2.")
    ] = None,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Count bad lines and go on.")
    ] = False,
    save: Annotated[
        Path | None, typer.Option(help="Write the predictions here, one per line.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto",
) -> None:
    """Score a model's answers: BLEU and chrF, or error rates and exact match."""
    model = api.load(run, device=device)
    pairs = _pairs(file, tgt, columns, skip_bad)
    references = [[p.tgt, *p.more] for p in pairs]
    predictions = _answers(model, pairs, beam)
    if save is not None:
        save.write_text("".join(p + "\n" for p in predictions), encoding="utf-8")
    names = metrics.split(",") if metrics else list(choose_metrics(model.tgt_tokenizer.kind))
    rows = []
    for name in names:
        found = score(name, predictions, references)
        interval = confidence_interval(name, predictions, references)
        rows.append(Row(name, found.value, interval.low, interval.high, found.signature))
    result = Result(len(pairs), rows, [], None)
    if lengths:
        sizes = [len(model.src_tokenizer.encode(p.src)) for p in pairs]
        result = result._replace(lengths=by_length(names[:1], sizes, predictions, references))
    if against is not None:
        other = _answers(api.load(against, device=device), pairs, beam)
        comparison = paired_bootstrap(names[0], predictions, other, references)
        result = result._replace(against=comparison)
    if as_json:
        sys.stdout.write(json.dumps(_as_json(result), indent=2) + "\n")
    else:
        _show(result, Console())


def _pairs(file: str, tgt: str | None, columns: str | None, skip_bad: bool) -> list[Pair]:
    chosen = (
        None if columns is None else tuple(int(c) if c.isdigit() else c for c in columns.split(","))
    )
    return list(
        read_pairs(
            file,
            tgt_file=tgt,
            columns=chosen,
            references=tgt is None and chosen is None and not _has_features(file),
            skip_bad=skip_bad,
        )
    )


def _has_features(file: str) -> bool:
    """Whether a third column would be read as features rather than as a further target."""
    return file != "-" and read_pairs(file).format.features is not None


def _answers(model: api.Model, pairs: list[Pair], beam: int | None) -> list[str]:
    options: dict[str, Any] = {} if beam is None else {"beam": beam}
    texts = ["\t".join([p.src, ";".join(p.features)]) if p.features else p.src for p in pairs]
    answers = model.predict(texts, attention=False, **options)
    console = Console(stderr=True)
    shown = track(answers, "answering", total=len(texts), console=console, transient=True)
    return [answer.text for answer in shown]


def _value(name: str, value: float) -> str:
    return f"{100 * value:.2f}%" if name in SHARES else f"{value:.2f}"


def _as_json(result: Result) -> dict[str, Any]:
    return {
        "pairs": result.pairs,
        "metrics": [row._asdict() for row in result.rows],
        "by_length": [asdict(row) for row in result.lengths],
        "against": None if result.against is None else asdict(result.against),
    }


def _show(result: Result, console: Console) -> None:
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
    _print_table(console, ("metric", "value", "95% interval", "signature"), rows)
    name = result.rows[0].name
    if result.lengths:
        shown = [
            [f"{row.shortest} to {row.longest}", str(row.count), _value(name, row.values[name])]
            for row in result.lengths
        ]
        _print_table(console, ("source tokens", "pairs", name), shown)
    if result.against is not None:
        c = result.against
        console.print(
            f"{name}: {_value(name, c.first)} against {_value(name, c.second)}; better in "
            f"{c.wins:.0%} of resamples, p = {c.p_value:.3f}",
            highlight=False,
        )


def _print_table(console: Console, titles: tuple[str, ...], rows: list[list[str]]) -> None:
    table = Table(box=None, pad_edge=False)
    for title in titles:
        table.add_column(title, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table, highlight=False)
