"""The parts that all tasks share: their interface, scoring of predictions, and public files."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

from regard.api import Model
from regard.api.bundled_models import HOME
from regard.data import read_lines
from regard.errors import ArgumentError, DataError
from regard.extras import MissingExtraError
from regard.recipes.paper_metrics import MetricValue, PaperMetric
from regard.recipes.task_data import RecipeExample, TaskData

#: examples that are predicted at a time
BATCH: Final = 256
#: bundled public datasets: each file by its name in a data folder
BUNDLED: Final = {
    "cmudict_g014b2b/train.tsv": HOME / "cmudict" / "train.tsv.gz",
    "cmudict_g014b2b/test.multiref.tsv": HOME / "cmudict" / "test.tsv.gz",
}


class TaskScores(NamedTuple):
    """Metrics of a model on one set, and its predictions, if it makes any."""

    metrics: list[MetricValue]
    predictions: list[str]


#: (model, examples, decoding options) -> scores
Evaluate = Callable[[Model, Sequence[RecipeExample], Mapping[str, Any]], TaskScores]


@dataclass(frozen=True)
class RecipeTask:
    """A public dataset and its evaluation.

    Attributes:
        prepare: reads a folder of public datasets; its options are those of the recipe.
        evaluate: returns a model's scores, with the deciding metric first.
    """

    prepare: Callable[..., TaskData]
    evaluate: Evaluate


def evaluate_by(*metrics: PaperMetric) -> Evaluate:
    """Return an evaluation of a model's predictions by some metrics.

    A metric whose package is missing is left out, with a note on stderr: the others are known.
    """

    def evaluate(
        model: Model, examples: Sequence[RecipeExample], decoding: Mapping[str, Any]
    ) -> TaskScores:
        inputs = [example.model_input for example in examples]
        found = model.predict(inputs, attention=False, batch=BATCH, **decoding)
        texts = [output.text for output in found]
        scores: list[MetricValue] = []
        for metric in metrics:
            try:
                scores.append(metric(examples, texts, model.tgt_tokenizer))
            except MissingExtraError as error:
                print(f"regard: one metric is left out: {error}", file=sys.stderr)
        return TaskScores(scores, texts)

    return evaluate


def find_file(folder: Path, *names: str) -> Path:
    """Return the path of a file of a dataset, plain or compressed.

    Args:
        folder: the data folder, or `HOME` for bundled data.
        names: the dataset and the file.
    """
    name = "/".join(names)
    if folder == HOME:
        if name in BUNDLED:
            return BUNDLED[name]
        raise ArgumentError(
            "--data-dir",
            f"name a folder with {name}, which does not come with regard",
            "missing",
            "give it, or set REGARD_DATA; recipes/README.md says where the files come from",
        )
    path = folder.joinpath(*names)
    for found in (path, path.with_name(f"{path.name}.gz"), path.with_name(f"{path.name}.xz")):
        if found.is_file():
            return found
    raise DataError(
        str(folder),
        None,
        f"the data folder must contain {name}.gz, but it does not",
        "recipes/README.md says where the files come from; name the folder with --data-dir",
    )


def rows(path: Path, columns: int) -> Iterator[list[str]]:
    """Yield the cells of a tab-separated file; raises unless the first `columns` are filled."""
    for number, line in enumerate(read_lines(path), start=1):
        cells = line.split("\t")
        filled = sum(bool(cell.strip()) for cell in cells[:columns])
        if filled < columns:
            raise DataError(
                str(path),
                number,
                f"the line must have {columns} filled columns, but it has {filled}",
                "copy the file again from its source",
            )
        yield cells


def split_train(sets: dict[str, list[RecipeExample]], settings: Mapping[str, Any]) -> TaskData:
    """Return prepared data from examples by set, of which `train` is for training."""
    evaluation = {name: examples for name, examples in sets.items() if name != "train"}
    return TaskData(sets["train"], evaluation, settings)
