"""The self-attentive recurrence by torch operators, on tapes that are allocated once."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.ops.recurrence.cells import Cell
from regard.ops.recurrence.scores import AdditiveScore, DotScore, ScoreFunction
from regard.ops.self_attentive_rnn import reference
from regard.ops.self_attentive_rnn.history import History, SelfAttentiveOutput
from regard.ops.self_attentive_rnn.manual_autograd import Recurrence


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
    """The steps of the definition, and a backward pass written by hand."""
    return by_steps(
        Recurrence.apply,
        inputs,
        recurrent_weight,
        score,
        state,
        cell=cell,
        recurrent_bias=recurrent_bias,
        query_inputs=query_inputs,
        lengths=lengths,
        need_weights=need_weights,
    )


def by_steps(
    steps: Callable[..., Any],
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
    """The same, with all steps and their backward pass as one function, that of `by_hand.py`.

    A score whose weights are not known, and code under torch.compile, which unrolls the steps
    anyway, run the definition itself.
    """
    if not isinstance(score, DotScore | AdditiveScore) or torch.compiler.is_compiling():
        return reference.self_attentive_rnn(
            inputs,
            recurrent_weight,
            score,
            state,
            cell=cell,
            recurrent_bias=recurrent_bias,
            query_inputs=query_inputs,
            lengths=lengths,
            need_weights=need_weights,
        )
    real = reference.real_steps(inputs, lengths)
    inputs, query_inputs = reference.without_padding(inputs, query_inputs, real)
    v = score.v if isinstance(score, AdditiveScore) else None
    tensors = (
        inputs,
        query_inputs,
        state.context,
        state.hidden,
        state.keys,
        state.memory,
        recurrent_weight,
        recurrent_bias,
        score.query_weight,
        score.key_weight,
        v,
    )
    # sums over the steps lose too much in half precision: those run in float32
    wide = torch.float64 if inputs.dtype == torch.float64 else torch.float32
    with torch.autocast(inputs.device.type, enabled=False):
        found = steps(
            cell,
            score.scale if isinstance(score, DotScore) else 1.0,
            torch.cat([state.real, real[:, :, 0]], dim=1),
            *(None if tensor is None else tensor.to(wide) for tensor in tensors),
        )
    return _output(found, state, real, inputs.dtype, need_weights)


def _output(
    found: tuple[Tensor, Tensor, Tensor | None, Tensor, Tensor],
    state: History,
    real: Tensor,
    kind: torch.dtype,
    need_weights: bool,
) -> SelfAttentiveOutput:
    """What the steps have left on their tapes, in the type of the inputs."""
    hidden, keys, memory, contexts, maps = found
    before = state.hidden.shape[1]
    return SelfAttentiveOutput(
        hidden=hidden[:, before:].where(real, 0.0).to(kind),
        context=contexts.where(real, 0.0).to(kind),
        weights=maps.where(real, 0.0)[:, None].to(kind) if need_weights else None,
        state=History(
            context=contexts[:, -1].to(kind),
            hidden=hidden.to(kind),
            keys=keys.to(kind),
            memory=None if memory is None else memory.to(kind),
            real=torch.cat([state.real, real[:, :, 0]], dim=1),
        ),
    )
