"""Frame pairs: a source of numeric vectors, such as a spectrogram, and a target text."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, final

from regard.data import (
    FrameReader,
    FrameScaler,
    Pair,
    PairReader,
    SourceEncoder,
)
from regard.data.frame_tables import FrameArray, why_frames
from regard.errors import ArgumentError, DataError
from regard.kinds.data_kind import DataKind, DataPlace, Encoders, Say, Settings
from regard.kinds.frame_model import FrameOptions, build_frame_model, check_frame_options
from regard.kinds.frame_source import FrameSource
from regard.kinds.text_pairs import check_pair_settings, read_pair_files
from regard.kinds.tokenizer_training import TOKENIZER_LINES, learn_target_tokenizer
from regard.messages import message
from regard.models import (
    COPY_PRESETS,
    STORY_PRESETS,
    TAG_PRESETS,
    TEXT_PRESETS,
    SequenceModel,
)

#: settings that are only for text sources: their default, and what to do instead
TEXT_ONLY: Final[dict[str, tuple[Any, str]]] = {
    "features": (None, "join them to the sources as numbers"),
    "src_case": ("keep", "leave it out"),
    "shared_vocab": (False, "leave it out"),
    "src_vectors": (None, "leave it out; the sources are numbers already"),
    "bpe_dropout": (0.0, "leave it out"),
}


@final
class FramePairs(DataKind):
    """Tables of numbers (frames, features), given as they are or in .npy files, and texts."""

    name = "frame-pairs"
    encoder_kinds = (FrameScaler.kind,)
    caches_parsed = True
    names_files = True
    example_files = ("input.npy", "test.jsonl")
    options_type = FrameOptions

    def __init__(self, settings: Settings, encoders: Encoders) -> None:
        super().__init__(settings, encoders)
        self.source: FrameScaler
        self.sources = FrameSource(self.source)

    @classmethod
    def is_possible(cls, settings: Settings) -> bool:
        """Return whether sources may be vectors."""
        asked = settings.src_tokenizer in ("auto", "vectors")
        return asked and settings.preset not in {*TEXT_PRESETS, *STORY_PRESETS}

    @classmethod
    def recognise(cls, settings: Settings, first: Callable[[], Sequence[Pair]]) -> str:
        """Return that it was asked for, or that the first sources are tables or .npy files."""
        if settings.src_tokenizer == "vectors":
            return message("train.why.asked")
        return why_frames(first())

    @classmethod
    def check_settings(cls, settings: Settings) -> None:
        """Raise ArgumentError for a preset or a setting that is only for text."""
        check_no_text_settings(settings, "vectors")
        check_pair_settings(settings)
        check_frame_options(settings, cls.options(settings))

    @classmethod
    def fingerprint_options(cls, settings: Settings) -> dict[str, Any]:
        """Return nothing: its own settings are those of the model."""
        return {}

    @classmethod
    def read(cls, settings: Settings, place: DataPlace) -> PairReader:
        """Read pairs whose sources are tables of one width, or names of .npy files."""
        width = None if place.encoder is None else place.encoder.frame_size
        return read_pair_files(settings, place, FrameReader(place.folder, width))

    @classmethod
    def learn(
        cls, settings: Settings, pairs: Iterable[Pair], *, file: str, why: str, say: Say
    ) -> Encoders:
        """Learn the scale of each feature, and a tokeniser of the targets, in one pass."""
        targets: list[str] = []
        source = FrameScaler.measure(
            learned_tables(pairs, file, targets),
            stack=settings.stack,
            scaled=settings.scale_vectors,
            centred=cls.options(settings).centre,
        )
        say(message("train.source", source=source.summary, why=why))
        if settings.scale_vectors:
            say(message("train.scaled-features"))
        target = learn_target_tokenizer(settings, targets, say, file=file)
        return Encoders(source, target)

    @classmethod
    def load_encoder(cls, path: Path, content: dict[str, Any]) -> SourceEncoder:
        """Return the scaler of the frames."""
        return FrameScaler.from_json(path, content)

    def build_model(self) -> SequenceModel:
        """Build the preset, whose encoder reads vectors."""
        options = self.options(self.settings)
        return build_frame_model(self.settings, options, self.source, self.target.vocab_size)

    @property
    def stored_sizes(self) -> dict[str, Any]:
        """Features of a frame, and frames that are joined to one."""
        return {"features": self.source.features, "stack": self.source.stack}


def check_no_text_settings(settings: Settings, sources: str) -> None:
    """Raise ArgumentError for a preset or a setting that is only for text.

    Args:
        settings: of a run.
        sources: what its sources are, such as "vectors".
    """
    does = (
        "copies tokens of the source"
        if settings.preset in COPY_PRESETS
        else "reads stories and questions"
        if settings.preset in STORY_PRESETS
        else "reads texts alone"
        if settings.preset in TEXT_PRESETS
        else "writes a token for each it reads"
        if settings.preset in TAG_PRESETS
        else ""
    )
    if does:
        raise ArgumentError(
            "preset",
            f"be one that reads {sources}",
            f"{settings.preset}, which {does}",
            "choose bahdanau or another one, or a src_tokenizer for text",
        )
    if settings.model.get("tied") == "all":
        rule = f"not be 'all' where sources are {sources}"
        raise ArgumentError("tied", rule, "'all'", "say tied=output")
    for name, (default, fix) in TEXT_ONLY.items():
        value = getattr(settings, name)
        if value and value != default:
            rule = f"be left out where sources are {sources}"
            raise ArgumentError(name, rule, repr(value), fix)


def learned_tables(pairs: Iterable[Pair], file: str, targets: list[str]) -> Iterator[FrameArray]:
    """Yield the sources of pairs; adds the first targets to a list."""
    for pair in pairs:
        if len(targets) < TOKENIZER_LINES:
            targets.append(pair.tgt)
        if pair.features:
            raise DataError(
                file,
                pair.line,
                f"the source is vectors, which no features join, but it has {pair.features[0]!r}",
                "join them to the frames as numbers, or leave them out with features=False",
            )
        yield pair.frames
