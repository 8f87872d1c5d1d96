"""`regard check`: attention compared with attribution."""

import json
import sys
from pathlib import Path
from typing import Final

from rich.console import Console

from regard import api
from regard.cli.console import print_table, result_console
from regard.cli.input_lines import one_source, warn_if_bare
from regard.seeing import Trace
from regard.seeing.checks import looked_at, shares
from regard.seeing.display import check_ending, save
from regard.seeing.labels import number_duplicates
from regard.seeing.storage import to_json
from regard.seeing.trace import Weights

#: inputs that are named for each output
MAX_NAMED: Final = 3


def check(
    *,
    run: Path,
    text: str,
    target: str | None,
    beam: int | None,
    output: Path | None,
    as_json: bool,
    device: str,
) -> None:
    """Compare attention with ablation and gradients: what mattered to each output."""
    if output is not None:
        check_ending(output)
    model = api.load_run(run, device=device)
    (source,) = warn_if_bare(model, [one_source(model, text)])
    trace = model.check(source, target, **({} if beam is None else {"beam": beam}))
    if output is not None:
        save(trace, output)
    if as_json:
        sys.stdout.write(json.dumps(to_json(trace), ensure_ascii=False) + "\n")
    else:
        _show(trace, result_console())


def _show(trace: Trace, console: Console) -> None:
    looked = looked_at(trace)
    columns: list[tuple[str, Weights]] = [] if looked is None else [("looked at", looked)]
    columns.append(("costs if not known (nats)", trace.derived["ablation"]))
    columns.append(("gradient (share)", shares(trace.derived["gradient"])))
    if "rollout" in trace.derived:
        columns.append(("rollout", trace.derived["rollout"]))
    labels, rows = number_duplicates(trace.source.labels), []
    for i, token in enumerate(trace.target.tokens):
        cells = [_strongest(labels, matrix[i].tolist()) for _, matrix in columns]
        rows.append([token.text, "" if token.prob is None else f"{token.prob:.2f}", *cells])
    print_table(console, ["output", "p", *(name for name, _ in columns)], rows)
    console.print()
    for sentence in (*trace.checks["sentences"], *trace.notes):
        console.print(sentence, highlight=False, markup=False)


def _strongest(labels: list[str], row: list[float]) -> str:
    """Return the inputs with the largest values above 0, the largest first."""
    ranked = sorted(zip(row, labels, strict=True), key=lambda pair: -pair[0])
    shown = [f"{label} {value:.2f}" for value, label in ranked[:MAX_NAMED] if value >= 0.005]
    return "  ".join(shown) or "·"
