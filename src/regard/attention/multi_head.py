"""Multi-head attention (Vaswani et al., 2017, https://arxiv.org/abs/1706.03762, section 3.2.2).

With fewer heads of keys than of queries it is grouped-query attention (Ainslie et al., 2023,
https://arxiv.org/abs/2305.13245), and with one it is multi-query attention (Shazeer, 2019,
https://arxiv.org/abs/1911.02150).
"""

from typing import Protocol, final, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from regard import masks, ops
from regard.attention.interface import Attention, Past, Projected
from regard.attention.position_bias import PositionBias
from regard.errors import ArgumentError
from regard.masks import Bias, Mask
from regard.ops import AttentionOutput
from regard.ops.check import check_positive, check_width


@runtime_checkable
class Rotation(Protocol):
    """Rotates queries and keys by an angle that grows with their position."""

    def __call__(self, x: Tensor, *, start: int = 0) -> Tensor:
        """Rotate (batch, heads, length, head_dim), whose first vector stands at `start`."""
        ...


@final
class MultiHeadAttention(Attention):
    """Several attentions side by side, each in a slice of the width.

    Args:
        dim: width of the queries and of the result.
        num_heads: number of heads; it divides `dim`.
        num_kv_heads: heads of keys and values; divides `num_heads`, which it equals if None.
        key_size: width of the keys, if it is not `dim`.
        value_size: width of the values, if it is not that of the keys.
        head_dim: width of a head; `dim / num_heads` if None.
        bias: whether the four projections have one.
        qkv_bias: whether those of queries, keys and values have one; `bias` if None.
        dropout: probability with which a weight is dropped in training.
        position_bias: relative positions, added to the scores.
        rotation: rotary positions, for self-attention.
        window: number of nearest keys on each side, its own counted, that a query sees (Beltagy et
            al., 2020, https://arxiv.org/abs/2004.05150); None for all.

    Examples:
        >>> attention = regard.attention.MultiHeadAttention(dim=12, num_heads=3)
        >>> x = torch.randn(2, 5, 12)
        >>> out = attention(x, x, x, causal=True)
        >>> out.context.shape, out.weights.shape
        (torch.Size([2, 5, 12]), torch.Size([2, 3, 5, 5]))
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        num_kv_heads: int | None = None,
        key_size: int | None = None,
        value_size: int | None = None,
        head_dim: int | None = None,
        bias: bool = True,
        qkv_bias: bool | None = None,
        dropout: float = 0.0,
        position_bias: PositionBias | None = None,
        rotation: Rotation | None = None,
        window: int | None = None,
    ) -> None:
        super().__init__()
        check_positive(dim=dim, num_heads=num_heads)
        kv_heads = num_heads if num_kv_heads is None else num_kv_heads
        check_positive(num_kv_heads=kv_heads)
        if head_dim is None:
            _check_divides("num_heads", num_heads, "dim", dim)
            head_dim = dim // num_heads
        _check_divides("num_kv_heads", kv_heads, "num_heads", num_heads)
        self.dim, self.num_heads, self.num_kv_heads = dim, num_heads, kv_heads
        self.head_dim, self.dropout, self.window = head_dim, dropout, window
        self.key_size = dim if key_size is None else key_size
        self.value_size = self.key_size if value_size is None else value_size
        check_positive(head_dim=head_dim, key_size=self.key_size, value_size=self.value_size)
        check_positive(**({} if window is None else {"window": window}))
        if not 0 <= dropout <= 1:
            raise ArgumentError(
                "dropout", "be a probability, from 0 to 1", dropout, "0 drops nothing"
            )
        inner, kv_dim = num_heads * head_dim, kv_heads * head_dim
        qkv_bias = bias if qkv_bias is None else qkv_bias
        self.query_proj = nn.Linear(dim, inner, qkv_bias)
        self.key_proj = nn.Linear(self.key_size, kv_dim, qkv_bias)
        self.value_proj = nn.Linear(self.value_size, kv_dim, qkv_bias)
        self.out_proj = nn.Linear(inner, dim, bias)
        self.position_bias = position_bias
        self.rotation = rotation
        self._reset()

    def _reset(self) -> None:
        for linear in (self.query_proj, self.key_proj, self.value_proj, self.out_proj):
            nn.init.xavier_uniform_(linear.weight)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    def project_keys(
        self, key: Float[Tensor, "batch kv_len key_size"], *, start: int = 0
    ) -> Projected:
        """The keys by head; `start` is the position of the first, for rotary positions."""
        check_width("key", key, self.key_size)
        heads = _split(self.key_proj(key), self.num_kv_heads)
        return Projected(heads if self.rotation is None else self.rotation(heads, start=start))

    def project_values(self, value: Float[Tensor, "batch kv_len value_size"]) -> Projected:
        """The values by head."""
        check_width("value", value, self.value_size)
        return Projected(_split(self.value_proj(value), self.num_kv_heads))

    def project_queries(
        self, query: Float[Tensor, "batch q_len dim"], *, start: int = 0
    ) -> Projected:
        """The queries by head; `start` is the position of the first, for rotary positions."""
        heads = _split(self.query_proj(query), self.num_heads)
        return Projected(heads if self.rotation is None else self.rotation(heads, start=start))

    def project_self(
        self, x: Float[Tensor, "batch length dim"], *, start: int = 0
    ) -> tuple[Projected, Projected, Projected]:
        """Queries, keys and values of one sequence, in one product where there are many vectors.

        For few, as at a decoder's step, concatenating the weights would cost more than it saves;
        and a module that replaces a linear one, or has hooks, is called as it is.
        """
        check_width("key", x, self.key_size)
        check_width("value", x, self.value_size)
        parts = (self.query_proj, self.key_proj, self.value_proj)
        if x.shape[0] * x.shape[1] <= self.dim or not all(map(_is_plain, parts)):
            own_keys = self.project_keys(x, start=start)
            return self.project_queries(x, start=start), own_keys, self.project_values(x)
        bias = None if self.query_proj.bias is None else torch.cat([part.bias for part in parts])
        all_three = F.linear(x, torch.cat([part.weight for part in parts]), bias)
        query, key, value = torch.split(all_three, [p.out_features for p in parts], dim=-1)
        queries, keys = _split(query, self.num_heads), _split(key, self.num_kv_heads)
        if self.rotation is not None:
            queries, keys = (self.rotation(heads, start=start) for heads in (queries, keys))
        return Projected(queries), Projected(keys), Projected(_split(value, self.num_kv_heads))

    def forward(
        self,
        query: Float[Tensor, "batch q_len dim"] | Projected,
        key: Float[Tensor, "batch kv_len key_size"] | Projected,
        value: Float[Tensor, "batch kv_len value_size"] | Projected,
        mask: Mask | None = None,
        *,
        causal: bool = False,
        past: Past | None = None,
        need_weights: bool = True,
        bias: Bias | None = None,
    ) -> AttentionOutput:
        """See `Attention.forward`. Queries and values may come projected too, by head.

        A `bias` is added to the scores, as relative positions that several layers share.

        With `causal` a query sees the keys up to its own position, the last query standing at the
        last key; `masks.causal` is equivalent, but the fused kernels are faster with this flag.
        """
        if not isinstance(query, Projected):
            check_width("query", query, self.dim)
        if query is key and query is value and isinstance(query, Tensor):
            query, key, value = self.project_self(query)
        keys = key.tensor if isinstance(key, Projected) else self.project_keys(key).tensor
        values = value.tensor if isinstance(value, Projected) else self.project_values(value).tensor
        if isinstance(query, Projected):
            queries = query.tensor
        else:
            queries = self.project_queries(query, start=keys.shape[2] - query.shape[1]).tensor
        if self.position_bias is not None:
            own = self.position_bias(queries, keys.shape[2])
            bias = own if bias is None else own + bias
        if self.window is not None and keys.shape[2] > self.window:
            near = masks.window(
                queries.shape[2], keys.shape[2], size=self.window, device=queries.device
            )
            mask = near if mask is None else mask & near
        context, weights = ops.dot_product_attention(
            queries,
            keys,
            values,
            mask,
            causal=causal,
            need_weights=need_weights,
            bias=bias,
            dropout=self.dropout if self.training else 0.0,
        )
        merged = context.transpose(1, 2).flatten(2)  # (batch, q_len, dim)
        return AttentionOutput(self.out_proj(merged), weights)


def _is_plain(module: nn.Module) -> bool:
    """Return whether a module is a linear map without hooks, as pruning uses them."""
    hooks = module._forward_pre_hooks, module._forward_hooks
    hooks_back = module._backward_pre_hooks, module._backward_hooks
    return type(module) is nn.Linear and not any((*hooks, *hooks_back))


def _split(x: Float[Tensor, "batch length dim"], heads: int) -> Tensor:
    batch, length, _ = x.shape
    return x.reshape(batch, length, heads, -1).transpose(1, 2)


def _check_divides(name: str, divisor: int, whole_name: str, whole: int) -> None:
    if whole % divisor:
        raise ArgumentError(
            name, f"divide {whole_name} = {whole}", divisor, f"choose a divisor of {whole}"
        )
