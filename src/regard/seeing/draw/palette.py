"""Colours of figures: a sequential palette of one hue on a light ground.

Lightness alone encodes the weight, so the palette is safe for colour-blind readers and for print.
The page has the same colours.
"""

from typing import Final

STOPS: Final = ("#f4f7fb", "#d3e2f4", "#a3c4e8", "#6a9dd6", "#3873b8", "#184e92", "#08306b")
TEXT: Final = "#1b222c"
DIM: Final = "#59636f"
LINE: Final = "#d5dbe3"
GROUND: Final = "#ffffff"
#: gold links, in a colour that is distinct from blue for colour-blind readers
MARK: Final = "#c2410c"
BLACK: Final = "#000000"
#: luminance on which black and white have equal contrast
MIDDLE: Final = 0.179


def colour(share: float) -> str:
    """Return the colour of a share from 0 to 1."""
    at = min(1.0, max(0.0, share)) * (len(STOPS) - 1)
    low = min(int(at), len(STOPS) - 2)
    before, after = _channels(STOPS[low]), _channels(STOPS[low + 1])
    mixed = (round(a + (b - a) * (at - low)) for a, b in zip(before, after, strict=True))
    return "#" + "".join(f"{channel:02x}" for channel in mixed)


def ink(share: float) -> str:
    """Return black or white, whichever has more contrast on the colour of a share."""
    return BLACK if _luminance(colour(share)) > MIDDLE else GROUND


def _luminance(code: str) -> float:
    """Return the relative luminance of WCAG 2."""
    shares = (channel / 255 for channel in _channels(code))
    linear = (s / 12.92 if s <= 0.04045 else ((s + 0.055) / 1.055) ** 2.4 for s in shares)
    return sum(w * s for w, s in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def _channels(code: str) -> list[int]:
    return [int(code[i : i + 2], 16) for i in (1, 3, 5)]
