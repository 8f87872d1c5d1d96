"""Pictures as sources: files or arrays, brought to one size and cut into patches."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, TypeVar, final

import numpy as np
import numpy.typing as npt
from jaxtyping import Float32
from torch import Tensor

from regard.atomic_files import Positive, Size, StoredRecord
from regard.data.error_hints import BadLine, shorten
from regard.data.frame_tables import FrameArray, TableReader
from regard.data.media_files import PICTURES, read_picture
from regard.data.pairs import Pair
from regard.errors import ArgumentError, DataError
from regard.messages import message

#: longest side of pictures whose size nobody has set, in pixels
DEFAULT_SIDE: Final = 64
#: patches along the longest side of pictures whose patches nobody has set
DEFAULT_PATCHES: Final = 8
#: pixels of a picture as a model reads it, at most
MAX_READ: Final = 1 << 22
#: pixels of a picture that is sent to a server, at most: 4096 x 4096
MAX_SENT: Final = 1 << 24
COLOUR: Final = 3

#: rows of pixels, with the channels of a pixel side by side; levels from 0 to 255
PixelRows = Float32[np.ndarray, "height row"]
#: levels of a picture, (height, width, channels)
Levels = npt.NDArray[np.uint8]
Lengths = TypeVar("Lengths", int, Tensor)


class PictureSize(NamedTuple):
    """Pixels of a picture from top to bottom, and from left to right."""

    height: int
    width: int

    def __str__(self) -> str:
        return f"{self.width} x {self.height}"


def choose_size(found: PictureSize, size: PictureSize | None, patch: int | None) -> PictureSize:
    """Return the size that pictures are brought to, of which patches leave nothing over."""
    if size is not None:
        return size
    shrink = min(1.0, DEFAULT_SIDE / max(found))
    sides = [max(1, round(side * shrink)) for side in found]
    step = choose_patch(PictureSize(*sides), patch)
    return PictureSize(*(max(step, round(side / step) * step) for side in sides))


def choose_patch(size: PictureSize, patch: int | None) -> int:
    """Return the side of a patch: what was asked for, or one that divides both sides.

    Of those it is the one that comes closest to `DEFAULT_PATCHES` along the longer side; sides
    that only 1 divides get the nearest number, and are rounded to it where nobody has set them.
    """
    if patch is not None:
        return patch
    wanted = max(size) / DEFAULT_PATCHES
    able = [n for n in range(2, min(size) + 1) if size.height % n == 0 == size.width % n]
    near = [n for n in able if wanted / 2 <= n <= wanted * 2]
    return min(near, key=lambda n: abs(n - wanted)) if near else max(1, round(wanted))


@final
class PictureReader(TableReader):
    """Reads pictures of one size, as rows of pixels.

    A picture of another size is resized, without keeping its proportions.
    """

    suffixes = PICTURES

    def __init__(
        self,
        folder: Path,
        *,
        size: PictureSize | None = None,
        patch: int | None = None,
        channels: int = COLOUR,
    ) -> None:
        super().__init__(folder)
        self._size, self._patch, self._channels = size, patch, channels

    def name(self, table: PixelRows) -> str:
        """Return the size of a picture and a hash of its pixels."""
        return picture_name(table, self._channels)

    def parse(self, source: Any) -> PixelRows:
        """Return the pixels of a picture: a path, the content of a file, an image or an array."""
        try:
            array = isinstance(source, np.ndarray | Tensor | list | tuple)
            most = MAX_SENT if isinstance(source, bytes) else None
            given = _image_of_array(source) if array else source
            image = read_picture(given, max_pixels=most).image
        except DataError as error:
            raise BadLine(error.kind, error.reason, error.fix) from None
        found = PictureSize(image.height, image.width)
        size = self._size = choose_size(found, self._size, self._patch)
        if found != size:
            image = image.resize((size.width, size.height))
        image = image.convert("L") if self._channels == 1 else image
        return np.asarray(image, dtype=np.float32).reshape(size.height, -1)


def _image_of_array(value: Any) -> Any:
    """Return the Pillow image of an array of levels from 0 to 255, or of shares from 0 to 1."""
    from PIL import Image

    try:
        found = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
    except (ValueError, TypeError):
        found = np.zeros(0)
    if found.ndim == 3 and found.shape[2] == 1:
        found = found[..., 0]
    good = found.ndim == 2 or (found.ndim == 3 and found.shape[2] in (3, 4))
    if not good or not found.size or found.dtype.kind not in "fiub":
        shape = found.shape if found.size else shorten(value)
        reason = (
            "an array must be (height, width) or (height, width, channels) of numbers, with 1, 3 "
            f"or 4 channels, but it is {shape}"
        )
        fix = "give each picture by itself, channels last"
        raise DataError("picture", None, reason, fix, kind="no picture")
    if found.dtype == np.uint8:
        return Image.fromarray(np.ascontiguousarray(found))
    top = 1.0 if found.dtype.kind in "fb" else 255.0
    if not np.isfinite(found).all() or found.min() < 0 or found.max() > top:
        kind = "floats from 0 to 1" if top == 1.0 else "integers from 0 to 255"
        reason = (
            f"an array of {found.dtype} must hold {kind}, but it holds from {found.min():g} to "
            f"{found.max():g}"
        )
        fix = "bring it to that range, or give bytes (uint8)"
        raise DataError("picture", None, reason, fix, kind="no picture")
    levels = np.round(np.asarray(found, np.float64) * (255.0 / top)).astype(np.uint8)
    return Image.fromarray(levels)


def picture_name(rows: PixelRows, channels: int) -> str:
    """Return a name for a picture without a file, with a hash of its pixels."""
    digest = hashlib.blake2b(np.ascontiguousarray(rows).tobytes(), digest_size=4).hexdigest()
    size = PictureSize(len(rows), rows.shape[1] // channels)
    return f"picture of {size} #{digest}"


def why_pictures(pairs: Sequence[Pair]) -> str:
    """Return the reason why the sources of these pairs are pictures; "" if they are not."""
    if pairs and all(p.frames is None and p.src.lower().endswith(PICTURES) for p in pairs):
        return message("train.why.picture-files")
    arrays = [pair.frames for pair in pairs if isinstance(pair.frames, np.ndarray | Tensor)]
    colours = all(array.ndim == 3 and array.shape[2] in (1, 3, 4) for array in arrays)
    return message("train.why.colours") if pairs and len(arrays) == len(pairs) and colours else ""


@dataclass(frozen=True)
class PictureEncoder(StoredRecord):
    """The encoder of pictures: standardises each channel, and cuts a picture into patches.

    Patches go row by row from the top left. A patch is a frame of `patch * patch * channels`
    numbers: its pixels row by row, the channels of a pixel side by side.

    Attributes:
        height: of a picture, in pixels.
        width: of a picture.
        channels: 3 for colour, 1 for grey.
        patch: side of a patch, which divides both sides.
        mean: mean level of each channel over the training data.
        scale: standard deviation of each channel.
        class_token: whether the frame of a class token, which is zero, comes before the patches.
        origin: the configuration of the model that it comes from, and other files of it.
    """

    kind: ClassVar[str] = "pictures"
    #: it has no tokens
    vocab_size: ClassVar[int] = 0
    #: how limits of its length are worded before "or"
    limit_unit: ClassVar[str] = "patches "

    height: Size
    width: Size
    channels: int
    patch: Size
    mean: tuple[float, ...]
    scale: tuple[Positive, ...]
    class_token: bool = False
    origin: dict[str, Any] | None = None

    @staticmethod
    def measure(
        pictures: Iterable[PixelRows],
        *,
        read_channels: int,
        channels: int | None,
        patch: int | None,
    ) -> "PictureEncoder":
        """Return the encoder fitted to training data, which are read once."""
        count, first, second, grey, shape = 0, np.zeros(1), np.zeros(1), True, (0, 0)
        for rows in pictures:
            levels = rows.reshape(-1, read_channels).astype(np.float64)
            first, second = first + levels.sum(axis=0), second + (levels**2).sum(axis=0)
            count, shape = count + len(levels), rows.shape
            grey = grey and bool((levels == levels[:, :1]).all())
        if not count:
            raise ArgumentError("pictures", "be at least one", "none", "check where they are from")
        kept = channels or (1 if grey else read_channels)
        mean = (first / count)[:kept]
        deviation = np.sqrt(np.maximum((second / count)[:kept] - mean**2, 0.0))
        size = PictureSize(shape[0], shape[1] // read_channels)
        return PictureEncoder(
            *size,
            kept,
            choose_patch(size, patch),
            tuple(mean.tolist()),
            tuple(np.where(deviation > 0, deviation, 1.0).tolist()),
        )

    @property
    def size(self) -> PictureSize:
        """Pixels of a picture."""
        return PictureSize(self.height, self.width)

    @property
    def grid(self) -> tuple[int, int]:
        """Patches from top to bottom, and from left to right."""
        return self.height // self.patch, self.width // self.patch

    @property
    def cells(self) -> int:
        """Number of patches, and of the class token."""
        return self.grid[0] * self.grid[1] + self.class_token

    @property
    def frame_size(self) -> int:
        """Numbers of a patch."""
        return self.patch * self.patch * self.channels

    def reader(self, folder: Path) -> PictureReader:
        """Return a reader of pictures for this encoder."""
        return PictureReader(folder, size=self.size, patch=self.patch, channels=self.channels)

    def encode_sources(self, pairs: Sequence[Pair]) -> list[FrameArray]:
        """Return the patches of pairs."""
        return [self.encode(pair.frames) for pair in pairs]

    def fits(self, pair: Pair, row: FrameArray, limit: int) -> bool:
        """Return whether a picture has at most so many patches."""
        return len(row) <= limit

    def encode(self, rows: PixelRows) -> FrameArray:
        """Return standardised patches, (cells, numbers); a grey encoder takes the first channel."""
        levels = rows.reshape(self.height, self.width, -1)[..., : self.channels]
        scaled = ((levels - np.array(self.mean)) / np.array(self.scale)).astype(np.float32)
        (down, across), side = self.grid, self.patch
        cut = scaled.reshape(down, side, across, side, self.channels).swapaxes(1, 2)
        patches: FrameArray = cut.reshape(-1, self.frame_size)
        return np.pad(patches, ((int(self.class_token), 0), (0, 0)))

    def decode(self, patches: FrameArray) -> Levels:
        """Return the picture that patches were cut from."""
        (down, across), side = self.grid, self.patch
        cut = patches[int(self.class_token) :].reshape(down, across, side, side, self.channels)
        scaled = cut.swapaxes(1, 2).reshape(self.height, self.width, self.channels)
        levels = scaled * np.array(self.scale) + np.array(self.mean)
        found: Levels = np.clip(np.round(levels), 0, 255).astype(np.uint8)
        return found

    def positions(self, patches: Lengths) -> Lengths:
        """Return the number of vectors that the model makes of so many patches: as many."""
        return patches

    def labels(self) -> list[str]:
        """Return the names of the patches: r2c3 is the third of the second row."""
        rows, columns = self.grid
        patches = [f"r{i + 1}c{j + 1}" for i in range(rows) for j in range(columns)]
        return ["[CLS]", *patches] if self.class_token else patches

    @property
    def summary(self) -> str:
        """A short description."""
        rows, columns = self.grid
        return message(
            f"source.pictures.{'colour' if self.channels == COLOUR else 'grey'}",
            size=self.size,
            count=rows * columns,
            patch=self.patch,
            rows=rows,
            columns=columns,
        )

    def check_fields(self) -> None:
        """Raise ValueError for sizes that do not fit each other, or are too large."""
        whole = len(self.mean) == len(self.scale) == self.channels
        if self.channels not in (1, COLOUR) or not whole:
            raise ValueError("its pictures must have 1 or 3 channels, each with mean and scale")
        if self.height % self.patch or self.width % self.patch:
            raise ValueError(f"patches of {self.patch} must divide {self.width} x {self.height}")
        if self.height * self.width > MAX_READ:
            raise ValueError(f"its pictures have more than {MAX_READ:,} pixels")
