"""Sound: recordings in files or samples, read as log-mel frames."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
from pydantic import Field
from torch import Tensor

from regard.data import FrameScaler, LogMel, Pair, SoundEncoder, SourceEncoder
from regard.data.frame_tables import FrameArray, TableReader, frames_name
from regard.data.media_files import SOUNDS
from regard.data.pair_reader import SourceTransform
from regard.data.sounds import SoundReader, is_samples, why_sounds
from regard.data.text_codec import VectorSource
from regard.messages import message
from regard.seeing import Text
from regard.seeing.trace.trace import Backdrop, spectrogram
from regard.tasks.inputs.array import ArrayInput, tables_of
from regard.tasks.inputs.base import InputDescription, InputFacts
from regard.tasks.inputs.frames import FrameInput, FrameOptions
from regard.tasks.settings import DataPlace, Say, Settings, TaskOptions


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
    whisper_seconds: float = Field(
        default=0.0,
        description="frames are those of Whisper, of recordings that silence makes so long; 0 "
        "disables it",
        ge=0,
        le=3600,
    )

    @property
    def mel(self) -> LogMel:
        """Computes frames."""
        sizes = self.window_ms, self.step_ms, self.whisper_seconds
        return LogMel(self.rate, self.bands, *sizes)


class SoundInput(FrameInput):
    """Paths of recordings, the content of such files, or samples with their rate.

    An array (frames, bands) is taken for the log-mel frames of a recording.
    """

    name = "sound"
    facts = InputFacts(
        "source frames",
        "one recording",
        "recordings",
        caches_parsed=True,
        names_files=True,
        files=("speech.wav", "test.tsv"),
        codec=VectorSource,
        metrics={"char": "cer", "word": "wer", "bpe": "wer", "unigram": "wer"},
    )
    encoder_type: ClassVar[Any] = SoundEncoder
    options_type: ClassVar[type[TaskOptions]] = SoundOptions

    @classmethod
    def why(cls, pairs: Sequence[Pair]) -> str:
        """Return that the sources are recordings, and how that is known; "" if not."""
        return why_sounds(pairs)

    @classmethod
    def check_settings(cls, settings: Settings) -> None:
        """Raise ArgumentError for a preset or a setting that recordings have no use for."""
        super().check_settings(settings)
        SoundOptions.of(settings).mel.check()

    @classmethod
    def reader(cls, settings: Settings, place: DataPlace) -> SourceTransform:
        """Return a reader of recordings."""
        if isinstance(place.encoder, SoundEncoder):
            return place.encoder.reader(place.folder)
        options = SoundOptions.of(settings)
        return SoundReader(place.folder, options.mel, options.max_seconds)

    @classmethod
    def choose_options(cls, settings: Settings, source: Any, say: Say) -> dict[str, Any]:
        """Return none: what a recording is given as may have names, but no columns."""
        return {}

    @classmethod
    def learn(
        cls, settings: Settings, pairs: Iterable[Pair], *, file: str, why: str, say: Say
    ) -> SourceEncoder:
        """Learn the scale of each band."""
        options = SoundOptions.of(settings)
        scaler = FrameScaler.measure(
            tables_of(pairs, file),
            stack=settings.stack,
            scaled=settings.scale_vectors,
            centred=options.centre,
        )
        found = SoundEncoder.of(scaler, options.mel, options.max_seconds)
        say(message("train.source", source=found.summary, why=why))
        return found

    def parse(self, source: Any, *, line: bool = False) -> Any:
        """Return the frames of a recording."""
        return ArrayInput.parse(self, source, line=line)

    def examples(self, card: str, dev: Path) -> list[Any]:
        """Return none: a recording is a file."""
        return []

    def table_reader(self, folder: Path) -> TableReader:
        """Return a reader of recordings, which computes their frames."""
        return cast(SoundEncoder, self.encoder).reader(folder)

    def is_one(self, given: Any) -> bool:
        """Return whether this is a path, the content of a file, samples with a rate, or frames."""
        if isinstance(given, np.ndarray | Tensor):
            return given.ndim < 3
        return isinstance(given, str | bytes | Path) or is_samples(given)

    def text(self, source: Any, row: FrameArray) -> Text:
        """Return the name of the file, or a hash of the frames, with the spectrogram."""
        named = isinstance(source, str | Path)
        name = str(source) if named else self._name(source, row)
        return Text(name, self.tokens(row), self._spectrogram(row))

    def describe(self) -> InputDescription:
        """Return the rate of samples, the bands, the longest recording and endings of files.

        An exported graph reads log-mel frames.
        """
        mel, longest, found = dict(vars(self.encoder.mel)), self.encoder.max_seconds, "tokenizer"
        info = {found: self.encoder.kind, **mel, "max_seconds": longest, "files": list(SOUNDS)}
        return (
            super()
            .describe()
            ._replace(
                reads=message("reads.recordings", seconds=longest),
                info=info,
                manifest={"kind": "vectors", **super().describe().sizes, "log_mel": mel},
            )
        )

    def _name(self, source: Any, row: FrameArray) -> str:
        table = source if isinstance(source, np.ndarray) else row
        return f"{self.encoder.seconds(len(row)):.2f} s, {frames_name(table)}"

    def _spectrogram(self, row: FrameArray) -> Backdrop:
        """Return the picture of scaled frames, as wide as all vectors that are made of them."""
        scaler = self.scaler
        levels = (row * np.array(scaler.scale) + np.array(scaler.mean)).T
        tokens = scaler.positions(len(row))
        whole = tokens * scaler.stack
        levels = np.pad(levels, ((0, 0), (0, whole - len(row))), mode="edge")
        return spectrogram(levels, tokens, self.encoder.seconds(whole))
