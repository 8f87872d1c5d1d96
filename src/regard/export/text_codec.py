"""The sources and targets of an exported model, line by line: no regard is needed.

Sources are texts, stories, vectors or pictures; targets are texts.
"""

import io
import itertools
import json
import sys
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import IO, Any

import numpy as np

JOINER, WORD_START = "￭", "▁"


class TokenCodec:
    """A tokenizer: texts to ids and ids to texts.

    Args:
        path: one of the two tokenizer files, or what it holds.
        symbols: ids of special tokens, by name.
    """

    #: of ids
    dtype = "int64"

    def __init__(self, path: Path | dict[str, Any], symbols: dict[str, int]) -> None:
        content = path if isinstance(path, dict) else json.loads(path.read_text(encoding="utf-8"))
        self.file: dict[str, Any] = content
        self.eos, self.unk = symbols["eos"], symbols["unk"]
        self.pieces, model = self.file["model"], self.file["model"]
        if self.file["kind"] == "labels":
            self.pieces = model["pieces"]
        if self.file["kind"] in ("bpe", "unigram"):
            from tokenizers import Tokenizer

            self.subwords = Tokenizer.from_str(json.dumps(model))
            by_id = {number: piece for piece, number in self.subwords.get_vocab().items()}
            self.pieces = [by_id[number] for number in range(len(by_id))]
        self.ids = {piece: i for i, piece in enumerate(self.pieces) if i > self.unk}
        names = enumerate(self.file["features"], start=len(self.pieces))
        self.features = {name: i for i, name in names}

    def encode(self, line: str) -> list[int]:
        """Return the ids of a text, of the features after its tab, and eos."""
        text, _, tail = line.partition("\t")
        names = filter(None, (name.strip() for name in tail.split(";")))
        features = [self.features.get(name, self.unk) for name in names]
        return [*self.cut(text), *features, self.eos]

    def positions(self, length: int) -> int:
        """Return the number of vectors that the model makes of so many tokens: as many."""
        return length

    def cut(self, text: str) -> list[int]:
        """Return the ids of a text alone."""
        text = getattr(text, self.file["case"])() if self.file["case"] != "keep" else text
        text = unicodedata.normalize("NFC", text) if self.file["nfc"] else text
        if self.file["kind"] in ("bpe", "unigram"):
            words = [WORD_START + word for word in text.split(" ")] if text else []
            found = (self.subwords.encode(word).ids for word in words)
            return [max(number, self.unk) for ids in found for number in ids]
        if self.file["kind"] == "word":
            pieces = [piece for word in text.split() for piece in marked(word)]
        else:
            pieces = list(text) if self.file["kind"] == "char" else text.split()
        return [self.ids.get(piece, self.unk) for piece in pieces]

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids, without unknown and special tokens."""
        pieces = [self.pieces[i] for i in ids if self.unk < i < len(self.pieces)]
        kind = self.file["kind"]
        if kind == "word":
            return joined(pieces)
        if kind in ("space", "label"):
            return " ".join(pieces)
        if kind == "labels":
            sign = self.file["model"]["separator"]
            if sign == "json":
                return json.dumps(pieces, ensure_ascii=False)
            return (f"{sign} " if sign in ",;" else f" {sign} ").join(pieces)
        text = "".join(pieces)
        return text if kind == "char" else text.replace(WORD_START, " ").removeprefix(" ")


class StoryCodec(TokenCodec):
    """Stories with questions, `story<TAB>question`; sentences may have " | " between them."""

    def __init__(self, path: Path, symbols: dict[str, int]) -> None:
        super().__init__(json.loads(path.read_text(encoding="utf-8"))["tokenizer"], symbols)

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


def marked(word: str) -> list[str]:
    """Split a word into words and punctuation marks, with joiners where they touch."""
    runs = itertools.groupby(word, key=lambda char: "" if in_word(char) else char)
    pieces = ["".join(run) for _, run in runs]
    for i, piece in enumerate(pieces):
        if not in_word(piece[0]):
            before_word = i + 1 < len(pieces) and in_word(pieces[i + 1][0])
            pieces[i] = JOINER * (i > 0) + piece + JOINER * before_word
    return pieces


def in_word(char: str) -> bool:
    """Return whether a character is part of a word."""
    return char.isalnum() or char in "_\u200c\u200d" or unicodedata.category(char)[0] == "M"


def joined(pieces: list[str]) -> str:
    """Join words and marks, with spaces where there is no joiner."""
    text, close = "", True
    for piece in pieces:
        left, right = (len(piece) > 1 and piece[side] == JOINER for side in (0, -1))
        bare = piece[1:] if left else piece
        bare = bare[:-1] if len(bare) > 1 and right else bare
        text += bare if close or left else f" {bare}"
        close = right
    return text


def read_lines(source: IO[bytes]) -> Iterator[str]:
    """Yield the lines of a file, in UTF-8 whatever the machine's own encoding."""
    # a byte-order mark is not part of the text
    for line in io.TextIOWrapper(source, encoding="utf-8-sig", newline="\n"):
        yield line.rstrip("\r\n")


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


def answer(model: Callable[[list[str]], list[str]], source: IO[bytes], target: IO[bytes]) -> None:
    """Predict a line for each line of a file."""
    for text in model(list(read_lines(source))):
        target.write(one_line(text))


def source_codec(folder: Path, kind: str, symbols: dict[str, int]) -> Any:
    """Return the codec of an exported model's sources, by their kind in the manifest."""
    codecs = {"vectors": VectorSource, "pictures": PictureCodec, "story": StoryCodec}
    return codecs.get(kind, TokenCodec)(folder / "tokenizer.src.json", symbols)
