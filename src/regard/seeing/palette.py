"""The colours of figures: one hue, from nothing to everything, on a light ground.

Lightness alone tells the weight, so that readers who see colours differently, and printers, see
the same picture. The page has the same colours.
"""

from typing import Final

STOPS: Final = ("#f4f7fb", "#d3e2f4", "#a3c4e8", "#6a9dd6", "#3873b8", "#184e92", "#08306b")
TEXT: Final = "#1b222c"
DIM: Final = "#59636f"
LINE: Final = "#d5dbe3"
GROUND: Final = "#ffffff"
#: gold links; no common colour blindness takes it for blue
MARK: Final = "#c2410c"
#: from this share on, white can be read better on a cell than black
DARK_FROM: Final = 0.55


def colour(share: float) -> str:
    """The colour of a share from 0 to 1."""
    at = min(1.0, max(0.0, share)) * (len(STOPS) - 1)
    low = min(int(at), len(STOPS) - 2)
    before, after = _channels(STOPS[low]), _channels(STOPS[low + 1])
    mixed = (round(a + (b - a) * (at - low)) for a, b in zip(before, after, strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def ink(share: float) -> str:
    """The colour of a number on the colour of a share."""
    return GROUND if share >= DARK_FROM else TEXT


def _channels(code: str) -> list[int]:
    return [int(code[i : i + 2], 16) for i in (1, 3, 5)]
