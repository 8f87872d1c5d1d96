"""The encoder of stories with questions: token ids in one row, or a table of sentences."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar, Final

import numpy as np

from regard.atomic_files import VERSION, StoredEncoder, invalid_file, validated
from regard.data.frame_tables import FrameArray
from regard.data.pairs import Pair
from regard.data.stories import Story
from regard.data.tokenizers import StoryEncoderFile, Tokenizer
from regard.errors import DataError
from regard.messages import message
from regard.safe_read import PathLike
from regard.symbols import EOS, PAD, UNK

#: features of the tokeniser: marks before a further sentence and before the question
MARKS: Final = ("|", "||")
#: what ends a sentence, which a table of sentences does not need
FINAL_MARKS: Final = " .!?"

Row = list[int] | FrameArray


@dataclass(frozen=True)
class StoryEncoder(StoredEncoder):
    """The encoder of stories with questions.

    A row is either the token ids of the story, a mark, those of the question, and `eos`; or, for
    models that read sentences, a table with the words of each sentence and of the question, which
    is its last row. Ids in a table are floats, as frames are, which hold integers to 2**24 exactly.

    Attributes:
        tokenizer: of words; its features are `MARKS`.
        width: words of the longest sentence, the columns of a table; 0 for rows of tokens.
    """

    kind: ClassVar[str] = "story"

    tokenizer: Tokenizer
    width: int = 0

    @property
    def vocab_size(self) -> int:
        """Number of ids, the marks included."""
        return self.tokenizer.vocab_size

    @property
    def frame_size(self) -> int:
        """Columns of a table; 0 for rows of tokens."""
        return self.width

    @property
    def limit_unit(self) -> str:
        """The unit of lengths, as it is worded before "or"."""
        return "sentences " if self.width else ""

    @property
    def summary(self) -> str:
        """A short description."""
        table = message("source.stories.sentences", count=self.width) if self.width else ""
        return message("source.stories", tokenizer=self.tokenizer.summary, sentences=table)

    @staticmethod
    def measure(tokenizer: Tokenizer, sources: Iterable[str]) -> "StoryEncoder":
        """Return the encoder of tables that have room for the longest sentence of these sources."""
        sentences = {s for source in sources for s in _sentences(Story.of(source))}
        longest, rest = 1, iter(sentences)
        while chunk := list(islice(rest, 4096)):
            longest = max(longest, *map(len, tokenizer.encode_batch(chunk)))
        return StoryEncoder(tokenizer, longest)

    def encode_sources(self, pairs: Sequence[Pair]) -> list[Any]:
        """Return the rows of the sources of pairs."""
        return self.encode([pair.src for pair in pairs])

    def encode(self, sources: Sequence[str]) -> list[Any]:
        """Return the row of each source: ids, or a table (sentences and question, words).

        A table has more columns than `width` if a sentence has more words: `fits` is False then.
        """
        stories = [Story.of(source) for source in sources]
        parts = [
            _sentences(story) if self.width else [*story.parts, story.question] for story in stories
        ]
        distinct = list(dict.fromkeys(part for several in parts for part in several))
        ids = dict(zip(distinct, self.tokenizer.encode_batch(distinct), strict=True))
        build = self._table if self.width else self._tokens
        return [build([ids[part] for part in several]) for several in parts]

    def _tokens(self, parts: Sequence[list[int]]) -> list[int]:
        sentence, question = self.marks
        *story, asked = parts
        row = list(story[0])
        for part in story[1:]:
            row += [sentence, *part]
        return [*row, question, *asked, EOS]

    def _table(self, parts: Sequence[list[int]]) -> FrameArray:
        table = np.full((len(parts), max(self.width, *map(len, parts))), PAD, np.float32)
        for row, ids in zip(table, parts, strict=True):
            # a part without any word known or unknown would not be there
            row[: max(len(ids), 1)] = ids or [UNK]
        return table

    @property
    def marks(self) -> tuple[int, int]:
        """Ids of the marks before a further sentence and before the question."""
        return self.vocab_size - 2, self.vocab_size - 1

    def fits(self, pair: Pair, row: Any, limit: int) -> bool:
        """Return whether a story has at most `limit` sentences, or tokens without `eos`."""
        return len(row) <= limit + 1 and (not self.width or row.shape[1] == self.width)

    def check(self, source: str) -> Any:
        """Return the row of a source; raises DataError if a sentence is too long for a table."""
        (row,) = self.encode([source])
        if self.width and row.shape[1] > self.width:
            reason = (
                f"a sentence must have at most {self.width} words, as those that the model was "
                f"trained on, but one has {row.shape[1]}"
            )
            fix = 'shorten it, or put " | " where it can be split'
            raise DataError("source", None, reason, fix, kind="too long")
        return row

    @classmethod
    def from_json(cls, path: PathLike, content: dict[str, Any]) -> "StoryEncoder":
        """Return the encoder that a file describes; raises DataError if it is invalid."""
        file = validated(StoryEncoderFile, path, content)
        tokenizer = Tokenizer.from_json(path, file.tokenizer)
        if tokenizer.features != MARKS:
            raise invalid_file(path, f"its features are not {' and '.join(MARKS)}")
        return cls(tokenizer, file.width)

    def to_json(self) -> dict[str, Any]:
        """Return the content of the file."""
        return {
            "version": VERSION,
            "kind": self.kind,
            "width": self.width,
            "tokenizer": self.tokenizer.to_json(),
        }


def _sentences(story: Story) -> list[str]:
    """Return the sentences and the question without the marks that end them."""
    parts = [*story.sentences, story.question]
    return [part.rstrip(FINAL_MARKS) or part for part in parts]
