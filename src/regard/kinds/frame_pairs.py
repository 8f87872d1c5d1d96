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
from regard.kinds.frame_source import FrameSource
from regard.kinds.text_pairs import check_pair_settings, read_pair_files
from regard.kinds.tokenizer_training import TOKENIZER_LINES, learn_tokenizer
from regard.models import (
    COPY_PRESETS,
    PRESETS,
    TAG_PRESETS,
    TEXT_PRESETS,
    EncoderDecoder,
    SequenceModel,
    VectorInput,
    with_input,
)
from regard.models.embedding import TokenEmbedding

#: settings that are only for text sources: their default, and what to do instead
TEXT_ONLY: Final[dict[str, tuple[Any, str]]] = {
    "features": (None, "join them to the frames as numbers"),
    "src_case": ("keep", "leave it out"),
    "shared_vocab": (False, "leave it out"),
    "src_vectors": (None, "leave it out; the frames are vectors already"),
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

    def __init__(self, settings: Settings, encoders: Encoders) -> None:
        super().__init__(settings, encoders)
        self.source: FrameScaler
        self.sources = FrameSource(self.source)

    @classmethod
    def is_possible(cls, settings: Settings) -> bool:
        """Return whether sources may be vectors."""
        asked = settings.src_tokenizer in ("auto", "vectors")
        return asked and settings.preset not in TEXT_PRESETS

    @classmethod
    def recognise(cls, settings: Settings, first: Callable[[], Sequence[Pair]]) -> str:
        """Return that it was asked for, or that the first sources are tables or .npy files."""
        if settings.src_tokenizer == "vectors":
            return "it was asked for"
        return why_frames(first())

    @classmethod
    def check_settings(cls, settings: Settings) -> None:
        """Raise ArgumentError for a preset or a setting that is only for text."""
        does = (
            "copies tokens of the source"
            if settings.preset in COPY_PRESETS
            else "reads texts alone"
            if settings.preset in TEXT_PRESETS
            else "writes a token for each it reads"
            if settings.preset in TAG_PRESETS
            else ""
        )
        if does:
            raise ArgumentError(
                "preset",
                "be one that reads vectors",
                f"{settings.preset}, which {does}",
                "choose bahdanau or another one, or a src_tokenizer for text",
            )
        if settings.model.get("tied") == "all":
            raise ArgumentError(
                "tied", "not be 'all' where sources are vectors", "'all'", "say tied=output"
            )
        for name, (default, fix) in TEXT_ONLY.items():
            value = getattr(settings, name)
            if value and value != default:
                raise ArgumentError(name, "be left out where sources are vectors", repr(value), fix)
        check_pair_settings(settings)

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
            _tables(pairs, file, targets), stack=settings.stack, scaled=settings.scale_vectors
        )
        say(f"source: {source.summary}, because {why}.")
        if settings.scale_vectors:
            say("their features are brought to mean 0 and deviation 1, as in the training data.")
        target = learn_tokenizer(settings, "target", settings.tgt_tokenizer, targets, say)
        return Encoders(source, target)

    @classmethod
    def load_encoder(cls, path: Path, content: dict[str, Any]) -> SourceEncoder:
        """Return the scaler of the frames."""
        return FrameScaler.from_json(path, content)

    def build_model(self) -> SequenceModel:
        """Build the preset, whose encoder reads vectors, with the positions that it has."""
        settings = self.settings
        # the embedding of a source vocabulary is replaced
        model = PRESETS[settings.preset](
            1, self.target.vocab_size, settings.model_size, **settings.model
        )
        return with_frame_input(model, self.source)

    @property
    def stored_sizes(self) -> dict[str, Any]:
        """Features of a frame, and frames that are joined to one."""
        return {"features": self.source.features, "stack": self.source.stack}


def with_frame_input(model: SequenceModel, scaler: FrameScaler) -> SequenceModel:
    """Let the encoder of a model read frames, with the positions that it has."""
    assert isinstance(model, EncoderDecoder)
    before = model.encoder.embedding
    assert isinstance(before, TokenEmbedding)
    adapter = VectorInput(
        scaler.features,
        model.encoder.input_size,
        positions=before.positions,
        dropout=before.dropout.p,
        stack=scaler.stack,
    )
    return with_input(model, adapter)


def _tables(pairs: Iterable[Pair], file: str, targets: list[str]) -> Iterator[FrameArray]:
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
