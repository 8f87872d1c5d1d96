"""What cuts text into pieces with numbers and joins the pieces again: characters and symbols.

Both are looked up in a table, which takes a microsecond where a general tokeniser takes twenty.
"""

import itertools
import re
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Final

from regard.data.normal import SPACES, Span, collapse_spaces
from regard.symbols import SYMBOLS, UNK

OPEN_BOX: Final = "␣"
MAX_REMEMBERED: Final = 200_000
MAX_WORD: Final = 64


class Codec(ABC):
    """Cuts normalised text into pieces that have numbers, and joins pieces to text.

    Attributes:
        pieces: the vocabulary; the first four are the special symbols.
        form: the name of what `normalize` does; empty where it changes nothing that is common.
    """

    pieces: list[str]
    form: ClassVar[str] = ""

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The numbers of the pieces of each text."""

    @abstractmethod
    def spans(self, text: str) -> list[Span]:
        """Where each piece stands in the text."""

    @abstractmethod
    def join(self, pieces: Sequence[str]) -> str:
        """The text that the pieces make."""

    def normalize(self, text: str) -> str:
        """Return the text as `join` would write it if the vocabulary had all its pieces."""
        return text

    @abstractmethod
    def show(self, piece: str) -> str:
        """A piece as it should be drawn."""

    @abstractmethod
    def to_json(self) -> Any:
        """All that is needed to make the codec again."""


def count_pieces(pieces: Iterable[Iterable[str]], vocab_size: int, min_count: int) -> list[str]:
    """The special symbols and the most frequent pieces, ties in the order of the alphabet."""
    counts: Counter[str] = Counter()
    for some in pieces:
        counts.update(some)
    for symbol in SYMBOLS:
        del counts[symbol]
    often = ((-count, piece) for piece, count in counts.items() if count >= min_count)
    return [*SYMBOLS, *(piece for _, piece in sorted(often)[: vocab_size - len(SYMBOLS)])]


def table_of(pieces: Sequence[str]) -> dict[str, int]:
    """Numbers of all pieces but the special symbols, which text cannot name."""
    return {piece: i for i, piece in enumerate(pieces) if i >= len(SYMBOLS)}


class CharCodec(Codec):
    """One piece per character. Joined again, the text is the same to the last character."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self.pieces = list(pieces)
        self._table = table_of(pieces)

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int, min_count: int) -> "CharCodec":
        """Counts characters."""
        return cls(count_pieces(texts, vocab_size, min_count))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The numbers of the characters of each text."""
        find = self._table.get
        return [[find(char, UNK) for char in text] for text in texts]

    def spans(self, text: str) -> list[Span]:
        """Every character by itself."""
        return [(i, i + 1) for i in range(len(text))]

    def join(self, pieces: Sequence[str]) -> str:
        """The characters without anything between them."""
        return "".join(pieces)

    def show(self, piece: str) -> str:
        """The character; a space is made visible."""
        return OPEN_BOX if piece == " " else piece

    def to_json(self) -> Any:
        """The vocabulary."""
        return self.pieces


class SpaceCodec(Codec):
    """One piece per symbol between spaces, such as a phoneme."""

    form = SPACES

    def __init__(self, pieces: Sequence[str]) -> None:
        self.pieces = list(pieces)
        self._table = table_of(pieces)

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int, min_count: int) -> "SpaceCodec":
        """Counts symbols."""
        return cls(count_pieces((text.split() for text in texts), vocab_size, min_count))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The numbers of the symbols of each text."""
        find = self._table.get
        return [[find(symbol, UNK) for symbol in text.split()] for text in texts]

    def spans(self, text: str) -> list[Span]:
        """Every symbol, without the spaces around it."""
        return words_of(text)

    def join(self, pieces: Sequence[str]) -> str:
        """The symbols with a space between them."""
        return " ".join(pieces)

    def normalize(self, text: str) -> str:
        """Return the symbols with a single space between them."""
        return collapse_spaces(text)

    def show(self, piece: str) -> str:
        """The symbol."""
        return piece

    def to_json(self) -> Any:
        """The vocabulary."""
        return self.pieces


class Chunks:
    """Remembers the numbers of words that come again and again.

    Args:
        cut_all: the numbers of each of some words.
    """

    def __init__(self, cut_all: Callable[[Sequence[str]], list[list[int]]]) -> None:
        self._cut_all = cut_all
        self._known: dict[str, list[int]] = {}

    def encode_batch(self, texts: Sequence[Sequence[str]]) -> list[list[int]]:
        """The numbers of each text, which is a list of words."""
        known, rest = self._known, dict[str, list[int]]()
        missing = list({word: None for text in texts for word in text if word not in known})
        room = len(known) < MAX_REMEMBERED
        for word, ids in zip(missing, self._cut_all(missing), strict=True):
            (known if room and len(word) <= MAX_WORD else rest)[word] = ids

        def find(word: str) -> list[int]:
            return rest[word] if word in rest else known[word]

        return [list(itertools.chain.from_iterable(map(find, text))) for text in texts]


def words_of(text: str) -> list[Span]:
    """Where the words stand, which have spaces around them."""
    return [match.span() for match in re.finditer(r"\S+", text)]


def words_at(text: str, places: Iterable[int]) -> list[int | None]:
    """The word that each of these characters is part of, counted from 0; a space is of none."""
    words = words_of(text)
    starts = [start for start, _ in words]
    found: list[int | None] = []
    for place in places:
        word = bisect_right(starts, place) - 1
        found.append(word if word >= 0 and place < words[word][1] else None)
    return found
