"""Normalisation of text, and the spans of the original text that characters come from."""

import unicodedata
from collections.abc import Callable
from typing import Final

from regard.errors import ArgumentError

Span = tuple[int, int]

#: the name of `collapse_spaces` in the signature of a metric
SPACES: Final = "spaces"

#: what may be done to small and capital letters
CASES: Final[dict[str, Callable[[str], str]]] = {
    "keep": str,
    "lower": str.lower,
    "upper": str.upper,
}


def normaliser(*, nfc: bool, case: str) -> Callable[[str], str]:
    """Return the normalisation of a tokeniser. NFC is last: lower case may decompose a letter."""
    if case not in CASES:
        raise ArgumentError("case", f"be one of {', '.join(CASES)}", repr(case), "choose one")
    turn = CASES[case]

    def normalise(text: str) -> str:
        text = turn(text)
        return unicodedata.normalize("NFC", text) if nfc and not text.isascii() else text

    return normalise


def collapse_spaces(text: str) -> str:
    """Return the text with one space for each run of white space, and none at its ends."""
    return " ".join(text.split())


def origins(text: str, normalise: Callable[[str], str]) -> list[Span]:
    """Return the span of `text` that each character of the normalised text comes from.

    Characters that only together have their form, like a letter and its accents, share a span.
    """
    whole = normalise(text)
    if whole == text:
        return [(i, i + 1) for i in range(len(text))]
    spans: list[Span] = []
    start = 0
    for end in range(1, len(text) + 1):
        if end < len(text) and not _parts(normalise, text[start:end], text[end]):
            continue
        spans += [(start, end)] * len(normalise(text[start:end]))
        start = end
    # a form that depends on more than its neighbours, like a final sigma, keeps the count
    return spans if len(spans) == len(whole) else [(0, len(text))] * len(whole)


def _parts(normalise: Callable[[str], str], left: str, right: str) -> bool:
    """Return whether the text may be split here without a change to either side."""
    if unicodedata.combining(right):
        return False
    return normalise(left + right) == normalise(left) + normalise(right)
