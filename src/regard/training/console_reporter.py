"""Console output of a run: a progress bar on stderr, and a row for each evaluation."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, final

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar
from torch import Tensor

from regard.evaluation import metrics
from regard.messages import message, translated
from regard.seeing.draw.labels import pad_left
from regard.training.evaluator import (
    AttentionHealth,
    Evaluation,
    describe_attention,
    describe_outputs,
)
from regard.training.schedule import Progress

#: seconds between updates of the bar: reading the loss synchronises the device
REFRESH: Final = 0.5
#: seconds of silence after which a file or a pipe gets a line, before and after the first
#: evaluation
SILENCE_BEFORE, SILENCE_AFTER = 15.0, 120.0
#: writes the value of a metric, in per cent if it is a share
format_metric: Final = partial(metrics.format_metric, digits=3)
#: columns of the rows of evaluations before those of metrics, and their widths in cells
COLUMNS: Final = {"time": 8, "step": 8, "epoch": 7, "speed": 10, "loss": 8}


def say(console: Console, sentence: str) -> None:
    """Print a sentence; a file or a pipe gets it on one line."""
    wrap = not console.is_terminal
    console.print(sentence, highlight=False, markup=False, soft_wrap=wrap)


@final
class StderrConsole(Console):
    """A console on stderr that survives the loss of its reader.

    Ctrl-C ends the `tee` behind a run at once, and closing a terminal ends all output, before the
    run has saved its checkpoint.
    """

    def __init__(self, *, quiet: bool = False) -> None:
        super().__init__(stderr=True, quiet=quiet)

    @property
    def file(self) -> Any:
        """Stderr, which is muted once writing to it has failed."""
        return _Unbreakable(super().file, self)

    @file.setter
    def file(self, new_file: Any) -> None:
        self._file = new_file


class _Unbreakable:
    """A stream that is muted at the first error (EPIPE, or EIO of a closed terminal)."""

    def __init__(self, stream: Any, console: Console) -> None:
        self._stream, self._console = stream, console

    def write(self, text: str) -> int:
        if not self._console.quiet:
            with self._guarded():
                self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        if not self._console.quiet:
            with self._guarded():
                self._stream.flush()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self._console.quiet = True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@final
class ShardReporter:
    """Prints how far work on shards is, now and then.

    Args:
        console: stderr.
        quiet: whether to print nothing, as in all processes but the first.
    """

    def __init__(self, console: Console, *, quiet: bool = False) -> None:
        self.console, self.quiet = console, quiet
        self.started: dict[str, float] = {}
        self.spoke = time.monotonic()

    def __call__(self, what: str, done: int, total: int, pairs: int) -> None:
        """Print how many shards are done, and the speed.

        Args:
            what: is done to shards, such as "encoding".
            done: how many of them.
            total: number of shards.
            pairs: of the shards that were done since the start.
        """
        now = time.monotonic()
        seconds = now - self.started.setdefault(what, now)
        if self.quiet or now - self.spoke <= SILENCE_BEFORE:
            return
        self.spoke = now
        speed = message("train.shard-speed", speed=pairs / seconds) if seconds > 1 else ""
        left = message("train.shard-count", done=done, total=total, speed=speed)
        shown = translated("train.shards", what)
        say(self.console, message("train.of-file", file=shown, text=left))


@final
class ConsoleReporter:
    """Reports the progress of a run on a console.

    Args:
        console: stderr, so that stdout has only results.
        spent: returns the share of the budget that is used up.
        sources: the dev sources, to tell whether outputs depend on them,
        references: and their targets.
        quiet: whether to print nothing, as in all processes but the first.
    """

    def __init__(
        self,
        console: Console,
        spent: Callable[[Progress], float],
        sources: Sequence[str] = (),
        references: Sequence[list[str]] = (),
        *,
        quiet: bool = False,
    ) -> None:
        self.console, self.spent, self.quiet = console, spent, quiet
        self.sources, self.references = sources, references
        columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[left]}"))
        hidden = quiet or not console.is_terminal
        self.bar = Bar(*columns, console=console, transient=True, disable=hidden)
        self.task = self.bar.add_task(message("train.starting"), total=1.0, left="")
        self.shown, self.started, self.from_tokens = 0.0, 0.0, -1
        self.spoke = time.monotonic()
        self.health: AttentionHealth | None = None
        self.header = False

    @contextmanager
    def running(self) -> Iterator["ConsoleReporter"]:
        """Show the bar while the block runs."""
        with self.bar:
            yield self

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Show that an evaluation is running."""
        self.bar.update(self.task, left=message("train.evaluating"))
        yield

    def note(self, sentence: str) -> None:
        """Print a line above the bar."""
        self.spoke = time.monotonic()
        if not self.quiet:
            say(self.console, sentence)

    def on_step(self, progress: Progress, loss: Tensor) -> None:
        """Move the bar, at most every `REFRESH` seconds; without a terminal, print lines now and
        then."""
        now = time.monotonic()
        if self.from_tokens < 0:
            self.started, self.from_tokens = progress.training_seconds, progress.tokens
        silence = SILENCE_AFTER if self.header else SILENCE_BEFORE
        since, pause = (self.shown, REFRESH) if self.console.is_terminal else (self.spoke, silence)
        if self.quiet or now - since < pause:
            return
        self.shown = now
        spent = self.spent(progress)
        clock = _clock(progress.seconds * (1 / spent - 1) if spent > 0 else 0.0)
        left = message("train.left", clock=clock)
        speed = message("train.speed", speed=self.speed(progress))
        text = message("train.progress", step=progress.step, loss=loss.item(), speed=speed)
        if not self.console.is_terminal:
            self.note(f"{_clock(progress.seconds):>8}  {text}  {left}")
        self.bar.update(self.task, completed=spent, description=text, left=left)

    def speed(self, progress: Progress) -> float:
        """Return source and target tokens per second of training since this start."""
        seconds = progress.training_seconds - self.started
        if self.from_tokens < 0:  # before the first step
            return 0.0
        return (progress.tokens - self.from_tokens) / max(1e-9, seconds)

    def on_evaluation(self, progress: Progress, result: Evaluation, *, best: bool) -> None:
        """Print a row, and what attention maps and outputs reveal."""
        cells = {name: format_metric(name, value) for name, value in result.metrics.items()}
        for name, error in result.errors.items():
            cells[name] += f" ±{format_metric(name, error)}"
        widths = {name: max(_width(name), len(cell) + 2) for name, cell in cells.items()}
        simple = ""
        if progress.baseline is not None:
            room = max(11, cell_len(message("train.column.baseline")) + 2)
            _, metric, score, _ = progress.baseline
            simple = f"{format_metric(metric, score):>{room}}"
        if not self.header:
            columns = [(message(f"train.column.{name}"), room) for name, room in COLUMNS.items()]
            columns += [(_title(name), widths[name]) for name in cells]
            if simple:
                columns.append((message("train.column.baseline"), len(simple)))
            self.note("".join(pad_left(title, room) for title, room in columns))
            self.header = True
        values = "".join(f"{cell:>{widths[name]}}" for name, cell in cells.items())
        loss = f"{result.train_loss:.3f}" if progress.step else "-"
        self.note(
            f"{_clock(progress.seconds):>8}{progress.step:>8}{progress.epoch:>7}"
            f"{self.speed(progress):>10,.0f}{loss:>8}{values}{simple}{' *' if best else ''}"
        )
        if result.health is not None:
            sentence = describe_attention(result.health, self.health)
            self.health = result.health
            if sentence:
                self.note(f"         {sentence}")
        count = len(result.outputs)
        same = describe_outputs(result.outputs, self.sources[:count], self.references[:count])
        if same:
            self.note(f"         {same}")

    def stopping(self) -> None:
        """Answer a signal at once; not through rich, which may be in the middle of a line."""
        if not self.quiet:
            with suppress(OSError):  # an error here would end the step before the run is saved
                said = f"\n{message('train.stopping')}\n".encode()
                os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, said)


def _title(name: str) -> str:
    return message("train.column.dev", metric=name)


def _width(name: str) -> int:
    return max(11, cell_len(_title(name)) + 2)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
