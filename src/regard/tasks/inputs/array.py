"""Tables of numbers: what vectors, recordings, pictures and series have in common as inputs."""

import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from pathlib import Path
from typing import Any, ClassVar, Final

from torch import Tensor

from regard.data import Pair, base_folder, pad_frames
from regard.data.error_hints import BadLine
from regard.data.frame_tables import FrameArray, TableReader, read_frame_sources
from regard.errors import ArgumentError, DataError
from regard.messages import message
from regard.models import COPY_PRESETS, STORY_PRESETS, TEXT_PRESETS
from regard.seeing import Token
from regard.tasks.inputs.base import TaskInput
from regard.tasks.settings import Settings, SourceFiles, refuse_settings

#: characters of a missing file's name that a message has at most
LONGEST_NAME: Final = 200
#: and those of its beginning by which a reason is seen to have it already
NAMED_BY: Final = 30


#: settings that are only for text sources
TEXT_ONLY: Final = ("src_case", "shared_vocab", "src_vectors")


#: presets that read something else, and what they do
OTHER_PRESETS: Final = (
    (COPY_PRESETS, "copies tokens of the source"),
    (STORY_PRESETS, "reads stories and questions"),
    (TEXT_PRESETS, "reads texts alone"),
)


class ArrayInput(TaskInput):
    """Sources that become tables: in files, or given as arrays."""

    #: presets that read something else
    other_presets: ClassVar[Set[str]] = frozenset(TEXT_PRESETS)

    @classmethod
    @abstractmethod
    def why(cls, pairs: Sequence[Pair]) -> str:
        """Return why the first sources are such tables, or names of their files; "" if not."""

    @classmethod
    def is_possible(cls, settings: Settings) -> bool:
        """Return whether the tokeniser of the source and the preset leave such sources open."""
        asked = settings.src_tokenizer in ("auto", cls.encoder_type.kind)
        return asked and settings.preset not in cls.other_presets

    @classmethod
    def recognise(cls, settings: Settings, first: Callable[[], Sequence[Pair]]) -> str:
        """Return that it was asked for, or what the first sources are."""
        asked = settings.src_tokenizer == cls.encoder_type.kind
        return message("train.why.asked") if asked else cls.why(first())

    @abstractmethod
    def table_reader(self, folder: Path) -> TableReader:
        """Return a reader of sources whose files lie in a folder."""

    @classmethod
    def check_settings(cls, settings: Settings) -> None:
        """Raise ArgumentError for a preset or a setting that is only for text."""
        sources = cls.facts.several
        for presets, does in OTHER_PRESETS:
            if settings.preset in presets:
                value = f"{settings.preset}, which {does}"
                fix = "choose bahdanau or another one, or a src_tokenizer for text"
                raise ArgumentError("preset", f"be one that reads {sources}", value, fix)
        if settings.model.get("tied") == "all":
            rule = f"not be 'all' where sources are {sources}"
            raise ArgumentError("tied", rule, "'all'", "say tied=output")
        rule = f"be left out where sources are {sources}"
        refuse_settings(settings, ("features",), rule, "join them to the sources as numbers")
        refuse_settings(settings, TEXT_ONLY, rule)

    def table(self, source: Any) -> FrameArray:
        """Return the numbers of a source as they were given; raises DataError if it has none."""
        try:
            return self.table_reader(Path()).parse(source)
        except BadLine as bad:
            named = isinstance(source, str | Path)
            if named and os.path.exists(source):
                name, reason = str(source), bad.reason
            else:
                name = "source"
                known = not named or str(source)[:NAMED_BY] in bad.reason
                reason = bad.reason if known else f"{str(source)[:LONGEST_NAME]}: {bad.reason}"
            raise DataError(name, None, reason, str(bad.fix), kind=bad.kind) from None

    def parse(self, source: Any, *, line: bool = False) -> Any:
        """Return the table of a source."""
        return self.table(source)

    def rows(self, sources: Sequence[Any]) -> list[FrameArray]:
        """Return the row of each source."""
        return [self.encoder.encode(self.table(source)) for source in sources]

    def batch(self, rows: Sequence[FrameArray]) -> tuple[Tensor, Tensor]:
        """Pad rows to a batch; returns the batch and the lengths of the rows."""
        return pad_frames(rows)

    def positions(self, lengths: Any) -> Any:
        """Return how many vectors the model makes of rows of these lengths."""
        return self.encoder.positions(lengths)

    def tokens(self, row: FrameArray) -> tuple[Token, ...]:
        """Return the labels of a row as traces hold them."""
        return tuple(map(Token, self.labels(row)))

    def read(self, given: SourceFiles) -> Iterator[Any]:
        """Read the sources of several files; each is checked when it is read."""
        for file in given.files:
            reader = self.table_reader(base_folder(file))
            yield from read_frame_sources(file, reader, bad=given.bad, columns=given.columns)


def tables_of(pairs: Iterable[Pair], file: str) -> Iterator[FrameArray]:
    """Yield the sources of pairs; raises DataError for features, which no table has."""
    for pair in pairs:
        if pair.features:
            raise DataError(
                file,
                pair.line,
                f"the source is vectors, which no features join, but it has {pair.features[0]!r}",
                "join them to the frames as numbers, or leave them out with features=False",
            )
        yield pair.frames
