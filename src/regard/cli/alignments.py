"""What `regard align` has found: the best way to read attention, in tables and as JSON."""

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NamedTuple

from rich.console import Console

from regard.api.word_alignment import HeadChoice
from regard.cli.console import print_table, result_console
from regard.seeing.alignment import (
    SYMMETRIZE,
    Gold,
    Links,
    Quality,
    diagonal,
    uniform_quality,
)


class Direction(NamedTuple):
    """A model's alignments, how its attention was read for them, and all ways that were tried."""

    chosen: HeadChoice
    links: list[Links]
    tried: dict[HeadChoice, Quality]


class AlignmentResult(NamedTuple):
    """What was found for a file.

    Attributes:
        sizes: numbers of source and target words of each pair.
        golds: of each pair, if there are any.
        forward: alignments from source to target.
        backward: those of a model that goes the other way.
        symmetry: how both were joined.
    """

    sizes: list[tuple[int, int]]
    golds: Sequence[Gold] | None
    forward: Direction
    backward: Direction | None = None
    symmetry: str = ""

    def joined(self, backward: Direction, symmetry: str) -> "AlignmentResult":
        """The result with another direction."""
        return self._replace(backward=backward, symmetry=symmetry)

    def by(self, symmetry: str) -> list[Links]:
        """Both directions joined in one way."""
        assert self.backward is not None
        return list(map(SYMMETRIZE[symmetry], self.forward.links, self.backward.links))

    @property
    def links(self) -> list[Links]:
        """The alignment of each pair."""
        return self.forward.links if self.backward is None else self.by(self.symmetry)


def best(found: dict[HeadChoice, list[Links]], golds: Sequence[Gold] | None) -> Direction:
    """The way with the least error, the first of equals; without gold, the only one there is."""
    if golds is None:
        chosen, links = next(iter(found.items()))
        return Direction(chosen, links, {})
    tried = {choice: Quality.of(links, golds) for choice, links in found.items()}
    chosen = min(tried, key=lambda choice: tried[choice].aer)
    return Direction(chosen, found[chosen], tried)


def scale(result: AlignmentResult, golds: Sequence[Gold]) -> dict[str, Quality]:
    """What is reached without a model, and by joining both directions."""
    found = {
        "uniform": uniform_quality(golds, result.sizes),
        "diagonal": Quality.of([diagonal(*size) for size in result.sizes], golds),
    }
    if result.backward is not None:
        found |= {name: Quality.of(result.by(name), golds) for name in SYMMETRIZE}
    return found


def show(result: AlignmentResult) -> None:
    """Tables on stderr."""
    console = result_console(stderr=True)
    ways = [("", result.forward)]
    if result.backward is not None:
        ways = [("source to target: ", result.forward), ("target to source: ", result.backward)]
    for name, direction in ways:
        if result.golds is None:
            console.print(f"{name}read from {direction.chosen}", highlight=False)
        else:
            _show_tried(console, name, direction, len(result.golds))
    if result.golds is not None:
        _show_scale(console, result, result.golds)


def _show_tried(console: Console, name: str, direction: Direction, pairs: int) -> None:
    """The error rate of each head, a column for each shift, and the best by name."""
    shifts = list(dict.fromkeys(choice.shift for choice in direction.tried))
    rows = []
    for (layer, head), same in groupby(direction.tried, key=lambda choice: choice[:2]):
        found = list(same)
        cells = [f"{100 * direction.tried[choice].aer:.1f}" for choice in found]
        mark = "best" if direction.chosen in found else ""
        rows.append([_named(layer), _named(head), *cells, mark])
    titles = [f"AER, shift {shift:+d}" if shift else "AER, no shift" for shift in shifts]
    print_table(console, ["layer", "head", *titles, ""], rows)
    one = direction.tried[direction.chosen]
    how = f", the best of {len(direction.tried)} on these {pairs:,} pairs themselves"
    console.print(
        f"{name}{direction.chosen}: AER {100 * one.aer:.1f}, precision {100 * one.precision:.1f}, "
        f"recall {100 * one.recall:.1f}{how if len(direction.tried) > 1 else ''}",
        highlight=False,
        soft_wrap=True,
    )


def _named(number: int | None) -> str:
    return "mean" if number is None else str(number)


def _show_scale(console: Console, result: AlignmentResult, golds: Sequence[Gold]) -> None:
    rows = [
        [
            name,
            *(f"{100 * value:.1f}" for value in (one.aer, one.precision, one.recall)),
            "written" if name == result.symmetry else "",
        ]
        for name, one in scale(result, golds).items()
    ]
    print_table(console, ["for scale", "AER", "precision", "recall", ""], rows)


def as_object(result: AlignmentResult) -> dict[str, Any]:
    """All of it as JSON holds it; rates are from 0 to 1."""
    directions = {"forward": result.forward, "backward": result.backward}
    found: dict[str, Any] = {"pairs": len(result.sizes), "symmetrize": result.symmetry or None}
    for name, direction in directions.items():
        found[name] = None if direction is None else _direction(direction)
    found["scale"] = {}
    if result.golds is not None:
        found["scale"] = {name: _rates(q) for name, q in scale(result, result.golds).items()}
    return found


def _direction(direction: Direction) -> dict[str, Any]:
    return {
        "chosen": direction.chosen._asdict(),
        "tried": [c._asdict() | _rates(quality) for c, quality in direction.tried.items()],
    }


def _rates(quality: Quality) -> dict[str, float]:
    return {"aer": quality.aer, "precision": quality.precision, "recall": quality.recall}
