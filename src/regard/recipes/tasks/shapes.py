"""Captions of drawn scenes: coloured shapes in a grid of 2 x 2 cells.

The public files have the captions and, for each word, the cells that it speaks of; their script
draws the pictures: `python generate.py FOLDER 0 --images`. Training never sees some pairs of a
colour and a shape: half of the test scenes show one of them, and are a set of their own.

Two shapes beside or above each other may be described in three ways, such as "a red circle above
a blue cross", "a blue cross below a red circle" and "a red circle and a blue cross", and nothing in
a picture says which of them its caption is. All are references, the caption itself first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from regard.api import Model, Output
from regard.recipes.paper_metrics import MetricValue, exact
from regard.recipes.task_data import RecipeExample, TaskData
from regard.recipes.tasks.base import (
    SETS,
    RecipeTask,
    TaskScores,
    damaged,
    find_file,
    predict,
    rows,
    task_data,
)
from regard.safe_read import DAMAGE, open_regular
from regard.seeing.trace.trace import png

FOLDER: Final = "shapes_captions"
COLUMNS: Final = ("caption", "cells", "held")
#: a word that stands for no cell
NOWHERE: Final = "-"
SETTINGS: Final = {"src_tokenizer": "pictures", "tgt_tokenizer": "space", "metric": "exact"}


class DrawnShape(NamedTuple):
    """The words for a shape, and its cell: 0 1 are those of the upper row, 2 3 of the lower one."""

    words: tuple[str, ...]
    cell: int


def prepare(folder: Path) -> TaskData:
    """Read captions and pictures; test scenes with an unseen pair are the set `test-unseen`."""
    files: dict[str, bytes] = {}
    sets: dict[str, list[RecipeExample]] = {}
    for name in SETS:
        table = list(rows(find_file(folder, FOLDER, f"{name}.tsv"), COLUMNS))
        pictures = _pictures(find_file(folder, FOLDER, f"{name}.npz"), len(table))
        for number, (picture, row) in enumerate(zip(pictures, table, strict=True)):
            caption, cells, unseen = row
            file = f"pictures/{name}/{number:04d}.png"
            files[file] = png(picture)
            ways = captions(caption, cells.split())
            told = tuple(ways) if name != "train" else (caption,)
            example = RecipeExample(file, told, is_file=True, note=cells)
            sets.setdefault(f"{name}{'-unseen' * int(unseen)}", []).append(example)
    return task_data(sets, SETTINGS, files=files)


def _pictures(path: Path, count: int) -> np.ndarray:
    """Return the pictures of a set, (count, height, width, 3) bytes."""
    try:
        with open_regular(path) as content, np.load(content, allow_pickle=False) as file:
            found: np.ndarray = file["images"]
    except (*DAMAGE, KeyError):
        found = np.zeros(0)
    if found.dtype != np.uint8 or found.ndim != 4 or len(found) != count or found.shape[3] != 3:
        reason = f"it must have `images`, {count:,} pictures of bytes in 3 colours, but it has not"
        raise damaged(path, None, reason)
    return found


def captions(caption: str, cells: Sequence[str]) -> dict[str, list[str]]:
    """Return all true captions of a scene, its own first, with the cells of each of their words."""
    words = caption.split()
    starts = [place for place, word in enumerate(words) if word == "a"]
    found = {caption: list(cells)}
    if len(starts) == 2:
        one, other = (
            DrawnShape(
                tuple(
                    word
                    for word, at in zip(words[start:], cells[start:], strict=True)
                    if at == cells[start]
                ),
                int(cells[start]),
            )
            for start in starts
        )
        upper, lower = sorted([one, other], key=lambda shape: shape.cell)
        ways = [(upper, "and", lower)]
        if lower.cell - upper.cell == 2:
            ways += [(upper, "above", lower), (lower, "below", upper)]
        elif upper.cell // 2 == lower.cell // 2:
            ways += [(upper, "to the left of", lower), (lower, "to the right of", upper)]
        for first, relation, second in ways:
            between = relation.split()
            both = NOWHERE if relation == "and" else f"{upper.cell}{lower.cell}"
            places = [str(first.cell)] * len(first.words) + [both] * len(between)
            told = " ".join([*first.words, *between, *second.words])
            found.setdefault(told, [*places, *[str(second.cell)] * len(second.words)])
    return found


def evaluate(
    model: Model, examples: Sequence[RecipeExample], decoding: Mapping[str, Any]
) -> TaskScores:
    """Score captions, and the share of attention that words pay to their own cells.

    `exact` accepts each way to describe a scene, `exact-own` the caption of the public file alone.
    The attention is that of right captions, the mean over heads of the last layer, over all words
    that stand for cells.
    """
    outputs, answers = predict(model, examples, kinds=("cross",), **decoding)
    own = [replace(one, references=one.references[:1]) for one in examples]
    strict = replace(exact(answers._replace(examples=own)), name="exact-own")
    shares: list[float] = []
    for example, output in zip(examples, outputs, strict=True):
        ways = captions(example.references[0], example.note.split())
        if output.text in ways:
            shares += own_shares(output, ways[output.text])
    share = 100 * float(np.mean(shares)) if shares else 0.0
    attended = MetricValue("attention", share, f"attention|words:{len(shares)}|of:right")
    return TaskScores([exact(answers), strict, attended], list(answers.texts))


def own_shares(output: Output, cells: Sequence[str]) -> list[float]:
    """Return the share of each word's attention on its own cells; words of no cell are left out.

    Args:
        output: of as many words as there are entries of `cells`, with its attention to patches in
            as many rows as columns, which lie within cells.
        cells: of each word, such as "02".
    """
    weights = np.asarray(output.maps["cross"][-1]).mean(axis=0)[: len(cells)]
    side = round(weights.shape[1] ** 0.5) // 2
    by_cell = weights.reshape(len(cells), 2, side, 2, side).sum(axis=(2, 4)).reshape(-1, 4)
    return [
        float(row[[int(cell) for cell in own]].sum())
        for row, own in zip(by_cell, cells, strict=True)
        if own != NOWHERE
    ]


TASK: Final = RecipeTask(prepare, evaluate)
