"""Word vectors from text files, as GloVe, word2vec and fastText write them.

A line is a word and its numbers, with spaces between them; a first line may say how many vectors
there are and how wide. Files have millions of numbers, so that only those of wanted words are read
as numbers; of all other lines their fields are counted.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from jaxtyping import Float32

from regard.data.text_files import display_name, numbered_lines
from regard.errors import DataError
from regard.safe_read import PathLike, has_plain_digits, parse_number

ZIP: Final = b"PK\x03\x04"
FORM: Final = "a line must be a word and its numbers, with spaces between them"


@dataclass(frozen=True)
class WordVectorFile:
    """A file of word vectors; each pass over it reads it anew.

    Attributes:
        source: the file.
        width: numbers of each vector.
    """

    source: PathLike
    width: int

    @property
    def name(self) -> str:
        """Return the name of a file in messages."""
        return display_name(self.source)

    def words(self) -> Iterator[str]:
        """Yield the words in the order of the file, except those that are not UTF-8."""
        for _, word, _ in self._rows():
            try:
                yield word.decode("utf-8")
            except UnicodeDecodeError:
                continue

    def vectors(self, wanted: Iterable[str]) -> dict[str, Float32[np.ndarray, " width"]]:
        """Return the vectors of the words in the file; the first if a word occurs twice."""
        missing = {word.encode("utf-8"): word for word in wanted}
        found: dict[str, Float32[np.ndarray, " width"]] = {}
        for number, raw, numbers in self._rows():
            word = missing.pop(raw, None)
            if word is not None:
                found[word] = self._parsed(number, numbers)
        return found

    def _rows(self) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield the line number, the word and the numbers of each line."""
        for number, line in _lines(self.source):
            if line.count(b" ") == self.width:
                word, _, numbers = line.partition(b" ")
                yield number, word, numbers
            else:
                yield number, *self._cut(number, line)

    def _cut(self, number: int, line: bytes) -> tuple[bytes, bytes]:
        """Split a line into word and numbers; some words contain spaces, like `. . .`."""
        word, *numbers = line.rsplit(None, self.width)
        more = word.split()[1:]
        if all(map(_is_number, more)) and not all(map(bytes.isdigit, more)):  # as in `route 66`
            numbers = [*more, *numbers]
        if len(numbers) != self.width:
            reason = (
                f"there must be {self.width} numbers after the word, as in the first line, but "
                f"there are {len(numbers)}"
            )
            raise self._bad(number, line, reason)
        return word, b" ".join(numbers)

    def _parsed(self, number: int, numbers: bytes) -> Float32[np.ndarray, " width"]:
        fields = numbers.split()
        try:
            if not has_plain_digits(numbers):  # once for all, since lines are many
                raise ValueError
            wide = np.array(list(map(float, fields)))
        except ValueError:
            wrong = next(field for field in fields if not _is_number(field))
            shown = repr(wrong.decode("utf-8", "replace")[:40])
            raise self._bad(number, numbers, f"{FORM}, but {shown} is no number") from None
        with np.errstate(over="ignore"):
            vector = wide.astype(np.float32)
        if len(vector) != self.width:
            raise self._bad(number, numbers, f"{FORM}, but here are two spaces")
        if not np.isfinite(vector).all():
            wrong = fields[int(np.flatnonzero(~np.isfinite(vector))[0])]
            reason = f"numbers must be finite in 32 bits, but {wrong.decode()} is not"
            raise self._bad(number, numbers, reason)
        return vector

    def _bad(self, number: int, line: bytes, reason: str) -> DataError:
        if _is_text(line):
            return DataError(self.name, number, reason, "mend or delete the line")
        fix = "save the vectors as text, not in a binary form"
        return DataError(self.name, number, f"{FORM}, but this is no UTF-8 text", fix)


def open_word_vectors(source: PathLike) -> WordVectorFile:
    """Open a file of word vectors; raises DataError unless the first vector is valid."""
    _, first = next(numbered_lines(source), (0, b""))
    if first.startswith(ZIP):
        reason, fix = "this is a zip archive", "unpack it, and name one of the files in it"
        raise DataError(display_name(source), None, reason, fix)
    number, line = next(_lines(source), (0, b""))
    width = int(first.split()[1]) if _is_header(first) else len(line.split()) - 1
    if width < 1 or not line:
        fix = f"name a file of word vectors, where {FORM}"
        raise DataError(display_name(source), None, "there are no vectors in it", fix)
    file = WordVectorFile(source, width)
    _, numbers = file._cut(number, line)
    file._parsed(number, numbers)
    return file


def _lines(source: PathLike) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not empty, without a first line with the size of the file."""
    for number, raw in numbered_lines(source):
        line = raw.replace(b"\t", b" ").rstrip(b" ")
        if line and not (number == 1 and _is_header(line)):
            yield number, line


def _is_header(line: bytes) -> bool:
    """Return whether a line holds the number of vectors and their width."""
    fields = line.split()
    return len(fields) == 2 and all(field.isdigit() for field in fields)


def _is_number(field: bytes) -> bool:
    try:
        parse_number(field)
    except ValueError:
        return False
    return True


def _is_text(line: bytes) -> bool:
    try:
        return "\0" not in line.decode("utf-8")
    except UnicodeDecodeError:
        return False
