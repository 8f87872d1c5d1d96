"""What stands in the place of an input that is taken away, so that it is not known."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from regard.data.frame_tables import FrameArray
from regard.errors import ArgumentError

#: a source as a model reads it: ids of tokens, or a table of frames
Source = Sequence[int] | FrameArray
#: a source with something else in one place, both named by numbers
Put = Callable[[Any, int, int], Any]

#: sources that are tried in all for one of frames, as far as that leaves as many for each place
TRIED: Final = 2048
FEWEST: Final = 4


class Replacements(NamedTuple):
    """What could stand in each place of a source.

    Attributes:
        others: for each place, the numbers of what could stand there.
        put: the source with one of these in a place.
        said: what a reader must know of it, if anything.
    """

    others: Sequence[Sequence[int]]
    put: Put
    said: tuple[str, ...] = ()


def token_replacements(src: Sequence[int], others: Sequence[Sequence[int]]) -> Replacements:
    """Other tokens, of which each place must have some.

    Args:
        src: source ids as the model reads them, `eos` last.
        others: for each place, the tokens that could stand there, its own among them.
    """
    if len(others) != len(src) or not all(map(len, others)):
        raise ArgumentError(
            "others",
            f"have one token or more for each of the {len(src)} of the source",
            f"of lengths {list(map(len, others))}",
            "pass the ids of the vocabulary for each",
        )
    return Replacements(others, _put_token)


def _put_token(src: Sequence[int], place: int, token: int) -> list[int]:
    return [*src[:place], token, *src[place + 1 :]]


def frame_replacements(table: FrameArray, stack: int) -> Replacements:
    """The other frames of the same source, as many at once as are joined to one.

    There is no vocabulary to draw from as there is for text. What the source has elsewhere is as
    likely as the source itself, where a frame of zeros, or one drawn number by number, would be a
    vector that training has hardly seen. A place stays as it is if there is nothing else. Of a long
    source fewer frames are tried in each place, drawn by chance: it has many places.

    Args:
        table: the source as the model reads it.
        stack: frames that are joined to one.
    """
    starts = range(0, len(table), stack)
    chance, count = np.random.default_rng(0), max(FEWEST, TRIED // len(starts))
    others = []
    for start in starts:
        size = min(stack, len(table) - start)
        able = [o for o in starts if o != start and o + size <= len(table)]
        drawn = chance.choice(able, count, replace=False).tolist() if len(able) > count else able
        others.append(drawn or [start])
    joined = "" if stack == 1 else f" and joined by {stack}"
    said = (
        f"Inputs are frames, counted from 0{joined}: one is not known where another of the same "
        "source stands in its place."
    )
    return Replacements(others, partial(_put_frames, stack), (said,))


def _put_frames(stack: int, table: FrameArray, place: int, other: int) -> FrameArray:
    """The frames of a place become those from `other` on."""
    start = place * stack
    size = min(stack, len(table) - start)
    changed = table.copy()
    changed[start : start + size] = table[other : other + size]
    return changed
