"""Whether a sentence of a film review likes the film: the Stanford Sentiment Treebank.

Each node of a tree is a phrase with a label from 0, very negative, to 4, very positive. Sentences
are the roots. The answer of the model is one word.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from regard.api import Model, Output
from regard.data import read_lines
from regard.errors import ArgumentError, DataError
from regard.ops.check import check_positive
from regard.recipes.examples import Example, Prepared
from regard.recipes.figures import exact
from regard.recipes.tasks.reading import find
from regard.recipes.tasks.task import BATCH, Task, Verdict, by_answers

FOLDER: Final = "sst"
#: the answer to each label; neutral phrases are left out where there are two classes
ANSWERS: Final = {
    2: ("negative", "negative", None, "positive", "positive"),
    5: ("very-negative", "negative", "neutral", "positive", "very-positive"),
}
#: hypotheses of a search that finds every answer there is
BEAM: Final = 6
BRACKETS: Final = {"-LRB-": "(", "-RRB-": ")"}
#: what joins two words to one that few have seen
JOINT: Final = re.compile(r"(?<=\w)([-/])(?=\w)")
TOKEN: Final = re.compile(r"\(([0-4]) |([^\s()]+)|(\))|\s+")
SETTINGS: Final = {"src_tokenizer": "space", "tgt_tokenizer": "space", "metric": "exact"}


def prepare(
    folder: Path,
    *,
    classes: Literal[2, 5] = 2,
    phrases: bool = True,
    sentences: int = 1,
    degrees: bool = False,
    hyphens: bool = True,
) -> Prepared:
    """Sentences and their labels.

    Args:
        folder: the public data sets.
        classes: two without the neutral ones, or all five.
        phrases: whether the model also learns from the phrases inside the training sentences.
        sentences: how often it meets a whole sentence for once that it meets a phrase.
        degrees: whether it learns all five labels, those of neutral phrases among them, though two
            classes are judged. The probability of a class is then that of its degrees.
        hyphens: whether words like well-acted stay whole. Cut at their hyphens and slashes, many
            that training has never seen are made of words that it has.
    """
    check_positive(sentences=sentences)
    if degrees and classes != 2:
        raise ArgumentError(
            "recipe.degrees", "be for two classes", f"true with {classes}", "five have them already"
        )
    answers = ANSWERS[5 if degrees else classes]
    read = partial(_read, folder, hyphens=hyphens)
    train = read("train", answers, inner=phrases)
    judged = {name: read(name, ANSWERS[classes], inner=False) for name in ("dev", "test")}
    if degrees:
        judged = {name: [_either(e) for e in examples] for name, examples in judged.items()}
    apart = {example.src for examples in judged.values() for example in examples}
    once = dict.fromkeys(example for example in train if example.src not in apart)
    if sentences == 1:
        return Prepared(list(once), judged, SETTINGS)
    whole = read("train", answers, inner=False) * (sentences - 1)
    again = [example for example in whole if example.src not in apart]
    return Prepared([*once, *again], judged, SETTINGS)


def _either(example: Example) -> Example:
    """The same with both degrees of its class as its answers."""
    (word,) = example.references
    return Example(example.src, (word, f"very-{word}"))


def _read(
    folder: Path, name: str, answers: tuple[str | None, ...], *, inner: bool, hyphens: bool
) -> list[Example]:
    path = find(folder, FOLDER, f"trees.{name}.txt")
    found: list[Example] = []
    for number, line in enumerate(read_lines(path), start=1):
        nodes = phrases_of(line, str(path), number)
        if not hyphens:
            nodes = [(label, JOINT.sub(r" \1 ", text)) for label, text in nodes]
        found += _labelled(nodes if inner else nodes[-1:], answers)
    return found


def _labelled(
    nodes: Iterable[tuple[int, str]], answers: tuple[str | None, ...]
) -> Iterator[Example]:
    for label, text in nodes:
        answer = answers[label]
        if answer is not None:
            yield Example(text, (answer,))


def phrases_of(tree: str, file: str, number: int) -> list[tuple[int, str]]:
    """Labels and texts of all nodes of a tree, those inside before those around; the root last."""
    words: list[str] = []
    waiting: list[tuple[int, int]] = []  # label and first word of the nodes that are still open
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
        raise DataError(
            file,
            number,
            f"the line must be a tree like (3 (2 good) (2 film)), but it is not at column "
            f"{place + 1}",
            "copy the file again from where it comes from",
        )
    return nodes


def judge(model: Model, examples: Sequence[Example], decoding: Mapping[str, Any]) -> Verdict:
    """Judges by the likeliest class, where an example accepts one or more answers of its class."""
    if all(len(example.references) == 1 for example in examples):
        return by_answers(exact)(model, examples, decoding)
    search = {**decoding, "beam": BEAM, "nbest": BEAM, "length_penalty": 0.0}
    found = model.predict((e.question for e in examples), attention=False, batch=BATCH, **search)
    answers = [likeliest((output, *output.alternatives)) for output in found]
    return Verdict([exact(examples, answers, model.tgt_tokenizer)], answers)


def likeliest(outputs: Iterable[Output]) -> str:
    """The class whose degrees are likeliest together. What is neutral is of none."""
    shares = {word: 0.0 for word in ANSWERS[2] if word}
    for output in outputs:
        word = output.text.removeprefix("very-")
        if word in shares:
            shares[word] += math.exp(output.log_prob)
    return max(shares, key=shares.__getitem__)


TASK: Final = Task(prepare, judge)
