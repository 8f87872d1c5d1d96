"""`regard check`: attention compared with attribution."""

import sys
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from rich.console import Console

from regard import api
from regard.cli.commands import CheckArgs
from regard.cli.console import print_table, result_console
from regard.cli.input_lines import one_source, warn_if_bare
from regard.cli.show import drawn
from regard.decoding_options import given_options
from regard.messages import interval_text, message
from regard.seeing import Trace
from regard.seeing.attribution.methods import METHODS, method_title
from regard.seeing.draw.forecast import ForecastView
from regard.seeing.draw.shapes import number_duplicates, printable, share_text
from regard.seeing.trace.trace import Weights

#: inputs that are named for each output
MAX_NAMED: Final = 3
#: the same in the table of methods, whose scores have different units and are not shown
MAX_BY_METHOD: Final = 2
#: measures of faithfulness beside the gain
FAITHFULNESS: Final = ("insertion", "deletion", "comprehensiveness", "sufficiency")


def check(args: CheckArgs) -> None:
    """Compare attention with ablation and gradients: what mattered to each output."""
    console = result_console()
    loaded = api.load_own(args.run, device=args.device)
    (source,) = warn_if_bare(loaded, [one_source(loaded, args.text)])
    options = given_options(methods=args.methods, versus=args.versus, beam=args.beam)
    trace = loaded.check(source, args.target, **options)
    if args.output is not None:
        trace.save(args.output)
    if args.as_json:
        sys.stdout.write(drawn(trace, "json", {}) + "\n")
    elif isinstance(trace, ForecastView):
        sys.stdout.write(drawn(trace, "matrix", {}) + "\n")
        for sentence in trace.notes:
            console.print(printable(sentence), highlight=False, markup=False, soft_wrap=True)
    else:
        _show(trace, console)


def _show(trace: Trace, console: Console) -> None:
    if {"ablation", "gradient"} <= set(trace.derived):
        _show_attention(trace, console)
        console.print()
    if "methods" in trace.checks:
        _show_methods(trace, console)
        console.print()
    for sentence in (*trace.checks["sentences"], *trace.notes):
        console.print(printable(sentence), highlight=False, markup=False)


def _show_attention(trace: Trace, console: Console) -> None:
    looked = trace.derived.get("attention")
    columns: list[tuple[str, Weights]] = (
        [] if looked is None else [(message("check.column.looked"), looked)]
    )
    columns.append((message("check.column.costs"), trace.derived["ablation"]))
    columns.append((message("check.column.gradient"), _shares(trace.derived["gradient"])))
    if "rollout" in trace.derived:
        columns.append((message("check.column.rollout"), trace.derived["rollout"]))
    labels, rows = number_duplicates(list(map(printable, trace.source.labels))), []
    for i, token in enumerate(trace.target.tokens):
        cells = [_strongest(labels, matrix[i].tolist()) for _, matrix in columns]
        prob = "" if token.prob is None else share_text(token.prob)
        rows.append([printable(token.text), prob, *cells])
    titles = [message("check.column.output"), "p", *(name for name, _ in columns)]
    print_table(console, titles, rows)


def _shares(matrix: Weights) -> Weights:
    """Normalise rows to sum to 1; a row of zeros stays as it is."""
    total = matrix.sum(axis=1, keepdims=True)
    return (matrix / np.where(total > 0, total, 1.0)).astype(np.float32)


def _strongest(labels: list[str], row: list[float]) -> str:
    """Return the inputs with the largest values above 0, the largest first."""
    ranked = sorted(zip(row, labels, strict=True), key=lambda pair: -pair[0])
    shown = [f"{label} {value:.2f}" for value, label in ranked[:MAX_NAMED] if value >= 0.005]
    return "  ".join(shown) or "·"


def _show_methods(trace: Trace, console: Console) -> None:
    """Print the inputs that each method scores highest, and the faithfulness of the methods."""
    names, versus = trace.checks["methods"], trace.checks["versus"]
    suffix = "" if versus is None else f" versus {versus}"
    labels, rows = number_duplicates(list(map(printable, trace.source.labels))), []
    for i, token in enumerate(trace.target.tokens):
        scores = [trace.derived[name + suffix][i] for name in names]
        rows.append([printable(token.text), *(_highest(labels, row.tolist()) for row in scores)])
    title = message("check.column.output")
    if versus is not None:
        title = message("check.column.output-not", token=printable(versus))
    print_table(console, [title, *names], rows)
    console.print()
    found: Mapping[str, Mapping[str, float | None]] = trace.checks["faithfulness"]
    columns = [message("check.column.method"), message("measure.gain.title")]
    columns += [message("check.column.interval")]
    columns += [message(f"measure.{name}.title") for name in FAITHFULNESS]
    print_table(console, columns, [_faithfulness(*row) for row in found.items()])
    console.print(message("check.gain"), style="dim")


def _highest(labels: list[str], row: list[float]) -> str:
    ranked = sorted(zip(row, labels, strict=True), key=lambda pair: -pair[0])
    return " ".join(label for value, label in ranked[:MAX_BY_METHOD] if value > 0) or "·"


def _faithfulness(name: str, found: Mapping[str, Any]) -> list[str]:
    def number(key: str) -> str:
        return "–" if found[key] is None else f"{found[key]:.2f}"

    title = method_title(name) if name in METHODS else message("measure.random.title")
    interval = interval_text(found["gain_low"], found["gain_high"], "{:.2f}".format)
    return [title, number("gain"), interval, *map(number, FAITHFULNESS)]
