"""What the attentive recurrence takes and returns."""

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor


class Looked(NamedTuple):
    """Where the recurrence stands: hidden state, memory of an LSTM, and what it saw last."""

    hidden: Float[Tensor, "batch hidden"]
    memory: Float[Tensor, "batch hidden"] | None
    context: Float[Tensor, "batch v_dim"]


class AttentiveWeights(NamedTuple):
    """The weights of the gates, in torch's order; the bias is that of the hidden part.

    Attributes:
        context: rows of gates for what was seen last.
        hidden: rows of gates for the last hidden state.
        bias: added to the hidden part, which the `gru` cell multiplies by its reset gate.
    """

    context: Float[Tensor, "gates v_dim"]
    hidden: Float[Tensor, "gates hidden"]
    bias: Float[Tensor, " gates"] | None


class AttentiveOutput(NamedTuple):
    """Hidden states and contexts of all steps, (batch, length, ...), and where it stands now.

    The weights, (batch, 1, length, kv_len), are where each step looked, if asked for.
    """

    hidden: Tensor
    context: Tensor
    end: Looked
    weights: Tensor | None = None
