"""Tokens as labels: safe to print, as wide as they look, cut where a reader sees a cut.

A token is data of somebody else: it may hold a newline, an escape sequence, or nothing at all.
"""

import unicodedata
from collections import Counter
from collections.abc import Sequence
from typing import Final

from rich.cells import cell_len, split_graphemes

#: what stands for a token without any character
EMPTY: Final = "∅"
#: shown instead of characters that would move the cursor or cannot be seen
VISIBLE: Final = {
    "\n": "␤",
    "\r": "␍",
    "\t": "␉",
    " ": "␣",
    "\x7f": "␡",
    "\u00a0": "⍽",
    "\u3000": "⬚",
}
#: invisible characters that shape the letters beside them, and do nothing else
SHAPING: Final = "\u200c\u200d\ufe0e\ufe0f"
#: few fonts have pictures of control characters: `↵`, `⇥`, and `^[` for the others
FOR_FONTS: Final = {
    **{0x2400 + code: f"^{chr(64 + code)}" for code in range(32)},
    ord("␡"): "^?",
    ord("␤"): "↵",
    ord("␉"): "⇥",
    ord("⬚"): "□",
}
RIGHT_TO_LEFT: Final = ("R", "AL")
#: keeps right-to-left text from taking the numbers beside it along
ISOLATE: Final = "\u2068"
POP: Final = "\u2069"


def safe(token: str) -> str:
    """A token as it can be printed anywhere: one line, nothing invisible, no escape sequences."""
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
    if char < " ":
        return chr(0x2400 + ord(char))
    if char in SHAPING:
        return char
    # controls, directions, surrogates, private characters, ends of lines
    if unicodedata.category(char) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") or _is_none(ord(char)):
        return _code(char)
    return char


def _space(char: str) -> str:
    """A space where nothing but spaces can tell a reader that it is there."""
    shown = _visible(char)
    return _code(char) if shown == char else shown


def _code(char: str) -> str:
    return f"⟨{ord(char):X}⟩"


def _is_none(code: int) -> bool:
    """Whether Unicode has set it aside for never being a character; XML cannot hold some."""
    return code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF


def drawn(token: str) -> str:
    """The same with signs that the usual fonts of figures have."""
    return safe(token).translate(FOR_FONTS)


def plain_ascii(text: str) -> str:
    r"""The same in ASCII alone: what is not becomes `\u4eca`."""
    return text.encode("ascii", "backslashreplace").decode("ascii")


def fit(text: str, width: int, *, ellipsis: str = "…") -> str:
    """The text, cut to so many cells if it is wider; no character is cut in two."""
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
    """The text at the right end of so many cells."""
    return " " * (width - cell_len(text)) + text


def pad_right(text: str, width: int) -> str:
    """The text at the left end of so many cells."""
    return text + " " * (width - cell_len(text))


def told_apart(labels: Sequence[str]) -> list[str]:
    """Labels that come more than once with their number: the second `B` is `B#2`."""
    counts, seen = Counter(labels), Counter[str]()
    found = []
    for label in labels:
        seen[label] += 1
        found.append(f"{label}#{seen[label]}" if counts[label] > 1 else label)
    return found


def is_right_to_left(text: str) -> bool:
    """Whether any of it is written from right to left."""
    return any(unicodedata.bidirectional(char) in RIGHT_TO_LEFT for char in text)


def isolated(text: str) -> str:
    """Right-to-left text in marks that keep it apart from what stands beside it."""
    return f"{ISOLATE}{text}{POP}" if is_right_to_left(text) else text
