"""Words and punctuation marks as pieces."""

import itertools
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any, Final

from regard.data.codecs import Chunks, Codec, count_pieces, table_of, words_of
from regard.data.normal import SPACES, Span, collapse_spaces
from regard.symbols import UNK

JOINER: Final = "￭"
# what joins the letters of Persian and Indic words is part of the word
IN_WORDS: Final = "_\u200c\u200d"


class WordCodec(Codec):
    """Words and punctuation marks, each a piece.

    A mark that stands close to what is beside it has a joiner there, as in the tokeniser of
    OpenNMT (Klein et al., 2017), and words never have one: `"so", he said` is `"￭`, `so`, `￭"`,
    `￭,`, `he`, `said`. So a word has one number wherever it stands, and nothing is lost.
    """

    form = SPACES

    def __init__(self, pieces: Sequence[str]) -> None:
        self.pieces = list(pieces)
        self._table = table_of(pieces)
        self._chunks = Chunks(self._cut_all)

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int, min_count: int) -> "WordCodec":
        """Counts words and marks."""
        chunks: dict[str, list[str]] = {}

        def pieces(text: str) -> Iterable[str]:
            for chunk in text.split():
                if chunk not in chunks:
                    chunks[chunk] = mark_joins(cut_word(chunk))
                yield from chunks[chunk]

        return cls(count_pieces(map(pieces, texts), vocab_size, min_count))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The numbers of the words and marks of each text."""
        return self._chunks.encode_batch([text.split() for text in texts])

    def _cut_all(self, chunks: Sequence[str]) -> list[list[int]]:
        find = self._table.get
        return [[find(piece, UNK) for piece in mark_joins(cut_word(chunk))] for chunk in chunks]

    def spans(self, text: str) -> list[Span]:
        """Every word and every mark, without the spaces around them."""
        found = []
        for start, end in words_of(text):
            for piece in cut_word(text[start:end]):
                found.append((start, start + len(piece)))
                start += len(piece)
        return found

    def join(self, pieces: Sequence[str]) -> str:
        """The words with spaces between them where no mark says otherwise."""
        text, joined = [], True
        for piece in pieces:
            if not (joined or _joins(piece, 0)):
                text.append(" ")
            joined = _joins(piece, -1)
            text.append(self.show(piece))
        return "".join(text)

    def normalize(self, text: str) -> str:
        """Return the words with a single space between them."""
        return collapse_spaces(text)

    def show(self, piece: str) -> str:
        """The word or the mark alone."""
        piece = piece[1:] if _joins(piece, 0) else piece
        return piece[:-1] if _joins(piece, -1) else piece

    def to_json(self) -> Any:
        """The vocabulary."""
        return self.pieces


def cut_word(word: str) -> list[str]:
    """Runs of letters, marks and digits, and runs of one and the same other character."""
    runs = itertools.groupby(word, key=lambda char: "" if _in_word(char) else char)
    return ["".join(run) for _, run in runs]


def mark_joins(pieces: Sequence[str]) -> list[str]:
    """Puts joiners on the punctuation of one word: on its right only if a word follows."""
    marked = []
    for i, piece in enumerate(pieces):
        if not _in_word(piece[0]):
            before_word = i + 1 < len(pieces) and _in_word(pieces[i + 1][0])
            piece = JOINER * (i > 0) + piece + JOINER * before_word
        marked.append(piece)
    return marked


def _in_word(char: str) -> bool:
    return char.isalnum() or char in IN_WORDS or unicodedata.category(char).startswith("M")


def _joins(piece: str, side: int) -> bool:
    return len(piece) > 1 and piece[side] == JOINER
