"""What every attention returns."""

from typing import NamedTuple

from torch import Tensor


class AttentionOutput(NamedTuple):
    """A context for each query, and the weights it was mixed with.

    Attributes:
        context: (batch, q_len, width); (batch, heads, q_len, width) from operators on heads.
        weights: (batch, heads, q_len, kv_len), per head and before dropout; None if not asked for.
    """

    context: Tensor
    weights: Tensor | None
