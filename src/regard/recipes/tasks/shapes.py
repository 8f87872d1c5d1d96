"""Captions of drawn scenes: coloured shapes in a grid of 2 x 2 cells.

The public files have the captions, and for each word the cells that it speaks of; the pictures are
drawn here, from the same random numbers. Training never sees some pairs of
a colour and a shape: half of the test scenes show one of them, and are a set of their own.

Two shapes beside or above each other may be described in three ways, such as "a red circle above
a blue cross", "a blue cross below a red circle" and "a red circle and a blue cross", and nothing in
a picture says which of them its caption is. All are references, the caption itself first.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from regard.api import Model, Output
from regard.data import PictureEncoder
from regard.recipes.paper_metrics import MetricValue, exact
from regard.recipes.task_data import RecipeExample, TaskData
from regard.recipes.tasks.base import (
    RecipeTask,
    TaskScores,
    damaged,
    find_file,
    predict,
    rows,
)
from regard.seeing.trace.trace import png

FOLDER: Final = "shapes_captions"
#: sets by name: scenes, and the second number of their seed
SETS: Final = {"train": (4000, 1), "dev": (400, 2), "test": (800, 3)}
COLOURS: Final = {
    "red": (220, 40, 40),
    "green": (40, 180, 60),
    "blue": (50, 80, 220),
    "yellow": (230, 210, 40),
    "purple": (150, 60, 180),
    "white": (240, 240, 240),
}
SHAPES: Final = ("circle", "square", "triangle", "cross")
#: pairs that no training scene shows
UNSEEN: Final = (
    ("blue", "cross"),
    ("purple", "square"),
    ("red", "triangle"),
    ("yellow", "circle"),
)
SEEN: Final = tuple((c, s) for c in COLOURS for s in SHAPES if (c, s) not in UNSEEN)
RADII: Final = {"small": 3.4, "": 5.0, "big": 6.6}
NUMBERS: Final = {2: "two", 3: "three"}
#: side of a cell in pixels, and level of the ground
CELL: Final = 16
GROUND: Final = 24.0
#: words that stand for no cell
NOWHERE: Final = "-"
SETTINGS: Final = {"src_tokenizer": "pictures", "tgt_tokenizer": "space", "metric": "exact"}


class DrawnShape(NamedTuple):
    """A shape of a scene; cells are numbered 0 1 in the upper row, 2 3 in the lower one."""

    colour: str
    shape: str
    size: str
    cell: int

    @property
    def words(self) -> list[str]:
        """The shape as a caption names it."""
        return ["a", *([self.size] if self.size else []), self.colour, self.shape]


class Scene(NamedTuple):
    """A picture, (height, width, channels) of bytes, and each of its captions with its cells.

    A caption maps to a word's cells for each of its words, such as "02", or "-" for none.
    """

    picture: np.ndarray
    captions: dict[str, list[str]]


def scenes(name: str) -> Iterator[Scene]:
    """Draw the scenes of a set; every second one of the test set shows an unseen pair."""
    count, seed = SETS[name]
    draw = np.random.default_rng([0, seed])
    for number in range(count):
        yield _scene(draw, unseen=name == "test" and number % 2 == 1)


def _scene(draw: np.random.Generator, *, unseen: bool) -> Scene:
    """Draw one scene; the order of the random numbers is that of the public files."""
    while True:
        form = int(draw.integers(4))
        cells = [int(cell) for cell in draw.permutation(4)]
        first = UNSEEN[draw.integers(len(UNSEEN))] if unseen else SEEN[draw.integers(len(SEEN))]
        if form == 0:
            one = DrawnShape(*first, _size(draw), cells[0])
            return Scene(_drawn([one], draw), dict([_joined([one])]))
        if form == 1:
            beside = _beside(cells[0], int(draw.integers(4)))
            if beside is None:
                continue
            relation, cell = beside
            other = _other(draw, first)
            pair = [
                DrawnShape(*first, _size(draw), cells[0]),
                DrawnShape(*other, _size(draw), cell),
            ]
            return Scene(_drawn(pair, draw), _ways(pair, relation))
        if form == 2:
            several = sorted(cells[: int(draw.integers(2, 4))])
            same = [DrawnShape(*first, "", cell) for cell in several]
            return Scene(_drawn(same, draw), dict([_counted(same)]))
        other = _other(draw, first)
        pair = [
            DrawnShape(*first, _size(draw), cells[0]),
            DrawnShape(*other, _size(draw), cells[1]),
        ]
        pair.sort(key=lambda one: one.cell)
        return Scene(_drawn(pair, draw), _ways(pair, "and"))


def _size(draw: np.random.Generator) -> str:
    return ("", "", "small", "big")[draw.integers(4)]


def _other(draw: np.random.Generator, first: tuple[str, str]) -> tuple[str, str]:
    """Draw a seen pair that is not the first one."""
    while True:
        found = SEEN[draw.integers(len(SEEN))]
        if found != first:
            return found


def _beside(cell: int, way: int) -> tuple[str, int] | None:
    """Return a relation and the cell that it leads to; None if that is outside."""
    row, column = divmod(cell, 2)
    relation, row, column = (
        ("above", row + 1, column),
        ("left", row, column + 1),
        ("below", row - 1, column),
        ("right", row, column - 1),
    )[way]
    return (relation, 2 * row + column) if row in (0, 1) and column in (0, 1) else None


def _ways(pair: Sequence[DrawnShape], relation: str) -> dict[str, list[str]]:
    """Return all captions of two shapes, that of the relation first."""
    upper, lower = sorted(pair, key=lambda one: one.cell)
    found = [_joined([upper, lower], "and")]
    if lower.cell - upper.cell == 2:
        found += [_joined([upper, lower], "above"), _joined([lower, upper], "below")]
    elif upper.cell // 2 == lower.cell // 2:
        found += [_joined([upper, lower], "left"), _joined([lower, upper], "right")]
    own = _joined(pair, relation)
    return dict([own, *found])


def _joined(shapes: Sequence[DrawnShape], relation: str = "") -> tuple[str, list[str]]:
    """Return a caption of one shape or two, and the cells of each word."""
    first, *rest = shapes
    words, cells = list(first.words), [str(first.cell)] * len(first.words)
    for other in rest:
        between = ["to", "the", relation, "of"] if relation in ("left", "right") else [relation]
        both = "".join(sorted(f"{first.cell}{other.cell}"))
        words += [*between, *other.words]
        cells += [NOWHERE if relation == "and" else both] * len(between)
        cells += [str(other.cell)] * len(other.words)
    return " ".join(words), cells


def _counted(same: Sequence[DrawnShape]) -> tuple[str, list[str]]:
    """Return the caption of two or three equal shapes, and the cells of each word."""
    plural = f"{same[0].shape}{'es' if same[0].shape == 'cross' else 's'}"
    cells = "".join(str(one.cell) for one in same)
    return " ".join([NUMBERS[len(same)], same[0].colour, plural]), [cells] * 3


def _drawn(shapes: Sequence[DrawnShape], draw: np.random.Generator) -> np.ndarray:
    """Draw shapes with some play in size and place, in noise."""
    levels = np.full((2 * CELL, 2 * CELL, 3), GROUND)
    for one in shapes:
        radius = RADII[one.size] + draw.uniform(-0.4, 0.4)
        y, x = np.mgrid[0:CELL, 0:CELL].astype(float)
        y -= CELL / 2 - 0.5 + draw.uniform(-0.8, 0.8)
        x -= CELL / 2 - 0.5 + draw.uniform(-0.8, 0.8)
        top, left = CELL * (one.cell // 2), CELL * (one.cell % 2)
        inside = _inside(one.shape, radius, y, x)
        levels[top : top + CELL, left : left + CELL][inside] = COLOURS[one.colour]
    noisy = levels + draw.normal(0, 8, levels.shape)
    return np.clip(noisy, 0, 255).astype(np.uint8)


def _inside(shape: str, radius: float, y: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Return the pixels of a shape around the origin."""
    found: np.ndarray
    if shape == "circle":
        found = y * y + x * x <= radius * radius
    elif shape == "square":
        found = (abs(y) <= radius * 0.88) & (abs(x) <= radius * 0.88)
    elif shape == "triangle":
        found = (y <= radius * 0.8) & (y >= 2 * abs(x) - radius)
    else:
        across = (abs(y) <= radius * 0.35) & (abs(x) <= radius)
        found = across | ((abs(x) <= radius * 0.35) & (abs(y) <= radius))
    return found


def prepare(folder: Path) -> TaskData:
    """Draw the pictures, and check that their captions are those of the public files."""
    files: dict[str, bytes] = {}
    sets: dict[str, list[RecipeExample]] = {}
    for name in SETS:
        path = find_file(folder, FOLDER, f"{name}.tsv")
        _, *table = rows(path, 3)
        drawn = list(scenes(name))
        if [_row(scene) for scene in drawn] != [row[:2] for row in table]:
            reason = "its captions must be those of the scenes that are drawn, but they are not"
            raise damaged(path, None, reason)
        for number, (scene, row) in enumerate(zip(drawn, table, strict=True)):
            file = f"pictures/{name}/{number:04d}.png"
            files[file] = png(scene.picture)
            example = RecipeExample(file, tuple(scene.captions), is_file=True)
            sets.setdefault(f"{name}{'-unseen' * int(row[2])}", []).append(example)
    train = [replace(one, references=one.references[:1]) for one in sets.pop("train")]
    return TaskData(train, sets, SETTINGS, files=files)


def _row(scene: Scene) -> list[str]:
    """Return a scene as the public files have it: its own caption, and the cells of each word."""
    caption, cells = next(iter(scene.captions.items()))
    return [caption, " ".join(cells)]


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
    assert isinstance(model.task.input.encoder, PictureEncoder)
    shares: list[float] = []
    grid = model.task.input.encoder.grid
    drawn = {name: list(scenes(name)) for name in {_place(one.src)[0] for one in examples}}
    for example, output in zip(examples, outputs, strict=True):
        name, number = _place(example.src)
        cells = drawn[name][number].captions.get(output.text)
        if cells is not None:
            shares += own_shares(output, cells, grid)
    share = 100 * float(np.mean(shares)) if shares else 0.0
    attended = MetricValue("attention", share, f"attention|words:{len(shares)}|of:right")
    return TaskScores([exact(answers), strict, attended], list(answers.texts))


def _place(source: str) -> tuple[str, int]:
    """Return the set of a picture, and its number."""
    path = Path(source)
    return path.parent.name, int(path.stem)


def own_shares(output: Output, cells: Sequence[str], grid: tuple[int, int]) -> list[float]:
    """Return the share of each word's attention on its own cells; words of no cell are left out.

    Args:
        output: of as many words as there are entries of `cells`, with its attention.
        cells: of each word, such as "02".
        grid: rows and columns of patches, which lie within cells.
    """
    weights = np.asarray(output.maps["cross"][-1]).mean(axis=0)[: len(cells)]
    down, across = grid
    by_cell = weights.reshape(len(cells), 2, down // 2, 2, across // 2).sum(axis=(2, 4))
    flat = by_cell.reshape(len(cells), 4)
    return [
        float(row[[int(cell) for cell in own]].sum())
        for row, own in zip(flat, cells, strict=True)
        if own != NOWHERE
    ]


TASK: Final = RecipeTask(prepare, evaluate)
