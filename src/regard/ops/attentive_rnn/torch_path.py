"""The attentive recurrence by torch operators, with a hand-written backward pass."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.ops.attentive_rnn import reference
from regard.ops.attentive_rnn.manual_autograd import AttentiveFunction
from regard.ops.attentive_rnn.reference import AttentiveOutput, AttentiveState, AttentiveWeights
from regard.ops.recurrence.cells import Cell
from regard.ops.recurrence.scores import AdditiveScore, DotScore, ScoreFunction


def attentive_rnn(
    inputs: Float[Tensor, "batch length gates"],
    start: AttentiveState,
    weights: AttentiveWeights,
    score: ScoreFunction,
    key: Float[Tensor, "batch kv_len score_dim"],
    value: Float[Tensor, "batch kv_len v_dim"],
    mask: Bool[Tensor, "batch kv_len"],
    *,
    cell: Cell = "gru",
) -> AttentiveOutput:
    """The steps of the definition; sums over steps and keys are in float32 at least.

    A score function whose weights are not known, and code under torch.compile, which unrolls the
    steps anyway, run the definition.
    """
    if not isinstance(score, DotScore | AdditiveScore) or torch.compiler.is_compiling():
        return reference.attentive_rnn(inputs, start, weights, score, key, value, mask, cell=cell)
    device = inputs.device.type
    low = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    tensors = (
        *(inputs, *start, *weights, key, value, score.query_weight),
        score.v if isinstance(score, AdditiveScore) else None,
    )
    wide = torch.promote_types(inputs.dtype, torch.float32)
    with torch.autocast(device, enabled=False):
        hidden, context, memory = AttentiveFunction.apply(  # type: ignore[no-untyped-call]
            cell,
            score.scale if isinstance(score, DotScore) else 1.0,
            low,
            mask,
            *(None if tensor is None else tensor.to(wide) for tensor in tensors),
        )
    dtype = inputs.dtype
    hidden, context = hidden.to(dtype), context.to(dtype)
    memory = None if memory is None else memory.to(dtype)
    return AttentiveOutput(hidden, context, AttentiveState(hidden[:, -1], memory, context[:, -1]))
