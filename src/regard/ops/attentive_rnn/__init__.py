"""The attentive recurrence: an RNN that looks at a memory after each step, and reads what it saw.

Bahdanau et al., 2015, https://arxiv.org/abs/1409.0473; the feeding of the context into the next
step is that of Luong et al., 2015, https://arxiv.org/abs/1508.04025.
"""

import os
from importlib.util import find_spec
from typing import Final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.errors import ArgumentError
from regard.ops.attentive_rnn import reference, torch_path
from regard.ops.attentive_rnn.looking import weights_of
from regard.ops.attentive_rnn.values import AttentiveOutput, AttentiveWeights, Looked
from regard.ops.backend import Path, choose
from regard.ops.check import check_axes, check_equal, check_float
from regard.ops.self_attentive_rnn.cells import GATES, Cell
from regard.ops.self_attentive_rnn.score import AdditiveScore, DotScore, Score

__all__ = ["AttentiveOutput", "AttentiveWeights", "Looked", "attentive_rnn"]

HAS_TRITON: Final = find_spec("triton") is not None
# What kernels are tested with where there is no GPU; triton itself reads it when it is imported.
INTERPRETED: Final = os.environ.get("TRITON_INTERPRET") == "1"
WIDEST: Final = 4096  # keys and values, of which a program holds some lines


def _by_triton(
    inputs: Float[Tensor, "batch length gates"],
    start: Looked,
    weights: AttentiveWeights,
    score: Score,
    key: Float[Tensor, "batch kv_len score_dim"],
    value: Float[Tensor, "batch kv_len v_dim"],
    mask: Bool[Tensor, "batch kv_len"],
    *,
    cell: Cell = "gru",
) -> AttentiveOutput:
    from regard.ops.attentive_rnn import triton_path  # not above: triton may be missing

    return triton_path.attentive_rnn(inputs, start, weights, score, key, value, mask, cell=cell)


def _triton_refuses(
    inputs: Tensor,
    start: Looked,
    weights: AttentiveWeights,
    score: Score,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    **options: object,
) -> str | None:
    if not HAS_TRITON:
        return "since triton is not installed"
    if inputs.device.type != "cuda" and not INTERPRETED:
        return f"since it runs on cuda and the inputs are on {inputs.device.type}"
    if torch.version.hip is not None:
        return "since its kernels are written for NVIDIA's chips and this torch is built for others"
    if not isinstance(score, DotScore | AdditiveScore):
        kind = type(score).__name__
        return f"since it knows DotScore and AdditiveScore, and the score is a {kind}"
    if torch.float64 in (inputs.dtype, key.dtype, value.dtype):
        return "since its kernels compute in float32 and the inputs are float64"
    widest = max(key.shape[2], value.shape[2])
    if widest > WIDEST:
        return f"since a width of {widest} is more than {WIDEST}"
    return None


PATHS: Final = {
    "triton": Path(_by_triton, _triton_refuses, reference.attentive_rnn),
    "torch": Path(torch_path.attentive_rnn, transformable=reference.attentive_rnn),
    "reference": Path(reference.attentive_rnn),
}


def attentive_rnn(
    inputs: Float[Tensor, "batch length gates"],
    start: Looked,
    weights: AttentiveWeights,
    score: Score,
    key: Float[Tensor, "batch kv_len score_dim"],
    value: Float[Tensor, "batch kv_len v_dim"],
    mask: Bool[Tensor, "batch kv_len"],
    *,
    cell: Cell = "gru",
    need_weights: bool = False,
) -> AttentiveOutput:
    """Runs all steps; each needs the context of the one before it.

    Args:
        inputs: the input's part of all gates, `W_x x_t + b`, computed for the whole sequence.
        start: hidden state, memory and context before the first step.
        weights: of the gates.
        score: how a hidden state is scored with a key.
        key: what is looked at, projected by the score already.
        value: what is mixed.
        mask: True where a key may be looked at. Where none may, weights and context are zero.
        cell: "rnn", "gru" or "lstm".
        need_weights: whether to return where each step looked.
    """
    if cell not in GATES:
        raise ArgumentError("cell", f"be one of {', '.join(GATES)}", repr(cell), "choose one")
    check_axes("inputs", inputs, "batch length gates")
    check_axes("key", key, "batch kv_len score_dim")
    check_axes("value", value, "batch kv_len v_dim")
    check_axes("mask", mask, "batch kv_len")
    if mask.dtype != torch.bool:
        raise ArgumentError(
            "mask", "be boolean, True where a key may be looked at", mask.dtype, "compare it"
        )
    check_float(inputs=inputs, key=key, value=value)
    gates = GATES[cell] * start.hidden.shape[1]
    check_equal(
        f"agree in the gates of the cell {cell!r}",
        inputs=inputs.shape[2],
        hidden=gates,
        weights=len(weights.hidden),
    )
    rows = {"inputs": inputs, "start": start.hidden, "key": key, "value": value, "mask": mask}
    check_equal("agree in batch", **{name: len(tensor) for name, tensor in rows.items()})
    check_equal("agree in kv_len", key=key.shape[1], value=value.shape[1], mask=mask.shape[1])
    widths = {"start": start.context, "weights": weights.context, "value": value}
    check_equal("agree in v_dim", **{name: x.shape[-1] for name, x in widths.items()})
    if (start.memory is not None) != (cell == "lstm"):
        raise ArgumentError(
            "start",
            "have a memory for the cell 'lstm' and for no other",
            f"one {'without' if start.memory is None else 'with'} it for {cell!r}",
            "go on with the cell that made it",
        )
    args = (inputs, start, weights, score, key, value, mask)
    out: AttentiveOutput = choose("attentive_rnn", PATHS, *args, cell=cell)(*args, cell=cell)
    if not need_weights:
        return out
    return out._replace(weights=weights_of(score, out.hidden, key, value, mask))
