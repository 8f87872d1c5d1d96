"""The parts that all tasks share: their interface, scoring of predictions, and public files."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from regard.api import Model, Output
from regard.api.bundled_models import HOME
from regard.data import read_lines
from regard.errors import ArgumentError, DataError
from regard.extras import MissingExtraError
from regard.recipes.paper_metrics import Answers, MetricValue, PaperMetric
from regard.recipes.task_data import RecipeExample, TaskData

#: examples that are predicted at a time
BATCH: Final = 256
#: bundled public datasets: each file by its name in a data folder
BUNDLED: Final = {
    "cmudict_g014b2b/train.tsv": HOME / "cmudict" / "train.tsv.gz",
    "cmudict_g014b2b/test.multiref.tsv": HOME / "cmudict" / "test.tsv.gz",
}
SETS: Final = ("train", "dev", "test")
Item = TypeVar("Item")


class TaskScores(NamedTuple):
    """Metrics of a model on one set, and its predictions, if it makes any."""

    metrics: list[MetricValue]
    predictions: list[str]


#: (model, examples, decoding options) -> scores
Evaluate = Callable[[Model, Sequence[RecipeExample], Mapping[str, Any]], TaskScores]


class RecipeTask(NamedTuple):
    """A public dataset and its evaluation.

    Attributes:
        prepare: reads a folder of public datasets; its options are those of the recipe.
        evaluate: returns a model's scores, with the deciding metric first.
    """

    prepare: Callable[..., TaskData]
    evaluate: Evaluate


def predict(
    model: Model, examples: Sequence[RecipeExample], **options: Any
) -> tuple[list[Output], Answers]:
    """Return a model's outputs of examples, and the same as what metrics compare."""
    inputs = [example.model_input for example in examples]
    outputs = list(model.predict(inputs, batch=BATCH, **options))
    return outputs, Answers(examples, [output.text for output in outputs], model.tgt_tokenizer)


def evaluate_by(*metrics: PaperMetric) -> Evaluate:
    """Return an evaluation of a model's predictions by some metrics.

    A metric whose package is missing is left out, with a note on stderr: the others are known.
    """

    def evaluate(
        model: Model, examples: Sequence[RecipeExample], decoding: Mapping[str, Any]
    ) -> TaskScores:
        _, answers = predict(model, examples, attention=False, **decoding)
        scores: list[MetricValue] = []
        for metric in metrics:
            try:
                scores.append(metric(answers))
            except MissingExtraError as error:
                print(f"regard: one metric is left out: {error}", file=sys.stderr)
        return TaskScores(scores, list(answers.texts))

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


def damaged(path: Path, line: int | None, reason: str) -> DataError:
    """Return the error of a public file that is not as it was published."""
    return DataError(str(path), line, reason, "copy the file again from its source")


def rows(path: Path, columns: int | Sequence[str]) -> Iterator[list[str]]:
    """Yield the cells of a tab-separated file; raises unless the first columns are filled.

    Args:
        path: the file.
        columns: how many; or their names, which the first line must have and which is left out.
    """
    count = columns if isinstance(columns, int) else len(columns)
    for number, line in enumerate(read_lines(path), start=1):
        cells = line.split("\t")
        if number == 1 and not isinstance(columns, int):
            if cells != list(columns):
                raise damaged(path, 1, f"the columns must be {', '.join(columns)}")
            continue
        filled = sum(bool(cell.strip()) for cell in cells[:count])
        if filled < count:
            reason = f"the line must have {count} filled columns, but it has {filled}"
            raise damaged(path, number, reason)
        yield cells


def read_sets(
    folder: Path,
    dataset: str,
    columns: int | Sequence[str],
    example: Callable[..., Item],
    *,
    files: Mapping[str, str] | str = "{}.tsv",
) -> dict[str, list[Item]]:
    """Return what `example` makes of the cells of each line, by set.

    `columns` are as for `rows`; `files` has the file of each set, or is the pattern of their names.
    """
    names = {name: files.format(name) for name in SETS} if isinstance(files, str) else files
    return {
        name: [example(*cells) for cells in rows(find_file(folder, dataset, file), columns)]
        for name, file in names.items()
    }


def task_data(
    sets: Mapping[str, Sequence[RecipeExample]], settings: Mapping[str, Any], **more: Any
) -> TaskData:
    """Return prepared data from examples by set, of which `train` is for training."""
    evaluation = {name: examples for name, examples in sets.items() if name != "train"}
    return TaskData(sets["train"], evaluation, settings, **more)
