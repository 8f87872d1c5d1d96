"""The model card that each run folder ends with."""

import json

import torch

from regard.training.progress import Progress
from regard.training.task import Task
from regard.version import __version__


def facts(task: Task) -> dict[str, object]:
    """What is known of a run from its start, by name."""
    config, src, tgt = task.config, task.src_tokenizer, task.tgt_tokenizer
    return {
        "model": f"{config.preset}, {config.size}, "
        f"{sum(p.numel() for p in task.module.parameters()):,} weights",
        "data": f"{config.data or 'pairs given in Python'}: {len(task.corpus):,} training pairs, "
        f"{len(task.dev.corpus):,} dev pairs",
        "source tokens": f"{src.kind}, {src.vocab_size}",
        "target tokens": f"{tgt.kind}, {tgt.vocab_size}",
        "decides": f"dev {task.metric.name}",
    }


def write_card(task: Task, progress: Progress) -> None:
    """Writes README.md: what the model is, how well it does, how to use it and to make it again."""
    config = task.config
    best, step = progress.best[0]
    weights = sum(p.numel() for p in task.module.parameters())
    changed = config.model_dump(exclude_defaults=True)
    data = changed.pop("data", "pairs given in Python")
    examples = _examples(task)
    text = f"""# {task.folder.path.name}

A regard model: preset `{config.preset}`, size `{config.size}`, {weights:,} weights.

| | |
|---|---|
| data | `{data}`: {len(task.corpus):,} training pairs, {len(task.dev.corpus):,} dev pairs |
| source tokens | {task.src_tokenizer.kind}, {task.src_tokenizer.vocab_size} |
| target tokens | {task.tgt_tokenizer.kind}, {task.tgt_tokenizer.vocab_size} |
| best dev {task.metric.name}, greedy | {best:.4f} at step {step} |
| training | {progress.step} steps, {progress.epoch} epochs, {progress.seconds / 60:.1f} minutes |
| made with | regard {__version__}, torch {torch.__version__} |

## Use it

```
regard predict {task.folder.path} input.txt
regard evaluate {task.folder.path} test.tsv
```

{examples}
## Settings that are not defaults

```json
{json.dumps(changed, indent=2)}
```

The model has seen the data above and nothing else, and repeats what is wrong in it. Its attention
says where it looked, not why it answered.
"""
    task.folder.card_file.write_text(text, encoding="utf-8")


def _examples(task: Task) -> str:
    pairs = zip(task.dev.sources[:3], task.dev.references[:3], strict=True)
    lines = [f"    {src} -> {references[0]}" for src, references in pairs]
    return "Pairs of its dev set look like this:\n\n" + "\n".join(lines) + "\n"
