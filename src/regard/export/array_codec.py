"""Sources of an exported model that are arrays: vectors and pictures; no regard is needed."""

import json
from pathlib import Path
from typing import Any

import numpy as np

if __package__:
    from regard.export.text_codec import StoryCodec, TokenCodec
else:  # a copy in an exported folder
    from text_codec import StoryCodec, TokenCodec  # type: ignore[import-not-found,no-redef]


class VectorSource:
    """Sources that are vectors, (frames, features); the graph scales them."""

    dtype = np.float32

    def __init__(self, path: Path, symbols: dict[str, int]) -> None:
        file = json.loads(path.read_text(encoding="utf-8"))
        self.features, self.stack = int(file["features"]), int(file["stack"])

    def encode(self, source: Any) -> np.ndarray:
        """Return the array of a table: an array, lists, JSON, or the name of a .npy file."""
        if isinstance(source, str | Path):
            text = str(source).strip()
            source = json.loads(text) if text.startswith("[") else np.load(text)
        table = np.asarray(source, np.float32)
        table = table[:, None] if table.ndim == 1 else table
        if table.ndim != 2 or table.shape[1] != self.features or not len(table):
            raise ValueError(
                f"a source must be (frames, {self.features}), but its shape is {table.shape}"
            )
        return table

    def positions(self, length: int) -> int:
        """Return the number of vectors that the model makes of so many frames."""
        return -(-length // self.stack)


class PictureCodec:
    """Sources that are pictures, cut into patches; the graph scales the levels of the pixels."""

    dtype = np.float32

    def __init__(self, path: Path, symbols: dict[str, int]) -> None:
        file = json.loads(path.read_text(encoding="utf-8"))
        self.size = (file["height"], file["width"])
        self.channels, self.patch = file["channels"], file["patch"]

    def encode(self, source: Any) -> np.ndarray:
        """Return the patches of a picture, row by row.

        Args:
            source: levels from 0 to 255, (height, width, channels), as an array or a .npy file; or
                the name of a picture file, which Pillow opens and resizes.
        """
        if isinstance(source, str | Path):
            text = str(source).strip()
            source = np.load(text) if text.endswith(".npy") else self._opened(text)
        levels = np.asarray(source, np.float32)
        levels = levels[..., None] if levels.ndim == 2 else levels
        if levels.shape != (*self.size, self.channels):
            raise ValueError(
                f"a picture must be {(*self.size, self.channels)}, height, width and channels, but "
                f"its shape is {levels.shape}"
            )
        down, across = (side // self.patch for side in self.size)
        cut = levels.reshape(down, self.patch, across, self.patch, self.channels).swapaxes(1, 2)
        return np.ascontiguousarray(cut.reshape(down * across, -1))

    def _opened(self, name: str) -> np.ndarray:
        from PIL import Image, UnidentifiedImageError

        try:
            # for others, such as EPS, Pillow would run a program on the content
            formats = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
            with Image.open(name, formats=formats) as image:
                read = image.convert("RGB")
        except UnidentifiedImageError:
            raise ValueError(f"{name} must be a picture or a .npy file, but it is not") from None
        height, width = self.size
        read = read if read.size == (width, height) else read.resize((width, height))
        return np.asarray(read.convert("L") if self.channels == 1 else read)

    def positions(self, length: int) -> int:
        """Return the number of vectors that the model makes of so many patches: as many."""
        return length


def source_codec(folder: Path, kind: str, symbols: dict[str, int]) -> Any:
    """Return the codec of an exported model's sources, by their kind in the manifest."""
    codecs = {"vectors": VectorSource, "pictures": PictureCodec, "story": StoryCodec}
    return codecs.get(kind, TokenCodec)(folder / "tokenizer.src.json", symbols)
