"""The attentive recurrence, written to be read: the fast path beside it is tested against this."""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from regard.ops.attentive_rnn.values import AttentiveOutput, AttentiveWeights, Looked
from regard.ops.self_attentive_rnn.cells import Cell, gru_cell, lstm_cell, rnn_cell
from regard.ops.self_attentive_rnn.score import Score
from regard.ops.softmax import masked_softmax


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
        look = masked_softmax(scores[:, None, None], mask[:, None, None]).squeeze(1)
        context = (look.to(value.dtype) @ value).squeeze(1)
        hiddens.append(hidden)
        contexts.append(context)
    return AttentiveOutput(
        torch.stack(hiddens, dim=1),
        torch.stack(contexts, dim=1),
        Looked(hidden, memory, context),
    )
