"""The Transformer (Vaswani et al., 2017, https://arxiv.org/abs/1706.03762), with caches.

The decoder has one form: it takes new vectors and a state, and returns the state with these
vectors in its cache. A whole sequence is one call from the empty state, a decoding step is a call
of length 1.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal, NamedTuple, cast, final, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard import masks
from regard.attention import MultiHeadAttention, PositionBias, Projected
from regard.attention.multi_head import Rotation
from regard.errors import ArgumentError
from regard.layers.dropout import Dropout
from regard.masks import Bias, Mask
from regard.ops.check import check_choice, check_equal, check_positive, check_share, check_width
from regard.state import OF_SOURCE, State

Activation = Literal["relu", "gelu", "gelu-tanh", "silu"]
ACTIVATIONS: Final[dict[str, Callable[[Tensor], Tensor]]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu-tanh": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}
Norm = Literal["layer", "rms"]


@final
class FeedForward(nn.Module):
    """Two linear maps with an activation between them, for each position alone.

    If `gated`, a third map is activated, and multiplies what the first one gives (Shazeer, 2020,
    https://arxiv.org/abs/2002.05202).

    Examples:
        >>> regard.layers.FeedForward(dim=5, hidden=7)(torch.randn(2, 3, 5)).shape
        torch.Size([2, 3, 5])
    """

    def __init__(
        self,
        dim: int,
        hidden: int,
        *,
        activation: Activation = "relu",
        dropout: float = 0.0,
        bias: bool = True,
        gated: bool = False,
    ) -> None:
        super().__init__()
        check_positive(dim=dim, hidden=hidden)
        check_choice("activation", activation, ACTIVATIONS)
        self.gate = nn.Linear(dim, hidden, bias) if gated else None
        self.inner = nn.Linear(dim, hidden, bias)
        self.outer = nn.Linear(hidden, dim, bias)
        self.dropout = Dropout(dropout)
        self.activation = activation

    def forward(self, x: Float[Tensor, "batch length dim"]) -> Float[Tensor, "batch length dim"]:
        """Apply both maps at every position."""
        check_width("x", x, self.inner.in_features)
        activate, hidden = ACTIVATIONS[self.activation], self.inner(x)
        hidden = activate(hidden) if self.gate is None else activate(self.gate(x)) * hidden
        result: Tensor = self.outer(self.dropout(hidden))
        return result


@final
class Residual(nn.Module):
    """Residual connection with dropout, and a norm before (pre-norm) or after the block."""

    def __init__(self, norm: nn.Module, *, norm_first: bool, dropout: float) -> None:
        super().__init__()
        self.norm = norm
        self.norm_first = norm_first
        self.dropout = Dropout(dropout)

    def before(self, x: Tensor) -> Tensor:
        """The input of the block."""
        return cast(Tensor, self.norm(x)) if self.norm_first else x

    def after(self, x: Tensor, block: Tensor) -> Tensor:
        """The sum of the block's output and its input."""
        total = x + self.dropout(block)
        return total if self.norm_first else cast(Tensor, self.norm(total))


class LayerOptions(NamedTuple):
    """Options that the layers of a stack share, beyond their sizes.

    Attributes:
        dropout: probability of dropping a feature.
        norm_first: pre-norm, which trains without warm-up, or post-norm as in the paper.
        activation: of the feed-forward block, "relu", "gelu", "gelu-tanh" or "silu".
        num_kv_heads: heads of keys and values in self-attention; all of them if None.
        position_bias: factory of relative positions for the self-attention of a layer.
        rotation: rotary positions for all self-attention.
        eps: of the norms.
        bias: whether the linear maps and the norms have one.
        attention_dropout: probability of dropping an attention weight; `dropout` if None.
        norm: "layer", or "rms" without a mean (Zhang and Sennrich, 2019,
            https://arxiv.org/abs/1910.07467), which has no bias.
        gated: whether the feed-forward block is, see `FeedForward`.
        qkv_bias: whether the maps to queries, keys and values have a bias; `bias` if None.
        head_dim: width of a head of all attentions; `dim / num_heads` if None.
        window: of self-attention, see `MultiHeadAttention`.
        shared_bias: factory of relative positions that the self-attention of all layers of a stack
            shares; it is told whether the stack is `causal`.

    Examples:
        >>> options = regard.layers.LayerOptions(dropout=0.0, norm_first=False, activation="gelu")
        >>> encoder = regard.layers.TransformerEncoder(12, 3, 24, num_layers=2, options=options)
        >>> encoder.norm is None  # layers that are not pre-norm need no last norm
        True
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
    norm: Norm = "layer"
    gated: bool = False
    qkv_bias: bool | None = None
    head_dim: int | None = None
    window: int | None = None
    shared_bias: Callable[[bool], PositionBias] | None = None

    @property
    def weight_dropout(self) -> float:
        """Probability of dropping an attention weight."""
        if self.attention_dropout is None:
            return self.dropout
        check_share(attention_dropout=self.attention_dropout)
        return self.attention_dropout

    def attention(self, dim: int, num_heads: int, **own: Any) -> MultiHeadAttention:
        """An attention of a layer, with arguments of its own."""
        return MultiHeadAttention(
            dim,
            num_heads,
            head_dim=self.head_dim,
            bias=self.bias,
            qkv_bias=self.qkv_bias,
            dropout=self.weight_dropout,
            **own,
        )

    def self_attention(self, dim: int, num_heads: int) -> MultiHeadAttention:
        """The attention of a layer to its own sequence."""
        return self.attention(
            dim,
            num_heads,
            num_kv_heads=self.num_kv_heads,
            position_bias=None if self.position_bias is None else self.position_bias(),
            rotation=self.rotation,
            window=self.window,
        )

    def feed_forward(self, dim: int, hidden: int) -> FeedForward:
        """The block that follows the attention."""
        return FeedForward(
            dim,
            hidden,
            activation=self.activation,
            dropout=self.dropout,
            bias=self.bias,
            gated=self.gated,
        )

    def residual(self, dim: int) -> Residual:
        """The residual connection around a block."""
        return Residual(self.new_norm(dim), norm_first=self.norm_first, dropout=self.dropout)

    def new_norm(self, dim: int) -> nn.Module:
        """A norm of vectors."""
        check_choice("norm", self.norm, get_args(Norm))
        if self.norm == "rms":
            return nn.RMSNorm(dim, eps=self.eps)
        return nn.LayerNorm(dim, eps=self.eps, bias=self.bias)

    def last_norm(self, dim: int) -> nn.Module | None:
        """The norm after a stack of pre-norm layers, whose last sum has none."""
        return self.new_norm(dim) if self.norm_first else None

    def stack_bias(self, *, causal: bool) -> PositionBias | None:
        """The relative positions that the layers of a stack share."""
        return None if self.shared_bias is None else self.shared_bias(causal)


class TransformerEncoderOutput(NamedTuple):
    """Encoded vectors, (batch, length, dim), and the weights of each layer if requested."""

    output: Tensor
    weights: tuple[Tensor, ...]


class TransformerDecoderOutput(NamedTuple):
    """Decoded vectors, the state after them, and the weights of each layer if requested.

    Attributes:
        output: (batch, q_len, dim).
        state: the state to continue from.
        self_weights: (batch, heads, q_len, positions so far), for each layer.
        cross_weights: (batch, heads, q_len, kv_len), for each layer that attends to a memory.
    """

    output: Tensor
    state: "TransformerState"
    self_weights: tuple[Tensor, ...]
    cross_weights: tuple[Tensor, ...]


@dataclass(frozen=True)
class LayerState(State):
    """Keys and values of one layer, by head: of the vectors so far, and of the memory."""

    key: Float[Tensor, "batch heads positions head_dim"]
    value: Float[Tensor, "batch heads positions head_dim"]
    memory_key: Float[Tensor, "batch memory_heads kv_len head_dim"] | None = field(
        metadata=OF_SOURCE
    )
    memory_value: Float[Tensor, "batch memory_heads kv_len head_dim"] | None = field(
        metadata=OF_SOURCE
    )


@dataclass(frozen=True)
class TransformerState(State):
    """The state of all layers, and the mask of the memory.

    With an `order`, row i continues what row `order[i]` of the caches holds: the next step reads
    them so, and all else asks for the `settled` state first.

    Examples:
        >>> decoder = regard.layers.TransformerDecoder(12, 3, 24, num_layers=2, memory_size=7)
        >>> state = decoder.start(torch.randn(2, 5, 7))
        >>> decoder(torch.randn(2, 4, 12), state).state.position
        4
    """

    layers: tuple[LayerState, ...]
    memory_mask: Mask | None = field(metadata=OF_SOURCE)
    order: Int[Tensor, " batch"] | None = None

    @property
    def position(self) -> int:
        """Number of vectors decoded so far."""
        return self.layers[0].key.shape[2]

    def follow(self, parents: Int[Tensor, " batch"]) -> "TransformerState":
        """Leave it to the next step to read its caches in the order of the parents."""
        return replace(self.settled, order=parents)

    @property
    def settled(self) -> "TransformerState":
        """The state with its caches in order."""
        if self.order is None:
            return self
        return replace(self, order=None).reorder_within_sources(self.order)


@final
class TransformerEncoderLayer(nn.Module):
    """Self-attention, then the feed-forward block.

    Args:
        dim: width of the vectors.
        num_heads: heads of the attention; divides `dim`.
        feed_forward: width of the inner layer.
        options: see `LayerOptions`.

    Examples:
        >>> layer = regard.layers.TransformerEncoderLayer(12, 3, 24)
        >>> layer(torch.randn(2, 5, 12)).output.shape
        torch.Size([2, 5, 12])
    """

    def __init__(
        self, dim: int, num_heads: int, feed_forward: int, options: LayerOptions | None = None
    ) -> None:
        super().__init__()
        options = LayerOptions() if options is None else options
        self.attention = options.self_attention(dim, num_heads)
        self.attention_residual = options.residual(dim)
        self.feed_forward = options.feed_forward(dim, feed_forward)
        self.feed_forward_residual = options.residual(dim)

    def forward(
        self,
        x: Float[Tensor, "batch length dim"],
        mask: Mask | None = None,
        *,
        bias: Bias | None = None,
        need_weights: bool = False,
    ) -> TransformerEncoderOutput:
        """Apply the layer; a bias is added to the scores of its attention."""
        check_width("x", x, self.attention.dim)
        inner = self.attention_residual.before(x)
        context, weights = self.attention(
            inner, inner, inner, mask, bias=bias, need_weights=need_weights
        )
        x = self.attention_residual.after(x, context)
        inner = self.feed_forward_residual.before(x)
        x = self.feed_forward_residual.after(x, self.feed_forward(inner))
        return TransformerEncoderOutput(x, () if weights is None else (weights,))


@final
class TransformerEncoder(nn.Module):
    """Encoder layers on top of each other, with a last norm if they are pre-norm.

    `norm` may be set to another module, or to None for no last norm. The arguments are the number
    of layers and those of `TransformerEncoderLayer`; and `repeats`, the number of times that all
    layers are run, with the same weights (Dehghani et al., 2019, https://arxiv.org/abs/1807.03819).

    Examples:
        >>> encoder = regard.layers.TransformerEncoder(12, 3, 24, num_layers=2)
        >>> mask = regard.masks.padding(torch.tensor([5, 2]), 5)
        >>> out = encoder(torch.randn(2, 5, 12), mask, need_weights=True)
        >>> out.output.shape, len(out.weights), out.weights[0].shape
        (torch.Size([2, 5, 12]), 2, torch.Size([2, 3, 5, 5]))
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        feed_forward: int,
        num_layers: int,
        options: LayerOptions | None = None,
        *,
        repeats: int = 1,
    ) -> None:
        super().__init__()
        check_positive(num_layers=num_layers, repeats=repeats)
        options = LayerOptions() if options is None else options
        self.dim, self.repeats = dim, repeats
        self.position_bias = options.stack_bias(causal=False)
        self.layers = nn.ModuleList(
            TransformerEncoderLayer(dim, num_heads, feed_forward, options)
            for _ in range(num_layers)
        )
        self.norm = options.last_norm(dim)

    def forward(
        self,
        x: Float[Tensor, "batch length dim"],
        mask: Mask | None = None,
        *,
        need_weights: bool = False,
    ) -> TransformerEncoderOutput:
        """Encode vectors that have their positions in them.

        Args:
            x: the vectors.
            mask: True where a query may attend, e.g. `masks.padding(lengths, length)`.
            need_weights: whether to return the weights of each layer.
        """
        check_width("x", x, self.dim)
        weights: tuple[Tensor, ...] = ()
        bias = shared_bias(self.position_bias, x, x.shape[1])
        for layer in [*self.layers] * self.repeats:
            x, seen = layer(x, mask, bias=bias, need_weights=need_weights)
            weights += seen
        return TransformerEncoderOutput(x if self.norm is None else self.norm(x), weights)


def unusual_option(stack: "TransformerEncoder | TransformerDecoder") -> str | None:
    """Return an option by which a stack is not that of Vaswani et al., or None.

    What computes a stack by other means than its modules must refuse what it does not know.
    """
    parts = list(stack.modules())
    attentions = [part for part in parts if isinstance(part, MultiHeadAttention)]
    blocks = [part for part in parts if isinstance(part, FeedForward)]
    unusual = {
        "positions": any(isinstance(part, PositionBias) for part in parts)
        or any(attention.rotation is not None for attention in attentions),
        "window": any(attention.window is not None for attention in attentions),
        "head_dim": any(one.head_dim * one.num_heads != one.dim for one in attentions),
        "norm": any(isinstance(part, nn.RMSNorm) for part in parts),
        "gated": any(block.gate is not None for block in blocks),
        "repeats": getattr(stack, "repeats", 1) > 1,
    }
    return next((option for option, found in unusual.items() if found), None)


def shared_bias(positions: PositionBias | None, x: Tensor, kv_len: int) -> Bias | None:
    """The bias of all layers; it depends on the number of vectors alone, not on their heads."""
    return None if positions is None else cast(Bias, positions(x[:, None], kv_len))


@final
class TransformerDecoderLayer(nn.Module):
    """Causal self-attention, attention to a memory if there is one, the feed-forward block.

    Args:
        dim: width of the vectors.
        num_heads: heads of the attentions; divides `dim`.
        feed_forward: width of the inner layer.
        options: see `LayerOptions`.
        memory_size: width of the memory; None for a layer that has none (a language model's).

    Examples:
        >>> layer = regard.layers.TransformerDecoderLayer(12, 3, 24, memory_size=None)
        >>> x = torch.randn(2, 4, 12)
        >>> layer(x, layer.start(batch=2, memory=None, like=x))[0].shape
        torch.Size([2, 4, 12])
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        feed_forward: int,
        options: LayerOptions | None = None,
        *,
        memory_size: int | None,
    ) -> None:
        super().__init__()
        options = LayerOptions() if options is None else options
        self.attention = options.self_attention(dim, num_heads)
        self.attention_residual = options.residual(dim)
        self.cross, self.cross_residual = None, None
        if memory_size is not None:
            self.cross = options.attention(dim, num_heads, key_size=memory_size)
            self.cross_residual = options.residual(dim)
        self.feed_forward = options.feed_forward(dim, feed_forward)
        self.feed_forward_residual = options.residual(dim)

    def start(
        self, batch: int, memory: Tensor | None, like: Tensor, key: Tensor | None = None
    ) -> LayerState:
        """The empty cache, with the projected memory."""
        attention = self.attention
        empty = like.new_zeros(batch, attention.num_kv_heads, 0, attention.head_dim)
        if self.cross is None or memory is None:
            return LayerState(empty, empty, None, None)
        keys = self.cross.project_keys(memory if key is None else key)
        return LayerState(empty, empty, keys.tensor, self.cross.project_values(memory).tensor)

    def forward(
        self,
        x: Float[Tensor, "batch q_len dim"],
        state: LayerState,
        memory_mask: Mask | None = None,
        *,
        bias: Float[Tensor, "#batch #heads #q_len #own_len"] | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, LayerState, Tensor | None, Tensor | None]:
        """New vectors, the state with them, and the weights of both attentions."""
        check_width("x", x, self.attention.dim)
        check_equal("agree in batch", state=state.key.shape[0], x=x.shape[0])
        inner = self.attention_residual.before(x)
        query, *new = self.attention.project_self(inner, start=state.key.shape[2])
        key, value = (part.tensor for part in new)
        if state.key.shape[2]:
            key = torch.cat([state.key.to(key.dtype), key], dim=2)
            value = torch.cat([state.value.to(value.dtype), value], dim=2)
        context, self_weights = self.attention(
            query,
            Projected(key),
            Projected(value),
            causal=True,
            bias=bias,
            need_weights=need_weights,
        )
        x, cross_weights = self.attention_residual.after(x, context), None
        if self.cross is not None and self.cross_residual is not None:
            assert state.memory_key is not None
            assert state.memory_value is not None
            context, cross_weights = self.cross(
                self.cross_residual.before(x),
                Projected(state.memory_key),
                Projected(state.memory_value),
                memory_mask,
                need_weights=need_weights,
            )
            x = self.cross_residual.after(x, context)
        inner = self.feed_forward_residual.before(x)
        x = self.feed_forward_residual.after(x, self.feed_forward(inner))
        after = LayerState(key, value, state.memory_key, state.memory_value)
        return x, after, self_weights, cross_weights


@final
class TransformerDecoder(nn.Module):
    """Decoder layers on top of each other, with a last norm if they are pre-norm.

    `norm` may be set to another module, or to None for no last norm. The arguments are the number
    of layers and those of `TransformerDecoderLayer`.

    Examples:
        >>> decoder = regard.layers.TransformerDecoder(12, 3, 24, num_layers=2, memory_size=7)
        >>> state = decoder.start(torch.randn(2, 5, 7))
        >>> out = decoder(torch.randn(2, 4, 12), state, need_weights=True)
        >>> out.output.shape, out.cross_weights[0].shape
        (torch.Size([2, 4, 12]), torch.Size([2, 3, 4, 5]))
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        feed_forward: int,
        num_layers: int,
        options: LayerOptions | None = None,
        *,
        memory_size: int | None,
    ) -> None:
        super().__init__()
        check_positive(num_layers=num_layers)
        options = LayerOptions() if options is None else options
        self.dim, self.memory_size = dim, memory_size
        self.position_bias = options.stack_bias(causal=True)
        self.layers = nn.ModuleList(
            TransformerDecoderLayer(dim, num_heads, feed_forward, options, memory_size=memory_size)
            for _ in range(num_layers)
        )
        self.norm = options.last_norm(dim)

    def start(
        self,
        memory: Float[Tensor, "batch kv_len memory_size"],
        mask: Mask | None = None,
        *,
        key: Float[Tensor, "batch kv_len memory_size"] | None = None,
    ) -> TransformerState:
        """The state before the first vector, with the memory's keys and values of every layer.

        Keys are computed from `key` if given, values always from the memory.
        """
        if self.memory_size is None:
            raise ArgumentError(
                "memory", "be left out", "given to a decoder without one", "use start_without"
            )
        check_width("memory", memory, self.memory_size)
        layers = (cast(TransformerDecoderLayer, layer) for layer in self.layers)
        started = tuple(layer.start(memory.shape[0], memory, memory, key) for layer in layers)
        return TransformerState(started, masks.per_row(mask, memory.shape[0]))

    def start_without(self, batch: int, like: Tensor) -> TransformerState:
        """The state before the first vector of a decoder that has no memory."""
        if self.memory_size is not None:
            raise ArgumentError(
                "start_without",
                "be called on a decoder without a memory",
                f"called on one with memory_size = {self.memory_size}",
                "use start",
            )
        layers = (cast(TransformerDecoderLayer, layer) for layer in self.layers)
        return TransformerState(tuple(layer.start(batch, None, like) for layer in layers), None)

    def forward(
        self,
        x: Float[Tensor, "batch q_len dim"],
        state: TransformerState,
        *,
        need_weights: bool = False,
    ) -> TransformerDecoderOutput:
        """Decode vectors that have their positions in them, after those in the state."""
        check_width("x", x, self.dim)
        layers, self_weights, cross_weights = [], [], []
        bias = shared_bias(self.position_bias, x, state.position + x.shape[1])
        state = state.settled
        for layer, before in zip(self.layers, state.layers, strict=True):
            x, after, own, cross = layer(
                x, before, state.memory_mask, bias=bias, need_weights=need_weights
            )
            layers.append(after)
            self_weights.append(own)
            cross_weights.append(cross)
        return TransformerDecoderOutput(
            x if self.norm is None else self.norm(x),
            TransformerState(tuple(layers), state.memory_mask),
            tuple(w for w in self_weights if w is not None),
            tuple(w for w in cross_weights if w is not None),
        )
