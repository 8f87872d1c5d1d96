"""The tokenizers of an exported model, and its predictions line by line: no regard is needed."""

import io
import itertools
import json
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

JOINER, WORD_START = "￭", "▁"


class TokenCodec:
    """A tokenizer: texts to ids and ids to texts.

    Args:
        path: one of the two tokenizer files, or what it holds.
        symbols: ids of special tokens, by name.
    """

    #: of ids
    dtype = "int64"

    def __init__(self, path: Path | dict[str, Any], symbols: dict[str, int]) -> None:
        content = path if isinstance(path, dict) else json.loads(path.read_text(encoding="utf-8"))
        self.file: dict[str, Any] = content
        self.eos, self.unk = symbols["eos"], symbols["unk"]
        self.pieces, model = self.file["model"], self.file["model"]
        if self.file["kind"] == "labels":
            self.pieces = model["pieces"]
        if self.file["kind"] in ("bpe", "unigram"):
            from tokenizers import Tokenizer

            self.subwords = Tokenizer.from_str(json.dumps(model))
            by_id = {number: piece for piece, number in self.subwords.get_vocab().items()}
            self.pieces = [by_id[number] for number in range(len(by_id))]
        self.ids = {piece: i for i, piece in enumerate(self.pieces) if i > self.unk}
        names = enumerate(self.file["features"], start=len(self.pieces))
        self.features = {name: i for i, name in names}

    def encode(self, line: str) -> list[int]:
        """Return the ids of a text, of the features after its tab, and eos."""
        text, _, tail = line.partition("\t")
        names = filter(None, (name.strip() for name in tail.split(";")))
        features = [self.features.get(name, self.unk) for name in names]
        return [*self.cut(text), *features, self.eos]

    def positions(self, length: int) -> int:
        """Return the number of vectors that the model makes of so many tokens: as many."""
        return length

    def cut(self, text: str) -> list[int]:
        """Return the ids of a text alone."""
        text = getattr(text, self.file["case"])() if self.file["case"] != "keep" else text
        text = unicodedata.normalize("NFC", text) if self.file["nfc"] else text
        if self.file["kind"] in ("bpe", "unigram"):
            words = [WORD_START + word for word in text.split(" ")] if text else []
            found = (self.subwords.encode(word).ids for word in words)
            return [max(number, self.unk) for ids in found for number in ids]
        if self.file["kind"] == "word":
            pieces = [piece for word in text.split() for piece in marked(word)]
        else:
            pieces = list(text) if self.file["kind"] == "char" else text.split()
        return [self.ids.get(piece, self.unk) for piece in pieces]

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids, without unknown and special tokens."""
        pieces = [self.pieces[i] for i in ids if self.unk < i < len(self.pieces)]
        kind = self.file["kind"]
        if kind == "word":
            return joined(pieces)
        if kind in ("space", "label"):
            return " ".join(pieces)
        if kind == "labels":
            sign = self.file["model"]["separator"]
            if sign == "json":
                return json.dumps(pieces, ensure_ascii=False)
            return (f"{sign} " if sign in ",;" else f" {sign} ").join(pieces)
        text = "".join(pieces)
        return text if kind == "char" else text.replace(WORD_START, " ").removeprefix(" ")


class StoryCodec(TokenCodec):
    """Stories with questions, `story<TAB>question`; sentences may have " | " between them."""

    def __init__(self, path: Path, symbols: dict[str, int]) -> None:
        super().__init__(json.loads(path.read_text(encoding="utf-8"))["tokenizer"], symbols)

    def encode(self, line: str) -> list[int]:
        """Return the ids of the story, of the question after its mark, and eos."""
        story, _, question = (part.strip() for part in line.partition("\t"))
        sentences = [part for part in map(str.strip, story.split(" | ")) if part]
        if "\t" not in line or not sentences or not question or "\t" in question:
            raise ValueError(
                f"a source must be a story and a question with a tab between them, but it is "
                f"{line[:60]!r}"
            )
        row = self.cut(sentences[0])
        for sentence in sentences[1:]:
            row += [self.features["|"], *self.cut(sentence)]
        return [*row, self.features["||"], *self.cut(question), self.eos]


def marked(word: str) -> list[str]:
    """Split a word into words and punctuation marks, with joiners where they touch."""
    runs = itertools.groupby(word, key=lambda char: "" if in_word(char) else char)
    pieces = ["".join(run) for _, run in runs]
    for i, piece in enumerate(pieces):
        if not in_word(piece[0]):
            before_word = i + 1 < len(pieces) and in_word(pieces[i + 1][0])
            pieces[i] = JOINER * (i > 0) + piece + JOINER * before_word
    return pieces


def in_word(char: str) -> bool:
    """Return whether a character is part of a word."""
    return char.isalnum() or char in "_\u200c\u200d" or unicodedata.category(char)[0] == "M"


def joined(pieces: list[str]) -> str:
    """Join words and marks, with spaces where there is no joiner."""
    text, close = "", True
    for piece in pieces:
        left, right = (len(piece) > 1 and piece[side] == JOINER for side in (0, -1))
        bare = piece[1:] if left else piece
        bare = bare[:-1] if len(bare) > 1 and right else bare
        text += bare if close or left else f" {bare}"
        close = right
    return text


def read_lines(source: IO[bytes]) -> Iterator[str]:
    """Yield the lines of a file, in UTF-8 whatever the machine's own encoding."""
    # a byte-order mark is not part of the text
    for line in io.TextIOWrapper(source, encoding="utf-8-sig", newline="\n"):
        yield line.rstrip("\r\n")


def one_line(text: str) -> bytes:
    """Return a text as one line of a file."""
    return text.replace("\n", " ").encode() + b"\n"


def answer(model: Callable[[list[str]], list[str]], source: IO[bytes], target: IO[bytes]) -> None:
    """Predict a line for each line of a file."""
    for text in model(list(read_lines(source))):
        target.write(one_line(text))
