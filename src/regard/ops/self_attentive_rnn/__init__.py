"""The self-attentive recurrence: every step looks back at all steps before it.

Cheng et al., 2016, "Long Short-Term Memory-Networks for Machine Reading",
https://arxiv.org/abs/1601.06733, and its simple form, in which `h_t = tanh(A [x_t, c_{t-1}] + b)`.
"""

import os
from importlib.util import find_spec
from typing import Any, Final, TypedDict

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.errors import ArgumentError
from regard.ops.backend import Path, active_backend, choose
from regard.ops.check import check_axes, check_equal, check_float
from regard.ops.self_attentive_rnn import reference, torch_path
from regard.ops.self_attentive_rnn.cells import GATES, Cell
from regard.ops.self_attentive_rnn.history import History, SelfAttentiveOutput, empty_history
from regard.ops.self_attentive_rnn.score import AdditiveScore, DotScore, Score

__all__ = [
    "GATES",
    "AdditiveScore",
    "Cell",
    "DotScore",
    "History",
    "Score",
    "SelfAttentiveOutput",
    "empty_history",
    "self_attentive_rnn",
]

HAS_TRITON: Final = find_spec("triton") is not None
HAS_NUMBA: Final = find_spec("numba") is not None
# What kernels are tested with where there is no GPU; triton itself reads it when it is imported.
INTERPRETED: Final = os.environ.get("TRITON_INTERPRET") == "1"
#: steps of a call from which on the kernels on the CPU are chosen
ENOUGH_FOR_CPU: Final = 16
#: numbers in all weights up to which they are: more do not stay in the caches of a core
FITS_THE_CPU: Final = 1 << 19
WIDEST: Final = 2048  # hidden states and keys, of which a program holds some lines


def _by_triton(*args: Any, **options: Any) -> SelfAttentiveOutput:
    from regard.ops.self_attentive_rnn import triton_path  # not above: triton may be missing

    return triton_path.self_attentive_rnn(*args, **options)


def _triton_refuses(
    inputs: Tensor, recurrent_weight: Tensor, score: Score, state: History, **options: object
) -> str | None:
    if not HAS_TRITON:
        return "since triton is not installed"
    if inputs.device.type != "cuda" and not INTERPRETED:
        return f"since it runs on cuda and the inputs are on {inputs.device.type}"
    if torch.version.hip is not None:
        return "since its kernels are written for NVIDIA's chips and this torch is built for others"
    if not isinstance(score, DotScore | AdditiveScore):
        return (
            f"since it knows DotScore and AdditiveScore, and the score is a {type(score).__name__}"
        )
    if torch.float64 in (inputs.dtype, recurrent_weight.dtype):
        return "since its kernels compute in float32 and the inputs are float64"
    if state.hidden.shape[1]:
        return (
            f"since it begins with an empty history and this one has {state.hidden.shape[1]} steps"
        )
    widest = max(recurrent_weight.shape[1], state.keys.shape[2])
    if widest > WIDEST:
        return f"since a width of {widest} is more than {WIDEST}"
    return None


def _by_numba(*args: Any, **options: Any) -> SelfAttentiveOutput:
    from regard.ops.self_attentive_rnn import cpu_path  # not above: numba may be missing

    return cpu_path.self_attentive_rnn(*args, **options)


def _cpu_refuses(
    inputs: Tensor, recurrent_weight: Tensor, score: Score, state: History, **options: object
) -> str | None:
    if not HAS_NUMBA:
        return "since numba is not installed (pip install 'regard[cpu]')"
    if inputs.device.type != "cpu":
        return f"since it runs on cpu and the inputs are on {inputs.device.type}"
    if not isinstance(score, DotScore | AdditiveScore):
        return f"since it knows DotScore and AdditiveScore, not {type(score).__name__}"
    if torch.float64 in (inputs.dtype, recurrent_weight.dtype):
        return "since its kernels compute in float32 and the inputs are float64"
    if active_backend() != "auto":
        return None
    if torch.compiler.is_compiling():
        return "since torch.compile unrolls the steps"
    if inputs.shape[1] < ENOUGH_FOR_CPU:
        return "since torch is as fast for so few steps"
    weights = (recurrent_weight, score.query_weight, score.key_weight)
    if sum(weight.numel() for weight in weights if weight is not None) > FITS_THE_CPU:
        return "since torch is as fast for so wide a recurrence"
    return None


PATHS: Final = {
    "triton": Path(_by_triton, _triton_refuses, reference.self_attentive_rnn),
    "cpu": Path(_by_numba, _cpu_refuses, reference.self_attentive_rnn),
    "torch": Path(torch_path.self_attentive_rnn, transformable=reference.self_attentive_rnn),
    "reference": Path(reference.self_attentive_rnn),
}


def self_attentive_rnn(
    inputs: Float[Tensor, "batch length gates"],
    recurrent_weight: Float[Tensor, "gates hidden"],
    score: Score,
    state: History | None = None,
    *,
    cell: Cell = "rnn",
    recurrent_bias: Float[Tensor, " gates"] | None = None,
    query_inputs: Float[Tensor, "batch length score_dim"] | None = None,
    lengths: Int[Tensor, " batch"] | None = None,
    need_weights: bool = False,
) -> SelfAttentiveOutput:
    """Runs the recurrence over a sequence, or over one more piece of it.

    The cells `rnn` and `gru` compute h_t from the context c_{t-1}, score it with h_1 to h_t, and
    mix these into c_t. The cell `lstm` looks at h_1 to h_{t-1} first, mixes hidden and memory tape,
    and computes h_t from the mixture.

    Args:
        inputs: the input's half of all gates, `A_x x_t + b`, computed for the whole sequence.
        recurrent_weight: the context's half of `A`; (hidden, 3 hidden or 4 hidden, hidden) rows for
            `rnn`, `gru` (reset, update, new) and `lstm` (input, forget, new, output).
        score: how two steps are scored.
        state: the history to go on from; empty if None.
        cell: "rnn", "gru" or "lstm".
        recurrent_bias: added to the context's half; the `gru` cell multiplies it by its reset gate.
        query_inputs: the input's part of each query, for the `lstm` cell alone.
        lengths: number of real steps of each row; what is padded comes out as zero and is never
            looked at.
        need_weights: whether to return the weights, (batch, 1, length, steps).
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
            "go on with the cell that made the state",
        )
    args = (inputs, recurrent_weight, score, state)
    options: _Options = {
        "cell": cell,
        "recurrent_bias": recurrent_bias,
        "query_inputs": query_inputs,
        "lengths": lengths,
        "need_weights": need_weights,
    }
    return choose("self_attentive_rnn", PATHS, *args, **options)(*args, **options)


class _Options(TypedDict):
    cell: Cell
    recurrent_bias: Tensor | None
    query_inputs: Tensor | None
    lengths: Tensor | None
    need_weights: bool


def _check_gates(inputs: Tensor, recurrent_weight: Tensor, cell: Cell) -> None:
    if cell not in GATES:
        raise ArgumentError(
            "cell", f"be one of {', '.join(GATES)}", repr(cell), "see the docstring"
        )
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
