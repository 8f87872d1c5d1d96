"""Jobs over shards on the command line: `-o` of `regard predict`, and `--ray`."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from regard.cli.console import note, print_table, progress_bar, result_console
from regard.cli.shard_options import executor_of
from regard.data import Pair
from regard.data.pairs import column_names
from regard.errors import ArgumentError, RegardError
from regard.jobs import (
    UNIT_ROWS,
    JobSummary,
    JobTask,
    ModelSpec,
    find_shards,
    read_shard,
    run_job,
)
from regard.jobs.job_folder import JobFolder
from regard.messages import message, translated

#: seconds between two lines of progress where stderr is no terminal
REPORT_S: Final = 30.0
#: steps of the progress bar
PARTS: Final = 1000
#: kinds of errors, and shards that failed, which are named
NAMED: Final = 3


def execute(
    runs: Sequence[Path],
    inputs: Sequence[str],
    output: Path,
    *,
    columns: str | None,
    id: str | None = None,
    device: str,
    precision: str = "32",
    ray: str | None,
    workers: int | None,
    format: str = "parquet",
    shard_rows: int = UNIT_ROWS,
    **task: Any,
) -> JobSummary:
    """Run a job with progress on stderr and its table at the end.

    Args:
        runs: of the model; folders by paths that workers need to be absolute.
        inputs: files, folders and patterns.
        output: folder of the output shards.
        columns: as in `0,2` or `en,fr`.
        id: column of ids.
        device: of the workers.
        precision: of the weights.
        ray: address of a cluster.
        workers: how many.
        format: of the output shards.
        shard_rows: rows of an output shard at most.
        task: other fields of `JobTask`.

    Raises RegardError at the end if shards have failed.
    """
    names = tuple(str(run.absolute()) if run.is_dir() else str(run) for run in runs)
    model = ModelSpec(names, device, precision)
    chosen = column_names([word.strip() for word in columns.split(",")] if columns else None)
    (ids,) = column_names([id] if id is not None else None) or (None,)
    job = JobTask(model, chosen, ids, **task)
    executor = executor_of(ray, workers, gpus=device != "cpu")
    shards = find_shards(inputs)
    with progress_bar(message("jobs.rows"), PARTS) as advance:
        summary = run_job(
            job,
            shards,
            output,
            executor,
            format=format,
            unit_rows=shard_rows,
            show=_Display(advance),
        )
    print_summary(summary)
    if summary.failed:
        name, reason = next(iter(summary.failed.items()))
        raise RegardError(
            f"all shards must be answered, but {len(summary.failed)} are not, first of all {name} "
            f"({reason.removesuffix('.')}): mend them and run the same command again."
        )
    return summary


class _Display:
    """Shows progress: a bar in a terminal, and a line now and then elsewhere."""

    def __init__(self, advance: Callable[[int], None]) -> None:
        self._advance, self._shown, self._began = advance, 0, time.monotonic()
        self._said, self._start = self._began, -1

    def __call__(self, summary: JobSummary, rows: int) -> None:
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


def predicted_pairs(
    run: Path, file: str, output: Path | None, **how: Any
) -> tuple[list[Pair], list[str]]:
    """Predict shards of pairs; returns the pairs that could be answered, and the predictions.

    Args:
        run: the model.
        file: names the shards.
        output: folder of the output shards.
        how: as for `execute`.
    """
    if output is None:
        raise ArgumentError(
            "--save", "name a folder for the answers of shards", "missing", "add --save FOLDER"
        )
    execute([run], [file], output, pairs=True, **how)
    pairs, predictions = [], []
    for shard in JobFolder(output).outputs():
        for row in read_shard(output / shard):
            if not row["error"]:
                first, *more = row["targets"]
                pairs.append(Pair(row["source"], first, row["row"], tuple(more)))
                predictions.append(row["text"])
    if not pairs:
        raise RegardError(
            f"some pair must be answered to be scored, but all of {file} have errors: "
            f"see the column `error` in {output}."
        )
    return pairs, predictions
