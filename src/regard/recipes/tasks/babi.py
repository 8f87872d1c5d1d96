"""The bAbI tasks: questions about short generated stories, of 20 kinds.

Weston et al. (2015), https://arxiv.org/abs/1502.05698. One model learns all tasks together. Beside
the right answers, it counts whether attention is on the sentences that the answer follows from.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Final, Literal

import numpy as np

from regard.api import Model, Output
from regard.data.stories import QUESTION_MARK, split_sentences
from regard.errors import DataError
from regard.recipes.paper_metrics import MetricValue, exact, mean_over_groups
from regard.recipes.task_data import RecipeExample, TaskData, hash_order
from regard.recipes.tasks.base import BATCH, RecipeTask, TaskScores, find_file, rows

FOLDER: Final = "babi"
FILES: Final = {"1k": "train_1k.tsv", "10k": "train_10k_without_task3.tsv"}
COLUMNS: Final = ("task", "story_id", "story", "question", "answer", "support")
#: the task that the public file of 10,000 questions each lacks
MISSING: Final = "3"
#: tasks whose supporting sentences are compared with attention: one, two and three facts
SUPPORTED: Final = ("1", "2", "3")
SETTINGS: Final = {
    "columns": ["0+1", "2"],
    "src_tokenizer": "word",
    "src_case": "lower",
    "metric": "accuracy",
    "max_src_len": 512,
    "max_chars": 20_000,
}


def prepare(
    folder: Path, *, questions: Literal["1k", "10k"] = "1k", dev_share: float = 0.1
) -> TaskData:
    """Read the stories of all tasks.

    Args:
        folder: the public datasets.
        questions: training questions of each task. Of task 3 there are never more than 1,000; with
            more of the others, its test questions are a set of their own.
        dev_share: share of the training stories that are held out.
    """
    read = list(_read(find_file(folder, FOLDER, FILES[questions])))
    if questions == "10k":
        fewer = _read(find_file(folder, FOLDER, FILES["1k"]))
        read += [example for example in fewer if example[0].group == MISSING]
    train: list[RecipeExample] = []
    dev: list[RecipeExample] = []
    for example, story in read:
        (dev if _is_held_out(story, dev_share) else train).append(example)
    test = [example for example, _ in _read(find_file(folder, FOLDER, "test.tsv"))]
    if questions == "1k":
        return TaskData(train, {"dev": dev, "test": test}, SETTINGS)
    sets = {
        "dev": [example for example in dev if example.group != MISSING],
        "test": [example for example in test if example.group != MISSING],
        f"test-task-{MISSING}": [example for example in test if example.group == MISSING],
    }
    return TaskData(train, sets, SETTINGS)


def _is_held_out(story: str, share: float) -> bool:
    return int.from_bytes(hash_order(story), "big") < share * 2**64


def _read(path: Path) -> Iterator[tuple[RecipeExample, str]]:
    """Yield each question, with the name of its story, of which several are asked."""
    lines = rows(path, len(COLUMNS))
    if tuple(next(lines, ())) != COLUMNS:
        raise DataError(
            str(path),
            1,
            f"the columns must be {', '.join(COLUMNS)}",
            "copy the file again from its source",
        )
    for task, story_id, story, question, answer, support in lines:
        source = f"{story}{QUESTION_MARK}{question}"
        yield RecipeExample(source, (answer,), group=task, note=support), f"{task}/{story_id}"


def evaluate(
    model: Model, examples: Sequence[RecipeExample], decoding: Mapping[str, Any]
) -> TaskScores:
    """Return the mean accuracy over tasks, and the share of attention on supporting sentences."""
    inputs = [example.model_input for example in examples]
    found = list(model.predict(inputs, kinds=["hops"], batch=BATCH, **decoding))
    texts = [output.text for output in found]
    accuracy = mean_over_groups(exact)(examples, texts, model.tgt_tokenizer)
    return TaskScores([accuracy, *support_shares(examples, found)], texts)


def support_shares(
    examples: Sequence[RecipeExample], outputs: Sequence[Output]
) -> Iterator[MetricValue]:
    """Yield the share of questions whose most attended sentence is a supporting one.

    All questions count, whether the answer is right or not. The most attended sentence is the one
    with the largest weight, once of the mean over all hops and once of any hop.
    """
    ways: dict[str, Callable[..., Any]] = {"support": np.mean, "support-any-hop": np.max}
    for name, over_hops in ways.items():
        hits: dict[str, list[bool]] = {}
        for example, output in zip(examples, outputs, strict=True):
            if example.group not in SUPPORTED or "hops" not in output.maps:
                continue
            weights = output.maps["hops"][0][0].float().numpy()
            hits.setdefault(example.group, []).append(
                int(over_hops(weights, axis=0).argmax()) + 1 in supporting(example)
            )
        if hits:
            groups = {task: 100 * fmean(right) for task, right in sorted(hits.items())}
            signature = f"{name}|argmax-over-sentences|mean-of:{len(groups)} tasks"
            yield MetricValue(name, fmean(groups.values()), signature, True, groups)


def supporting(example: RecipeExample) -> set[int]:
    """Return the numbers of the supporting sentences, from 1."""
    story = example.src.partition(QUESTION_MARK)[0]
    last = len(split_sentences(story))
    return {number for number in map(int, example.note.split(",")) if number <= last}


TASK: Final = RecipeTask(prepare, evaluate)
