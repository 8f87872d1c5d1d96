# mypy: disable-error-code="no-untyped-call"
"""The self-attentive recurrence on the GPU: one launch for all steps, one for all steps back.

The kernels compute in float32. A product of a query's and a key's matrix is folded into one matrix
for the query, so that the keys are the hidden states themselves.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from regard.ops.recurrence.cells import Cell
from regard.ops.recurrence.scores import AdditiveScore, DotScore, ScoreFunction
from regard.ops.self_attentive_rnn import reference, triton_operators
from regard.ops.self_attentive_rnn.history import History, SelfAttentiveOutput


def self_attentive_rnn(
    inputs: Float[Tensor, "batch length gates"],
    recurrent_weight: Float[Tensor, "gates hidden"],
    score: ScoreFunction,
    state: History,
    *,
    cell: Cell = "rnn",
    recurrent_bias: Float[Tensor, " gates"] | None = None,
    query_inputs: Float[Tensor, "batch length score_dim"] | None = None,
    lengths: Int[Tensor, " batch"] | None = None,
    need_weights: bool = False,
) -> SelfAttentiveOutput:
    """The steps of the definition, from an empty history."""
    assert isinstance(score, DotScore | AdditiveScore)
    kind = inputs.dtype
    real = reference.real_steps(inputs, lengths)
    inputs, query_inputs = reference.without_padding(inputs, query_inputs, real)
    steps = real.sum(dim=(1, 2), dtype=torch.int32)
    with torch.autocast(inputs.device.type, enabled=False):
        asked = _fold(score, query_inputs)
        hidden, contexts, memory, maps, *_ = triton_operators.run(
            inputs.float(),
            asked.inputs,
            state.context.float(),
            recurrent_weight.float(),
            None if recurrent_bias is None else recurrent_bias.float(),
            asked.query,
            asked.key,
            asked.v,
            steps,
            cell,
            asked.scale,
            need_weights,
        )
        key_weight = score.key_weight
        keys = hidden if key_weight is None else F.linear(hidden, key_weight.float())
    return SelfAttentiveOutput(
        hidden=hidden.where(real, 0.0).to(kind),
        context=contexts[:, 1:].where(real, 0.0).to(kind),
        weights=maps.where(real, 0.0)[:, None].to(kind) if need_weights else None,
        state=History(
            context=contexts[:, -1].to(kind),
            hidden=hidden.to(kind),
            keys=keys.to(kind),
            memory=memory.to(kind) if cell == "lstm" else None,
            real=real[:, :, 0],
        ),
    )


class _Asked(NamedTuple):
    """How queries come about: `inputs + query source`, or `inputs + scale source` without one."""

    inputs: Tensor | None
    query: Tensor | None
    key: Tensor | None
    v: Tensor | None
    scale: float


def _fold(score: DotScore | AdditiveScore, inputs: Tensor | None) -> _Asked:
    """The matrices of a score as the kernels take them: keys are hidden states under a product."""
    Q, K = (None if w is None else w.float() for w in (score.query_weight, score.key_weight))
    inputs = None if inputs is None else inputs.float()
    if isinstance(score, AdditiveScore):
        return _Asked(inputs, Q, K, score.v.float(), 1.0)
    if inputs is not None:
        inputs = score.scale * (inputs if K is None else inputs @ K)
    if Q is None and K is None:
        return _Asked(inputs, None, None, None, score.scale)
    if K is None:
        assert Q is not None
        return _Asked(inputs, score.scale * Q, None, None, 1.0)
    return _Asked(inputs, score.scale * (K.T if Q is None else K.T @ Q), None, None, 1.0)
