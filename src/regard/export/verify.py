"""Comparison of exported graphs with their model."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnxruntime
import torch
from torch import Tensor

from regard import ops
from regard.decoding import DecodingOptions, greedy
from regard.errors import ExportError
from regard.export.decode import Exported
from regard.kinds.graph_inputs import GraphInputs
from regard.models import SequenceModel
from regard.models.protocol import inference
from regard.symbols import BOS, EOS

TOLERANCE: Final = 1e-4
#: lengths of the sources of each batch: one alone, the shortest that there is, and mixed ones
BATCHES: Final = ((6,), (1, 1), (9, 2, 17, 5))
#: steps to compare at most
MAX_STEPS: Final = 24


def verify(model: SequenceModel, inputs: GraphInputs, folder: Path) -> float:
    """Return the largest difference of a log-probability or an attention weight.

    Both follow the model's greedy search, and the log-probabilities of all tokens are compared at
    each step. Raises ExportError if they differ by more than `TOLERANCE`.
    """
    worst = _largest_of_all(model, inputs, folder)
    if not worst <= TOLERANCE:  # so that NaN fails too
        raise ExportError(
            f"the graphs must give the model's log-probabilities within {TOLERANCE:g}, but the "
            f"largest difference is {worst:.2g}, so that nothing was kept: report it with the "
            f"versions of torch, onnx and onnxruntime."
        )
    return worst


def _largest_of_all(model: SequenceModel, inputs: GraphInputs, folder: Path) -> float:
    try:
        exported = Exported(folder)
        with inference(model), ops.use_backend("reference"):
            chance = torch.Generator().manual_seed(1)
            batches = [_differences(model, exported, inputs, n, chance) for n in BATCHES]
            return float(np.max([one for batch in batches for one in batch]))
    except Exception as error:
        if not type(error).__module__.startswith("onnxruntime"):
            raise
        raise ExportError(
            f"the graphs must run by onnxruntime, but version {onnxruntime.__version__} says "
            f"{str(error).splitlines()[0]!r}, so that nothing was kept: try another version, or "
            f"report it."
        ) from error


def _differences(
    model: SequenceModel,
    exported: Exported,
    inputs: GraphInputs,
    batch: tuple[int, ...],
    chance: torch.Generator,
) -> Iterator[float]:
    lengths = torch.tensor(batch)
    plain = inputs.draw(lengths, chance)
    src = inputs.as_read(plain)
    answers = [found[0].tokens for found in greedy(model, src, lengths, DecodingOptions(beam=1))]
    tokens = torch.full_like(lengths, BOS)
    state = model.start(model.encode(src, lengths))
    graph_state = exported.first(plain.numpy(), lengths.numpy())
    for step in range(min(max(map(len, answers)) + 1, MAX_STEPS)):
        out = model.step(tokens, state, need_weights=True)
        log_probs, graph_state, looked = exported.next(tokens.numpy(), graph_state)
        yield _largest(out.logits.log_softmax(-1), log_probs)
        for weights, seen in zip(out.maps.get("cross", ()), looked, strict=False):
            yield _largest(weights.squeeze(2), seen)
        state = out.state
        tokens = torch.tensor([row[step] if step < len(row) else EOS for row in answers])


def _largest(ours: Tensor, theirs: Any) -> float:
    return float(np.abs(ours.numpy() - theirs).max())
