"""Shell completion of run folders, bundled models, presets and experiments.

A shell waits for the answer at each Tab, so nothing heavy is imported: names that are defined by
heavy modules are listed here too, and a test compares both.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

BUNDLED: Final = Path(__file__).parents[1] / "bundled"
#: files by which a run folder is known
RUN_FILES: Final = ("config.json", "tokenizer.src.json")
#: folders below that of the typed path that are searched for runs, and how many at most
DEPTH: Final = 3
MOST_FOLDERS: Final = 2000

PRESETS: Final = (
    *("rnn", "seq2seq", "bahdanau", "pointer", "memory", "luong", "rnn-dot", "gnmt"),
    *("self-attentive", "monotonic", "transformer", "conv", "location"),
    *("lm-rnn", "lm-self-attentive", "lm-transformer"),
    *("classifier-rnn", "classifier-self-attentive", "classifier-transformer"),
    *("show-attend-tell", "memory-network", "story-transformer", "span"),
)
EXPERIMENTS: Final = (
    *("cost", "path", "scale", "bottleneck", "recall", "order", "heads"),
    *("word-by-word", "reading", "vision", "worked-example"),
)


def complete_run(incomplete: str) -> list[str]:
    """Return the bundled models and the run folders whose names begin with what is typed.

    If there are none, the shell completes files.
    """
    found = [*complete_bundled(incomplete), *_runs_below(os.path.dirname(incomplete))]
    return [name for name in dict.fromkeys(found) if name.startswith(incomplete)]


def complete_bundled(incomplete: str) -> list[str]:
    """Return the bundled models whose names begin with what is typed."""
    bundled = sorted(folder.name for folder in BUNDLED.glob("*") if _is_run(folder))
    return _beginning(bundled, incomplete)


def complete_preset(incomplete: str) -> list[str]:
    """Return the presets whose names begin with what is typed."""
    return _beginning(PRESETS, incomplete)


def complete_experiment(incomplete: str) -> list[str]:
    """Return the experiments of the lab whose names begin with what is typed."""
    return _beginning(EXPERIMENTS, incomplete)


def _beginning(names: Sequence[str], start: str) -> list[str]:
    return [name for name in names if name.startswith(start)]


def _is_run(folder: Path) -> bool:
    return all((folder / name).is_file() for name in RUN_FILES)


def _runs_below(parent: str) -> Iterator[str]:
    """Yield the run folders in a folder and a few levels below it, each as it would be typed."""
    queue = [(parent, 0)]
    for opened, (path, depth) in enumerate(queue):
        if opened == MOST_FOLDERS:
            return
        for name in folders_in(path or "."):
            inner = os.path.join(path, name)
            if _is_run(Path(inner)):
                yield inner
            elif depth < DEPTH:
                queue.append((inner, depth + 1))


def folders_in(path: str | Path, *, links: bool = True) -> list[str]:
    """Return the names of the folders in a folder, sorted, hidden ones left out."""
    try:
        with os.scandir(path) as entries:
            names = [e.name for e in entries if e.is_dir(follow_symlinks=links)]
    except OSError:  # it does not exist yet, or is not ours to read
        return []
    return sorted(name for name in names if not name.startswith("."))
