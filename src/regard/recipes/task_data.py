"""Data that a task prepares for a run, and its files in a run folder."""

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
from regard.tasks.inputs.text import with_features

DEV = "dev"


@dataclass(frozen=True)
class RecipeExample:
    """A source with its accepted targets.

    Attributes:
        src: the source; empty for a language model.
        references: the accepted targets, one or more.
        features: symbols that are appended to the source.
        group: group that it is scored with, such as its language; empty if there are none.
        is_file: whether the source is a file of the prepared data, which `src` names.
        note: what its scoring needs beside the references, such as supporting sentences.
    """

    src: str
    references: tuple[str, ...]
    features: tuple[str, ...] = ()
    group: str = ""
    is_file: bool = False
    note: str = ""

    @property
    def model_input(self) -> str:
        """The source as a model reads it: features follow after a tab."""
        return with_features(self.src, self.features)

    @property
    def lines(self) -> list[str]:
        """The example as lines of training data, one for each reference."""
        if not self.src:
            return list(self.references)
        end = [";".join(self.features)] if self.features else []
        return ["\t".join([self.src, reference, *end]) for reference in self.references]


@dataclass(frozen=True)
class TaskData:
    """A dataset that is ready for training and evaluation.

    Attributes:
        train: training examples.
        evaluation: sets to score: `dev`, others that settings are chosen by, whose names begin with
            it, and one or more whose names begin with `test`.
        settings: settings of `regard train` that the data determine, such as tokenizers.
        unlabelled: examples without references; a teacher's predictions become their targets.
        files: contents of the files that sources name, by their names.
        table: name of the file that training and dev examples are cut from, such as series.csv, if
            there is one: its lines are the references of `train`.
    """

    train: Sequence[RecipeExample]
    evaluation: Mapping[str, Sequence[RecipeExample]]
    settings: Mapping[str, Any] = field(default_factory=dict)
    unlabelled: Sequence[RecipeExample] = ()
    files: Mapping[str, bytes] = field(default_factory=dict)
    table: str = ""


def write(prepared: TaskData, folder: Path) -> dict[str, Any]:
    """Write a dataset to a folder and return the settings by which `regard train` finds it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in prepared.files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        # of many small files; the table that names them is written last
        (folder / name).write_bytes(content)
    train, dev = folder / (prepared.table or "train.tsv"), folder / "dev.tsv"
    _write_lines(train, (line for example in prepared.train for line in example.lines))
    for name, examples in prepared.evaluation.items():
        write_evaluation(folder, name, examples)
    if prepared.table:
        return {**prepared.settings, "data": str(train)}
    # training evaluates on the first examples alone, which must not be those of one language
    mixed = sorted(prepared.evaluation[DEV], key=lambda example: hash_order(example.model_input))
    _write_lines(dev, (line for example in mixed for line in example.lines))
    return {**prepared.settings, "data": str(train), "dev": str(dev)}


def write_evaluation(folder: Path, name: str, examples: Iterable[RecipeExample]) -> None:
    """Write an evaluation set, where `read_evaluation` finds it."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = (json.dumps(asdict(example), ensure_ascii=False) for example in examples)
    _write_lines(folder / f"{name}.jsonl", rows)


def read_evaluation(folder: Path) -> dict[str, list[RecipeExample]]:
    """Return all evaluation sets of a folder, dev first."""
    paths = sorted(folder.glob("*.jsonl"), key=lambda path: (path.stem != DEV, path.stem))
    if not paths:
        raise DataError(
            str(folder),
            None,
            "it must contain the prepared data of a recipe, but it does not",
            "run the recipe again with another -o",
        )
    return {path.stem: [_example(path, *row) for row in numbered_lines(path)] for path in paths}


def hash_order(text: str) -> bytes:
    """Return a sort key that shuffles texts in the same way in every file."""
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def _example(path: Path, number: int, line: bytes) -> RecipeExample:
    try:
        record = safe_read.parse_json(line)
        is_file = record.get("is_file", False)  # which older folders do not have
        return RecipeExample(
            str(path.parent / record["src"]) if is_file else record["src"],
            tuple(record["references"]),
            tuple(record["features"]),
            record["group"],
            is_file,
            record.get("note", ""),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            str(path), number, f"this is not an example ({error})", "run the recipe again"
        ) from None


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    with atomic_output(path) as file:
        for line in lines:
            file.write(f"{line}\n".encode())
