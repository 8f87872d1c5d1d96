"""Files that a run writes for people: TensorBoard events, report.html and the model card."""

import json
import math
import shlex
import textwrap
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from regard.atomic_files import write_atomic
from regard.data import FrameScaler, SourceEncoder, Tokenizer, collate
from regard.decoding import Hypothesis, force_decode
from regard.errors import ArgumentError
from regard.seeing.report import render_report
from regard.seeing.storage import from_json, to_json
from regard.seeing.trace import KINDS, SIDES, Map, Text, Token, Trace, TraceError
from regard.symbols import EOS
from regard.training.checkpoint import Averaged
from regard.training.config import Config
from regard.training.evaluator import LARGEST
from regard.training.progress import Progress
from regard.training.run_folder import REPORT, RunFolder
from regard.training.task import Task
from regard.version import __version__


def check_tensorboard(config: Config) -> None:
    """Raises where events are asked for and cannot be written."""
    if config.tensorboard and find_spec("tensorboard") is None:
        raise ArgumentError(
            "tensorboard",
            "be false where its package is not installed",
            "true",
            "install it with `pip install 'regard[tensorboard]'`, or leave the setting out",
        )


class TensorBoardWriter:
    """Writes the numbers of each evaluation to `tensorboard/` in the run folder."""

    def __init__(self, folder: Path, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # events of steps that a resumed run takes again are hidden
        self.writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step + 1)

    def write(self, row: Mapping[str, Any]) -> None:
        """Adds a line of metrics.jsonl."""
        for name, value in row.items():
            if name != "step":
                self.writer.add_scalar(name, value, row["step"])
        self.writer.flush()


def open_tensorboard(config: Config, folder: Path, step: int) -> TensorBoardWriter | None:
    """Where to write events to, or None if they are not asked for."""
    return TensorBoardWriter(folder, step) if config.tensorboard else None


#: the page, and what is kept of each evaluation, one line each, so that it survives a stop
PAGE, ROWS = REPORT


class HtmlReport:
    """The report of a run, and what earlier evaluations have left for it.

    Args:
        folder: of the run.
        step: where the run stands; rows of later steps are dropped.
        card: names and values to head the page with.
    """

    def __init__(self, folder: Path, step: int, card: Mapping[str, object]) -> None:
        self.folder, self.card, self.rows = folder, card, RunFolder(folder).report
        self.rows.cut(None, step)
        lines = self.rows.rows()
        self.history = [line["row"] for line in lines]
        self.examples = [_stored_traces(line) for line in lines]
        self.start, self.starts = step, [int(line.get("start", 0)) for line in lines]

    def write(self, row: Mapping[str, Any], lr: float, traces: Sequence[Trace]) -> None:
        """Adds an evaluation and writes the page."""
        line = {
            "row": {**row, "lr": lr},
            "start": self.start,
            "traces": [to_json(trace) for trace in traces],
        }
        self.rows.append(line)
        self.history.append({**row, "lr": lr})
        self.starts.append(self.start)
        self.examples.append((int(row["step"]), list(traces)))
        title, starts = self.folder.resolve().name, sorted({*self.starts} - {0})
        page = render_report(self.history, self.examples, self.card, title, starts)
        # the name of a file need not be text
        write_atomic(self.folder / PAGE, page.encode(errors="backslashreplace"))


def open_report(
    config: Config, folder: Path, step: int, card: Mapping[str, object]
) -> HtmlReport | None:
    """The report of a run, or None if none is wanted."""
    return HtmlReport(folder, step, card) if config.report else None


def _stored_traces(line: Mapping[str, Any]) -> tuple[int, list[Trace]]:
    try:
        return int(line["row"]["step"]), [from_json(content) for content in line["traces"]]
    except (TraceError, KeyError):
        return int(line["row"]["step"]), []


COUNT: Final = 4
#: tokens of a side, so that a map can be read
LONGEST: Final = 40


def chosen(task: Task) -> list[int]:
    """Sources of the dev set: the first that fit a picture; if too few do, the shortest."""
    corpus, rows = task.dev.corpus, task.dev.rows[: task.config.eval_pairs]
    size = np.maximum(corpus.src_lengths[rows], corpus.tgt_lengths[rows])
    fitting = np.flatnonzero((size <= LONGEST) & (size >= 3))[:COUNT]
    places = fitting if len(fitting) == COUNT else np.argsort(size, kind="stable")[:COUNT]
    return [int(place) for place in places]


def look(task: Task, outputs: Sequence[str]) -> list[Trace]:
    """Where the model looks while it writes the references; its own outputs are the notes.

    Nothing random is drawn, since the model is run without dropout.
    """
    places, corpus = chosen(task), task.dev.corpus
    rows = task.dev.rows[places]
    batch = collate(corpus, rows).to(task.fabric.device)
    targets = [corpus.tgt(row).tolist() for row in rows]
    with torch.no_grad(), task.fabric.autocast():
        found = force_decode(task.module, batch.src, batch.src_lengths, targets, kinds=KINDS)
    traces = []
    for place, row, hypothesis in zip(places, rows, found, strict=True):
        source = _source(task, int(row), task.dev.sources[place])
        ids = [*hypothesis.tokens, EOS]
        target = _text(task.tgt_tokenizer, ids, task.dev.references[place][0])
        note = outputs[place] if outputs else _perplexity(hypothesis)
        traces.append(_trace(source, target, hypothesis, note))
    return traces


def _source(task: Task, row: int, text: str) -> Text:
    side, corpus = task.src_tokenizer, task.dev.corpus
    if isinstance(side, FrameScaler):
        return Text(text, tuple(map(Token, side.labels(int(corpus.src_lengths[row])))))
    return _text(side, corpus.src(row).tolist(), text)


def _text(tokenizer: Tokenizer, ids: list[int], text: str) -> Text:
    labels = tokenizer.tokens(ids)
    tokens = [Token(label, word=i, special=ids[i] == EOS) for i, label in enumerate(labels)]
    return Text(text, tuple(tokens))


def _perplexity(hypothesis: Hypothesis) -> str:
    """What to say below the map of a text, where there is no output to show."""
    terms = hypothesis.token_log_probs
    return f"perplexity {math.exp(min(-sum(terms) / len(terms), LARGEST)):.1f}"


def _trace(source: Text, target: Text, hypothesis: Hypothesis, output: str) -> Trace:
    try:
        return Trace(source, target, _maps(hypothesis), notes=(output,))
    except TraceError:  # a run that diverges has no weights to draw, and still has a report
        return Trace(source, target, notes=(output,))


def _maps(hypothesis: Hypothesis) -> tuple[Map, ...]:
    """The first kind there is, the mean over its layers and heads."""
    kind = next((kind for kind in SIDES if hypothesis.attention.get(kind)), None)
    if kind is None:
        return ()
    layers = [weights.float().mean(dim=0) for weights in hypothesis.attention[kind]]
    mean = torch.stack(layers).mean(dim=0, keepdim=True).numpy()
    return (Map.of(kind, 0, mean, missing=True),)  # type: ignore[arg-type]


def facts(task: Task) -> dict[str, object]:
    """What is known of a run from its start, by name."""
    config = task.config
    return {
        "model": f"{config.preset}, {config.size}, "
        f"{sum(p.numel() for p in task.module.parameters()):,} weights",
        "data": f"{_data(task)}: {_sizes(task)}",
        **_tokens(task),
        "decides": f"dev {task.metric.name}",
    }


def _data(task: Task) -> str:
    return task.config.data or f"{task.config.examples} given in Python"


def _sizes(task: Task) -> str:
    what = task.config.examples
    return f"{len(task.corpus):,} training {what}, {len(task.dev.corpus):,} dev {what}"


def _tokens(task: Task) -> dict[str, str]:
    """How each side is cut; texts have one side."""
    sides: dict[str, SourceEncoder] = {"target tokens": task.tgt_tokenizer}
    source = "source" if isinstance(task.src_tokenizer, FrameScaler) else "source tokens"
    sides = {source: task.src_tokenizer, **sides}
    if task.config.reads_texts:
        sides = {"tokens": task.tgt_tokenizer}
    rows = {name: side.summary for name, side in sides.items()}
    written = "vectors" if task.config.reads_texts else "target vectors"
    files = {"source vectors": task.config.src_vectors, written: task.config.tgt_vectors}
    return rows | {name: f"start from {file}" for name, file in files.items() if file}


def write_card(task: Task, progress: Progress, averaged: Averaged | None = None) -> None:
    """Writes README.md: what the model is, how well it does, how to use it and to make it again."""
    config = task.config
    best, step = progress.best[0]
    weights = sum(p.numel() for p in task.module.parameters())
    changed = config.model_dump(exclude_defaults=True)
    changed.pop("data", None)
    examples = _dev_examples(task)
    tokens = "\n".join(f"| {name} | {value} |" for name, value in _tokens(task).items())
    given, test = _files(task)
    run = shlex.quote(str(task.folder.path))
    text = f"""# {task.folder.path.name}

A regard model: preset `{config.preset}`, size `{config.size}`, {weights:,} weights.

| | |
|---|---|
| data | `{_data(task)}`: {_sizes(task)} |
{tokens}
| best dev {_judged(task)} | {best:.4f} at step {step} |{_average(task, averaged)}
| training | {progress.step} steps, {progress.epoch} epochs, {progress.seconds / 60:.1f} minutes |
| made with | regard {__version__}, torch {torch.__version__} |

## Use it

```
regard predict {run} {given}
regard evaluate {run} {test}
```

{examples}
## Settings that are not defaults, or that followed from the data

```json
{json.dumps(changed, indent=2)}
```

The model has seen the data above and {_else(task)}, and repeats what is wrong in it. Its attention
says where it looked, not why it answered.
"""
    # the name of a file need not be text
    write_atomic(task.folder.card_file, text.encode(errors="backslashreplace"))


def _judged(task: Task) -> str:
    """The metric, and how outputs were found where there are any."""
    name = task.metric.name
    return name if name in ("loss", "perplexity") else f"{name}, greedy"


def _average(task: Task, averaged: Averaged | None) -> str:
    """A row that says so, where the model is none of those that were evaluated on the way."""
    if averaged is None:
        return ""
    several, score = averaged
    return f"\n| dev {_judged(task)}, of the average of the {several} best, taken | {score:.4f} |"


def _files(task: Task) -> tuple[str, str]:
    """Names for what a user would predict from, and judge the model by."""
    if isinstance(task.src_tokenizer, FrameScaler):
        return "input.npy", "test.jsonl"
    return "input.txt", "test.txt" if task.config.reads_texts else "test.tsv"


def _else(task: Task) -> str:
    started = task.config.src_vectors or task.config.tgt_vectors
    return "what its word vectors were learned from" if started else "nothing else"


def _dev_examples(task: Task) -> str:
    if task.config.reads_texts:
        texts = "\n".join(several[0] for several in task.dev.references[:3])
        return "Texts of its dev set look like this:\n\n" + textwrap.indent(texts, "    ") + "\n"
    pairs = zip(task.dev.sources[:3], task.dev.references[:3], strict=True)
    lines = [f"    {src} -> {references[0]}" for src, references in pairs]
    return "Pairs of its dev set look like this:\n\n" + "\n".join(lines) + "\n"
