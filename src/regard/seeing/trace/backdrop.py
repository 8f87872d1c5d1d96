"""The picture, spectrogram or series that a source is, to be drawn behind its weights.

Pixels are kept, and no file of a format: a trace may come from a stranger, and bytes whose number
follows from their shape need no decoder.
"""

import math
import struct
import zlib
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from regard.errors import ArgumentError

BackdropKind = Literal["picture", "spectrogram", "series"]
Pixels = npt.NDArray[np.uint8]

#: pixels of a side, and bytes of a backdrop at most: a picture of 256 x 256 in colour
MAX_SIDE: Final = 2048
MAX_BYTES: Final = 256 * 256 * 3
#: sides of a picture, bands of a spectrogram or features of a series, and columns of both
PICTURE_SIDE: Final = 256
MAX_BANDS: Final = 80
MAX_COLUMNS: Final = 1500
#: colour that marks attended places (orange, also distinct for colour-blind readers), and how
#: opaque it becomes
HEAT: Final = (194, 65, 12)
OPAQUE: Final = 0.78
#: share of white in a picture that weights are drawn over
PALE: Final = 0.25


@dataclass(frozen=True)
class Backdrop:
    """A raster whose cells are the tokens of a text, row by row.

    Attributes:
        kind: `picture`, `spectrogram` or `series`.
        shape: (height, width, channels) of the pixels; channels are 3, or 1 for grey.
        pixels: bytes of the raster. A row of a spectrogram is a frequency band, the highest first;
            a row of a series is a feature, scaled to its own range.
        grid: (rows, columns) of tokens; (1, n) along time.
        first: number of tokens before the first cell, such as a class token.
        seconds: duration of the whole width; None if it is no recording.
    """

    kind: BackdropKind
    shape: tuple[int, int, int]
    pixels: bytes
    grid: tuple[int, int]
    first: int = 0
    seconds: float | None = None

    def __post_init__(self) -> None:
        size = math.prod(self.shape)
        if len(self.pixels) != size or size > MAX_BYTES:
            rule = f"be the {size:,} bytes of {self.shape}, {MAX_BYTES:,} at most"
            raise ArgumentError("pixels", rule, f"{len(self.pixels):,} bytes", "make it smaller")

    def __repr__(self) -> str:
        return f"Backdrop({self.kind!r}, shape={self.shape}, grid={self.grid}, first={self.first})"

    @property
    def cells(self) -> int:
        """Number of tokens that lie on it."""
        return self.grid[0] * self.grid[1]

    @property
    def array(self) -> Pixels:
        """The pixels, (height, width, channels)."""
        return np.frombuffer(self.pixels, dtype=np.uint8).reshape(self.shape)

    @staticmethod
    def of(kind: BackdropKind, pixels: Any, **fields: Any) -> "Backdrop":
        """Make a backdrop from an array (height, width) or (height, width, channels) of bytes."""
        array = np.ascontiguousarray(pixels, dtype=np.uint8)
        array = array[..., None] if array.ndim == 2 else array
        height, width, channels = array.shape
        return Backdrop(kind, (height, width, channels), array.tobytes(), **fields)


def picture_backdrop(levels: Any, grid: tuple[int, int]) -> Backdrop:
    """Return the backdrop of a picture, averaged to `PICTURE_SIDE` where it is larger.

    Args:
        levels: from 0 to 255, (height, width, channels).
        grid: rows and columns of its patches, which are the tokens.
    """
    found = np.asarray(levels, dtype=np.float64)
    planes = [
        _averaged(_averaged(found[..., i], PICTURE_SIDE, axis=0), PICTURE_SIDE, axis=1)
        for i in range(found.shape[2])
    ]
    return Backdrop.of("picture", np.round(np.stack(planes, axis=-1)), grid=grid)


def series(table: Any, stack: int = 1) -> Backdrop:
    """Return the backdrop of a table of numbers (frames, features), `stack` frames to a token.

    Each feature is scaled to its own range. Long tables are averaged to `MAX_COLUMNS` columns.
    """
    numbers = np.nan_to_num(np.asarray(table, dtype=np.float64)).T  # (features, frames)
    tokens = -(-numbers.shape[1] // stack)
    numbers = np.pad(numbers, ((0, 0), (0, tokens * stack - numbers.shape[1])), mode="edge")
    low, high = numbers.min(axis=1, keepdims=True), numbers.max(axis=1, keepdims=True)
    shares = (numbers - low) / np.where(high > low, high - low, 1.0)
    return Backdrop.of("series", to_bytes(shares), grid=(1, tokens))


def spectrogram(levels: Any, tokens: int, seconds: float) -> Backdrop:
    """Return the backdrop of logarithmic levels (bands, frames), the lowest band first.

    Args:
        levels: in any unit of logarithms; the loudest 8 powers of ten are drawn.
        tokens: number of tokens that share the width evenly.
        seconds: duration of the width.
    """
    found = np.asarray(levels, dtype=np.float64)[::-1]
    top = float(found.max(initial=-8.0))
    shares = np.clip((found - (top - 8.0)) / 8.0, 0.0, 1.0)
    return Backdrop.of("spectrogram", to_bytes(shares), grid=(1, tokens), seconds=seconds)


def to_bytes(shares: Any) -> Pixels:
    """Return shares from 0 to 1, (bands, columns), as bytes, averaged to the limits of size."""
    found = _averaged(np.asarray(shares, dtype=np.float64), MAX_BANDS, axis=0)
    found = _averaged(found, MAX_COLUMNS, axis=1)
    rounded: Pixels = np.round(found * 255).astype(np.uint8)
    return rounded


def _averaged(array: npt.NDArray[np.float64], most: int, axis: int) -> npt.NDArray[np.float64]:
    """Return an array with at most so many entries along an axis, by averaging neighbours."""
    count = array.shape[axis]
    if count <= most:
        return array
    edges = np.linspace(0, count, most + 1).astype(int)
    sums = np.add.reduceat(array, edges[:-1], axis=axis)
    sizes = np.diff(edges).reshape((-1, 1) if axis == 0 else (1, -1))
    means: npt.NDArray[np.float64] = sums / sizes
    return means


def overlaid(backdrop: Backdrop, shares: npt.NDArray[np.float32]) -> Pixels:
    """Return the picture in pale grey with the cells of the grid tinted by shares from 0 to 1.

    Args:
        backdrop: of any kind.
        shares: one for each cell of its grid.
    """
    height, width, _ = backdrop.shape
    rows, columns = backdrop.grid
    grey = backdrop.array.mean(axis=-1)
    if backdrop.kind != "picture":  # loud is dark, as on paper
        grey = 255 - grey
    ground = (grey * (1 - PALE) + 255 * PALE)[..., None]
    down = np.arange(height) * rows // height
    across = np.arange(width) * columns // width
    alpha = np.clip(shares, 0, 1).reshape(rows, columns)[np.ix_(down, across)][..., None] * OPAQUE
    mixed: Pixels = np.round(ground * (1 - alpha) + np.array(HEAT) * alpha).astype(np.uint8)
    return mixed


def png(pixels: Pixels) -> bytes:
    """Return an array (height, width, 1 or 3) of bytes as a PNG file."""
    height, width, channels = pixels.shape

    def chunk(kind: bytes, data: bytes) -> bytes:
        sum_ = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", sum_)

    rows = np.pad(pixels.reshape(height, width * channels), ((0, 0), (1, 0)))  # 0: no filter
    header = struct.pack(">IIBBBBB", width, height, 8, 2 if channels == 3 else 0, 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 6)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(*part) for part in parts)
