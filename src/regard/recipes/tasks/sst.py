"""Sentiment of sentences from film reviews: the Stanford Sentiment Treebank.

Each node of a tree is a phrase with a label from 0, very negative, to 4, very positive. Sentences
are the roots. The prediction of the model is one word.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from regard.api import Model, Output
from regard.data import read_lines
from regard.recipes.paper_metrics import exact
from regard.recipes.task_data import RecipeExample, TaskData
from regard.recipes.tasks.base import (
    RecipeTask,
    TaskScores,
    damaged,
    evaluate_by,
    find_file,
    predict,
)

FOLDER: Final = "sst"
#: the word of each label; two classes leave out neutral phrases
CLASSES: Final = ("negative", "negative", None, "positive", "positive")
DEGREES: Final = ("very-negative", "negative", "neutral", "positive", "very-positive")
#: a beam that finds all words
BEAM: Final = 6
BRACKETS: Final = {"-LRB-": "(", "-RRB-": ")"}
TOKEN: Final = re.compile(r"\(([0-4]) |([^\s()]+)|(\))|\s+")
SETTINGS: Final = {"src_tokenizer": "space", "tgt_tokenizer": "space", "metric": "exact"}


def prepare(folder: Path, *, degrees: bool = False) -> TaskData:
    """Read sentences and their labels, and the phrases inside the training sentences.

    Args:
        folder: the public datasets.
        degrees: train on all five labels, neutral ones included, though two classes are scored.
            The probability of a class is then the sum of those of its degrees.
    """
    train = _read(folder, "train", DEGREES if degrees else CLASSES, inner=True)
    scored = {name: _read(folder, name, CLASSES, inner=False) for name in ("dev", "test")}
    if degrees:  # both degrees of a class are right
        scored = {
            name: [RecipeExample(e.src, (*e.references, f"very-{e.references[0]}")) for e in found]
            for name, found in scored.items()
        }
    apart = {example.src for examples in scored.values() for example in examples}
    once = dict.fromkeys(example for example in train if example.src not in apart)
    return TaskData(list(once), scored, SETTINGS)


def _read(
    folder: Path, name: str, answers: Sequence[str | None], *, inner: bool
) -> list[RecipeExample]:
    """Return labelled sentences, with their inner phrases if wanted."""
    path = find_file(folder, FOLDER, f"trees.{name}.txt")
    found: list[RecipeExample] = []
    for number, line in enumerate(read_lines(path), start=1):
        nodes = phrases_of(line, path, number)
        for label, text in nodes if inner else nodes[-1:]:
            answer = answers[label]
            if answer is not None:
                found.append(RecipeExample(text, (answer,)))
    return found


def phrases_of(tree: str, path: Path, number: int) -> list[tuple[int, str]]:
    """Return labels and texts of all nodes of a tree, children before parents, the root last."""
    words: list[str] = []
    waiting: list[tuple[int, int]] = []  # label and first word of open nodes
    nodes: list[tuple[int, str]] = []
    place = 0
    while place < len(tree):
        match = TOKEN.match(tree, place)
        if match is None or (match[3] and not waiting):
            break
        place = match.end()
        if match[1]:
            waiting.append((int(match[1]), len(words)))
        elif match[2]:
            words.append(BRACKETS.get(match[2], match[2].replace("\\/", "/")))
        elif match[3]:
            label, first = waiting.pop()
            nodes.append((label, " ".join(words[first:])))
    if place < len(tree) or waiting or not words:
        reason = (
            f"the line must be a tree like (3 (2 good) (2 film)), but it is not at column "
            f"{place + 1}"
        )
        raise damaged(path, number, reason)
    return nodes


def evaluate(
    model: Model, examples: Sequence[RecipeExample], decoding: Mapping[str, Any]
) -> TaskScores:
    """Score the most probable class if examples have several references, else the prediction."""
    if all(len(example.references) == 1 for example in examples):
        return evaluate_by(exact)(model, examples, decoding)
    search = {**decoding, "beam": BEAM, "nbest": BEAM, "length_penalty": 0.0}
    found, answers = predict(model, examples, attention=False, **search)
    texts = [most_probable_class((output, *output.alternatives)) for output in found]
    return TaskScores([exact(answers._replace(texts=texts))], texts)


def most_probable_class(outputs: Iterable[Output]) -> str:
    """Return the class whose degrees have the largest total probability; neutral has none."""
    shares = {word: 0.0 for word in CLASSES if word}
    for output in outputs:
        word = output.text.removeprefix("very-")
        if word in shares:
            shares[word] += math.exp(output.log_prob)
    return max(shares, key=shares.__getitem__)


TASK: Final = RecipeTask(prepare, evaluate)
