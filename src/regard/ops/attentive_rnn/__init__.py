"""The attentive recurrence: an RNN that attends to a memory after each step and reads the context.

Bahdanau et al., 2015, https://arxiv.org/abs/1409.0473; feeding the context into the next step is
from Luong et al., 2015, https://arxiv.org/abs/1508.04025.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from regard.errors import ArgumentError
from regard.ops.attentive_rnn import reference
from regard.ops.attentive_rnn.reference import AttentiveOutput, AttentiveState, AttentiveWeights
from regard.ops.backend import OperatorPath, choose
from regard.ops.check import check_axes, check_choice, check_equal, check_float
from regard.ops.primitives import masked_softmax
from regard.ops.recurrence import refuse_triton_recurrence
from regard.ops.recurrence.scores import GATES, Cell, ScoreFunction

MAX_WIDTH: Final = 4096  # of keys and values: a GPU program holds some rows of them


def _run_triton(*args: Any, **options: Any) -> AttentiveOutput:
    from regard.ops.attentive_rnn import triton_path  # not above: triton may be missing

    return triton_path.attentive_rnn(*args, **options)


def _refuse_triton(
    inputs: Tensor,
    start: AttentiveState,
    weights: AttentiveWeights,
    score: ScoreFunction,
    key: Tensor,
    value: Tensor,
    mask: Tensor,
    **options: object,
) -> str | None:
    width = max(key.shape[2], value.shape[2])
    return refuse_triton_recurrence(inputs, score, key, value, width=width, max_width=MAX_WIDTH)


PATHS: Final[dict[str, OperatorPath[Callable[..., AttentiveOutput]]]] = {
    "triton": OperatorPath(_run_triton, _refuse_triton),
    "torch": OperatorPath(reference.attentive_rnn),
    "reference": OperatorPath(reference.attentive_rnn),
}


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
    need_weights: bool = False,
) -> AttentiveOutput:
    """Run all steps; each needs the context of the one before it.

    Args:
        inputs: the input's part of all gates, `W_x x_t + b`, computed for the whole sequence.
        start: hidden state, memory and context before the first step.
        weights: weights of the gates.
        score: the score function of hidden states and keys.
        key: keys, already projected by the score function.
        value: vectors that are mixed.
        mask: True where a key may be attended to. If none may, weights and context are zero.
        cell: "rnn", "gru" or "lstm".
        need_weights: whether to return the attention weights of each step.

    Examples:
        >>> start = regard.ops.AttentiveState(torch.zeros(2, 5), None, torch.zeros(2, 7))
        >>> weights = regard.ops.AttentiveWeights(torch.randn(15, 7), torch.randn(15, 5), None)
        >>> key, value, mask = torch.randn(2, 11, 5), torch.randn(2, 11, 7), torch.ones(2, 11) > 0
        >>> inputs, score = torch.randn(2, 3, 15), regard.ops.DotScore()
        >>> out = regard.ops.attentive_rnn(inputs, start, weights, score, key, value, mask)
        >>> out.hidden.shape, out.context.shape
        (torch.Size([2, 3, 5]), torch.Size([2, 3, 7]))
    """
    check_choice("cell", cell, GATES)
    check_axes("inputs", inputs, "batch length gates")
    check_axes("key", key, "batch kv_len score_dim")
    check_axes("value", value, "batch kv_len v_dim")
    check_axes("mask", mask, "batch kv_len")
    if mask.dtype != torch.bool:
        raise ArgumentError(
            "mask", "be boolean, True where a key may be attended to", mask.dtype, "compare it"
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
    check_equal("agree in batch", **{name: x.shape[0] for name, x in rows.items()})
    check_equal("agree in kv_len", key=key.shape[1], value=value.shape[1], mask=mask.shape[1])
    widths = {"start": start.context, "weights": weights.context, "value": value}
    check_equal("agree in v_dim", **{name: x.shape[-1] for name, x in widths.items()})
    if (start.memory is not None) != (cell == "lstm"):
        raise ArgumentError(
            "start",
            "have a memory for the cell 'lstm' and for no other",
            f"one {'without' if start.memory is None else 'with'} it for {cell!r}",
            "continue with the cell that made it",
        )
    args = (inputs, start, weights, score, key, value, mask)
    out = choose("attentive_rnn", PATHS, *args, cell=cell)(*args, cell=cell)
    if not need_weights:
        return out
    return out._replace(weights=attention_weights(score, out.hidden, key, mask))


def attention_weights(
    score: ScoreFunction,
    hidden: Float[Tensor, "batch length hidden"],
    key: Float[Tensor, "batch kv_len score_dim"],
    mask: Bool[Tensor, "batch kv_len"],
) -> Float[Tensor, "batch 1 length kv_len"]:
    """Attention weights of all steps, recomputed from their hidden states."""
    steps = hidden.unbind(dim=1)
    scores = torch.stack([score.scores(score.query(state), key) for state in steps], dim=1)
    return masked_softmax(scores[:, None], mask[:, None, None])
