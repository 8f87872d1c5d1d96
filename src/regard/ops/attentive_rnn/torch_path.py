"""The attentive recurrence by torch operators, with a backward pass written by hand."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.ops.attentive_rnn import reference
from regard.ops.attentive_rnn.by_hand import Recurrence
from regard.ops.attentive_rnn.values import AttentiveOutput, AttentiveWeights, Looked
from regard.ops.self_attentive_rnn.cells import Cell
from regard.ops.self_attentive_rnn.score import AdditiveScore, DotScore, Score


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
) -> AttentiveOutput:
    """The steps of the definition; sums over steps and keys are in float32 at least.

    A score whose weights are not known, and code under torch.compile, which unrolls the steps
    anyway, run the definition itself.
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
        hidden, context, memory = Recurrence.apply(
            cell,
            score.scale if isinstance(score, DotScore) else 1.0,
            low,
            mask,
            *(None if tensor is None else tensor.to(wide) for tensor in tensors),
        )  # type: ignore[no-untyped-call]
    kind = inputs.dtype
    hidden, context = hidden.to(kind), context.to(kind)
    memory = None if memory is None else memory.to(kind)
    return AttentiveOutput(hidden, context, Looked(hidden[:, -1], memory, context[:, -1]))
