"""`regard compare`: two models, two checkpoints or two inputs on the same texts."""

import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from itertools import zip_longest
from typing import Any, Final

from rich.cells import cell_len
from rich.console import Console

from regard import api
from regard.api.compare import (
    ComparedExample,
    ModelComparison,
    compare_models,
)
from regard.cli.commands import CompareArgs
from regard.cli.console import (
    one_line,
    print_json,
    print_table,
    progress_bar,
    result_console,
    save_page,
)
from regard.cli.input_lines import metric_words, read_examples
from regard.evaluation import format_metric
from regard.messages import interval_text, message, translated
from regard.seeing import Trace, select
from regard.seeing.draw import terminal
from regard.seeing.draw.shapes import fit, printable
from regard.seeing.draw.terminal import supports_blocks
from regard.seeing.page.compare_page import ExamplePair, PageTable, render_comparison
from regard.seeing.trace.head_habits import HeadDistance
from regard.seeing.trace.storage import to_json

#: rows of a table in the terminal at most
MOST_ROWS: Final = 12
#: cells of a text in a table
CELL: Final = 48
#: distance of maps that differ by rounding alone
SAME: Final = 1e-3


def compare(args: CompareArgs) -> None:
    """Compare answers, scores and attention maps of two models."""
    names = args.first, args.second
    first, second = (api.load_own(run, device=args.device) for run in names)
    examples = read_examples(first, args.file, args)
    with progress_bar(message("compare.comparing"), len(examples.sources)) as done:
        texts, metric = (examples.sources, examples.references), metric_words(args.metrics)
        found = compare_models(first, second, *texts, metric=metric, beam=args.beam, done=done)
    if args.output is not None:
        save_page(args.output, _page(names, found))
    if args.as_json:
        return print_json(_as_object(names, found))
    return _print(names, found, result_console())


def _print(names: tuple[str, str], found: ModelComparison, console: Console) -> None:
    console.print(f"A  {names[0]}\nB  {names[1]}", highlight=False, markup=False)
    for sentence in _notes(found):
        console.print(message("sentence", text=sentence), highlight=False, markup=False)
    scores = _scores(found)
    for table in [*([] if scores is None else [scores]), *_tables(found)]:
        console.print(f"\n{table.title}", highlight=False, style="bold")
        rows = [[fit(printable(one_line(cell)), CELL) for cell in row] for row in table.rows]
        print_table(console, table.columns, rows[:MOST_ROWS])
        if len(rows) > MOST_ROWS:
            console.print(message("compare.more", count=len(rows) - MOST_ROWS))
        if table.note:
            console.print(table.note, highlight=False, markup=False)
    worst = found.examples[0]
    if worst.traces is not None and worst.largest > SAME:
        head = worst.distance.heads[0]
        title = message("compare.example-head", number=worst.number, head=head.name)
        console.print(f"\n{title}", style="bold")
        sys.stdout.write(side_by_side(worst.traces, head, console.width) + "\n")
    elif found.heads:
        console.print(message("compare.all-same"))


def side_by_side(traces: tuple[Trace, Trace], worst: HeadDistance, width: int) -> str:
    """Return two maps of a head, beside each other where there is room."""
    ascii = not supports_blocks(sys.stdout.encoding)
    drawn = []
    for name, trace in zip("AB", traces, strict=True):
        view = select(trace, kind=worst.kind, layer=worst.layer, head=worst.head, words=worst.words)
        drawn.append([name, *terminal.matrix(view, width, ascii).splitlines()])
    left = max(map(cell_len, drawn[0]))
    if left + 3 + max(map(cell_len, drawn[1])) > width:
        return "\n".join([*drawn[0], "", *drawn[1]])
    rows = zip_longest(*drawn, fillvalue="")
    return "\n".join(f"{a}{' ' * (left - cell_len(a))}   {b}".rstrip() for a, b in rows)


def _scores(found: ModelComparison) -> PageTable | None:
    if not found.scores:
        return None
    rows = [
        [
            one.name,
            *(format_metric(one.name, value) for value in (one.first, one.second)),
            interval_text(one.low, one.high, partial(format_metric, one.name)),
            "–" if one.p_value is None else f"{one.p_value:.3f}",
        ]
        for one in found.scores
    ]
    columns = [message("compare.metric"), "A", "B", message("compare.interval"), "p"]
    note = message("compare.scores-note")
    if any(one.low is None for one in found.scores):
        note += " " + message("interval.note")
    return PageTable(message("compare.scores"), columns, rows, note)


def _tables(found: ModelComparison) -> list[PageTable]:
    """Return heads and examples as tables."""
    heads = [
        [
            one.kind,
            *map(str, (one.layer, one.head)),
            _distance(one.distance),
            _distance(one.largest),
            str(one.example),
        ]
        for one in found.heads
    ]
    examples = [
        [str(one.number), one.source, *one.answers, _distance(one.largest if heads else None)]
        for one in found.examples
    ]
    forced = translated("compare.forced", found.forced)
    said = message("compare.distance-note", forced=forced)
    columns = [message(f"table.{name}") for name in ("kind", "layer", "head", "distance")]
    columns += [message("compare.largest"), message("compare.on-example")]
    tables = [PageTable(message("compare.heads"), columns, heads, said)] if heads else []
    columns = [message("compare.example"), message("compare.source"), "A", "B"]
    columns.append(message("table.distance"))
    title = message("compare.examples")
    return [*tables, PageTable(title, columns, examples, _agreement(found))]


def _notes(found: ModelComparison) -> list[str]:
    """Return sentences for the top: what is compared if the two do not write the same."""
    same = found.agreement
    if same is None or same.value == 1:
        return list(found.notes)
    forced = translated("compare.forced", found.forced)
    share = f" {_agreement(found)}" if len(found.examples) > 1 else ""
    return [message("compare.differ", agreement=share, forced=forced), *found.notes]


def _agreement(found: ModelComparison) -> str:
    same = found.agreement
    if same is None:
        return ""
    ends = interval_text(same.low, same.high, "{:.1%}".format)
    return message("compare.agreement", count=len(found.examples), share=same.value, range=ends)


def _distance(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _page(names: tuple[str, str], found: ModelComparison) -> str:
    pairs = [
        ExamplePair(one.source, one.answers, one.traces, one.distance, one.reference)
        for one in found.examples
        if one.traces is not None
    ]
    facts = {"A": names[0], "B": names[1], message("compare.facts"): f"{len(found.examples):,}"}
    return render_comparison(names, facts, _scores(found), _tables(found), pairs, _notes(found))


def _as_object(names: Sequence[str], found: ModelComparison) -> dict[str, Any]:
    """Return the comparison for `--json`, with the traces of the examples that differ most."""
    return {
        "names": list(names),
        "scores": [asdict(one) for one in found.scores],
        "agreement": None if found.agreement is None else asdict(found.agreement),
        "measure": "mean total variation of the rows of a map, from 0 to 1",
        "forced": found.forced,
        "heads": [one._asdict() for one in found.heads],
        "examples": [_example(one) for one in found.examples],
        "notes": found.notes,
    }


def _example(one: ComparedExample) -> dict[str, Any]:
    return {
        **one._asdict(),
        "distance": {
            "heads": [head._asdict() for head in one.distance.heads],
            "notes": one.distance.notes,
        },
        "traces": None if one.traces is None else [to_json(trace) for trace in one.traces],
    }
