"""Recurrent cells as pure functions from gates and state to a hidden state."""

from typing import Final, Literal

import torch
from jaxtyping import Float
from torch import Tensor

Cell = Literal["rnn", "gru", "lstm"]

#: rows of the weight matrices per unit of the hidden state
GATES: Final = {"rnn": 1, "gru": 3, "lstm": 4}


def rnn_cell(
    x: Float[Tensor, "batch hidden"], c: Float[Tensor, "batch hidden"]
) -> Float[Tensor, "batch hidden"]:
    """`h_t = tanh(A [x_t, c_{t-1}] + b)`, given the two halves of the product."""
    return torch.tanh(x + c)


def gru_cell(
    x: Float[Tensor, "batch three_hidden"],
    c: Float[Tensor, "batch three_hidden"],
    context: Float[Tensor, "batch hidden"],
) -> Float[Tensor, "batch hidden"]:
    """The GRU of torch (reset, update, new) with the context in place of the hidden state."""
    x_r, x_z, x_n = x.chunk(3, dim=-1)
    c_r, c_z, c_n = c.chunk(3, dim=-1)
    r, z = torch.sigmoid(x_r + c_r), torch.sigmoid(x_z + c_z)
    n = torch.tanh(x_n + r * c_n)
    return (1 - z) * n + z * context


def lstm_cell(
    gates: Float[Tensor, "batch four_hidden"], memory: Float[Tensor, "batch hidden"]
) -> tuple[Float[Tensor, "batch hidden"], Float[Tensor, "batch hidden"]]:
    """The LSTM of torch (input, forget, new, output): hidden state and memory."""
    i, f, g, o = gates.chunk(4, dim=-1)
    memory = torch.sigmoid(f) * memory + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(memory), memory
