"""The model card that each run folder ends with."""

import json
import shlex
import textwrap

import torch

from regard.atomic_files import write_atomic
from regard.data import FrameScaler, SourceEncoder
from regard.training.best import Averaged
from regard.training.progress import Progress
from regard.training.task import Task
from regard.version import __version__


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
    examples = _examples(task)
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


def _examples(task: Task) -> str:
    if task.config.reads_texts:
        texts = "\n".join(several[0] for several in task.dev.references[:3])
        return "Texts of its dev set look like this:\n\n" + textwrap.indent(texts, "    ") + "\n"
    pairs = zip(task.dev.sources[:3], task.dev.references[:3], strict=True)
    lines = [f"    {src} -> {references[0]}" for src, references in pairs]
    return "Pairs of its dev set look like this:\n\n" + "\n".join(lines) + "\n"
