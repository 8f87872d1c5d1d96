"""Samples of data that may be sorted, as files often are by label, length or date."""

import random
from collections.abc import Iterable
from itertools import islice
from typing import TypeVar

Item = TypeVar("Item")


def draw_sample(items: Iterable[Item], count: int) -> list[Item]:
    """Return `count` of the items, each as likely as any other, and the same ones each time.

    All are read, and `count` are in memory (Vitter, 1985, algorithm R,
    https://doi.org/10.1145/3147.3165). Fewer items are returned as they are.
    """
    rest, draw = iter(items), random.Random(0)
    kept = list(islice(rest, count))
    for seen, item in enumerate(rest, start=len(kept) + 1):
        place = draw.randrange(seen)
        if place < count:
            kept[place] = item
    return kept
