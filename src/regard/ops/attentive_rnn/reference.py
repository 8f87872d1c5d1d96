"""The attentive recurrence, written to be read: the fast path beside it is tested against this."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from regard.ops.primitives import masked_softmax
from regard.ops.recurrence.scores import Cell, ScoreFunction, gru_cell, lstm_cell, rnn_cell


class AttentiveState(NamedTuple):
    """State between steps: hidden state, memory of an LSTM, and the last context.

    Examples:
        >>> state = regard.ops.AttentiveState(torch.zeros(2, 5), None, torch.zeros(2, 7))
        >>> state.hidden.shape, state.context.shape
        (torch.Size([2, 5]), torch.Size([2, 7]))
    """

    hidden: Float[Tensor, "batch hidden"]
    memory: Float[Tensor, "batch hidden"] | None
    context: Float[Tensor, "batch v_dim"]


class AttentiveWeights(NamedTuple):
    """Weights of the gates, in torch's order.

    Attributes:
        context: applied to the last context.
        hidden: applied to the last hidden state.
        bias: added to the hidden part, which the `gru` cell multiplies by its reset gate.

    Examples:
        >>> gates = 3 * 5  # of a GRU cell with 5 hidden features
        >>> context, hidden = torch.randn(gates, 7), torch.randn(gates, 5)
        >>> weights = regard.ops.AttentiveWeights(context, hidden, None)
        >>> weights.context.shape
        torch.Size([15, 7])
    """

    context: Float[Tensor, "gates v_dim"]
    hidden: Float[Tensor, "gates hidden"]
    bias: Float[Tensor, " gates"] | None


class AttentiveOutput(NamedTuple):
    """Hidden states and contexts of all steps, (batch, length, ...), and the state after them.

    The attention weights, (batch, 1, length, kv_len), are None unless requested.

    Examples:
        >>> hidden, context = torch.zeros(2, 3, 5), torch.zeros(2, 3, 7)
        >>> end = regard.ops.AttentiveState(hidden[:, -1], None, context[:, -1])
        >>> regard.ops.AttentiveOutput(hidden, context, end).weights is None
        True
    """

    hidden: Tensor
    context: Tensor
    end: AttentiveState
    weights: Tensor | None = None


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
    """`s_t = cell(x_t + W_c c_{t-1}, W_h s_{t-1} + b)`, `c_t = softmax(score(s_t, key)) value`."""
    hidden, memory, context = start
    hiddens, contexts = [], []
    for x in inputs.unbind(dim=1):
        x = x + F.linear(context, weights.context)
        h = F.linear(hidden, weights.hidden, weights.bias)
        if memory is not None:
            hidden, memory = lstm_cell(x + h, memory)
        else:
            hidden = gru_cell(x, h, hidden) if cell == "gru" else rnn_cell(x, h)
        scores = score.scores(score.query(hidden), key)  # (batch, kv_len)
        attention = masked_softmax(scores[:, None, None], mask[:, None, None]).squeeze(1)
        context = (attention.to(value.dtype) @ value).squeeze(1)
        hiddens.append(hidden)
        contexts.append(context)
    return AttentiveOutput(
        torch.stack(hiddens, dim=1),
        torch.stack(contexts, dim=1),
        AttentiveState(hidden, memory, context),
    )
