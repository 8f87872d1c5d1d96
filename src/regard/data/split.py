"""Chooses what is held out to judge a model by.

A pair is held out by a hash of its source. So it is the same pairs in each run and on each
machine, whatever the order of the file and whatever is added to it, and no source is on both
sides, however many targets it has.
"""

import hashlib
import unicodedata
from typing import Final

from regard.errors import ArgumentError

SHARE: Final = 0.05
MOST: Final = 2000
FEWEST: Final = 20
LARGEST_SHARE: Final = 0.2


def dev_share(count: int) -> float:
    """The share of `count` pairs to hold out: 5%, which is 2,000 pairs at most.

    Of fewer than 400 pairs it is more, so that about 20 can be expected, but never over 20%.
    """
    if count < 1:
        raise ArgumentError("count", "be at least 1", count, "count the pairs first")
    return min(MOST / count, max(SHARE, min(LARGEST_SHARE, FEWEST / count)))


def held_out(src: str, *, share: float) -> bool:
    """Whether the pairs of a source are held out.

    Spellings that differ in Unicode's normal form or in spaces around them are one source. What
    is held out at one share is held out at any larger one.
    """
    if not 0 <= share < 1:
        raise ArgumentError(
            "share", "be at least 0 and less than 1", share, "write 5 percent as 0.05"
        )
    text = unicodedata.normalize("NFC", src.strip())
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64
