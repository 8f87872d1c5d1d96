"""What a task makes of its files, and how it is kept in a run folder."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from regard import safe_read
from regard.atomic_files import atomic_output
from regard.data.text_files import numbered_lines
from regard.errors import DataError
from regard.kinds.text_source import with_features

DEV = "dev"


@dataclass(frozen=True)
class Example:
    """One thing to answer.

    Attributes:
        src: the source; empty where a model writes text from nothing.
        references: the accepted answers, one or more.
        features: symbols that join the source.
        group: what it is counted with, like its language; empty where all count together.
    """

    src: str
    references: tuple[str, ...]
    features: tuple[str, ...] = ()
    group: str = ""

    @property
    def question(self) -> str:
        """The source as a model is asked it: features follow after a tab."""
        return with_features(self.src, self.features)

    @property
    def lines(self) -> list[str]:
        """The example as lines of training data, one for each reference."""
        if not self.src:
            return list(self.references)
        end = [";".join(self.features)] if self.features else []
        return ["\t".join([self.src, reference, *end]) for reference in self.references]


@dataclass(frozen=True)
class Prepared:
    """A data set, ready to be trained and judged on.

    Attributes:
        train: what the model learns from.
        judged: what it is judged by: `dev`, and one or more sets that begin with `test`.
        settings: those of `regard train` that the data decides, like its tokenisers.
        unanswered: what has no references: a teacher's answers make training data of it.
    """

    train: Sequence[Example]
    judged: Mapping[str, Sequence[Example]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    unanswered: Sequence[Example] = ()


def write(prepared: Prepared, folder: Path) -> dict[str, Any]:
    """Keeps a data set in a folder; the settings by which `regard train` finds it there."""
    folder.mkdir(parents=True, exist_ok=True)
    train, dev = folder / "train.tsv", folder / "dev.tsv"
    _write_lines(train, (line for example in prepared.train for line in example.lines))
    # training looks at the first of them alone, which must not be those of one language
    mixed = sorted(prepared.judged[DEV], key=_place)
    _write_lines(dev, (line for example in mixed for line in example.lines))
    for name, examples in prepared.judged.items():
        keep(folder, name, examples)
    return {**prepared.settings, "data": str(train), "dev": str(dev)}


def keep(folder: Path, name: str, examples: Iterable[Example]) -> None:
    """Keeps what a model is judged by."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = (json.dumps(asdict(example), ensure_ascii=False) for example in examples)
    _write_lines(folder / f"{name}.jsonl", rows)


def kept(folder: Path) -> dict[str, list[Example]]:
    """All that `keep` has left in a folder, dev first."""
    paths = sorted(folder.glob("*.jsonl"), key=lambda path: (path.stem != DEV, path.stem))
    if not paths:
        raise DataError(
            str(folder),
            None,
            "it must hold what a recipe has prepared, but it does not",
            "run the recipe anew, with another -o",
        )
    return {path.stem: [_example(path, *row) for row in numbered_lines(path)] for path in paths}


def _place(example: Example) -> bytes:
    """A fixed place in a shuffled row. What has no source is text, and keeps its order."""
    return hashlib.blake2b(example.question.encode(), digest_size=8).digest()


def _example(path: Path, number: int, line: bytes) -> Example:
    try:
        record = safe_read.parse_json(line)
        return Example(
            record["src"],
            tuple(record["references"]),
            tuple(record["features"]),
            record["group"],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            str(path), number, f"this is no example ({error})", "run the recipe anew"
        ) from None


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    with atomic_output(path) as file:
        for line in lines:
            file.write(f"{line}\n".encode())
