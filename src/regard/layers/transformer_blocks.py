"""What the layers of a Transformer are made of, beyond their attention to a memory."""

from collections.abc import Callable
from typing import Final, Literal, NamedTuple, cast, final

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention import MultiHeadAttention, PositionBias
from regard.attention.multi_head import Rotation
from regard.ops.check import check_choice, check_positive, check_share, check_width

Activation = Literal["relu", "gelu"]
ACTIVATIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {"relu": F.relu, "gelu": F.gelu}


@final
class FeedForward(nn.Module):
    """Two linear maps with an activation between them, for each position alone."""

    def __init__(
        self,
        dim: int,
        hidden: int,
        *,
        activation: Activation = "relu",
        dropout: float = 0.0,
        bias: bool = True,
    ) -> None:
        super().__init__()
        check_positive(dim=dim, hidden=hidden)
        check_choice("activation", activation, ACTIVATIONS)
        self.inner = nn.Linear(dim, hidden, bias)
        self.outer = nn.Linear(hidden, dim, bias)
        self.dropout = nn.Dropout(dropout)
        self.activation = activation

    def forward(self, x: Float[Tensor, "batch length dim"]) -> Float[Tensor, "batch length dim"]:
        """The same two maps at every position."""
        check_width("x", x, self.inner.in_features)
        hidden = self.dropout(ACTIVATIONS[self.activation](self.inner(x)))
        result: Tensor = self.outer(hidden)
        return result


@final
class Residual(nn.Module):
    """Norm, dropout and the way around a block, before it (pre-norm) or after it (post-norm)."""

    def __init__(
        self, dim: int, *, norm_first: bool, dropout: float, eps: float, bias: bool = True
    ) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps=eps, bias=bias)
        self.norm_first = norm_first
        self.dropout = nn.Dropout(dropout)

    def before(self, x: Tensor) -> Tensor:
        """What the block gets."""
        return cast(Tensor, self.norm(x)) if self.norm_first else x

    def after(self, x: Tensor, block: Tensor) -> Tensor:
        """What the block's result and its input become together."""
        total = x + self.dropout(block)
        return total if self.norm_first else cast(Tensor, self.norm(total))


class LayerOptions(NamedTuple):
    """What layers of one stack have in common beyond their sizes.

    Attributes:
        dropout: probability of dropping a feature.
        norm_first: pre-norm, which trains without warm-up, or post-norm as in the paper.
        activation: of the feed-forward block, "relu" or "gelu".
        num_kv_heads: heads of keys and values in self-attention; all of them if None.
        position_bias: makes relative positions for the self-attention of a layer.
        rotation: rotary positions for all self-attention.
        eps: of the norms.
        bias: whether the linear maps and the norms have one.
        attention_dropout: probability of dropping an attention weight; `dropout` if None.
    """

    dropout: float = 0.1
    norm_first: bool = True
    activation: Activation = "relu"
    num_kv_heads: int | None = None
    position_bias: Callable[[], PositionBias] | None = None
    rotation: Rotation | None = None
    eps: float = 1e-5
    bias: bool = True
    attention_dropout: float | None = None

    @property
    def weight_dropout(self) -> float:
        """Probability of dropping an attention weight."""
        if self.attention_dropout is None:
            return self.dropout
        check_share(attention_dropout=self.attention_dropout)
        return self.attention_dropout

    def self_attention(self, dim: int, num_heads: int) -> MultiHeadAttention:
        """The attention of a layer to its own sequence."""
        return MultiHeadAttention(
            dim,
            num_heads,
            num_kv_heads=self.num_kv_heads,
            bias=self.bias,
            dropout=self.weight_dropout,
            position_bias=None if self.position_bias is None else self.position_bias(),
            rotation=self.rotation,
        )

    def feed_forward(self, dim: int, hidden: int) -> FeedForward:
        """The block that follows the attention."""
        return FeedForward(
            dim, hidden, activation=self.activation, dropout=self.dropout, bias=self.bias
        )

    def residual(self, dim: int) -> Residual:
        """The way around a block."""
        return Residual(
            dim, norm_first=self.norm_first, dropout=self.dropout, eps=self.eps, bias=self.bias
        )

    def last_norm(self, dim: int) -> nn.Module | None:
        """The norm after a stack: pre-norm layers leave their last sum without one."""
        return nn.LayerNorm(dim, eps=self.eps, bias=self.bias) if self.norm_first else None
