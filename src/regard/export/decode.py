"""Greedy search with the graphs of this folder: `echo text | python decode.py`.

Where sources are vectors, a line is the name of a .npy file, or a table as JSON has it.

It needs numpy and onnxruntime; and `tokenizers`, if manifest.json says so.
"""

import io
import itertools
import json
import sys
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
import onnxruntime

BATCH = 32
JOINER, WORD_START = "￭", "▁"


class TokenCodec:
    """A tokenizer: texts to ids and ids to texts, from one of the two tokenizer files."""

    def __init__(self, path: Path, symbols: dict[str, int]) -> None:
        self.file = json.loads(path.read_text(encoding="utf-8"))
        self.eos, self.unk = symbols["eos"], symbols["unk"]
        self.pieces, model = self.file["model"], self.file["model"]
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
        text = getattr(text, self.file["case"])() if self.file["case"] != "keep" else text
        text = unicodedata.normalize("NFC", text) if self.file["nfc"] else text
        names = filter(None, (name.strip() for name in tail.split(";")))
        features = [self.features.get(name, self.unk) for name in names]
        return [*self._cut(text), *features, self.eos]

    def _cut(self, text: str) -> list[int]:
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
        text = (" " if kind == "space" else "").join(pieces)
        return (
            text if kind in ("char", "space") else text.replace(WORD_START, " ").removeprefix(" ")
        )


class VectorSource:
    """Sources that are vectors, (frames, features); the graph scales them."""

    def __init__(self, path: Path) -> None:
        file = json.loads(path.read_text(encoding="utf-8"))
        self.features, self.stack = file["features"], file["stack"]

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


class Exported:
    """The model of a folder."""

    def __init__(self, folder: str | Path) -> None:
        folder = Path(folder)
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        self.symbols, self.limits = manifest["symbols"], manifest["limits"]
        self.source: TokenCodec | VectorSource
        if manifest["tokenizers"]["source"]["kind"] == "vectors":
            self.source = VectorSource(folder / "tokenizer.src.json")
        else:
            self.source = TokenCodec(folder / "tokenizer.src.json", self.symbols)
        self.target = TokenCodec(folder / "tokenizer.tgt.json", self.symbols)
        self.encoder, self.step = (
            onnxruntime.InferenceSession(folder / name, providers=["CPUExecutionProvider"])
            for name in ("encoder.onnx", "step.onnx")
        )

    def __call__(self, texts: list[Any]) -> list[str]:
        """Return the greedy prediction for each text or table of vectors."""
        rows = [self.source.encode(text) for text in texts]
        parts = (rows[start : start + BATCH] for start in range(0, len(rows), BATCH))
        return [self.target.decode(ids) for part in parts for ids in self.greedy(part)[0]]

    def greedy(self, rows: list[Any]) -> tuple[list[list[int]], list[list[float]]]:
        """Return the ids of predictions, and the log-probability of each token, eos included.

        A source is a list of ids, or an array (frames, features).
        """
        pad, bos, eos = (self.symbols[name] for name in ("pad", "bos", "eos"))
        lengths = np.array([len(row) for row in rows])
        src = np.full(
            (len(rows), lengths.max(), *np.shape(rows[0])[1:]), pad, np.asarray(rows[0]).dtype
        )
        for i, row in enumerate(rows):
            src[i, : len(row)] = row
        state = self.first(src, lengths)
        least, most = self.bounds(rows)
        # an unknown token has no text, so that the prediction would be too short
        never = [pad, bos, *[self.symbols["unk"]] * bool(self.limits.get("one_per_source_token"))]
        tokens, over = np.full(len(rows), bos), np.zeros(len(rows), bool)
        answers: list[list[int]] = [[] for _ in rows]
        scores: list[list[float]] = [[] for _ in rows]
        for step in range(int(most.max()) + 1):
            log_probs, state, _ = self.next(tokens, state)
            allowed = log_probs.copy()
            allowed[:, never] = -np.inf
            allowed[step < least, eos] = -np.inf
            tokens = np.where(most <= step, eos, allowed.argmax(axis=1))
            for i in np.flatnonzero(~over).tolist():
                scores[i].append(float(log_probs[i, tokens[i]]))
                answers[i] += [int(tokens[i])] * bool(tokens[i] != eos)
            over |= tokens == eos
            if over.all():
                break
        return answers, scores

    def bounds(self, rows: list[Any]) -> tuple[np.ndarray, np.ndarray]:
        """Return the fewest and the most tokens of each prediction, eos not counted."""
        joined = self.source.stack if isinstance(self.source, VectorSource) else 1
        lengths = np.array([-(-len(row) // joined) for row in rows])
        if self.limits.get("one_per_source_token"):
            words = lengths - [row[-1:] == [self.symbols["eos"]] for row in rows]
            return words, words
        most = np.floor(self.limits["per_source_token"] * lengths) + self.limits["extra"]
        return np.zeros_like(most), np.minimum(most, (self.limits["positions"] or np.inf) - 1)

    def first(self, src: np.ndarray, lengths: np.ndarray) -> dict[str, Any]:
        """Encode padded sources; returns the memory and the first state, by name."""
        names = [port.name for port in self.encoder.get_outputs()]
        kind = np.float32 if isinstance(self.source, VectorSource) else np.int64
        inputs = {"src": src.astype(kind), "lengths": lengths.astype(np.int64)}
        return dict(zip(names, self.encoder.run(names, inputs), strict=True))

    def next(
        self, tokens: np.ndarray, state: dict[str, Any]
    ) -> tuple[np.ndarray, dict[str, Any], list[np.ndarray]]:
        """Run one step; returns log-probabilities, the next state, and attention weights."""
        names = [port.name for port in self.step.get_outputs()]
        found = self.step.run(names, {"tokens": tokens.astype(np.int64), **state})
        out = dict(zip(names, found, strict=True))
        parts = [name.removeprefix("next.") for name in names if name.startswith("next.")]
        new = {f"state.{part}": out[f"next.{part}"] for part in parts}
        looked = [out[name] for name in names if name.startswith("attention.")]
        return out["log_probs"], {**state, **new}, looked


def answer(model: Callable[[list[str]], list[str]], source: IO[bytes], target: IO[bytes]) -> None:
    """Predict a line for each line of a file, in UTF-8 whatever the machine's own encoding."""
    # a byte-order mark is not part of the text
    lines = io.TextIOWrapper(source, encoding="utf-8-sig", newline="\n")
    for text in model([line.rstrip("\r\n") for line in lines]):
        target.write(text.replace("\n", " ").encode() + b"\n")


if __name__ == "__main__":
    answer(Exported(Path(__file__).parent), sys.stdin.buffer, sys.stdout.buffer)
