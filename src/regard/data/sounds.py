"""Recordings as sources: log-mel frames of files or samples, and their encoder."""

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Final, TypeVar, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from regard.data.checksummed_json import (
    StoredEncoder,
    validated,
)
from regard.data.error_hints import BadLine
from regard.data.frame_scaler import FrameScaler
from regard.data.frame_tables import FrameArray, TableReader, as_frames
from regard.data.media_files import SOUNDS, Samples, read_sound
from regard.data.pairs import Pair
from regard.data.tokenizer_schema import SoundEncoderFile
from regard.errors import ArgumentError, DataError
from regard.messages import message
from regard.safe_read import PathLike

Lengths = TypeVar("Lengths", int, Tensor)

#: how much of each sample the one before it takes away, since speech has less energy high up
PRE_EMPHASIS: Final = 0.97
#: lowest frequency in Hz, above the hum of the mains
LOWEST: Final = 60.0
#: added to energies, whose logarithm is taken
FLOOR: Final = 1e-8


@final
@dataclass(frozen=True)
class LogMel:
    """Logarithms (base 10) of the energy in bands that are equally wide on the mel scale.

    Davis and Mermelstein (1980): samples are cut into overlapping windows, and the power spectrum
    of each is summed up in triangular bands from `LOWEST` to half the rate. The filters are those
    of HTK.

    Attributes:
        rate: samples per second.
        bands: numbers per frame.
        window_ms: milliseconds of a window.
        step_ms: milliseconds from one frame to the next.
    """

    rate: int = 16_000
    bands: int = 80
    window_ms: float = 25.0
    step_ms: float = 10.0

    @property
    def window(self) -> int:
        """Samples of a window."""
        return max(2, round(self.rate * self.window_ms / 1000))

    @property
    def step(self) -> int:
        """Samples from one frame to the next."""
        return max(1, round(self.rate * self.step_ms / 1000))

    @property
    def fft(self) -> int:
        """Points of the Fourier transform: the power of 2 that holds a window."""
        return int(2 ** math.ceil(math.log2(self.window)))

    def check(self) -> None:
        """Raise ArgumentError if a band would hold no frequency of the spectrum."""
        filters = _filters(self.rate, self.bands, self.fft)
        empty = int((filters.sum(dim=0) == 0).sum())
        if empty:
            rule = f"each hold a frequency of windows of {self.window} samples at {self.rate:,} Hz"
            value = f"{self.bands}, {empty} of them empty"
            raise ArgumentError("bands", rule, value, "choose fewer bands or a longer window_ms")

    def __call__(self, samples: Samples) -> FrameArray:
        """Return the frames of samples from -1 to 1; at least one."""
        x = torch.from_numpy(np.ascontiguousarray(samples, dtype=np.float32))
        x = torch.cat([x[:1], x[1:] - PRE_EMPHASIS * x[:-1]])
        x = torch.nn.functional.pad(x, (0, max(0, self.window - len(x))))
        windows = x.unfold(0, self.window, self.step) * _window(self.window)
        power = torch.fft.rfft(windows, n=self.fft).abs().square()
        energy = power @ _filters(self.rate, self.bands, self.fft)
        frames: FrameArray = (energy + FLOOR).log10().numpy()
        return frames


@functools.lru_cache(maxsize=8)
def _window(size: int) -> Float[Tensor, " window"]:
    return torch.hamming_window(size, periodic=False)


@functools.lru_cache(maxsize=8)
def _filters(rate: int, bands: int, fft: int) -> Float[Tensor, "frequencies bands"]:
    """Return triangles whose corners are equally far from each other on the mel scale."""
    low, high = (2595 * math.log10(1 + f / 700) for f in (LOWEST, rate / 2))
    corners = 700 * (10 ** (torch.linspace(low, high, bands + 2, dtype=torch.float64) / 2595) - 1)
    frequencies = torch.arange(fft // 2 + 1, dtype=torch.float64)[:, None] * (rate / fft)
    left, middle, right = corners[:-2], corners[1:-1], corners[2:]
    rising, falling = (
        (frequencies - left) / (middle - left),
        (right - frequencies) / (right - middle),
    )
    return torch.minimum(rising, falling).clamp(min=0).float()


@final
class SoundReader(TableReader):
    """Reads recordings as log-mel frames.

    Recordings of several channels are averaged to one, and those of another rate are resampled.

    Args:
        folder: base of relative file names.
        mel: computes frames.
        max_seconds: longest recording.
    """

    suffixes = SOUNDS

    def __init__(self, folder: Path, mel: LogMel, max_seconds: float) -> None:
        super().__init__(folder)
        self._mel, self._most = mel, max_seconds

    def parse(self, source: Any) -> FrameArray:
        """Return the frames of a path, the content of a file, samples with their rate, or frames.

        An array (frames, bands) is taken for frames that a `LogMel` has made.
        """
        if isinstance(source, np.ndarray | Tensor) and source.ndim == 2:
            table = as_frames(source)
            if table.shape[1] != self._mel.bands:
                raise BadLine(
                    "other number of bands",
                    f"a table must be log-mel frames of {self._mel.bands} bands, but it has "
                    f"{table.shape[1]}",
                    "give the recording itself, with its rate as in (samples, 16000)",
                )
            return table
        try:
            sound = read_sound(source, self._mel.rate, most=self._most)
        except DataError as error:
            raise BadLine(error.kind, error.reason, error.fix) from None
        if not sound.samples.any():
            reason = f"a recording must be heard, but all {sound.seconds:.2f} seconds are silent"
            raise BadLine("silent", reason, "record it again, or delete the line")
        return self._mel(sound.samples)


def why_sounds(pairs: Sequence[Pair]) -> str:
    """Return the reason why the sources of these pairs are recordings; "" if they are not."""
    if pairs and all(p.frames is None and p.src.lower().endswith(SOUNDS) for p in pairs):
        return message("train.why.recordings")
    if pairs and all(is_samples(pair.frames) for pair in pairs):
        return message("train.why.samples")
    return ""


def is_samples(value: Any) -> bool:
    """Return whether this is `(samples, rate)`, or a mapping with `array` and `sampling_rate`."""
    if isinstance(value, Mapping):
        return {"array", "sampling_rate"} <= value.keys()
    pair = isinstance(value, tuple | list) and len(value) == 2
    return pair and isinstance(value[0], np.ndarray | Tensor) and isinstance(value[1], int)


@dataclass(frozen=True)
class SoundEncoder(StoredEncoder):
    """The encoder of recordings: log-mel frames, each band standardised.

    Attributes:
        mel: computes frames.
        scaler: brings bands to mean 0 and deviation 1.
        max_seconds: longest recording.
    """

    kind: ClassVar[str] = "sound"
    #: it has no tokens
    vocab_size: ClassVar[int] = 0
    #: how limits of its length are worded before "or"
    limit_unit: ClassVar[str] = "frames "

    mel: LogMel
    scaler: FrameScaler
    max_seconds: float

    @staticmethod
    def measure(
        tables: Iterable[FrameArray], mel: LogMel, *, max_seconds: float, **options: Any
    ) -> "SoundEncoder":
        """Return the encoder fitted to training data, which are read once; see `FrameScaler`."""
        return SoundEncoder(mel, FrameScaler.measure(tables, **options), max_seconds)

    @property
    def frame_size(self) -> int:
        """Bands."""
        return self.mel.bands

    def reader(self, folder: Path) -> SoundReader:
        """Return a reader of recordings for this encoder."""
        return SoundReader(folder, self.mel, self.max_seconds)

    def encode_sources(self, pairs: Sequence[Pair]) -> list[FrameArray]:
        """Return the scaled frames of pairs."""
        return self.scaler.encode_sources(pairs)

    def fits(self, pair: Pair, row: FrameArray, limit: int) -> bool:
        """Return True: longer recordings than `max_seconds` are never read."""
        return True

    def encode(self, table: FrameArray) -> FrameArray:
        """Return standardised frames."""
        return self.scaler.encode(table)

    def positions(self, frames: Lengths) -> Lengths:
        """Return the number of vectors that the model makes of so many frames."""
        return self.scaler.positions(frames)

    def seconds(self, frames: int) -> float:
        """Return the time from the first to the end of so many frames."""
        return frames * self.mel.step / self.mel.rate

    def labels(self, frames: int) -> list[str]:
        """Return the time in seconds at which each of these vectors begins, such as 0.32 s."""
        stack = self.scaler.stack
        digits = 2 if self.seconds(stack) >= 0.01 else 3
        return [f"{self.seconds(start):.{digits}f} s" for start in range(0, frames, stack)]

    @property
    def summary(self) -> str:
        """A short description."""
        stack = self.scaler.stack
        joined = message("source.recordings.joined", count=stack) if stack > 1 else ""
        rate, bands, step = self.mel.rate, self.mel.bands, self.mel.step_ms
        return message("source.recordings", rate=rate, bands=bands, step=step, joined=joined)

    @classmethod
    def from_json(cls, path: PathLike, content: dict[str, Any]) -> "SoundEncoder":
        """Return the encoder that a file describes; raises DataError if it is invalid."""
        names = {field.name for field in fields(FrameScaler)}
        scaled = {name: content[name] for name in names & content.keys()}
        scaler = FrameScaler.from_json(path, {**scaled, "kind": FrameScaler.kind})
        rest = {name: value for name, value in content.items() if name not in names}
        file = validated(SoundEncoderFile, path, rest)
        mel = LogMel(file.rate, scaler.features, file.window_ms, file.step_ms)
        return cls(mel, scaler, file.max_seconds)

    def to_json(self) -> dict[str, Any]:
        """Return the content of the file."""
        return {
            **self.scaler.to_json(),
            "kind": self.kind,
            "rate": self.mel.rate,
            "window_ms": self.mel.window_ms,
            "step_ms": self.mel.step_ms,
            "max_seconds": self.max_seconds,
        }
