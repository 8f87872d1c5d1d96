"""`regard lab`: experiments on attention, and their report."""

from dataclasses import replace
from pathlib import Path
from typing import Final

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from regard import device as devices
from regard import extras
from regard.cli.commands import LabArgs
from regard.cli.console import INTERRUPTED, print_json, print_table, result_console
from regard.errors import ArgumentError
from regard.lab import ExperimentContext, runner
from regard.lab.context import worker_pool
from regard.messages import help_text, message, translated
from regard.training.reporting import say

#: seeds of a quick run and of a full one
SEEDS: Final = {True: 3, False: 5}


def lab(args: LabArgs) -> None:
    """Run experiments on claims about attention, and write a report."""
    extras.require("matplotlib", "scipy", extra="lab", for_="`regard lab`")
    chosen = runner.pick(args.names or [])
    if args.listed:
        rows = [(name, runner.find(name).question) for name in chosen]
        if args.as_json:
            return print_json([{"name": name, "question": question} for name, question in rows])
        titles = message("lab.experiment"), message("lab.question")
        said = [(name, help_text(question)) for name, question in rows]
        return print_table(result_console(), titles, said)
    if args.output.exists() and not args.output.is_dir():
        value = f"the file {args.output}"
        raise ArgumentError("output", "be a folder", value, "choose another -o")
    if args.data is not None and not args.data.is_dir():
        raise ArgumentError("data", "be a folder", args.data, "name another, or leave it out")
    args.output.mkdir(parents=True, exist_ok=True)
    count = SEEDS[args.quick] if args.seeds is None else args.seeds
    where = devices.pick(args.device)
    context = ExperimentContext(
        device=where,
        quick=args.quick,
        seeds=tuple(range(count)),
        data=args.data,
    )
    done: list[str] = []
    with _ProgressReporter(Console(stderr=True)) as progress, worker_pool(where, args.jobs) as pool:
        try:
            for name in chosen:
                progress.start(name)
                told = replace(context, pool=pool, on_piece=progress.piece)
                seconds = runner.measure(name, told, args.output)
                progress.end(message("lab.done", seconds=seconds))
                done.append(name)
        except KeyboardInterrupt:
            progress.end(message("lab.stopped"))
    _conclude(done, args.output, args.as_json)
    if len(done) < len(chosen):
        say(Console(stderr=True), message("lab.kept"))
        raise typer.Exit(INTERRUPTED)
    return None


def _conclude(done: list[str], folder: Path, as_json: bool) -> None:
    """Write the report, and print the verdicts."""
    from regard.lab import report

    sections = report.write(folder)
    shown = [part for part in sections if part.experiment.name in done]
    claims = [(part.experiment.name, claim) for part in shown for claim in part.claims]
    page = str(folder / report.FILE)
    if as_json:
        found = [
            {"experiment": name, "verdict": one.verdict, "document": one.source, "claim": one.text}
            for name, one in claims
        ]
        return print_json({"claims": found, "report": page})
    if claims:
        rows = [(translated("lab.verdict", c.verdict), c.source, c.text) for _, c in claims]
        titles = [message(f"lab.{name}") for name in ("verdict", "document", "claim")]
        print_table(result_console(), titles, rows)
    return typer.echo(message("lab.report", path=page))


class _ProgressReporter:
    """Progress of experiments: a live line for each on a terminal, elsewhere a line at its end."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress = Progress(
            SpinnerColumn(finished_text=" "),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            TextColumn(message("lab.pieces")),
            TextColumn("{task.fields[last]}", style="dim"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = TaskID(0)
        self._name = ""

    def __enter__(self) -> "_ProgressReporter":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def start(self, name: str) -> None:
        """Add the line of an experiment."""
        self._task, self._name = self._progress.add_task(name, total=None, last=""), name

    def piece(self, label: str) -> None:
        """Count a finished piece of it."""
        self._progress.update(self._task, advance=1, last=label)

    def end(self, status: str) -> None:
        """End its line."""
        pieces = self._progress.tasks[self._task].completed
        self._progress.update(self._task, total=pieces, last=status)
        self._progress.stop_task(self._task)
        if not self._console.is_terminal:
            say(self._console, f"{self._name}: {status}")
