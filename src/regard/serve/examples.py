"""What the live page says before anything is typed: what a model reads, and an example of it."""

import re
from typing import Any, Final

import numpy as np

from regard import api
from regard.data import Corpus, FrameScaler, Tokenizer
from regard.training import RunFolder

#: how a model card shows examples: pairs of the dev set, or else a command
PAIR: Final = re.compile(r"^ {4}(\S.*?) -> .+$", re.MULTILINE)
TEXT: Final = re.compile(r"^Texts of its dev set look like this:\n\n {4}(.+)$", re.MULTILINE)
COMMAND: Final = re.compile(r"^regard show \S+ (\S+)$", re.MULTILINE)
#: the most characters, and frames, of an example
MOST_CHARS: Final = 200
MOST_FRAMES: Final = 64

UNITS: Final = {
    "char": "text, letter by letter",
    "space": "tokens with blanks between them",
    "word": "text, word by word",
}


def reads(model: api.Model) -> str:
    """Return a line on what a model reads, such as "text, letter by letter"."""
    source = model.source
    if isinstance(source, FrameScaler):
        return f"frames of {_count(source.features, 'number')}, one frame on each line"
    said = UNITS.get(source.kind, "text")
    if model.config.reads_texts:
        said += ", which it goes on with"
    return said + _features(source)


def _features(source: Tokenizer) -> str:
    if not source.features:
        return ""
    named = ";".join(source.features[:2])
    return f"; features may follow after a tab, as in <TAB>{named}"


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def example(model: api.Model) -> str | list[list[float]] | None:
    """Return a source of the run's dev set; None if the run folder has kept none."""
    folder = RunFolder(model.path)
    if isinstance(model.source, FrameScaler):
        return _frames(folder, model.source)
    return _text(folder, model)


def _text(folder: RunFolder, model: api.Model) -> str | None:
    try:
        card = folder.card_file.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    patterns = (TEXT,) if model.config.reads_texts else (PAIR, COMMAND)
    found = (match[1] for pattern in patterns for match in pattern.finditer(card))
    return next((text for text in found if len(text) <= MOST_CHARS), None)


def _frames(folder: RunFolder, source: FrameScaler) -> list[list[float]] | None:
    """Return frames as they were before they were brought to scale."""
    file = folder.data / "dev.arrow"
    if not file.exists():
        return None
    try:
        table = Corpus(file).frames(0)[:MOST_FRAMES]
    except (OSError, ValueError, IndexError):
        return None
    numbers: Any = table * np.array(source.scale) + np.array(source.mean)
    return [[float(f"{number:.4g}") for number in row] for row in numbers.tolist()]
