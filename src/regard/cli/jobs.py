"""Jobs over shards on the command line: `-o` of `regard predict`, and `--ray`."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from regard.cli.commands import PredictArgs
from regard.cli.console import note, progress_bar
from regard.cli.input_lines import named_columns
from regard.errors import RegardError
from regard.jobs import (
    JobSummary,
    JobTask,
    RayExecutor,
    check_cluster,
    find_shards,
    run_job,
)
from regard.messages import message, translated
from regard.worker_processes import Executor, LocalExecutor

#: seconds between two lines of progress where stderr is no terminal
REPORT_S: Final = 30.0
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
    job = JobTask(names, args.device, args.precision, named_columns(args.columns), **task)
    executor = executor_of(args.ray, args.workers, gpus=args.device != "cpu")
    shards = find_shards(inputs)
    with progress_bar(message("jobs.shards"), len(shards)) as advance:
        show = _Display(advance)
        summary = run_job(job, shards, output, executor, show=show)
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
        self._advance, self._shown, self._said = advance, 0, time.monotonic()

    def __call__(self, summary: JobSummary) -> None:
        done, now = summary.before + summary.now, time.monotonic()
        self._advance(done - self._shown)
        self._shown = done
        if now - self._said >= REPORT_S:
            self._said = now
            told = {"total": summary.total, "rows": summary.rows, "workers": summary.workers}
            note(message("jobs.progress", done=done, **told))


def print_summary(summary: JobSummary) -> None:
    """Print shards, rows and throughput of a job, and why rows or shards failed."""
    rate = summary.rows / summary.seconds if summary.seconds else 0.0
    counts = {"now": summary.now, "before": summary.before, "failed": len(summary.failed)}
    counts |= {"rows": summary.rows, "errors": summary.errors.total(), "workers": summary.workers}
    note(message("jobs.summary", **counts, seconds=summary.seconds, rate=rate))
    if summary.errors:
        counted = (
            message("bad-lines.count", count=count, kind=translated("bad-line", kind))
            for kind, count in summary.errors.most_common()
        )
        note(message("jobs.errors", kinds=message("check.comma").join(counted)))
    for name, reason in list(summary.failed.items())[:NAMED]:
        note(f"{name}: {reason}")
