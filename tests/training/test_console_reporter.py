"""What a run shows."""

import io
import math
import os
import sys
from contextlib import suppress

import torch
from rich.console import Console

from regard.training.evaluator import Evaluation
from regard.training.reporting import ConsoleReporter, StderrConsole
from regard.training.schedule import Progress


def watching(**options):
    file = io.StringIO()
    sources = [f"source {i}" for i in range(20)]
    references = [[f"target {i}"] for i in range(20)]
    console = Console(file=file, width=40)
    return ConsoleReporter(console, lambda progress: 0.5, sources, references, **options), file


def evaluation(**changes):
    found = {"loss": 1.25, "per": 0.125, "exact": 0.5}
    outputs = [f"output {i}" for i in range(20)]
    values = {"score": 0.125, "metrics": found, "train_loss": 2.5, "health": None}
    return Evaluation(**{**values, "outputs": outputs, **changes})


def test_a_run_goes_on_where_nobody_reads_what_it_says(monkeypatch, capfd):
    end, start = os.pipe()
    os.close(end)
    # what could not be written is tried once more when the file is closed
    with suppress(BrokenPipeError), open(start, "w", buffering=1) as gone:
        monkeypatch.setattr(sys, "stderr", gone)
        monkeypatch.setattr(sys, "__stderr__", gone)
        watch = ConsoleReporter(StderrConsole(), lambda progress: 0.5, [])
        watch.stopping()
        watch.note("judged")
        watch.note("saved")
        sys.stdout.write("stdout is open\n")
    assert capfd.readouterr().out == "stdout is open\n"


def test_a_row_for_each_evaluation():
    watch, file = watching()
    progress = Progress(step=7, epoch=2, seconds=3725.0)
    watch.on_evaluation(progress, evaluation(), best=True)
    watch.on_evaluation(progress, evaluation(), best=False)
    row = evaluation(metrics={"r2": math.nan}, train_loss=math.inf).as_row(progress)
    assert (row["dev_r2"], row["train_loss"], row["seconds"]) == (None, None, 3725.0)
    header, best, other = file.getvalue().splitlines()
    assert header.split() == (
        ["time", "step", "epoch", "tokens/s", "loss", "dev", "loss", "dev", "per", "dev", "exact"]
    )
    assert best.split()[:3] == ["1:02:05", "7", "2"]
    assert best.split()[4:] == ["2.500", "1.250", "12.50%", "50.00%", "*"]
    assert other.split()[4:] == ["2.500", "1.250", "12.50%", "50.00%"]


class Clock:
    """A clock that is set by hand."""

    now = 100.0

    def monotonic(self):
        return self.now


def lines_of_steps(monkeypatch, times, *, evaluated_at=None):
    """What a pipe gets of steps at some times, in seconds since the start."""
    clock = Clock()
    monkeypatch.setattr("regard.training.reporting.time", clock)
    watch, file = watching()
    for step, seconds in enumerate(times, 1):
        clock.now = 100.0 + seconds
        progress = Progress(step=step, tokens=100 * step, seconds=seconds)
        watch.on_step(progress, torch.tensor(2.5))
        if seconds == evaluated_at:
            watch.on_evaluation(progress, evaluation(), best=True)
    return file.getvalue().splitlines()


def test_a_pipe_is_told_how_far_a_run_is_before_the_first_evaluation(monkeypatch):
    lines = lines_of_steps(monkeypatch, [float(second) for second in range(1, 47)])
    assert len(lines) == 3
    assert lines[0].split() == [
        *("0:15", "step", "15", "loss", "2.500", "100", "tokens/s", "0:15", "left")
    ]
