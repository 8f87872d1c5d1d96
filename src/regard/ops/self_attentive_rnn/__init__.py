"""The self-attentive recurrence: every step attends to all steps before it.

Cheng et al., 2016, "Long Short-Term Memory-Networks for Machine Reading",
https://arxiv.org/abs/1601.06733, and its simple form, in which `h_t = tanh(A [x_t, c_{t-1}] + b)`.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import ArgumentError
from regard.ops.backend import OperatorPath, active_backend, choose, refuse_float64, refuse_numba
from regard.ops.check import check_axes, check_choice, check_equal, check_float
from regard.ops.recurrence import refuse_score, refuse_triton_recurrence
from regard.ops.recurrence.scores import GATES, Cell, ScoreFunction
from regard.ops.self_attentive_rnn import reference
from regard.ops.self_attentive_rnn.reference import (
    History,
    RecurrenceOptions,
    SelfAttentiveOutput,
    empty_history,
)

#: steps of a call from which on `auto` chooses the CPU kernels
CPU_MIN_STEPS: Final = 16
MAX_WIDTH: Final = 2048  # of hidden states and keys: a GPU program holds some rows of them


def _run_triton(*args: Any, **options: Any) -> SelfAttentiveOutput:
    from regard.ops.self_attentive_rnn import triton_path  # not above: triton may be missing

    return triton_path.self_attentive_rnn(*args, **options)


def _refuse_triton(
    inputs: Tensor, weight: Tensor, score: ScoreFunction, state: History, **options: object
) -> str | None:
    width, steps = max(weight.shape[1], state.keys.shape[2]), state.hidden.shape[1]
    reason = refuse_triton_recurrence(inputs, score, weight, width=width, max_width=MAX_WIDTH)
    if reason is None and steps:
        reason = f"since it begins with an empty history and this one has {steps} steps"
    return reason


def _run_numba(*args: Any, **options: Any) -> SelfAttentiveOutput:
    from regard.ops.self_attentive_rnn import cpu_path  # not above: numba may be missing

    return cpu_path.self_attentive_rnn(*args, **options)


def _refuse_cpu(
    inputs: Tensor, weight: Tensor, score: ScoreFunction, state: History, **options: object
) -> str | None:
    reason = refuse_numba(inputs, "the inputs are") or refuse_score(score)
    reason = reason or refuse_float64(inputs, weight)
    if reason is not None or active_backend() != "auto":
        return reason
    if inputs.shape[1] < CPU_MIN_STEPS:
        return "since torch is as fast for so few steps"
    return None


PATHS: Final[dict[str, OperatorPath[Callable[..., SelfAttentiveOutput]]]] = {
    "triton": OperatorPath(_run_triton, _refuse_triton),
    "cpu": OperatorPath(_run_numba, _refuse_cpu),
    "torch": OperatorPath(reference.self_attentive_rnn),
    "reference": OperatorPath(reference.self_attentive_rnn),
}


def self_attentive_rnn(
    inputs: Float[Tensor, "batch length gates"],
    recurrent_weight: Float[Tensor, "gates hidden"],
    score: ScoreFunction,
    state: History | None = None,
    *,
    cell: Cell = "rnn",
    recurrent_bias: Float[Tensor, " gates"] | None = None,
    query_inputs: Float[Tensor, "batch length score_dim"] | None = None,
    lengths: Int[Tensor, " batch"] | None = None,
    need_weights: bool = False,
) -> SelfAttentiveOutput:
    """Run the recurrence over a sequence, or over a continuation of it.

    The cells `rnn` and `gru` compute h_t from the context c_{t-1}, score it with h_1 to h_t, and
    mix these into c_t. The cell `lstm` attends to h_1 to h_{t-1} first, mixes hidden states and
    memories, and computes h_t from the mixture.

    Args:
        inputs: the input's half of all gates, `A_x x_t + b`, computed for the whole sequence.
        recurrent_weight: the context's half of `A`; (hidden, 3 hidden or 4 hidden, hidden) rows for
            `rnn`, `gru` (reset, update, new) and `lstm` (input, forget, new, output).
        score: the score function of queries and keys.
        state: the history to continue; empty if None.
        cell: "rnn", "gru" or "lstm".
        recurrent_bias: added to the context's half; the `gru` cell multiplies it by its reset gate.
        query_inputs: the input's part of each query, for the `lstm` cell alone.
        lengths: number of real steps of each row; padding comes out as zero and is never attended
            to.
        need_weights: whether to return the weights, (batch, 1, length, steps).

    Examples:
        >>> score = regard.ops.DotScore()
        >>> out = regard.ops.self_attentive_rnn(torch.randn(2, 3, 5), torch.randn(5, 5), score)
        >>> out.hidden.shape, out.state.hidden.shape
        (torch.Size([2, 3, 5]), torch.Size([2, 3, 5]))
    """
    _check_gates(inputs, recurrent_weight, cell)
    if (query_inputs is not None) != (cell == "lstm"):
        raise ArgumentError(
            "query_inputs",
            "be given for the cell 'lstm' and for no other",
            "missing" if query_inputs is None else f"given for {cell!r}",
            "the lstm cell makes its query from the input before it knows h_t",
        )
    _check_rows(inputs, query_inputs, lengths)
    if state is None:
        hidden = recurrent_weight.shape[1]
        score_dim = score.key(inputs.new_zeros(1, hidden)).shape[-1]
        state = empty_history(
            inputs, inputs.shape[0], hidden, score_dim, with_memory=cell == "lstm"
        )
    check_equal("agree in batch", state=state.context.shape[0], inputs=inputs.shape[0])
    if (state.memory is not None) != (cell == "lstm"):
        raise ArgumentError(
            "state",
            "have a memory tape for the cell 'lstm' and for no other",
            f"one {'with' if state.memory is not None else 'without'} it for {cell!r}",
            "continue with the cell that made the state",
        )
    args = (inputs, recurrent_weight, score, state)
    options: RecurrenceOptions = {
        "cell": cell,
        "recurrent_bias": recurrent_bias,
        "query_inputs": query_inputs,
        "lengths": lengths,
        "need_weights": need_weights,
    }
    return choose("self_attentive_rnn", PATHS, *args, **options)(*args, **options)


def _check_gates(inputs: Tensor, recurrent_weight: Tensor, cell: Cell) -> None:
    check_choice("cell", cell, GATES)
    check_axes("inputs", inputs, "batch length gates")
    check_axes("recurrent_weight", recurrent_weight, "gates hidden")
    check_float(inputs=inputs, recurrent_weight=recurrent_weight)
    gates, hidden = recurrent_weight.shape
    check_equal("agree in gates", inputs=inputs.shape[2], recurrent_weight=gates)
    if gates != GATES[cell] * hidden:
        raise ArgumentError(
            "recurrent_weight",
            f"have {GATES[cell]} times as many rows as columns for the cell {cell!r}",
            f"of shape {tuple(recurrent_weight.shape)}",
            "stack the weights of the gates, each (hidden, hidden)",
        )


def _check_rows(inputs: Tensor, query_inputs: Tensor | None, lengths: Tensor | None) -> None:
    if query_inputs is not None:
        check_axes("query_inputs", query_inputs, "batch length score_dim")
        check_float(inputs=inputs, query_inputs=query_inputs)
        for axis, name in enumerate(("batch", "length")):
            check_equal(
                f"agree in {name}", query_inputs=query_inputs.shape[axis], inputs=inputs.shape[axis]
            )
    if lengths is not None:
        check_axes("lengths", lengths, "batch")
        if lengths.is_floating_point() or lengths.dtype == torch.bool:
            raise ArgumentError(
                "lengths", "hold integers", lengths.dtype, "pass the number of real steps per row"
            )
        check_equal("agree in batch", lengths=lengths.shape[0], inputs=inputs.shape[0])
