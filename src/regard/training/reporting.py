"""Files that a run writes for people: metrics, TensorBoard events, report.html and model card."""

import json
import math
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, cast, final

import numpy as np
import torch
from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as Bar
from torch import Tensor

from regard.atomic_files import write_atomic
from regard.data import Corpus, Tokenizer, collate
from regard.decoding import Hypothesis, force_decode
from regard.evaluation import metrics
from regard.evaluation.bootstrap import MAX_NATS
from regard.messages import message
from regard.models import SequenceModel
from regard.seeing.draw.shapes import pad_left
from regard.seeing.page.report import render_report
from regard.seeing.trace.storage import from_json, to_json
from regard.seeing.trace.trace import KINDS, SIDES, Map, Text, Trace, TraceError
from regard.symbols import EOS, SYMBOLS
from regard.tasks.inputs.text import text_of_ids
from regard.training.checkpoint import Candidate
from regard.training.evaluator import (
    AttentionHealth,
    Evaluation,
    Evaluator,
    describe_attention,
    describe_outputs,
)
from regard.training.run_folder import REPORT, RunFolder
from regard.training.schedule import Progress
from regard.version import __version__

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
        widths = {
            name: max(11, cell_len(_title(name)) + 2, len(cell) + 2) for name, cell in cells.items()
        }
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


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


#: the page, and the log of evaluations that it is drawn from
PAGE, ROWS = REPORT
#: dev examples whose attention maps the report follows
EXAMPLES: Final = 4
#: labels whose probabilities it shows
LABELS: Final = 8
#: maximum number of tokens of a side of such an example, so that its map is legible
LONGEST: Final = 40


#: records an evaluation, made after a step with this learning rate, in a file
Recorder = Callable[[Progress, Evaluation, float], None]


@final
class TensorBoardWriter:
    """Writes each evaluation to `tensorboard/` in the run folder."""

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter  # not above: tensorboard is an extra

        # events of steps that a resumed run takes again are hidden
        self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def __call__(self, progress: Progress, result: Evaluation, rate: float) -> None:
        """Add the scalars of a row of metrics.jsonl."""
        for name, value in result.as_row(progress).items():
            if name != "step" and value is not None:
                self.writer.add_scalar(name, value, progress.step)
        self.writer.flush()


@final
class HtmlReport:
    """report.html of a run, written anew from all evaluations after each one, and at the end.

    Args:
        folder: of the run.
        step: of the run; rows of later steps are dropped.
        heading: names and values at the top of the page.
        traces: returns traces of the dev examples, given all outputs.
    """

    def __init__(
        self,
        folder: Path,
        step: int,
        heading: Mapping[str, object],
        traces: Callable[[Sequence[str]], Sequence[Trace]] = lambda outputs: [],
    ) -> None:
        self.folder, self.heading, self.traces = folder, heading, traces
        self.rows = RunFolder(folder).report
        self.rows.cut(None, step)
        lines = self.rows.rows()
        self.history = [line["row"] for line in lines]
        self.examples = [stored_traces(line) for line in lines]
        self.start, self.starts = step, [int(line.get("start", 0)) for line in lines]

    def __call__(self, progress: Progress, result: Evaluation, rate: float) -> None:
        """Add an evaluation, with the time that evaluations have taken, and write the page."""
        seconds = round(progress.evaluation_seconds, 3)
        row = {**result.as_row(progress), "evaluation_seconds": seconds}
        self.write(row, rate, self.traces(result.outputs))

    def write(self, row: Mapping[str, Any], lr: float, traces: Sequence[Trace]) -> None:
        """Add a row with its traces and write the page."""
        line = {
            "row": {**row, "lr": lr},
            "start": self.start,
            "traces": [to_json(trace) for trace in traces],
        }
        self.rows.append(line)
        self.history.append({**row, "lr": lr})
        self.starts.append(self.start)
        self.examples.append((int(row["step"]), list(traces)))
        self.draw(training=True)

    def draw(self, *, training: bool) -> None:
        """Write the page, which loads itself again while the run trains."""
        title, starts = self.folder.resolve().name, sorted({*self.starts} - {0})
        page = render_report(
            self.history, self.examples, self.heading, title, starts, training=training
        )
        # file names need not be valid text
        write_atomic(self.folder / PAGE, page.encode(errors="backslashreplace"))


def stored_traces(line: Mapping[str, Any]) -> tuple[int, list[Trace]]:
    """Return the step and the traces of a line of report.jsonl; no traces if they are damaged."""
    try:
        return int(line["row"]["step"]), [from_json(content) for content in line["traces"]]
    except (TraceError, KeyError):
        return int(line["row"]["step"]), []


def example_places(evaluator: Evaluator) -> list[int]:
    """Return the dev sources of the report: the first that fit a picture, or the shortest."""
    corpus, rows = evaluator.dev.corpus, evaluator.dev.rows[: evaluator.decoded]
    size = np.maximum(corpus.src_lengths[rows], corpus.tgt_lengths[rows])
    fitting = np.flatnonzero((size <= LONGEST) & (size >= 3))[:EXAMPLES]
    enough = len(fitting) == EXAMPLES
    places = fitting if enough else np.argsort(size, kind="stable")[:EXAMPLES]
    return [int(place) for place in places]


def example_traces(evaluator: Evaluator, outputs: Sequence[str]) -> Sequence[Trace]:
    """Return attention traces of a few dev examples, as their output makes them."""
    with torch.no_grad(), evaluator.fabric.autocast():
        if (numbers := evaluator.task.numbers) is not None:
            return numbers.dev_traces(evaluator.module, evaluator.dev, evaluator.fabric.device)
        return _token_traces(evaluator, outputs)


def _token_traces(evaluator: Evaluator, outputs: Sequence[str]) -> list[Trace]:
    """Return attention traces of a few dev examples, with their references forced.

    The model's own outputs are the notes. No random number is drawn: dropout is off.
    """
    places, dev = example_places(evaluator), evaluator.dev
    corpus, rows = cast(Corpus, dev.corpus), dev.rows[places]
    batch = collate(corpus, rows).to(evaluator.fabric.device)
    targets = [corpus.tgt(row).tolist() for row in rows]
    module = cast(SequenceModel, evaluator.module)
    is_label = evaluator.task.tokens.end_is_certain
    found = force_decode(
        module,
        batch.src,
        batch.src_lengths,
        targets,
        kinds=KINDS,
        alternatives=LABELS + len(SYMBOLS) if is_label else 0,
    )
    traces = []
    for place, row, hypothesis in zip(places, rows.tolist(), found, strict=True):
        source = evaluator.task.input.corpus_text(corpus, row, dev.sources[place])
        ids = [*hypothesis.tokens, *[EOS] * (not is_label)]
        target = text_of_ids(evaluator.task.target, ids, dev.references[place][0])
        if is_label:
            target = _with_labels(target, hypothesis, evaluator.task.target)
        note = outputs[place] if outputs else _perplexity(hypothesis)
        try:
            traces.append(Trace(source, target, _mean_map(hypothesis, len(ids)), notes=(note,)))
        except TraceError:  # a diverging run has weights that cannot be drawn, and a report
            traces.append(Trace(source, target, notes=(note,)))
    return traces


def _perplexity(hypothesis: Hypothesis) -> str:
    """Return the note of a text, which has no output."""
    terms = hypothesis.token_log_probs
    return f"perplexity {math.exp(min(-sum(terms) / len(terms), MAX_NATS)):.1f}"


def _with_labels(text: Text, hypothesis: Hypothesis, tokenizer: Tokenizer) -> Text:
    """Return a label with its probability and those of the likeliest others."""
    own = hypothesis.tokens[0]
    ids, terms = zip(*hypothesis.alternatives[0], strict=True)
    others = [
        (label, math.exp(term))
        for i, label, term in zip(ids, tokenizer.tokens(ids), terms, strict=True)
        if i != own and i >= len(SYMBOLS)
    ]
    prob = math.exp(min(hypothesis.token_log_probs[0], 0.0))
    token = replace(text.tokens[0], prob=prob, alternatives=tuple(others[: LABELS - 1]))
    return replace(text, tokens=(token, *text.tokens[1:]))


def _mean_map(hypothesis: Hypothesis, rows: int) -> tuple[Map, ...]:
    """Return the first rows of the first kind of map there is, averaged over layers and heads."""
    kind = next((kind for kind in SIDES if hypothesis.attention.get(kind)), None)
    if kind is None:
        return ()
    layers = [weights.float().mean(dim=0) for weights in hypothesis.attention[kind]]
    mean = torch.stack(layers).mean(dim=0, keepdim=True)[:, :rows].numpy()
    return (Map.of(kind, 0, mean, missing=True),)  # type: ignore[arg-type]


@dataclass(frozen=True)
class RunSummary:
    """Facts about a run, for the heading of its report and for its model card.

    Attributes:
        counts: numbers of training and dev examples, as text.
        tokens: how each side is tokenised, by name.
        settings: those that are not defaults.
        examples: a few dev examples, as Markdown.
        input_file: a file name for sources,
        test_file: and for test examples, in the commands of the card.
        seen: a phrase for other data that the model has seen.
    """

    preset: str
    size: str
    weights: int
    data: str
    counts: str
    tokens: Mapping[str, str]
    metric: str
    settings: Mapping[str, Any]
    examples: str
    input_file: str
    test_file: str
    seen: str

    def heading(self) -> dict[str, object]:
        """Return the names and values at the top of report.html."""
        return {
            "model": f"{self.preset}, {self.size}, {self.weights:,} weights",
            "data": f"{self.data}: {self.counts}",
            **self.tokens,
            "decides": f"dev {self.metric}",
        }


def write_card(
    folder: RunFolder,
    summary: RunSummary,
    progress: Progress,
    candidates: Sequence[Candidate] = (),
    forgotten: str | None = None,
) -> None:
    """Write README.md: what the model is, how well it does, how to use and to reproduce it."""
    scores = {each.name: each.found for each in candidates}  # of more dev examples, perhaps
    best, step, _ = scores.get("best", progress.best[0])
    tokens = "\n".join(f"| {name} | {value} |" for name, value in summary.tokens.items())
    metric = summary.metric
    if metric in metrics.text_metrics():
        metric = f"{metric}, greedy"
    names = {
        "average": f"the average of the {len(progress.best)} best",
        "last": "the last step",
        "ngrams": "the network with its n-grams",
        "threshold": "the network with its threshold",
    }
    taken = "".join(
        f"\n| dev {metric}, of {names[each.name]}, taken | {each.found.score:.4f} |"
        for each in candidates
        if each.taken and each.name in names
    )
    simple = progress.baseline
    beside = f"\n| the simple way, {simple.name} | {simple.score:.4f} |" if simple else ""
    run = shlex.quote(str(folder.path))
    forgotten = "" if forgotten is None else f"{forgotten[:1].upper()}{forgotten[1:]}\n\n"
    text = f"""# {folder.path.name}

A regard model: preset `{summary.preset}`, size `{summary.size}`, {summary.weights:,} weights.

| | |
|---|---|
| data | `{summary.data}`: {summary.counts} |
{tokens}
| best dev {metric} | {best:.4f} at step {step} |{taken}{beside}
| training | {progress.step} steps, {progress.epoch} epochs, {progress.seconds / 60:.1f} minutes |
| made with | regard {__version__}, torch {torch.__version__} |

{forgotten}## Use it

```
regard predict {run} {summary.input_file}
regard evaluate {run} {summary.test_file}
```

{summary.examples}
## Settings that are not defaults, or that followed from the data

```json
{json.dumps(summary.settings, indent=2)}
```

The model has seen the data above and {summary.seen}, and repeats what is wrong in it. Its attention
says where it looked, not why it answered.
"""
    # file names need not be valid text
    write_atomic(folder.card_file, text.encode(errors="backslashreplace"))
