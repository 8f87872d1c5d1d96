"""An input of regard in two files: DNA reads with their qualities (`dna_codec.py` is the other).

With `from examples.dna import DnaInput` in `regard/tasks/__init__.py`, and `DnaInput` among the
`INPUTS`, `regard train reads.tsv` recognises them, and every command knows them.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from examples.dna_codec import BASES, DnaCodec, read_table
from regard.data import FrameScaler, Pair
from regard.data.error_hints import BadLine
from regard.data.frame_tables import FrameArray, TableReader
from regard.data.pair_reader import SourceTransform
from regard.errors import ArgumentError
from regard.seeing import Text, Token
from regard.seeing.attribution.input_scorer import Replacements
from regard.tasks.inputs.array import ArrayInput
from regard.tasks.inputs.base import InputDescription, InputFacts
from regard.tasks.inputs.frames import FrameInput
from regard.tasks.inputs.text import text_sources
from regard.tasks.settings import DataPlace, Say, Settings, SourceFiles

READ: Final = re.compile(r"([ACGTN]+) ([!-~]+)")


@dataclass(frozen=True)
class DnaEncoder(FrameScaler):
    """Tables of reads, which need no scaling."""

    kind: ClassVar[str] = "dna"


class DnaReader(TableReader):
    """Reads the tables of reads."""

    suffixes = ()

    def parse(self, source: Any) -> FrameArray:
        """Return the table of a read."""
        try:
            return read_table(source)
        except ValueError as error:
            raise BadLine("no read", str(error), "write it as ACGTN IIH5!") from None

    table = parse  # a source is no name of a file


class DnaInput(FrameInput):
    """Bases with qualities, one position for each base."""

    name = "dna"
    facts = InputFacts("bases", "one read", "reads", request_field="text", codec=DnaCodec)
    encoder_type: ClassVar[Any] = DnaEncoder

    @classmethod
    def why(cls, pairs: Sequence[Pair]) -> str:
        """Return that all sources are bases with as many qualities; "" if they are not."""
        found = [READ.fullmatch(pair.src) for pair in pairs if pair.frames is None]
        able = found and all(one and len(one[1]) == len(one[2]) for one in found)
        return "its sources are bases with qualities" if able else ""

    @classmethod
    def check_settings(cls, settings: Settings) -> None:
        """Raise ArgumentError for settings that reads have no use for."""
        super().check_settings(settings)
        if settings.stack != 1:
            raise ArgumentError("stack", "be 1 for DNA reads", settings.stack, "leave it out")

    @classmethod
    def reader(cls, settings: Settings, place: DataPlace) -> SourceTransform:
        """Return the reader of reads."""
        return DnaReader(place.folder)

    @classmethod
    def learn(
        cls, settings: Settings, pairs: Iterable[Pair], *, file: str, why: str, say: Say
    ) -> DnaEncoder:
        """Return the encoder, which has nothing to learn."""
        for _ in pairs:  # the targets are collected on the way
            pass
        say(f"The source is DNA with qualities, because {why}.")
        return DnaEncoder(5, 1, (0.0,) * 5, (1.0,) * 5)

    def table_reader(self, folder: Path) -> TableReader:
        """Return the reader of reads."""
        return DnaReader(folder)

    def is_one(self, given: Any) -> bool:
        """Return whether this is a read."""
        return isinstance(given, str)

    def parse(self, source: Any, *, line: bool = False) -> Any:
        """Return the read; raises DataError if it is none."""
        ArrayInput.parse(self, source)
        return source

    def read(self, given: SourceFiles) -> Iterator[str]:
        """Read one read per line."""
        return text_sources(given)

    def of_pair(self, pair: Pair) -> str:
        """Return the read."""
        return pair.src

    def labels(self, row: FrameArray) -> list[str]:
        """Return the bases."""
        return [BASES[base] if row[i, base] else "N" for i, base in enumerate(row[:, :4].argmax(1))]

    def text(self, source: Any, row: FrameArray) -> Text:
        """Return the read, with a token for each base."""
        labels = enumerate(self.labels(row))
        return Text(source, tuple(Token(base, (i, i + 1), i) for i, base in labels))

    def replacements(self, row: FrameArray) -> Replacements:
        """Return the other bases, of the same quality."""
        others = [[i for i in range(4) if not base[i]] for base in row]
        note = "An input is not known where another base of the same quality stands in its place."
        return Replacements(others, partial(_put), (note,))

    def describe(self) -> InputDescription:
        """Return the kind of the encoder, and a read to try."""
        kind, said = self.encoder.kind, "DNA, base by base, with the quality of each"
        return InputDescription(said, {"tokenizer": kind}, {"kind": kind, "example": "ACGT II5!"})

    def examples(self, card: str, dev: Path) -> list[str]:
        """Return a read to try."""
        return ["ACGT II5!"]


def _put(row: FrameArray, change: Mapping[int, int]) -> FrameArray:
    changed = row.copy()
    for place, base in change.items():
        changed[place, :4] = np.arange(4) == base
    return changed
