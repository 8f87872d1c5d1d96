"""Greedy search with the graphs of this folder: `echo text | python decode.py`.

Where sources are vectors, a line is the name of a .npy file, or a table as JSON has it.

It needs numpy and onnxruntime; and `tokenizers`, if manifest.json says so.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

if __package__:
    from regard.export.text_codec import TokenCodec, answer
else:  # a copy in an exported folder
    from text_codec import TokenCodec, answer  # type: ignore[import-not-found,no-redef]

BATCH = 32


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


if __name__ == "__main__":
    answer(Exported(Path(__file__).parent), sys.stdin.buffer, sys.stdout.buffer)
