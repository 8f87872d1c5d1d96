"""Sound pairs: a source that is a recording, and a target text, such as its transcript."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, final

import numpy as np
from pydantic import Field
from torch import Tensor

from regard.data import (
    BadLines,
    Corpus,
    LogMel,
    Pair,
    PairReader,
    SoundEncoder,
    SoundReader,
    SourceEncoder,
    Tokenizer,
    base_folder,
    pad_frames,
    read_frame_sources,
)
from regard.data.error_hints import BadLine
from regard.data.frame_tables import FrameArray, frames_name
from regard.data.media_files import SOUNDS
from regard.data.pair_reader import SourceTransform
from regard.data.pairs import source_column
from regard.data.sounds import is_samples, why_sounds
from regard.decoding import Hypothesis
from regard.errors import ArgumentError, DataError
from regard.kinds.data_kind import DataKind, DataPlace, Encoders, Say, Settings
from regard.kinds.frame_model import FrameOptions, build_frame_model, check_frame_options
from regard.kinds.frame_pairs import check_no_text_settings, learned_tables
from regard.kinds.graph_inputs import FrameInputs, GraphInputs
from regard.kinds.text_pairs import check_pair_settings, read_pair_files
from regard.kinds.text_source import check_several
from regard.kinds.tokenizer_training import learn_target_tokenizer
from regard.messages import message
from regard.models import TEXT_PRESETS, SequenceModel
from regard.seeing import Text, Token
from regard.seeing.backdrop import Backdrop, spectrogram
from regard.seeing.replacements import Replacements, frame_replacements

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
            return "it was asked for"
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
        say(f"source: {source.summary}, because {why}.")
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
class SoundSource:
    """Paths of recordings, the content of such files, or samples with their rate.

    An array (frames, bands) is taken for the log-mel frames of a recording.

    Args:
        encoder: makes frames of them.
    """

    unit = "source frames"
    card_name = "source"
    ends_with_eos = False
    is_file = True
    request_field = "file"
    feature_names: tuple[str, ...] = ()

    def __init__(self, encoder: SoundEncoder) -> None:
        self._encoder = encoder

    @property
    def frame_size(self) -> int:
        """Bands of a frame."""
        return self._encoder.frame_size

    def is_one(self, given: Any) -> bool:
        """Return whether this is a path, the content of a file, samples with a rate, or frames."""
        if isinstance(given, np.ndarray | Tensor):
            return given.ndim < 3
        return isinstance(given, str | bytes | Path) or is_samples(given)

    def check_several(self, given: Any) -> None:
        """Raise ArgumentError for one recording, whose parts would be taken for sources."""
        if self.is_one(given):
            fix = "call the model with it, or put it in a list"
            raise ArgumentError("texts", "be several", "one recording", fix)
        check_several(given)

    def check(self, source: Any) -> None:
        """Raise DataError unless it is a recording."""
        self._table(source)

    def check_line(self, line: Any) -> None:
        """Like `check`."""
        self.check(line)

    def rows(self, sources: Sequence[Any]) -> list[FrameArray]:
        """Return the scaled frames of each recording."""
        return [self._encoder.encode(self._table(source)) for source in sources]

    def receive(self, content: bytes) -> FrameArray:
        """Return the frames of a file that a client has sent; raises DataError if it has none."""
        return self._table(content)

    def batch(self, rows: Sequence[FrameArray]) -> tuple[Tensor, Tensor]:
        """Pad frames."""
        return pad_frames(rows)

    def positions(self, lengths: Any) -> Any:
        """Return the number of vectors that the model makes of so many frames."""
        return self._encoder.positions(lengths)

    def length(self, row: FrameArray) -> int:
        """Return the number of vectors that the model makes of a recording."""
        return self._encoder.positions(len(row))

    def labels(self, row: FrameArray) -> list[str]:
        """Return the time at which each of these vectors begins, such as 0.32 s."""
        return self._encoder.labels(len(row))

    def text(self, source: Any, row: FrameArray) -> Text:
        """Return the name of the file, or a hash of the frames, with the spectrogram."""
        named = isinstance(source, str | Path)
        name = str(source) if named else self._name(source, row)
        return Text(name, self._tokens(len(row)), self._spectrogram(row))

    def corpus_text(self, corpus: Corpus, row: int, text: str) -> Text:
        """Return the name of the source with its spectrogram."""
        frames = corpus.frames(row)
        return Text(text, self._tokens(len(frames)), self._spectrogram(frames))

    def notes(self, text: Text) -> tuple[str, ...]:
        """Return nothing."""
        return ()

    def unknown(self, source: Any, row: FrameArray) -> tuple[str, ...]:
        """Return nothing: no sound is unknown."""
        return ()

    def replacements(self, row: FrameArray) -> Replacements:
        """Return other frames of the same recording."""
        return frame_replacements(row, self._encoder.scaler.stack)

    def replaced(
        self, tgt: Tokenizer, found: Hypothesis, source: Any, row: FrameArray
    ) -> list[str]:
        """Raise ArgumentError, since frames have no words."""
        raise ArgumentError(
            "replace_unk", "be left out where sources are recordings", True, "they have no words"
        )

    def size(self, pair: Pair) -> int:
        """Return the number of frames."""
        return len(pair.frames)

    def transform(self, place: Any) -> SourceTransform:
        """Return a reader of recordings, whose files lie beside the file of pairs."""
        return self._encoder.reader(base_folder(place))

    def of_pair(self, pair: Pair) -> FrameArray:
        """Return the frames, which are computed already."""
        frames: FrameArray = pair.frames
        return frames

    def read(
        self,
        files: Sequence[str],
        settings: Settings,
        *,
        max_chars: int,
        bad: BadLines,
        check: Callable[[Any], None],
    ) -> Iterator[Any]:
        """Read the recordings of several files; each is checked when it is read."""
        name = source_column(settings.columns)
        for file in files:
            reader = self._encoder.reader(base_folder(file))
            yield from read_frame_sources(file, reader, bad=bad, name=name)

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

    def examples(self, card: str, dev: Path) -> list[Any]:
        """Return none: a recording is no text to fill in."""
        return []

    def graph_inputs(self) -> GraphInputs:
        """Return frames before scaling."""
        return FrameInputs(self._encoder.scaler)

    def _name(self, source: Any, row: FrameArray) -> str:
        table = source if isinstance(source, np.ndarray) else row
        return f"{self._encoder.seconds(len(row)):.2f} s, {frames_name(table)}"

    def _tokens(self, frames: int) -> tuple[Token, ...]:
        return tuple(map(Token, self._encoder.labels(frames)))

    def _spectrogram(self, row: FrameArray) -> Backdrop:
        """Return the picture of scaled frames, as wide as all vectors that are made of them."""
        scaler = self._encoder.scaler
        levels = (row * np.array(scaler.scale) + np.array(scaler.mean)).T
        tokens = scaler.positions(len(row))
        whole = tokens * scaler.stack
        levels = np.pad(levels, ((0, 0), (0, whole - len(row))), mode="edge")
        return spectrogram(levels, tokens, self._encoder.seconds(whole))

    def _table(self, source: Any) -> FrameArray:
        """Return the frames of a source as they were computed."""
        try:
            return self._encoder.reader(Path()).frames(source)
        except BadLine as bad:
            named = isinstance(source, str | Path) and Path(source).is_file()
            name = str(source) if named else "recording"
            raise DataError(name, None, bad.reason, str(bad.fix), kind=bad.kind) from None
