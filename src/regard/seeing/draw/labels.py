"""Tokens as labels: safe to print, measured in terminal cells, truncated visibly.

A token is untrusted data: it may hold a newline, an escape sequence, or nothing at all.
"""

import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Final

from rich.cells import cell_len, chop_cells, split_graphemes

#: label of an empty token
EMPTY: Final = "∅"
#: shown instead of characters that would move the cursor or cannot be seen, of which most fonts
#: have a picture; other control characters are `^[`
VISIBLE: Final = {
    **{chr(code): f"^{chr(64 + code)}" for code in range(32)},
    "\n": "↵",
    "\t": "⇥",
    " ": "␣",
    "\x7f": "^?",
    "\u00a0": "⍽",
    "\u3000": "□",
}
#: invisible characters that shape the letters beside them, and do nothing else
SHAPING: Final = "\u200c\u200d\ufe0e\ufe0f"
RIGHT_TO_LEFT: Final = ("R", "AL")
#: keeps right-to-left text from taking the numbers beside it along
ISOLATE: Final = "\u2068"
POP: Final = "\u2069"


def printable(token: str) -> str:
    """Return a token that is safe to print: one line, nothing invisible, no escape sequences."""
    if not token:
        return EMPTY
    if not token.strip():
        return "".join(map(_space, token))
    if not token.strip(SHAPING):  # no letter is there to be shaped
        return "".join(map(_code, token))
    shown = "".join(char if char == " " else _visible(char) for char in token)
    # a mark without a letter would sit on whatever stands before it
    if unicodedata.category(shown[0])[0] == "M":
        return f"◌{shown}"
    # a filler, or a colour of skin without a hand: no cell is counted for it
    return shown if cell_len(shown) else "".join(map(_code, token))


def _visible(char: str) -> str:
    if char in VISIBLE:
        return VISIBLE[char]
    if char in SHAPING:
        return char
    code = ord(char)  # of noncharacters, XML cannot hold some
    is_none = code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF
    # controls, directions, surrogates, private characters, ends of lines
    if is_none or unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp"):
        return _code(char)
    return char


def _space(char: str) -> str:
    """Return a visible symbol for a space in a token of spaces alone."""
    shown = _visible(char)
    return _code(char) if shown == char else shown


def _code(char: str) -> str:
    return f"⟨{ord(char):X}⟩"


def plain_ascii(text: str) -> str:
    r"""Return the text in ASCII, other characters as `\u4eca`."""
    return text.encode("ascii", "backslashreplace").decode("ascii")


def fit(text: str, width: int, *, ellipsis: str = "…") -> str:
    """Truncate a text to a number of cells, between graphemes."""
    if cell_len(text) <= width:
        return text
    room, kept = width - cell_len(ellipsis), []
    for start, end, cells in split_graphemes(text)[0]:
        room -= cells
        if room < 0:
            break
        kept.append(text[start:end])
    return "".join(kept) + ellipsis


def pad_left(text: str, width: int) -> str:
    """Pad a text on the left to a number of cells."""
    return " " * (width - cell_len(text)) + text


def wrap(text: str, separator: str, width: int, *, chop: bool = False) -> list[str]:
    """Break a text at its separators into lines of a number of cells.

    A part that is wider than a line overflows it, or is broken too if `chop`.
    """
    lines = [""]
    for part in text.split(separator):
        longer = f"{lines[-1]}{separator}{part}" if lines[-1] else part
        if cell_len(longer) <= width or not (lines[-1] or chop):
            lines[-1] = longer
        else:
            lines += chop_cells(part, width) if chop else [part]
    return [line for line in lines if line]


def short_weight(weight: float) -> str:
    """Return a weight in three characters."""
    return "1.0" if weight >= 0.995 else f".{round(max(0.0, weight) * 100):02d}"


def number_duplicates(labels: Sequence[str]) -> list[str]:
    """Number the labels that occur more than once: the second `B` becomes `B#2`."""
    counts, seen = Counter(labels), Counter[str]()
    found = []
    for label in labels:
        seen[label] += 1
        found.append(f"{label}#{seen[label]}" if counts[label] > 1 else label)
    return found


def is_right_to_left(text: str) -> bool:
    """Return whether any character of a text is written from right to left."""
    return any(unicodedata.bidirectional(char) in RIGHT_TO_LEFT for char in text)


def isolate_direction(text: str) -> str:
    """Wrap right-to-left text in marks that keep the text beside it in order."""
    return f"{ISOLATE}{text}{POP}" if is_right_to_left(text) else text
