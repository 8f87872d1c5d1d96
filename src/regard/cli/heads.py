"""`regard heads`: habits and importance of the attention heads of a model."""

from typing import Any, Final

from rich.console import Console

from regard import api
from regard.api.heads import HeadReport, profile_heads
from regard.cli.commands import HeadsArgs
from regard.cli.console import (
    note,
    print_json,
    print_table,
    progress_bar,
    result_console,
    save_page,
)
from regard.cli.input_lines import read_examples
from regard.data.pairs import draw_sample
from regard.errors import ArgumentError
from regard.messages import message
from regard.seeing.page.compare_page import HeadRow, render_heads
from regard.seeing.trace.head_habits import HABITS
from regard.seeing.trace.storage import to_json

#: rows of the table in the terminal at most
MOST_ROWS: Final = 48


def heads(args: HeadsArgs) -> None:
    """Report where each attention head of a model looks, and what switching it off costs."""
    model = api.load_own(args.run, device=args.device)
    examples = read_examples(model, args.file, args)
    if not examples.sources:
        raise ArgumentError("FILE", "have a text or more", "empty", "there is nothing to look at")
    if len(examples.sources) > args.limit:
        note(message("heads.sample", limit=args.limit, count=len(examples.sources)))
        rows = sorted(draw_sample(range(len(examples.sources)), args.limit))
        examples = examples.some(rows)
    targets = None if examples.pairs is None else [pair.tgt for pair in examples.pairs]
    with progress_bar(message("heads.reading"), len(examples.sources)) as done:
        texts, most = examples.sources, args.ablate
        report = profile_heads(model, texts, targets, ablate=most, done=done)
    if not report.heads:
        fix = "take a run of another preset"
        raise ArgumentError("MODEL", "have attention", model.info.kind, fix)
    if args.output is not None:
        save_page(args.output, _page(str(args.run), report))
    if args.as_json:
        return print_json(_as_object(str(args.run), report))
    return _print(report, result_console())


def _print(report: HeadReport, console: Console) -> None:
    names = [name for name in HABITS if any(name in h.habits.habits for h in report.heads)]
    has_cost = any(head.cost is not None for head in report.heads)
    titles = [message(f"table.{name}") for name in ("kind", "layer", "head")]
    titles += [message("heads.habit"), *(message(f"heads.habit.{name}") for name in names)]
    titles += [message("heads.cost")] * has_cost
    rows = [_row(head, names, has_cost) for head in report.heads]
    print_table(console, titles, rows[:MOST_ROWS])
    if len(rows) > MOST_ROWS:
        console.print(message("heads.more", count=len(rows) - MOST_ROWS))
    ablated = message("heads.ablated", count=report.ablated) if report.ablated else ""
    number = "one" if report.texts == 1 else "several"
    console.print(
        message(f"heads.shares.{number}", texts=report.texts, ablated=ablated),
        highlight=False,
        markup=False,
    )
    for sentence in report.notes:
        said = message("sentence", text=sentence)
        console.print(said, highlight=False, markup=False, soft_wrap=True)


def _row(head: HeadRow, names: list[str], has_cost: bool) -> list[str]:
    own = head.habits
    shares = [f"{own.habits[name].share:.0%}" if name in own.habits else "" for name in names]
    main = message(f"heads.habit.{own.main}" if own.main else "heads.mixed")
    cells = [own.kind, str(own.layer), str(own.head), main, *shares]
    if has_cost:
        shown = "" if head.cost is None else f"{head.cost[0]:.3f}"
        said = message("evaluate.with-range", value=shown, range=head.cost_range)
        cells.append(shown and said)
    return cells


def _page(name: str, report: HeadReport) -> str:
    facts = {message("heads.model"): name, message("heads.texts"): f"{report.texts:,}"}
    if report.ablated:
        facts[message("heads.off")] = message("heads.off-texts", count=report.ablated)
    heads = report.heads
    if not report.ablated:
        heads = sorted(heads, key=lambda head: -head.habits.evidence)
    return render_heads(
        message("heads.title", name=name), facts, heads, report.examples, report.notes
    )


def _as_object(name: str, report: HeadReport) -> dict[str, Any]:
    return {
        "model": name,
        "texts": report.texts,
        "ablated": report.ablated,
        "heads": [_head(head) for head in report.heads],
        "examples": [to_json(trace) for trace in report.examples],
        "notes": report.notes,
    }


def _head(head: HeadRow) -> dict[str, Any]:
    own, cost = head.habits, head.cost
    return {
        "kind": own.kind,
        "layer": own.layer,
        "head": own.head,
        "habit": own.main,
        "habits": {
            n: {**h._asdict(), "score": h.score, "evidence": h.evidence}
            for n, h in own.habits.items()
        },
        "importance": cost and dict(zip(("cost", "low", "high"), cost, strict=True)),
    }
