"""Kinds of data, from pairs of texts to recordings, pictures, questions and series.

The kind of a run is chosen once, by `choose_kind` when training starts and by `open_kind` when a
run folder is opened. To add one, write a class in a file of its own and name it in `KINDS`.
"""

from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import Final, NamedTuple

from pydantic.fields import FieldInfo

from regard.data import Pair, SourceEncoder, TargetEncoder
from regard.data.checksummed_json import read_checksummed
from regard.errors import ArgumentError
from regard.kinds.data_kind import (
    DataKind,
    DataPlace,
    DevScores,
    Encoders,
    KindOptions,
    ScoreTable,
    Settings,
    SourceAdapter,
)
from regard.kinds.frame_pairs import FramePairs
from regard.kinds.frame_source import FrameSource
from regard.kinds.number_pairs import NumberPairs, NumberPrediction
from regard.kinds.picture_pairs import PicturePairs, PictureSource
from regard.kinds.plain_texts import PlainTexts
from regard.kinds.questions import Questions, StorySource
from regard.kinds.series import SeriesForecasts
from regard.kinds.sound_pairs import SoundPairs, SoundSource
from regard.kinds.tagged_pairs import TaggedPairs
from regard.kinds.text_pairs import TextPairs
from regard.kinds.text_source import Source, TextSource
from regard.safe_read import PathLike

__all__ = [
    "KINDS",
    "DataKind",
    "DataPlace",
    "DevScores",
    "Encoders",
    "FramePairs",
    "FrameSource",
    "KindChoice",
    "KindOptions",
    "NumberPairs",
    "NumberPrediction",
    "PicturePairs",
    "PictureSource",
    "PlainTexts",
    "Questions",
    "ScoreTable",
    "SeriesForecasts",
    "Settings",
    "SoundPairs",
    "SoundSource",
    "Source",
    "SourceAdapter",
    "StorySource",
    "TaggedPairs",
    "TextPairs",
    "TextSource",
    "check_settings",
    "choose_kind",
    "kind_of_options",
    "kind_options",
    "load_encoder",
    "open_kind",
    "possible_kinds",
]

#: in the order in which they are tried: text pairs are what is left
KINDS: Final[dict[str, type[DataKind]]] = {
    kind.name: kind
    for kind in (
        SeriesForecasts,
        PlainTexts,
        SoundPairs,
        PicturePairs,
        FramePairs,
        NumberPairs,
        TaggedPairs,
        Questions,
        TextPairs,
    )
}


class KindChoice(NamedTuple):
    """A kind of data, and why it was chosen, worded to follow "because"."""

    kind: type[DataKind]
    why: str


def possible_kinds(settings: Settings) -> list[type[DataKind]]:
    """Return the kinds that the settings leave open: at least one.

    A setting that only some kinds have leaves only these.
    """
    asked = settings.kind_options.keys()
    owners = [kind for kind in KINDS.values() if asked <= kind.options_type.model_fields.keys()]
    if not owners:
        raise ArgumentError(
            "settings",
            "be of one kind of data",
            ", ".join(f"{name} (of {' and '.join(_owners(name))})" for name in asked),
            "leave out those of other kinds",
        )
    found = [kind for kind in owners if kind.is_possible(settings)]
    return found or ([FramePairs] if FramePairs in owners else owners)


def kind_options() -> dict[str, dict[str, FieldInfo]]:
    """Return the settings that only some kinds of data have, by kind and by name."""
    found = {name: dict(kind.options_type.model_fields) for name, kind in KINDS.items()}
    return {name: fields for name, fields in found.items() if fields}


def kind_of_options(names: Set[str]) -> type[DataKind]:
    """Return the first kind that has all settings of these names: for none, the general one."""
    if not names:
        return DataKind
    fitting = (kind for kind in KINDS.values() if kind.options_type.model_fields.keys() >= names)
    return next(fitting, DataKind)


def _owners(option: str) -> list[str]:
    return [name for name, fields in kind_options().items() if option in fields]


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


def open_kind(settings: Settings, source: SourceEncoder, target: TargetEncoder) -> DataKind:
    """Return the kind of data that a run was trained on.

    Run folders do not name it: it follows from the preset and from the encoders.
    """
    reading = [kind for kind in KINDS.values() if source.kind in kind.encoder_kinds]
    fitting = [kind for kind in reading if target.kind in kind.target_kinds] or reading
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
