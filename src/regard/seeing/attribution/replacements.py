"""Replacements of an ablated input: other tokens, or other frames of the same source."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple

import numpy as np

from regard.data.frame_tables import FrameArray
from regard.errors import ArgumentError
from regard.messages import message

#: input of a model: token ids, or a table of frames
Source = Sequence[int] | FrameArray
#: takes a source and the replacements of some positions; returns the changed source
Put = Callable[[Any, Mapping[int, int]], Any]

#: replacements of frames that are tried in all, but at least `FEWEST` for each position
TRIED: Final = 2048
FEWEST: Final = 4


class Replacements(NamedTuple):
    """Possible replacements of each position of a source.

    Attributes:
        others: for each position, the numbers of its replacements.
        put: puts replacements into some positions.
        notes: remarks for the reader.
    """

    others: Sequence[Sequence[int]]
    put: Put
    notes: tuple[str, ...] = ()


def token_replacements(src: Sequence[int], others: Sequence[Sequence[int]]) -> Replacements:
    """Replace tokens by other tokens."""
    if len(others) != len(src) or not all(map(len, others)):
        raise ArgumentError(
            "others",
            f"have one token or more for each of the {len(src)} of the source",
            f"of lengths {list(map(len, others))}",
            "pass the ids of the vocabulary for each",
        )

    def put(tokens: Sequence[int], change: Mapping[int, int]) -> list[int]:
        return [change.get(place, token) for place, token in enumerate(tokens)]

    return Replacements(others, put)


def frame_replacements(table: FrameArray, stack: int) -> Replacements:
    """Replace frames by other frames of the same source, as many at once as are stacked.

    There is no vocabulary to draw from as for text. Frames from elsewhere in the source are as
    likely as the source itself, whereas training has hardly seen a frame of zeros, or one drawn
    number by number. A position without alternatives keeps its frames. In a long source, which has
    many positions, fewer replacements of each are tried, drawn at random.
    """
    starts = range(0, len(table), stack)
    rng, count = np.random.default_rng(0), max(FEWEST, TRIED // len(starts))
    others = []
    for start in starts:
        size = min(stack, len(table) - start)
        # starts that leave room for as many frames, less its own; not listed, they may be many
        room, own = (len(table) - size) // stack + 1, start // stack
        able = room - (own < room)
        drawn = rng.choice(able, count, replace=False) if able > count else range(able)
        others.append([stack * int(i + (i >= own)) for i in drawn] or [start])
    joined = "" if stack == 1 else message("check.unknown.joined", stack=stack)
    note = message("check.unknown.frames", joined=joined)
    return Replacements(others, partial(_put_frames, stack), (note,))


def patch_replacements(patches: FrameArray) -> Replacements:
    """Replace patches of a picture by other patches of it, as `frame_replacements` does."""
    note = message("check.unknown.patches")
    return frame_replacements(patches, 1)._replace(notes=(note,))


def _put_frames(stack: int, table: FrameArray, change: Mapping[int, int]) -> FrameArray:
    changed = table.copy()
    for place, other in change.items():
        start = place * stack
        size = min(stack, len(table) - start)
        changed[start : start + size] = table[other : other + size]
    return changed
