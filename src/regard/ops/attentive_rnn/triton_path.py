"""The attentive recurrence on the GPU: one launch for all steps, one for all steps back."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.ops.attentive_rnn import triton_operators
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
    """The steps of the definition in float32; under autocast, products with weights are lower."""
    assert isinstance(score, DotScore | AdditiveScore)
    device, kind = inputs.device.type, inputs.dtype
    low = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else torch.float32
    query, scale = score.query_weight, 1.0
    with torch.autocast(device, enabled=False):
        if isinstance(score, DotScore):
            # folded into the matrix where there is one
            query = None if query is None else score.scale * query.float()
            scale = score.scale
        v = score.v.float() if isinstance(score, AdditiveScore) else None
        hidden, contexts, memory, *_ = triton_operators.run(
            inputs.float(),
            start.hidden.float(),
            None if start.memory is None else start.memory.float(),
            start.context.float(),
            weights.context.to(low),
            weights.hidden.to(low),
            None if weights.bias is None else weights.bias.float(),
            None if query is None else query.to(low),
            v,
            key.float(),
            value.float(),
            mask,
            cell,
            scale,
        )
    hidden, contexts = hidden.to(kind), contexts.to(kind)
    last = memory[:, -1].to(kind) if cell == "lstm" else None
    return AttentiveOutput(
        hidden[:, 1:], contexts[:, 1:], AttentiveState(hidden[:, -1], last, contexts[:, -1])
    )
