"""Kinds of data: text pairs, frame pairs, tagged pairs, plain texts.

The kind of a run is chosen once, by `choose_kind` when training starts and by `open_kind` when a
run folder is opened. To add one, write a class in a file of its own and name it in `KINDS`.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from regard.data import Pair, SourceEncoder, Tokenizer
from regard.data.checksummed_json import read_checksummed
from regard.errors import ArgumentError
from regard.kinds.data_kind import DataKind, DataPlace, Encoders, Settings, SourceAdapter
from regard.kinds.frame_pairs import FramePairs
from regard.kinds.frame_source import FrameSource
from regard.kinds.plain_texts import PlainTexts
from regard.kinds.tagged_pairs import TaggedPairs
from regard.kinds.text_pairs import TextPairs
from regard.kinds.text_source import Source, TextSource
from regard.safe_read import PathLike

__all__ = [
    "KINDS",
    "DataKind",
    "DataPlace",
    "Encoders",
    "FramePairs",
    "FrameSource",
    "KindChoice",
    "PlainTexts",
    "Settings",
    "Source",
    "SourceAdapter",
    "TaggedPairs",
    "TextPairs",
    "TextSource",
    "check_settings",
    "choose_kind",
    "load_encoder",
    "open_kind",
    "possible_kinds",
]

#: in the order in which they are tried: text pairs are what is left
KINDS: Final[dict[str, type[DataKind]]] = {
    kind.name: kind for kind in (PlainTexts, FramePairs, TaggedPairs, TextPairs)
}


class KindChoice(NamedTuple):
    """A kind of data, and why it was chosen, worded to follow "because"."""

    kind: type[DataKind]
    why: str


def possible_kinds(settings: Settings) -> list[type[DataKind]]:
    """Return the kinds that the settings leave open: at least one."""
    found = [kind for kind in KINDS.values() if kind.is_possible(settings)]
    return found or [FramePairs]


def check_settings(settings: Settings) -> None:
    """Raise ArgumentError if settings make no sense for any kind of data that they leave open."""
    errors = []
    for kind in reversed(possible_kinds(settings)):
        try:
            kind.check_settings(settings)
            return
        except ArgumentError as error:
            errors.append(error)
    raise errors[0]


def choose_kind(settings: Settings, first: Callable[[], Sequence[Pair]]) -> KindChoice:
    """Choose the kind of training data by the settings and, if these leave it open, by the data.

    Args:
        settings: of the run.
        first: reads the first pairs, their sources as they stand in the file.
    """
    for kind in possible_kinds(settings):
        if why := kind.recognise(settings, first):
            kind.check_settings(settings)
            return KindChoice(kind, why)
    raise AssertionError("pairs of texts are recognised if nothing else is")


def open_kind(settings: Settings, source: SourceEncoder, target: Tokenizer) -> DataKind:
    """Return the kind of data that a run was trained on.

    Run folders do not name it: it follows from the preset and from the encoder of the sources.
    """
    fitting = [kind for kind in KINDS.values() if source.kind in kind.encoder_kinds]
    # settings that contradict the encoder are found when the model is built
    kind = next((kind for kind in fitting if kind.is_possible(settings)), fitting[-1])
    return kind(settings, Encoders(source, target))


def load_encoder(path: PathLike) -> SourceEncoder:
    """Load the encoder of a run's sources; raises DataError if the file is damaged."""
    content = read_checksummed(path)
    by_kind = {name: kind for kind in KINDS.values() for name in kind.encoder_kinds}
    # a damaged file may have anything here: text is what then refuses it
    kind = by_kind.get(str(content.get("kind")), TextPairs)
    return kind.load_encoder(Path(path), content)
