"""The self-attentive recurrence by torch operators, on tapes that are allocated once."""

from collections.abc import Callable
from typing import Any, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from regard.ops.recurrence.scores import AdditiveScore, DotScore, ScoreFunction
from regard.ops.self_attentive_rnn import reference
from regard.ops.self_attentive_rnn.history import History, RecurrenceOptions, SelfAttentiveOutput
from regard.ops.self_attentive_rnn.manual_autograd import SelfAttentiveFunction


def self_attentive_rnn(
    inputs: Float[Tensor, "batch length gates"],
    recurrent_weight: Float[Tensor, "gates hidden"],
    score: ScoreFunction,
    state: History,
    **options: Unpack[RecurrenceOptions],
) -> SelfAttentiveOutput:
    """The steps of the definition, and a hand-written backward pass."""
    return run_function(
        SelfAttentiveFunction.apply, inputs, recurrent_weight, score, state, **options
    )


def run_function(
    function: Callable[..., Any],
    inputs: Float[Tensor, "batch length gates"],
    recurrent_weight: Float[Tensor, "gates hidden"],
    score: ScoreFunction,
    state: History,
    **options: Unpack[RecurrenceOptions],
) -> SelfAttentiveOutput:
    """Run all steps by one differentiable function, with the arguments of `SelfAttentiveFunction`.

    A score function whose weights are not known, and code under torch.compile, which unrolls the
    steps anyway, run the definition.
    """
    if not isinstance(score, DotScore | AdditiveScore) or torch.compiler.is_compiling():
        return reference.self_attentive_rnn(inputs, recurrent_weight, score, state, **options)
    dtype, need_weights = inputs.dtype, options["need_weights"]
    real = reference.real_steps(inputs, options["lengths"])
    inputs, query_inputs = reference.without_padding(inputs, options["query_inputs"], real)
    all_real = torch.cat([state.real, real[:, :, 0]], dim=1)
    tensors = (
        inputs,
        query_inputs,
        *(state.context, state.hidden, state.keys, state.memory),
        *(recurrent_weight, options["recurrent_bias"], score.query_weight, score.key_weight),
        score.v if isinstance(score, AdditiveScore) else None,
    )
    # sums over the steps lose too much in half precision, which is run in float32
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    with torch.autocast(inputs.device.type, enabled=False):
        hidden, keys, memory, contexts, maps = function(
            options["cell"],
            score.scale if isinstance(score, DotScore) else 1.0,
            all_real,
            *(None if tensor is None else tensor.to(wide) for tensor in tensors),
        )
    return SelfAttentiveOutput(
        hidden=hidden[:, state.hidden.shape[1] :].where(real, 0.0).to(dtype),
        context=contexts.where(real, 0.0).to(dtype),
        weights=maps.where(real, 0.0)[:, None].to(dtype) if need_weights else None,
        state=History(
            context=contexts[:, -1].to(dtype),
            hidden=hidden.to(dtype),
            keys=keys.to(dtype),
            memory=None if memory is None else memory.to(dtype),
            real=all_real,
        ),
    )
