"""CTranslate2: its `Translator` on a Transformer with random weights."""

import tempfile
from collections.abc import Callable
from typing import Any

import ctranslate2
import numpy as np
from ctranslate2.specs import LayerSpec, TransformerSpec

from benchmarks.peers.cases import BEAM, LENGTH, PREDICT_BATCH
from benchmarks.peers.drive import Job

COMPUTE = {"32": "float32", "int8": "int8"}


class Weights:
    """Fills the parts of a model specification."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)

    def matrix(self, spec: LayerSpec, rows: int, columns: int, *, bias: bool = True) -> None:
        """Fill a linear layer or an embedding."""
        spread = columns**-0.5
        spec.weight = self.random.normal(0, spread, (rows, columns)).astype(np.float32)
        if bias:
            spec.bias = np.zeros(rows, np.float32)

    def norm(self, spec: LayerSpec, width: int) -> None:
        """Fill a layer norm with its initial values."""
        spec.gamma, spec.beta = np.ones(width, np.float32), np.zeros(width, np.float32)

    def attention(self, spec: LayerSpec, dim: int) -> None:
        """Fill an attention: one product in self-attention, two in cross-attention."""
        self.norm(spec.layer_norm, dim)
        widths = [3 * dim, dim] if len(spec.linear) == 2 else [dim, 2 * dim, dim]
        for linear, width in zip(spec.linear, widths, strict=True):
            self.matrix(linear, width, dim)

    def feed_forward(self, spec: LayerSpec, dim: int, hidden: int) -> None:
        """Fill a feed-forward block with its norm."""
        self.norm(spec.layer_norm, dim)
        self.matrix(spec.linear_0, hidden, dim)
        self.matrix(spec.linear_1, dim, hidden)


def translator(
    n: Any, src: list[str], tgt: list[str], precision: str, threads: int, **own: Any
) -> ctranslate2.Translator:
    """Return a model of this shape with these words; `own` are options of `from_config`."""
    src, tgt = (["<unk>", "<s>", "</s>", *words] for words in (src, tgt))
    spec, weights = TransformerSpec.from_config(n.layers, n.heads, **own), Weights()
    weights.matrix(spec.encoder.embeddings[0], len(src), n.dim, bias=False)
    weights.matrix(spec.decoder.embeddings, len(tgt), n.dim, bias=False)
    weights.matrix(spec.decoder.projection, len(tgt), n.dim)
    for side in (spec.encoder, spec.decoder):
        if hasattr(side, "layer_norm"):
            weights.norm(side.layer_norm, n.dim)
        for layer in side.layer:
            weights.attention(layer.self_attention, n.dim)
            if side is spec.decoder:
                weights.attention(layer.attention, n.dim)
            weights.feed_forward(layer.ffn, n.dim, n.feed_forward)
    spec.register_source_vocabulary(src)
    spec.register_target_vocabulary(tgt)
    spec.validate()
    with tempfile.TemporaryDirectory() as folder:
        spec.save(folder)
        how = {"compute_type": COMPUTE[precision], "inter_threads": 1, "intra_threads": threads}
        return ctranslate2.Translator(folder, device="cpu", **how)


def predict(job: Job) -> Callable[[str], list[int]]:
    src, tgt = ((job.data / f"vocab.{side}").read_text().split() for side in ("src", "tgt"))
    words = (["<blank>", *src], ["<blank>", *tgt])
    engine = translator(job.case.sizes, *words, job.precision, job.threads)

    def run(part: str) -> list[int]:
        lines = job.lines(part)
        found = engine.translate_batch(
            [line.split() for line in lines],
            max_batch_size=PREDICT_BATCH,
            beam_size=BEAM,
            min_decoding_length=LENGTH,
            max_decoding_length=LENGTH,
        )
        return [len(result.hypotheses[0]) for result in found]

    return run
