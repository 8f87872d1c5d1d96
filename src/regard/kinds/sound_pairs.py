"""Sound pairs: a source that is a recording, and a target text, such as its transcript."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, final

import numpy as np
from pydantic import Field
from torch import Tensor

from regard.data import (
    LogMel,
    Pair,
    PairReader,
    SoundEncoder,
    SoundReader,
    SourceEncoder,
)
from regard.data.frame_tables import FrameArray, frames_name
from regard.data.media_files import SOUNDS
from regard.data.sounds import is_samples, why_sounds
from regard.kinds.array_source import ArraySource
from regard.kinds.data_kind import DataKind, DataPlace, Encoders, Say, Settings
from regard.kinds.frame_model import FrameOptions, build_frame_model, check_frame_options
from regard.kinds.frame_pairs import check_no_text_settings, learned_tables
from regard.kinds.graph_inputs import FrameInputs, GraphInputs
from regard.kinds.text_pairs import check_pair_settings, read_pair_files
from regard.kinds.tokenizer_training import learn_target_tokenizer
from regard.messages import message
from regard.models import TEXT_PRESETS, SequenceModel
from regard.seeing import Text
from regard.seeing.attribution.replacements import Replacements, frame_replacements
from regard.seeing.trace.backdrop import Backdrop, spectrogram

#: metrics of transcripts, by the kind of the target's tokeniser; those of others are as ever
SPEECH_METRICS: Final = {"char": "cer", "word": "wer", "bpe": "wer", "unigram": "wer"}


class SoundOptions(FrameOptions):
    """Settings of runs that read recordings."""

    rate: int = Field(
        default=16_000,
        description="samples per second; recordings of another rate are resampled",
        ge=1000,
        le=768_000,
    )
    bands: int = Field(default=80, description="log-mel bands of a frame", ge=1, le=512)
    window_ms: float = Field(default=25.0, description="milliseconds of a window", ge=1, le=1000)
    step_ms: float = Field(
        default=10.0, description="milliseconds from one frame to the next", ge=1, le=1000
    )
    max_seconds: float = Field(
        default=30.0, description="longest recording; longer ones are bad lines", gt=0, le=3600
    )

    @property
    def mel(self) -> LogMel:
        """Computes frames."""
        return LogMel(self.rate, self.bands, self.window_ms, self.step_ms)


@final
class SoundPairs(DataKind):
    """Recordings in files or samples, and texts: what is said, or the name of what is heard."""

    name = "sound-pairs"
    encoder_kinds = (SoundEncoder.kind,)
    caches_parsed = True
    names_files = True
    example_files = ("speech.wav", "test.tsv")
    options_type = SoundOptions

    def __init__(self, settings: Settings, encoders: Encoders) -> None:
        super().__init__(settings, encoders)
        self.source: SoundEncoder
        self.sources = SoundSource(self.source)

    @classmethod
    def is_possible(cls, settings: Settings) -> bool:
        """Return whether sources may be recordings."""
        asked = settings.src_tokenizer in ("auto", "sound")
        return asked and settings.preset not in TEXT_PRESETS

    @classmethod
    def recognise(cls, settings: Settings, first: Callable[[], Sequence[Pair]]) -> str:
        """Return that it was asked for, or that the first sources are recordings."""
        if settings.src_tokenizer == "sound":
            return message("train.why.asked")
        return why_sounds(first())

    @classmethod
    def check_settings(cls, settings: Settings) -> None:
        """Raise ArgumentError for a preset or a setting that recordings have no use for."""
        check_no_text_settings(settings, "recordings")
        check_pair_settings(settings)
        options: SoundOptions = cls.options(settings)
        check_frame_options(settings, options)
        options.mel.check()

    @classmethod
    def fingerprint_options(cls, settings: Settings) -> dict[str, Any]:
        """Return the settings of the frames; the others are of the model."""
        options: SoundOptions = cls.options(settings)
        return {"mel": vars(options.mel), "max_seconds": options.max_seconds}

    @classmethod
    def read(cls, settings: Settings, place: DataPlace) -> PairReader:
        """Read pairs whose sources are recordings."""
        options: SoundOptions = cls.options(settings)
        reader = SoundReader(place.folder, options.mel, options.max_seconds)
        return read_pair_files(settings, place, reader)

    @classmethod
    def learn(
        cls, settings: Settings, pairs: Iterable[Pair], *, file: str, why: str, say: Say
    ) -> Encoders:
        """Learn the scale of each band, and a tokeniser of the targets, in one pass."""
        options: SoundOptions = cls.options(settings)
        targets: list[str] = []
        source = SoundEncoder.measure(
            learned_tables(pairs, file, targets),
            options.mel,
            max_seconds=options.max_seconds,
            stack=settings.stack,
            scaled=settings.scale_vectors,
            centred=options.centre,
        )
        say(message("train.source", source=source.summary, why=why))
        target = learn_target_tokenizer(settings, targets, say, file=file)
        return Encoders(source, target)

    @classmethod
    def load_encoder(cls, path: Path, content: dict[str, Any]) -> SourceEncoder:
        """Return the encoder of the recordings."""
        return SoundEncoder.from_json(path, content)

    def build_model(self) -> SequenceModel:
        """Build the preset, whose encoder reads frames."""
        options: SoundOptions = self.options(self.settings)
        scaler = self.source.scaler
        return build_frame_model(self.settings, options, scaler, self.target.vocab_size)

    @property
    def stored_sizes(self) -> dict[str, Any]:
        """Bands of a frame, and frames that are joined to one."""
        return {"features": self.source.frame_size, "stack": self.source.scaler.stack}

    def default_metric(self) -> str:
        """Return the error rate of words, or of characters if these are the tokens."""
        return SPEECH_METRICS.get(self.target.kind) or super().default_metric()


@final
class SoundSource(ArraySource):
    """Paths of recordings, the content of such files, or samples with their rate.

    An array (frames, bands) is taken for the log-mel frames of a recording.

    Args:
        encoder: makes frames of them.
    """

    unit = "source frames"
    request_field = "file"
    one = "one recording"
    several = "recordings"

    def __init__(self, encoder: SoundEncoder) -> None:
        super().__init__(encoder)
        self._encoder = encoder

    def reader(self, folder: Path) -> SoundReader:
        """Return a reader of recordings, which computes their frames."""
        return self._encoder.reader(folder)

    def is_one(self, given: Any) -> bool:
        """Return whether this is a path, the content of a file, samples with a rate, or frames."""
        if isinstance(given, np.ndarray | Tensor):
            return given.ndim < 3
        return isinstance(given, str | bytes | Path) or is_samples(given)

    def receive(self, content: bytes) -> FrameArray:
        """Return the frames of a file that a client has sent; raises DataError if it has none."""
        return self.table(content)

    def labels(self, row: FrameArray) -> list[str]:
        """Return the time at which each vector begins, such as 0.32 s."""
        return self._encoder.labels(len(row))

    def text(self, source: Any, row: FrameArray) -> Text:
        """Return the name of the file, or a hash of the frames, with the spectrogram."""
        named = isinstance(source, str | Path)
        name = str(source) if named else self._name(source, row)
        return Text(name, self.tokens(row), self._spectrogram(row))

    def replacements(self, row: FrameArray) -> Replacements:
        """Return other frames of the same recording."""
        return frame_replacements(row, self._encoder.scaler.stack)

    def describe(self) -> dict[str, Any]:
        """Return the rate of samples, the bands, the longest recording and endings of files."""
        found = {"tokenizer": self._encoder.kind, **self._sizes()}
        return {**found, "max_seconds": self._encoder.max_seconds, "files": list(SOUNDS)}

    def manifest(self) -> dict[str, Any]:
        """Return what an exported graph reads: log-mel frames, and how they are computed."""
        sizes = {"features": self.frame_size, "stack": self._encoder.scaler.stack}
        return {"kind": "vectors", **sizes, "log_mel": self._sizes()}

    def _sizes(self) -> dict[str, Any]:
        return dict(vars(self._encoder.mel))

    def reads(self) -> str:
        """Return a phrase such as "recordings of up to 30 seconds"."""
        return message("reads.recordings", seconds=self._encoder.max_seconds)

    def graph_inputs(self) -> GraphInputs:
        """Return frames before scaling."""
        return FrameInputs(self._encoder.scaler)

    def _name(self, source: Any, row: FrameArray) -> str:
        table = source if isinstance(source, np.ndarray) else row
        return f"{self._encoder.seconds(len(row)):.2f} s, {frames_name(table)}"

    def _spectrogram(self, row: FrameArray) -> Backdrop:
        """Return the picture of scaled frames, as wide as all vectors that are made of them."""
        scaler = self._encoder.scaler
        levels = (row * np.array(scaler.scale) + np.array(scaler.mean)).T
        tokens = scaler.positions(len(row))
        whole = tokens * scaler.stack
        levels = np.pad(levels, ((0, 0), (0, whole - len(row))), mode="edge")
        return spectrogram(levels, tokens, self._encoder.seconds(whole))
