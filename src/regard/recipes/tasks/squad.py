"""Reading comprehension: a part of SQuAD 1.1, whose answers are spans of a passage.

Rajpurkar et al. (2016), https://aclanthology.org/D16-1264. The split is by article.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import log
from pathlib import Path
from typing import Any, Final

from regard.api import Model
from regard.data import read_lines
from regard.data.stories import QUESTION_MARK, SENTENCE_MARK, split_sentences
from regard.errors import DataError
from regard.evaluation import Normalizer, score
from regard.evaluation.answers import normalize_answer
from regard.recipes.paper_metrics import MetricValue, PaperMetric
from regard.recipes.task_data import RecipeExample, TaskData
from regard.recipes.tasks.base import RecipeTask, TaskScores, evaluate_by, find_file

FOLDER: Final = "squad11_part"
SETS: Final = ("train", "dev", "test")
SETTINGS: Final = {
    "columns": ["0+1", "2"],
    "metric": "f1",
    "max_src_len": 512,
    "max_chars": 20_000,
    "skip_bad": True,
}


def prepare(folder: Path) -> TaskData:
    """Read passages, questions and answers.

    Args:
        folder: the public datasets.
    """
    sets = {name: list(_read(find_file(folder, FOLDER, f"{name}.jsonl"))) for name in SETS}
    return TaskData(sets.pop("train"), sets, SETTINGS)


def _read(path: Path) -> Iterator[RecipeExample]:
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
            raise DataError(str(path), number, reason, "copy the file again") from None


def _answers(name: str) -> PaperMetric:
    """Return a metric of SQuAD, in per cent."""

    def metric(
        examples: Sequence[RecipeExample], predictions: Sequence[str], normalizer: Normalizer
    ) -> MetricValue:
        references = [example.references for example in examples]
        found = score(name, predictions, references)
        return MetricValue(name, 100 * found.value, found.signature, True)

    return metric


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


def evaluate(
    model: Model, examples: Sequence[RecipeExample], decoding: Mapping[str, Any]
) -> TaskScores:
    """Return F1 and exact match of the model, and F1 of the baseline by overlap."""
    scores = evaluate_by(_answers("f1"), _answers("em"))(model, examples, decoding)
    plain = _answers("f1")(examples, overlap_answers(examples), model.tgt_tokenizer)
    baseline = replace(plain, name="f1-overlap", signature=f"{plain.signature}|baseline:overlap")
    return TaskScores([*scores.metrics, baseline], scores.predictions)


TASK: Final = RecipeTask(prepare, evaluate)
