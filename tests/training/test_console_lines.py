"""Lines of the console, to the last space, and the times at which they are shown."""

import io
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from regard.training import console_reporter
from regard.training.console_reporter import (
    ConsoleReporter,
    ShardBar,
    StderrConsole,
    _clock,
    format_metric,
)
from regard.training.evaluator import AttentionHealth, Evaluation
from regard.training.progress import Progress

RESULT = Evaluation(0.5, {"loss": 1.5, "exact": 0.5}, 2.25, None, [])


@pytest.fixture
def clock(monkeypatch):
    """A clock that is set by hand."""
    clock = SimpleNamespace(now=1000.0, monotonic=lambda: clock.now)
    monkeypatch.setattr(console_reporter, "time", clock)
    return clock


def reporter(*, terminal=False, spent=0.25, **options):
    file = io.StringIO()
    console = Console(file=file, width=100, force_terminal=terminal)
    return ConsoleReporter(console, lambda progress: spent, **options), file


CLOCK = [
    (0.0, "0:00"),
    (59.9, "0:59"),
    (60.0, "1:00"),
    (3599.0, "59:59"),
    (3600.0, "1:00:00"),
    (3665.0, "1:01:05"),
    (90_000.0, "25:00:00"),
]


def test_clock():
    for seconds, text in CLOCK:
        assert _clock(seconds) == text


def test_metrics_as_text():
    assert format_metric("exact", 0.12345) == "12.35%"
    assert format_metric("loss", 1.23456) == "1.235"


def test_rows_of_evaluations(clock):
    watch, file = reporter()
    watch.on_step(Progress(tokens=100, seconds=1.0), torch.tensor(1.0))
    progress = Progress(step=12, epoch=3, tokens=2100, seconds=5.0)
    watch.on_evaluation(progress, RESULT, best=True)
    watch.on_evaluation(progress, RESULT, best=False)
    assert file.getvalue().splitlines() == [
        "    time    step  epoch  tokens/s    loss   dev loss  dev exact",
        "    0:05      12      3       500   2.250      1.500     50.00% *",
        "    0:05      12      3       500   2.250      1.500     50.00%",
    ]


def test_long_names_have_wide_columns(clock):
    watch, file = reporter()
    watch.on_evaluation(
        Progress(step=1), Evaluation(0.5, {"tag-accuracy": 0.5}, 1.0, None, []), best=True
    )
    header, row = file.getvalue().splitlines()
    assert header.endswith("    loss  dev tag-accuracy")
    assert row.removesuffix(" *").endswith("1.000" + " " * 12 + "50.00%")


def test_attention_and_outputs_follow_the_row(clock):
    options = {"sources": [str(i) for i in range(20)], "references": [[str(i)] for i in range(20)]}
    watch, file = reporter(**options)
    formed = AttentionHealth(0.9, 0.2, 0.1, 0.2)
    result = Evaluation(0.5, {"loss": 1.5}, 2.25, formed, ["same"] * 12)
    watch.on_evaluation(Progress(), result, best=False)
    watch.on_evaluation(Progress(), result, best=False)
    lines = file.getvalue().splitlines()
    assert len(lines) == 1 + 3 + 2
    assert lines[2].startswith("         attention has formed")
    assert lines[3].startswith(" " * 9)
    assert "12 of 12" in lines[3]
    assert lines[5] == lines[3]


def test_a_pipe_gets_a_line_after_15_seconds_and_then_after_120(clock):
    watch, file = reporter()

    def lines_after(seconds):
        clock.now += seconds
        before = len(file.getvalue())
        watch.on_step(Progress(step=9, tokens=50, seconds=100.0), torch.tensor(1.5))
        return file.getvalue()[before:]

    assert lines_after(14.9) == ""
    # a quarter is spent: three times as much is left
    assert lines_after(0.1) == "    1:40  step 9  loss 1.500  0 tokens/s  5:00 left\n"
    assert lines_after(14.9) == ""
    watch.on_evaluation(Progress(), RESULT, best=False)
    assert lines_after(119.9) == ""
    assert lines_after(0.1) != ""


def test_nothing_is_left_to_say_of_a_budget_that_has_not_begun(clock):
    watch, file = reporter(spent=0.0)
    clock.now += 15.0
    watch.on_step(Progress(seconds=100.0), torch.tensor(1.5))
    assert file.getvalue().endswith("  0:00 left\n")


def test_a_terminal_has_a_bar_that_moves_twice_a_second(clock):
    watch, file = reporter(terminal=True)
    assert not watch.bar.disable
    assert watch.bar.live.transient
    (task,) = watch.bar.tasks
    assert (task.total, task.completed, task.fields["left"]) == (1.0, 0, "")

    def seen(step):
        watch.on_step(Progress(step=step), torch.tensor(1.5))
        return task.description

    assert seen(1).startswith("step 1 ")
    assert task.completed == 0.25
    clock.now += 0.4
    assert seen(2).startswith("step 1 ")
    clock.now += 0.1
    assert seen(3).startswith("step 3 ")
    with watch.evaluating():
        assert task.fields["left"] not in ("", "0:00 left")
    assert file.getvalue() == "", "lines are for pipes"


def test_a_quiet_reporter_has_no_bar(clock):
    for terminal in (True, False):
        watch, file = reporter(terminal=terminal, quiet=True)
        assert watch.bar.disable
        clock.now += 1000.0
        watch.on_step(Progress(step=1), torch.tensor(1.5))
        watch.note("a sentence")
        assert file.getvalue() == ""
        assert watch.spoke == clock.now
    assert reporter()[0].bar.disable


def test_speed_is_finite_before_time_has_passed(clock):
    watch, _ = reporter()
    assert watch.from_tokens == -1
    watch.on_step(Progress(tokens=0, seconds=7.0), torch.tensor(1.5))
    watch.on_step(Progress(tokens=10, seconds=8.0), torch.tensor(1.5))
    assert (watch.started, watch.from_tokens) == (7.0, 0), "those of the first step"
    assert watch.speed(Progress(tokens=0, seconds=7.0)) == 0.0
    assert watch.speed(Progress(tokens=30, seconds=9.0)) == 15.0


def test_a_bar_of_shards(clock):
    file = io.StringIO()
    with ShardBar(Console(file=file, width=100)) as bar:
        bar.show("encoding", 0, 3, 0)
        clock.now += 15.0
        bar.show("encoding", 1, 3, 300)
        assert file.getvalue() == ""
        clock.now += 0.1
        bar.show("encoding", 1, 3, 302)
        assert file.getvalue() == "encoding: 1 of 3 shards, 20 pairs/s\n"
        clock.now += 15.0
        bar.show("encoding", 3, 3, 900)
        assert len(file.getvalue().splitlines()) == 1
        assert bar.tasks == {}
        assert bar.bar.disable


def test_the_speed_of_shards_is_told_after_a_second(clock):
    file = io.StringIO()
    with ShardBar(Console(file=file, width=100, force_terminal=True)) as bar:
        assert not bar.bar.disable
        for seconds, expected in ((1.0, "1 of 3 shards"), (0.1, "1 of 3 shards, 100 pairs/s")):
            bar.show("encoding", 0, 3, 0)
            clock.now += seconds
            bar.show("encoding", 1, 3, 110)
            (task,) = bar.bar.tasks
            assert (task.fields["left"], task.completed, task.total) == (expected, 1, 3)
        bar.show("encoding", 3, 3, 110)
        assert bar.bar.tasks == []


def test_quiet_shards(clock):
    file = io.StringIO()
    for terminal in (True, False):
        bar = ShardBar(Console(file=file, width=100, force_terminal=terminal), quiet=True)
        assert bar.bar.disable
        bar.show("encoding", 0, 3, 0)
        clock.now += 99.0
        bar.show("encoding", 1, 3, 300)
    assert file.getvalue() == ""


class Broken(io.StringIO):
    """A stream whose reader is gone after the first line."""

    calls = 0

    def write(self, text):
        self.calls += 1
        if self.calls > 1:
            raise BrokenPipeError
        return super().write(text)


def test_a_stream_that_breaks_is_muted():
    console = StderrConsole()
    console.file = stream = Broken()
    file = console.file
    assert file.write("one") == 3
    assert not console.quiet
    assert file.write("two!") == 4
    assert console.quiet
    assert file.write("three") == 5
    file.flush()
    assert (stream.getvalue(), stream.calls) == ("one", 2)


def test_a_stream_that_cannot_be_flushed_is_muted():
    console = StderrConsole()
    console.file = SimpleNamespace(flush=Broken().detach, write=None, encoding="utf-8")
    assert console.file.encoding == "utf-8"
    with pytest.raises(io.UnsupportedOperation):
        Broken().detach()
    console.file.flush()
    assert console.quiet


def test_a_signal_is_answered_unless_the_run_is_quiet(monkeypatch):
    said = []
    monkeypatch.setattr(console_reporter.os, "write", lambda number, text: said.append(text))
    reporter(quiet=True)[0].stopping()
    assert said == []
    reporter()[0].stopping()
    assert len(said) == 1
    assert said[0].startswith(b"\n")
    assert said[0].endswith(b"\n")
