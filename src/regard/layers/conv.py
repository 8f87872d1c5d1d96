"""Gated convolutions (Gehring et al., 2017, https://arxiv.org/abs/1705.03122).

The paper's weight normalisation and gradient scaling are left out: its residual scaling by the
square root of a half keeps the variance in shallow stacks, and the optimiser does the rest.
"""

import math
from dataclasses import dataclass, field
from typing import Final, NamedTuple, cast, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from regard import masks
from regard.attention import MultiplicativeAttention, Projected
from regard.errors import ArgumentError
from regard.layers.dropout import Dropout
from regard.masks import Mask
from regard.ops.check import check_equal, check_positive, check_width
from regard.state import OF_SOURCE, State

HALF: Final = math.sqrt(0.5)


@final
class GatedConvolution(nn.Module):
    """A convolution over time with a gated linear unit, over vectors that are padded already.

    Examples:
        >>> regard.layers.GatedConvolution(dim=5, kernel_size=3)(torch.randn(2, 7, 5)).shape
        torch.Size([2, 5, 5])
    """

    def __init__(self, dim: int, kernel_size: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        check_positive(dim=dim, kernel_size=kernel_size)
        self.conv = nn.Conv1d(dim, 2 * dim, kernel_size)
        self.dropout = Dropout(dropout)
        # keeps the variance of the outputs near that of the inputs, as in section 3.5 of the paper
        nn.init.normal_(self.conv.weight, std=math.sqrt(4 * (1 - dropout) / (kernel_size * dim)))
        nn.init.zeros_(cast(Tensor, self.conv.bias))

    def forward(self, x: Float[Tensor, "batch padded dim"]) -> Float[Tensor, "batch length dim"]:
        """Shorter than its input by `kernel_size - 1`."""
        check_width("x", x, self.conv.in_channels)
        return F.glu(self.conv(self.dropout(x).mT), dim=1).mT


@final
class ConvEncoder(nn.Module):
    """Centred gated convolutions with residual connections.

    Args:
        dim: width of the vectors.
        num_layers: number of convolutions.
        kernel_size: how many positions each spans; odd.
        dropout: probability of dropping a feature before each.

    Examples:
        >>> encoder = regard.layers.ConvEncoder(dim=8, num_layers=2)
        >>> encoder(torch.randn(2, 5, 8), regard.masks.padding(torch.tensor([5, 3]), 5)).shape
        torch.Size([2, 5, 8])
    """

    def __init__(
        self, dim: int, num_layers: int, *, kernel_size: int = 3, dropout: float = 0.1
    ) -> None:
        super().__init__()
        check_positive(num_layers=num_layers)
        if kernel_size % 2 == 0:
            raise ArgumentError(
                "kernel_size", "be odd, to have a middle", kernel_size, f"try {kernel_size + 1}"
            )
        self.dim, self.reach = dim, kernel_size // 2
        self.layers = nn.ModuleList(
            GatedConvolution(dim, kernel_size, dropout=dropout) for _ in range(num_layers)
        )

    def forward(
        self, x: Float[Tensor, "batch length dim"], mask: Mask | None = None
    ) -> Float[Tensor, "batch length dim"]:
        """Encode; where `mask` (as of `masks.padding`) is False, inputs of layers are zero."""
        check_width("x", x, self.dim)
        if mask is not None:
            masks.check(mask, x.shape[0], 1, 1, x.shape[1])
        real = None if mask is None else mask[:, 0, 0, :, None]
        for layer in self.layers:
            x = x if real is None else x.where(real, 0.0)
            x = (x + layer(F.pad(x, (0, 0, self.reach, self.reach)))) * HALF
        return x if real is None else x.where(real, 0.0)


@dataclass(frozen=True)
class ConvState(State):
    """Recent inputs of the convolutions, and the memory that every layer attends to.

    Attributes:
        recent: the last `kernel_size - 1` inputs of each layer.
        keys: keys of the memory.
        values: values of the memory.
        memory_mask: True at real vectors of the memory.
        position: number of vectors decoded so far.

    Examples:
        >>> decoder = regard.layers.ConvDecoder(dim=8, num_layers=2)
        >>> memory = torch.randn(2, 5, 8)
        >>> state = decoder.start(memory, memory)
        >>> decoder(torch.randn(2, 3, 8), state).state.position
        3
    """

    recent: tuple[Float[Tensor, "batch reach dim"], ...]
    keys: Float[Tensor, "batch kv_len dim"] = field(metadata=OF_SOURCE)
    values: Float[Tensor, "batch kv_len dim"] = field(metadata=OF_SOURCE)
    memory_mask: Mask | None = field(metadata=OF_SOURCE)
    position: int


class ConvDecoderOutput(NamedTuple):
    """Decoded vectors, (batch, q_len, dim), the state after them, the weights of each layer."""

    output: Tensor
    state: ConvState
    weights: tuple[Tensor, ...]


@final
class ConvDecoder(nn.Module):
    """Causal gated convolutions, each followed by attention to the memory.

    Args:
        dim: width of the vectors and of the memory.
        num_layers: number of convolutions.
        kernel_size: how many positions each spans, the newest included.
        dropout: probability of dropping a feature before each.

    Examples:
        >>> decoder = regard.layers.ConvDecoder(dim=8, num_layers=2)
        >>> memory = torch.randn(2, 5, 8)
        >>> out = decoder(torch.randn(2, 3, 8), decoder.start(memory, memory), need_weights=True)
        >>> out.output.shape, len(out.weights), out.weights[0].shape
        (torch.Size([2, 3, 8]), 2, torch.Size([2, 1, 3, 5]))
    """

    def __init__(
        self, dim: int, num_layers: int, *, kernel_size: int = 3, dropout: float = 0.1
    ) -> None:
        super().__init__()
        check_positive(num_layers=num_layers, kernel_size=kernel_size)
        self.dim, self.reach = dim, kernel_size - 1
        self.layers = nn.ModuleList(
            GatedConvolution(dim, kernel_size, dropout=dropout) for _ in range(num_layers)
        )
        self.query_projs = nn.ModuleList(nn.Linear(dim, dim) for _ in range(num_layers))
        self.context_projs = nn.ModuleList(nn.Linear(dim, dim) for _ in range(num_layers))
        self.attention = MultiplicativeAttention(dim, dim, "dot")

    def start(
        self,
        key: Float[Tensor, "batch kv_len dim"],
        value: Float[Tensor, "batch kv_len dim"],
        mask: Mask | None = None,
    ) -> ConvState:
        """The state before the first vector, with zeros in the place of recent inputs."""
        check_width("key", key, self.dim)
        check_width("value", value, self.dim)
        zeros = key.new_zeros(key.shape[0], self.reach, self.dim)
        keys = self.attention.project_keys(key).tensor
        rows = masks.per_row(mask, key.shape[0])
        return ConvState((zeros,) * len(self.layers), keys, value, rows, 0)

    def forward(
        self, x: Float[Tensor, "batch q_len dim"], state: ConvState, *, need_weights: bool = False
    ) -> ConvDecoderOutput:
        """Decode vectors that have their positions in them, after those in the state."""
        check_width("x", x, self.dim)
        check_equal("agree in batch", state=state.keys.shape[0], x=x.shape[0])
        embedded, recent, maps = x, [], []
        for i, layer in enumerate(self.layers):
            wide = torch.cat([state.recent[i].to(x.dtype), x], dim=1)
            recent.append(wide[:, wide.shape[1] - self.reach :])
            hidden = layer(wide)
            query = (self.query_projs[i](hidden) + embedded) * HALF
            context, weights = self.attention(
                query,
                Projected(state.keys.to(query.dtype)),
                state.values.to(query.dtype),
                state.memory_mask,
                need_weights=need_weights,
            )
            maps.append(weights)
            hidden = (hidden + self.context_projs[i](context)) * HALF
            x = (x + hidden) * HALF
        after = ConvState(
            tuple(recent),
            state.keys,
            state.values,
            state.memory_mask,
            state.position + embedded.shape[1],
        )
        return ConvDecoderOutput(x, after, tuple(w for w in maps if w is not None))
