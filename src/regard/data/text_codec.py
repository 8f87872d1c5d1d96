"""The sources and targets of an exported model, line by line: no regard is needed.

Sources are texts, stories, vectors, pictures or series; targets are texts.
"""

import csv
import importlib.util
import io
import json
import math
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any

import numpy as np

if __package__:
    from regard.data import lookup_codecs as codecs
else:  # a copy in an exported folder
    import lookup_codecs as codecs  # type: ignore[import-not-found,no-redef]


class TokenCodec:
    """A tokenizer: texts to ids and ids to texts.

    Args:
        path: one of the two tokenizer files, or what it holds.
        manifest: that of the folder.
    """

    #: of ids
    dtype = "int64"

    def __init__(self, path: Path | dict[str, Any], manifest: dict[str, Any]) -> None:
        file = path if isinstance(path, dict) else json.loads(path.read_text(encoding="utf-8"))
        self.eos, self.unk = manifest["symbols"]["eos"], manifest["symbols"]["unk"]
        self.codec = codecs.KINDS[file["kind"]].load(file["model"])
        self.normalise = codecs.normaliser(nfc=file["nfc"], case=file["case"])
        names = enumerate(file["features"], start=len(self.codec.pieces))
        self.features = {name: i for i, name in names}

    def encode(self, line: str) -> list[int]:
        """Return the ids of a text, of the features after its tab, and eos."""
        text, _, tail = line.partition("\t")
        names = filter(None, (name.strip() for name in tail.split(";")))
        features = [self.features.get(name, self.unk) for name in names]
        return [*self.cut(text), *features, self.codec.end]

    def positions(self, length: int) -> int:
        """Return the number of vectors that the model makes of so many tokens: as many."""
        return length

    def cut(self, text: str) -> list[int]:
        """Return the ids of a text alone."""
        return self.codec.encode_batch([self.normalise(text)])[0]

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids, without unknown and special tokens."""
        pieces = self.codec.pieces
        return self.codec.join([pieces[i] for i in ids if self.unk < i < len(pieces)])


class StoryCodec(TokenCodec):
    """Stories with questions, `story<TAB>question`; sentences may have " | " between them."""

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        super().__init__(json.loads(path.read_text(encoding="utf-8"))["tokenizer"], manifest)

    def encode(self, line: str) -> list[int]:
        """Return the ids of the story, of the question after its mark, and eos."""
        story, _, question = (part.strip() for part in line.partition("\t"))
        sentences = [part for part in map(str.strip, story.split(" | ")) if part]
        if "\t" not in line or not sentences or not question or "\t" in question:
            raise ValueError(
                f"a source must be a story and a question with a tab between them, but it is "
                f"{line[:60]!r}"
            )
        row = self.cut(sentences[0])
        for sentence in sentences[1:]:
            row += [self.features["|"], *self.cut(sentence)]
        return [*row, self.features["||"], *self.cut(question), self.eos]


class VectorSource:
    """Sources that are vectors, (frames, features); the graph scales them."""

    dtype = np.float32

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        file = json.loads(path.read_text(encoding="utf-8"))
        self.features, self.stack = int(file["features"]), int(file["stack"])

    def encode(self, source: Any) -> np.ndarray:
        """Return the array of a table: an array, lists, JSON, or the name of a .npy file."""
        if isinstance(source, str | Path):
            text = str(source).strip()
            try:
                source = json.loads(text) if text.startswith("[") else np.load(text)
            except ValueError:
                raise ValueError(
                    f"{text[:60]} must be a .npy file or JSON, but is neither"
                ) from None
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

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        file = json.loads(path.read_text(encoding="utf-8"))
        self.size = (file["height"], file["width"])
        self.channels, self.patch = file["channels"], file["patch"]
        self.before = int(file.get("class_token", False))

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
        return np.pad(cut.reshape(down * across, -1), ((self.before, 0), (0, 0)))

    def _opened(self, name: str) -> np.ndarray:
        from PIL import Image, UnidentifiedImageError

        try:
            # for others, such as EPS, Pillow would run a program on the content
            formats = ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF")
            with Image.open(name, formats=formats) as image:
                read = rgb_of(image)
        except UnidentifiedImageError:
            raise ValueError(f"{name} must be a picture or a .npy file, but it is not") from None
        height, width = self.size
        read = read if read.size == (width, height) else read.resize((width, height))
        return np.asarray(read.convert("L") if self.channels == 1 else read)

    def positions(self, length: int) -> int:
        """Return the number of vectors that the model makes of so many patches: as many."""
        return length


def rgb_of(image: Any) -> Any:
    """Return an image in RGB, upright, on white where it is transparent."""
    from PIL import Image, ImageOps

    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):  # wider than the 8 bits of the others
        levels = np.asarray(image, dtype=np.int32).clip(0, 65535)
        image = Image.fromarray((levels * 255 // 65535).astype(np.uint8))
    elif image.mode == "F":
        levels = np.asarray(image, dtype=np.float32)
        if not np.isfinite(levels).all():
            raise ValueError("a level is no finite number")
        top = max(float(levels.max(initial=0.0)), 1e-9)
        image = Image.fromarray((levels / top * 255).clip(0, 255).astype(np.uint8))
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image.convert("RGB")


class SeriesRows:
    """Sources that are series: the last rows of a CSV file, with the columns of the run."""

    dtype = np.float64

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        own = manifest["tokenizers"]["source"]
        self.columns: list[str] = own["columns"]
        self.look_back: int = own["look_back"]

    def encode(self, source: Any) -> np.ndarray:
        """Return the last rows of a CSV file, of its lines, or of an array (rows, columns)."""
        if isinstance(source, str | Path):
            with Path(source).open(encoding="utf-8-sig", newline="") as file:
                return self.encode(list(file))
        is_text = isinstance(source, list) and bool(source) and isinstance(source[0], str)
        table = self._parsed(source) if is_text else np.asarray(source, np.float64)
        if table.ndim != 2 or table.shape[1] != len(self.columns) or len(table) < self.look_back:
            raise ValueError(
                f"a series must have {self.look_back} rows of {len(self.columns)} numbers at "
                f"least, but its shape is {table.shape}"
            )
        if not np.isfinite(table[-self.look_back :]).all():
            raise ValueError("the last rows of a series must be finite numbers, but one is not")
        return table[-self.look_back :]

    def _parsed(self, lines: list[str]) -> np.ndarray:
        rows = list(csv.reader(lines))
        header = [cell.strip() for cell in rows[0]]
        lacking = [name for name in self.columns if name not in header]
        if lacking:
            raise ValueError(f"the file must have a column {lacking[0]!r}, but it has {header}")
        places = [header.index(name) for name in self.columns]
        found = []
        for number, row in enumerate(rows[1:], start=2):
            try:
                cells = [row[place] for place in places]
                if "_" in "".join(cells) or not "".join(cells).isascii():  # which Python takes
                    raise ValueError
                found.append(list(map(float, cells)))
            except (ValueError, IndexError):
                raise ValueError(f"line {number}: the columns must hold numbers: {row}") from None
        return np.array(found).reshape(-1, len(places))


def read_lines(source: IO[bytes]) -> Iterator[str]:
    """Yield the lines of a file, in UTF-8 whatever the machine's own encoding."""
    # a byte-order mark is not part of the text
    for line in io.TextIOWrapper(source, encoding="utf-8-sig", newline="\n"):
        yield line.rstrip("\r\n")


def number_texts(rows: Iterable[Any], scales: Iterable[float], digits: int = 6) -> list[str]:
    """Return numbers, in a row for each target, with digits that tell those of training apart."""
    texts = []
    for row, scale in zip(rows, scales, strict=True):
        for number in row:
            more = math.log10(min(max(scale, abs(number)) / scale, 10.0 ** (16 - digits)))
            texts.append(f"{number:.{digits + int(more)}g}")
    return texts


def one_line(text: str) -> bytes:
    """Return a text as one line of a file."""
    return text.replace("\n", " ").encode() + b"\n"


def run_program(program: str, main: Callable[[], None]) -> None:
    """Run a program; what a user can mend is said in one sentence."""
    try:
        main()
    except ModuleNotFoundError as missing:
        name = missing.name
        sys.exit(f"{program} needs {name}, which is not installed: pip install {name}")
    except (OSError, ValueError) as error:
        sys.exit(f"{program}: {error}")
    except Exception as error:
        if not type(error).__module__.startswith("onnxruntime"):
            raise
        first = str(error).partition("\n")[0]
        sys.exit(f"{program}: onnxruntime cannot run the graphs: {first}")


def opened_lines(file: str) -> Iterator[str]:
    """Yield the lines of a file, or of standard input if it is -."""
    with nullcontext(sys.stdin.buffer) if file == "-" else Path(file).open("rb") as source:
        yield from read_lines(source)


def read_manifest(folder: Path, *graphs: str) -> dict[str, Any]:
    """Return the manifest of a folder that has these graphs."""
    for name in ("manifest.json", *graphs):
        if not (folder / name).is_file():
            raise FileNotFoundError(
                f"an exported model must have {name}, but {folder} has none: export it again"
            )
    manifest: dict[str, Any] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    return manifest


def source_codec(folder: Path, manifest: dict[str, Any]) -> Any:
    """Return the codec of an exported model's sources, whose file lies in the folder."""
    module, name = manifest["tokenizers"]["source"]["codec"]
    known = globals().get(name)
    if known is None:
        spec = importlib.util.spec_from_file_location(module, folder / f"{module}.py")
        assert spec is not None
        assert spec.loader is not None
        loaded = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(loaded)
        known = getattr(loaded, name)
    return known(folder / "tokenizer.src.json", manifest)
