"""Titles of papers from their abstracts: the ACL Anthology, 2020 to 2024."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from regard.errors import DataError
from regard.evaluation import Normalizer, score
from regard.evaluation.summaries import ROUGE, copied_share
from regard.recipes.paper_metrics import MetricValue, PaperMetric
from regard.recipes.task_data import RecipeExample, TaskData
from regard.recipes.tasks.base import RecipeTask, evaluate_by, find_file, rows

FOLDER: Final = "acl_titles"
SETS: Final = ("train", "dev", "test")
COLUMNS: Final = ("anthology_id", "authors", "abstract", "title")
#: words of the baseline
FIRST_WORDS: Final = 12
SETTINGS: Final = {"metric": "rouge-l", "max_src_len": 400, "max_tgt_len": 60}


def prepare(folder: Path) -> TaskData:
    """Read abstracts and titles.

    Args:
        folder: the public datasets.
    """
    sets = {name: _read(find_file(folder, FOLDER, f"{name}.tsv")) for name in SETS}
    return TaskData(sets.pop("train"), sets, SETTINGS)


def _read(path: Path) -> list[RecipeExample]:
    lines = rows(path, len(COLUMNS))
    if tuple(next(lines, ())) != COLUMNS:
        reason = f"the columns must be {', '.join(COLUMNS)}"
        raise DataError(str(path), 1, reason, "copy the file again from its source")
    return [RecipeExample(abstract, (title,)) for _, _, abstract, title in lines]


def _rouge(name: str) -> PaperMetric:
    """Return ROUGE, from 0 to 100."""

    def metric(
        examples: Sequence[RecipeExample], predictions: Sequence[str], normalizer: Normalizer
    ) -> MetricValue:
        references = [example.references for example in examples]
        found = score(name, predictions, references)
        return MetricValue(name, 100 * found.value, found.signature, True)

    return metric


def copied(
    examples: Sequence[RecipeExample], predictions: Sequence[str], normalizer: Normalizer
) -> MetricValue:
    """Return the share of the words of titles that stand in their abstracts."""
    sources = [example.src for example in examples]
    own = copied_share([example.references[0] for example in examples], sources)
    signature = f"copied|words|references:{100 * own:.1f}"
    return MetricValue("copied", 100 * copied_share(predictions, sources), signature, True)


def _of_first_words(name: str) -> PaperMetric:
    """Return ROUGE of a baseline without a model: the first words of the abstract."""

    def metric(
        examples: Sequence[RecipeExample], predictions: Sequence[str], normalizer: Normalizer
    ) -> MetricValue:
        first = [" ".join(example.src.split()[:FIRST_WORDS]) for example in examples]
        found = _rouge(name)(examples, first, normalizer)
        signature = f"{found.signature}|baseline:first-{FIRST_WORDS}-words"
        return replace(found, name=f"{name}-first-words", signature=signature)

    return metric


METRICS: Final = (*map(_rouge, ROUGE), copied, *map(_of_first_words, ROUGE))
TASK: Final = RecipeTask(prepare, evaluate_by(*METRICS))
