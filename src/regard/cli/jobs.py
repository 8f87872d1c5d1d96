"""Jobs over shards on the command line: `-o` of `regard predict`, and `--ray`."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from regard.cli.commands import PredictArgs
from regard.cli.console import note, print_table, progress_bar, result_console
from regard.cli.input_lines import named_columns
from regard.data.pairs import column_names
from regard.errors import RegardError
from regard.jobs import (
    JobSummary,
    JobTask,
    ModelSpec,
    RayExecutor,
    check_cluster,
    find_shards,
    run_job,
)
from regard.messages import message, translated
from regard.worker_processes import Executor, LocalExecutor

#: seconds between two lines of progress where stderr is no terminal
REPORT_S: Final = 30.0
#: steps of the progress bar
PARTS: Final = 1000
#: kinds of errors, and shards that failed, which are named
NAMED: Final = 3


def executor_of(ray: str | None, workers: int | None, *, gpus: bool) -> Executor:
    """Return the executor that a user asks for; raises JobError if no cluster answers."""
    if ray is None:
        return LocalExecutor(workers or 1)
    check_cluster(ray)  # before anything that takes long
    return RayExecutor(ray, workers, gpus=gpus)


def run_shards(
    args: PredictArgs,
    runs: Sequence[Path],
    inputs: Sequence[str],
    output: Path,
    **task: Any,
) -> None:
    """Run a job with progress on stderr and its table at the end.

    Raises RegardError at the end if shards have failed.
    """
    names = tuple(str(run.absolute()) if run.is_dir() else str(run) for run in runs)
    model = ModelSpec(names, args.device, args.precision)
    (id,) = column_names([args.id] if args.id is not None else None) or (None,)
    job = JobTask(model, named_columns(args.columns), id, **task)
    executor = executor_of(args.ray, args.workers, gpus=args.device != "cpu")
    shards = find_shards(inputs)
    with progress_bar(message("jobs.rows"), PARTS) as advance:
        summary = run_job(
            job,
            shards,
            output,
            executor,
            format=args.format,
            unit_rows=args.shard_rows,
            show=_Display(advance),
        )
    print_summary(summary)
    if summary.failed:
        name, reason = next(iter(summary.failed.items()))
        raise RegardError(
            f"all shards must be answered, but {len(summary.failed)} are not, first of all {name} "
            f"({reason.removesuffix('.')}): mend them and run the same command again."
        )


class _Display:
    """Shows progress: a bar in a terminal, and a line now and then elsewhere."""

    def __init__(self, advance: Callable[[int], None]) -> None:
        self._advance, self._shown, self._began = advance, 0, time.monotonic()
        self._said, self._start = self._began, -1

    def __call__(self, summary: JobSummary) -> None:
        rows = summary.before.rows + summary.now.rows
        parts = PARTS * rows // max(summary.total, 1)
        self._advance(parts - self._shown)
        self._shown, now = parts, time.monotonic()
        if self._start < 0:
            self._start, self._began = rows, now
        if now - self._said < REPORT_S:
            return
        self._said = now
        rate = (rows - self._start) / max(now - self._began, 1e-9)
        how = {"workers": summary.workers, "restarts": summary.restarts}
        note(message("jobs.progress", rows=rows, total=summary.total, rate=rate, **how))


def print_summary(summary: JobSummary) -> None:
    """Print shards, rows, errors and throughput of a job, and why rows or shards failed."""
    console = result_console(stderr=True)
    rows = [
        [message("jobs.before"), f"{summary.before.shards:,}", f"{summary.before.rows:,}"],
        [message("jobs.now"), f"{summary.now.shards:,}", f"{summary.now.rows:,}"],
        [message("jobs.failed"), f"{len(summary.failed):,}", ""],
    ]
    for row, counts in zip(rows, (summary.before, summary.now), strict=False):
        row.append(f"{counts.errors.total():,}")
    rows[1] += [f"{summary.seconds:.1f}", f"{summary.rate:,.1f}", str(summary.workers)]
    rows[1].append(str(summary.restarts))
    columns = ("shards", "rows", "errors", "seconds", "rate", "workers", "restarts")
    titles = ["", *(message(f"jobs.column.{name}") for name in columns)]
    print_table(console, titles, [row + [""] * (len(titles) - len(row)) for row in rows])
    if summary.errors:
        counted = (
            message("bad-lines.count", count=count, kind=translated("bad-line", kind))
            for kind, count in summary.errors.most_common()
        )
        note(message("jobs.errors", kinds=message("check.comma").join(counted)))
    if summary.damaged:
        first = message("check.comma").join(summary.damaged[:NAMED])
        note(message("jobs.damaged", count=len(summary.damaged), names=first))
    for name, reason in list(summary.failed.items())[:NAMED]:
        note(f"{name}: {reason}")
