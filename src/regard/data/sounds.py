"""Recordings as sources: log-mel frames of files or samples, and their encoder."""

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, final

import numpy as np
import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from regard.data.error_hints import BadLine
from regard.data.frame_scaler import FrameScaler
from regard.data.frame_tables import FrameArray, TableReader, as_frames
from regard.data.media_files import SOUNDS, Samples, read_sound
from regard.data.pairs import Pair
from regard.errors import ArgumentError, DataError
from regard.messages import message

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
        whisper_seconds: if above 0, frames are those of Whisper (Radford et al., 2022,
            https://arxiv.org/abs/2212.04356), of samples that silence makes so long.
    """

    rate: int = 16_000
    bands: int = 80
    window_ms: float = 25.0
    step_ms: float = 10.0
    whisper_seconds: float = 0.0

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
        if self.whisper_seconds:
            return
        filters = _filters(self.rate, self.bands, self.fft)
        empty = int((filters.sum(dim=0) == 0).sum())
        if empty:
            rule = f"each hold a frequency of windows of {self.window} samples at {self.rate:,} Hz"
            value = f"{self.bands}, {empty} of them empty"
            raise ArgumentError("bands", rule, value, "choose fewer bands or a longer window_ms")

    def __call__(self, samples: Samples) -> FrameArray:
        """Return the frames of samples from -1 to 1; at least one."""
        x = torch.from_numpy(np.ascontiguousarray(samples, dtype=np.float32))
        if self.whisper_seconds:
            return self._whisper(x)
        x = torch.cat([x[:1], x[1:] - PRE_EMPHASIS * x[:-1]])
        x = torch.nn.functional.pad(x, (0, max(0, self.window - len(x))))
        windows = x.unfold(0, self.window, self.step) * _window(self.window)
        power = torch.fft.rfft(windows, n=self.fft).abs().square()
        energy = power @ _filters(self.rate, self.bands, self.fft)
        frames: FrameArray = (energy + FLOOR).log10().numpy()
        return frames

    def _whisper(self, x: Float[Tensor, " samples"]) -> FrameArray:
        x = torch.nn.functional.pad(x, (0, round(self.whisper_seconds * self.rate) - len(x)))
        window = torch.hann_window(self.window)
        found = torch.stft(x, self.window, self.step, window=window, return_complex=True)
        energy = found[:, :-1].abs().square().T @ _slaney(self.rate, self.bands, self.window)
        levels = energy.clamp(min=1e-10).log10()
        frames: FrameArray = ((levels.maximum(levels.max() - 8.0) + 4.0) / 4.0).numpy()
        return frames


@functools.lru_cache(maxsize=8)
def _slaney(rate: int, bands: int, fft: int) -> Float[Tensor, "frequencies bands"]:
    """Return triangles of area 1 on the mel scale of Slaney (1998), linear below 1000 Hz."""
    step, slope = 200 / 3, math.log(6.4) / 27
    knee, high = 1000 / step, rate / 2
    top = knee + math.log(high / 1000) / slope if high > 1000 else high / step
    mels = torch.linspace(0, top, bands + 2, dtype=torch.float64)
    corners = torch.where(mels < knee, mels * step, 1000 * ((mels - knee) * slope).exp())
    return (_triangles(corners, rate, fft) * (2 / (corners[2:] - corners[:-2]))).float()


@functools.lru_cache(maxsize=8)
def _window(size: int) -> Float[Tensor, " window"]:
    return torch.hamming_window(size, periodic=False)


@functools.lru_cache(maxsize=8)
def _filters(rate: int, bands: int, fft: int) -> Float[Tensor, "frequencies bands"]:
    """Return triangles whose corners are equally far from each other on the mel scale."""
    low, high = (2595 * math.log10(1 + f / 700) for f in (LOWEST, rate / 2))
    corners = 700 * (10 ** (torch.linspace(low, high, bands + 2, dtype=torch.float64) / 2595) - 1)
    return _triangles(corners, rate, fft).float()


def _triangles(
    corners: Float[Tensor, " corners"], rate: int, fft: int
) -> Float[Tensor, "frequencies bands"]:
    """Return triangles that are 1 in the middle, and 0 at the corners beside it."""
    frequencies = torch.arange(fft // 2 + 1, dtype=torch.float64)[:, None] * (rate / fft)
    left, middle, right = corners[:-2], corners[1:-1], corners[2:]
    rising, falling = (
        (frequencies - left) / (middle - left),
        (right - frequencies) / (right - middle),
    )
    return torch.minimum(rising, falling).clamp(min=0)


@final
class SoundReader(TableReader):
    """Reads recordings as log-mel frames.

    Recordings of several channels are averaged to one, and those of another rate are resampled.
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
class SoundEncoder(FrameScaler):
    """The encoder of recordings: log-mel frames, each band standardised.

    Attributes:
        rate: samples per second.
        window_ms: milliseconds of a window.
        step_ms: milliseconds from one frame to the next.
        max_seconds: longest recording.
        whisper_seconds: see `LogMel`.
    """

    kind: ClassVar[str] = "sound"

    rate: Annotated[int, Field(ge=1000, le=768_000)] = field(kw_only=True)
    window_ms: Annotated[float, Field(ge=1, le=1000)] = field(kw_only=True)
    step_ms: Annotated[float, Field(ge=1, le=1000)] = field(kw_only=True)
    max_seconds: Annotated[float, Field(gt=0, le=3600)] = field(kw_only=True)
    whisper_seconds: Annotated[float, Field(ge=0, le=3600)] = field(kw_only=True, default=0.0)

    @staticmethod
    def of(scaler: FrameScaler, mel: LogMel, max_seconds: float) -> "SoundEncoder":
        """Return the encoder of frames that `mel` computes, at the scale of training data."""
        own: dict[str, Any] = {name: value for name, value in vars(mel).items() if name != "bands"}
        return SoundEncoder(**vars(scaler), **own, max_seconds=max_seconds)

    @property
    def mel(self) -> LogMel:
        """Computes frames."""
        sizes = self.window_ms, self.step_ms, self.whisper_seconds
        return LogMel(self.rate, self.features, *sizes)

    def reader(self, folder: Path) -> SoundReader:
        """Return a reader of recordings for this encoder."""
        return SoundReader(folder, self.mel, self.max_seconds)

    def fits(self, pair: Pair, row: FrameArray, limit: int) -> bool:
        """Return True: longer recordings than `max_seconds` are never read."""
        return True

    def seconds(self, frames: int) -> float:
        """Return the time from the first to the end of so many frames."""
        return frames * self.mel.step / self.rate

    def labels(self, frames: int) -> list[str]:
        """Return the time in seconds at which each of these vectors begins, such as 0.32 s."""
        digits = 2 if self.seconds(self.stack) >= 0.01 else 3
        return [f"{self.seconds(start):.{digits}f} s" for start in range(0, frames, self.stack)]

    @property
    def summary(self) -> str:
        """A short description."""
        joined = message("source.recordings.joined", count=self.stack) if self.stack > 1 else ""
        sizes = {"rate": self.rate, "bands": self.features, "step": self.step_ms}
        return message("source.recordings", **sizes, joined=joined)
