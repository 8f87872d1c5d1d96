"""Questions about texts.

- `babi`: questions about short generated stories, of 20 kinds, Weston et al. (2015),
  https://arxiv.org/abs/1502.05698. One model learns all kinds together. Beside the right answers,
  it counts whether attention is on the sentences that the answer follows from.
- `squad`: a part of SQuAD 1.1, whose answers are spans of a passage, Rajpurkar et al. (2016),
  https://aclanthology.org/D16-1264. The split is by article.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import log
from pathlib import Path
from statistics import fmean
from typing import Any, Final, Literal

import numpy as np

from regard.api import Model, Output
from regard.data import read_lines
from regard.data.stories import QUESTION_MARK, SENTENCE_MARK, split_sentences
from regard.evaluation.metrics import normalize_answer
from regard.recipes.paper_metrics import Answers, MetricValue, exact, mean_over_groups, metric
from regard.recipes.task_data import RecipeExample, TaskData, hash_order
from regard.recipes.tasks.base import (
    SETS,
    RecipeTask,
    TaskScores,
    damaged,
    evaluate_by,
    find_file,
    predict,
    read_sets,
    task_data,
)

FILES: Final = {"1k": "train_1k.tsv", "10k": "train_10k_without_task3.tsv"}
COLUMNS: Final = ("task", "story_id", "story", "question", "answer", "support")
#: the task that the public file of 10,000 questions each lacks
MISSING: Final = "3"
#: tasks whose supporting sentences are compared with attention: one, two and three facts
SUPPORTED: Final = ("1", "2", "3")
STORIES: Final = {"columns": ["0+1", "2"], "max_src_len": 512, "max_chars": 20_000}


def prepare_babi(
    folder: Path, *, questions: Literal["1k", "10k"] = "1k", dev_share: float = 0.1
) -> TaskData:
    """Read the stories of all tasks.

    Args:
        folder: the public datasets.
        questions: training questions of each task. Of task 3 there are never more than 1,000; with
            more of the others, its test questions are a set of their own.
        dev_share: share of the training stories that are held out.
    """
    held_out = dev_share * 2**64

    def example(
        task: str, story_id: str, story: str, question: str, answer: str, support: str
    ) -> tuple[RecipeExample, bool]:
        """Return a question, and whether its story, of which several are asked, is held out."""
        source = f"{story}{QUESTION_MARK}{question}"
        place = int.from_bytes(hash_order(f"{task}/{story_id}"), "big")
        return RecipeExample(source, (answer,), group=task, note=support), place < held_out

    files = {"1k": FILES["1k"], questions: FILES[questions], "test": "test.tsv"}
    read = read_sets(folder, "babi", COLUMNS, example, files=files)
    both, test = read[questions], [found for found, _ in read["test"]]
    sets = {"train": [], "dev": [found for found, held in both if held], "test": test}
    if questions == "10k":
        both += [row for row in read["1k"] if row[0].group == MISSING]
        sets["dev"] = [found for found, held in both if held and found.group != MISSING]
        sets["test"] = [found for found in test if found.group != MISSING]
        sets[f"test-task-{MISSING}"] = [found for found in test if found.group == MISSING]
    sets["train"] = [found for found, held in both if not held]
    words = {"src_tokenizer": "word", "src_case": "lower", "metric": "accuracy"}
    return task_data(sets, STORIES | words)


def evaluate_babi(
    model: Model, examples: Sequence[RecipeExample], decoding: Mapping[str, Any]
) -> TaskScores:
    """Return the mean accuracy over tasks, and the share of attention on supporting sentences."""
    found, answers = predict(model, examples, kinds=["hops"], **decoding)
    metrics = [mean_over_groups(exact)(answers), *support_shares(examples, found)]
    return TaskScores(metrics, list(answers.texts))


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
            last = len(split_sentences(example.src.partition(QUESTION_MARK)[0]))
            supporting = {n for n in map(int, example.note.split(",")) if n <= last}
            most = int(over_hops(weights, axis=0).argmax()) + 1
            hits.setdefault(example.group, []).append(most in supporting)
        if hits:
            groups = {task: 100 * fmean(right) for task, right in sorted(hits.items())}
            signature = f"{name}|argmax-over-sentences|mean-of:{len(groups)} tasks"
            yield MetricValue(name, fmean(groups.values()), signature, groups=groups)


def prepare_squad(folder: Path) -> TaskData:
    """Read passages, questions and answers."""
    sets = {
        name: list(_passages(find_file(folder, "squad11_part", f"{name}.jsonl"))) for name in SETS
    }
    return task_data(sets, STORIES | {"metric": "f1", "skip_bad": True})


def _passages(path: Path) -> Iterator[RecipeExample]:
    for number, line in enumerate(read_lines(path, max_chars=10**6), start=1):
        try:
            record = json.loads(line)
            context = " ".join(record["context"].replace(SENTENCE_MARK, " ").split())
            for asked in record["qas"]:
                question = " ".join(asked["q"].split())
                answers = tuple(dict.fromkeys(" ".join(text.split()) for text, _ in asked["a"]))
                if question and answers:
                    yield RecipeExample(f"{context}{QUESTION_MARK}{question}", answers)
        except (ValueError, KeyError, TypeError) as error:
            reason = f"the line must be a passage with questions, but it is not ({error})"
            raise damaged(path, number, reason) from None


def overlap_answers(examples: Sequence[RecipeExample]) -> list[str]:
    """Return the answers of a baseline: the sentence with the most words of the question.

    Rare words count more, by the logarithm of the share of passages that have them. Words of the
    question are left out of the answer. Of several baselines by overlap (a sliding window over
    spans as in SQuAD's paper, whole sentences), this one has the best F1.
    """
    passages = {example.src.partition(QUESTION_MARK)[0] for example in examples}
    seen = Counter(w for passage in passages for w in set(normalize_answer(passage).split()))
    rarity = {word: log((1 + len(passages)) / (1 + count)) for word, count in seen.items()}
    return [_best_sentence(example.src, rarity) for example in examples]


def _best_sentence(source: str, rarity: Mapping[str, float]) -> str:
    passage, _, question = source.partition(QUESTION_MARK)
    asked = set(normalize_answer(question).split())

    def overlap(sentence: str) -> float:
        return sum(rarity[word] for word in set(normalize_answer(sentence).split()) & asked)

    best = max(split_sentences(passage), key=overlap)
    return " ".join(word for word in best.split() if normalize_answer(word) not in asked)


def by_overlap(answers: Answers) -> MetricValue:
    """Return F1 of the baseline by overlap."""
    found = metric("f1", plain=True)(answers._replace(texts=overlap_answers(answers.examples)))
    return replace(found, name="f1-overlap", signature=f"{found.signature}|baseline:overlap")


BABI: Final = RecipeTask(prepare_babi, evaluate_babi)
SQUAD: Final = RecipeTask(
    prepare_squad, evaluate_by(metric("f1", plain=True), metric("em", plain=True), by_overlap)
)
