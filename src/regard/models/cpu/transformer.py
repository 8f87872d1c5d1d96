"""Steps of a Transformer decoder on the CPU."""

from dataclasses import dataclass, replace
from typing import Any, cast, final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.layers.transformer import (
    ACTIVATIONS,
    Residual,
    TransformerDecoderLayer,
    unusual_option,
)
from regard.models.cpu import transformer_kernels as kernels
from regard.models.decoders import AttentionDecoder
from regard.models.int8 import Int8OutputLayer, Product, bias_of, output_weight, product, product_of
from regard.models.protocol import Memory, StepOutput
from regard.state import State, StateT

#: positions and rows for which a cache has room at first
ROOM = 16


class KeyValueCache:
    """Keys and values of all layers, positions and rows of one search; written in place."""

    def __init__(self, tensor: Float[Tensor, "layers positions rows width"]) -> None:
        self.tensor, self.length = tensor, tensor.shape[1]

    @staticmethod
    def empty(layers: int, width: int) -> "KeyValueCache":
        """Return a cache without positions."""
        return KeyValueCache(torch.empty(layers, 0, 0, width))

    def room(self, position: int, rows: int) -> list[Any]:
        """Return an array (positions, rows, width) of each layer with room for one more position.

        Positions come in order: a state is continued once.
        """
        assert position == self.length, "a state of a search on the CPU is continued once"
        layers, most, width, size = self.tensor.shape
        if position >= most or rows > width:
            shape = (layers, max(ROOM, 2 * most) if position >= most else most, max(rows, width))
            larger = torch.empty(*shape, size)
            larger[:, :most, :width] = self.tensor
            self.tensor = larger
        self.length = position + 1
        return list(self.tensor.numpy())


@dataclass(frozen=True)
class TransformerCpuState(State):
    """The state between two steps: rows name their source and the rows that they continue.

    Attributes:
        ancestors: the row that each position of a row was written in, with room for more.
        source: of each row.
        memory: keys and values of each layer, once for each source.
        lengths: of the sources.
        cache: keys and values of the targets.
        position: of the next token.
    """

    ancestors: Int[Tensor, "rows positions"]
    source: Int[Tensor, " rows"]
    memory: tuple[tuple[Tensor, Tensor], ...]
    lengths: Int[Tensor, " sources"]
    cache: KeyValueCache
    position: int

    def reorder(self: StateT, indices: Int[Tensor, " rows"]) -> StateT:
        """Return the state whose row i is row `indices[i]`: no cache is copied."""
        assert isinstance(self, TransformerCpuState)
        return replace(
            self,
            ancestors=self.ancestors.index_select(0, indices),
            source=self.source.index_select(0, indices),
        )


class _Norm:
    """A layer norm by a kernel."""

    def __init__(self, module: nn.Module) -> None:
        norm = cast(nn.LayerNorm, module)
        gain = norm.weight.detach()
        shift = torch.zeros_like(gain) if norm.bias is None else norm.bias.detach()
        self.gain, self.shift, self.eps = gain.numpy(), shift.numpy(), norm.eps

    def __call__(self, x: Tensor) -> Tensor:
        """Return the norm of each row."""
        out = torch.empty_like(x)
        kernels.norm(x.numpy(), self.gain, self.shift, self.eps, out.numpy())
        return out


class _Sum:
    """The sum of a block's input and output, and its norm, which is the next block's input."""

    def __init__(
        self, residual: Residual, bias: Tensor, following: Residual | nn.Module | None
    ) -> None:
        self.first, self.bias = residual.norm_first, bias.numpy()
        norm = following.norm if isinstance(following, Residual) else following
        norm = norm if residual.norm_first else residual.norm
        self.norm = None if norm is None else _Norm(norm)

    def __call__(self, x: Tensor, block: Tensor) -> tuple[Tensor, Tensor]:
        """Return what is added to next, and what the next block reads; `x` is overwritten."""
        if self.norm is None:
            kernels.add_biased(x.numpy(), block.numpy(), self.bias)
            return x, x
        out, norm = torch.empty_like(x), self.norm
        kernels.add_and_normalise(
            x.numpy(), block.numpy(), self.bias, norm.gain, norm.shift, norm.eps, out.numpy()
        )
        # without norms first, the norm of the sum is what is added to
        return (x if self.first else out), out


class _Layer:
    """The products and sums of one layer; `following` as in `_Sum`."""

    def __init__(
        self, layer: TransformerDecoderLayer, following: Residual | nn.Module | None
    ) -> None:
        own, cross, block = layer.attention, layer.cross, layer.feed_forward
        assert cross is not None
        assert layer.cross_residual is not None
        parts = own.query_proj, own.key_proj, own.value_proj
        self.qkv, self.qkv_bias = product_of(*parts), bias_of(*parts).numpy()
        self.query, self.query_bias = (
            product_of(cross.query_proj),
            bias_of(cross.query_proj).numpy(),
        )
        self.own_out, self.cross_out = product_of(own.out_proj), product_of(cross.out_proj)
        self.memory = cross.key_proj, cross.value_proj
        self.inner, self.inner_bias = product_of(block.inner), bias_of(block.inner)
        self.outer, self.activation = product_of(block.outer), block.activation
        self.own_sum = _Sum(layer.attention_residual, bias_of(own.out_proj), layer.cross_residual)
        self.cross_sum = _Sum(
            layer.cross_residual, bias_of(cross.out_proj), layer.feed_forward_residual
        )
        self.block_sum = _Sum(layer.feed_forward_residual, bias_of(block.outer), following)
        self.heads, self.kv_heads, self.scale = own.num_heads, own.num_kv_heads, own.head_dim**-0.5
        self.width = 2 * own.num_kv_heads * own.head_dim

    def activated(self, x: Tensor) -> Tensor:
        """Return the inner vectors of the feed-forward block."""
        inner = self.inner(x)
        if self.activation == "relu":
            kernels.relu(inner.numpy(), self.inner_bias.numpy())
            return inner
        return ACTIVATIONS[self.activation](inner.add_(self.inner_bias))


def refuse_transformer(decoder: AttentionDecoder) -> str | None:
    """Return the reason why `TransformerSteps` cannot run a decoder, or None."""
    if decoder.decoder.memory_size is None:
        return "it has no memory"
    option = unusual_option(decoder.decoder) or decoder.embedding.unusual_option
    return None if option is None else f"it has the option {option}"


@final
class TransformerSteps:
    """Starts and steps of a Transformer decoder, with weights joined once."""

    def __init__(self, decoder: AttentionDecoder) -> None:
        self.embedding, self.dim = decoder.embedding, decoder.decoder.dim
        layers = [cast(TransformerDecoderLayer, layer) for layer in decoder.decoder.layers]
        following = [layer.attention_residual for layer in layers[1:]]
        self.layers = [
            _Layer(layer, after)
            for layer, after in zip(layers, [*following, decoder.decoder.norm], strict=True)
        ]
        first = layers[0].attention_residual
        self.norm = _Norm(first.norm) if first.norm_first else None
        output: nn.Module = decoder.output
        self.projection = decoder.output.projection
        self.output: Product = product(
            output_weight(decoder.output, decoder.embedding),
            decoder.output.bias,
            int8=isinstance(output, Int8OutputLayer),
        )

    def start(self, memory: Memory) -> TransformerCpuState:
        """Return the state before the first token, with the memory's keys and values."""
        keys = memory.output if memory.keys is None else memory.keys
        rows = torch.arange(len(memory.lengths))
        return TransformerCpuState(
            rows.new_empty(len(rows), 0, dtype=torch.int32),
            rows,
            tuple(
                (layer.memory[0](keys).contiguous(), layer.memory[1](memory.output).contiguous())
                for layer in self.layers
            ),
            memory.lengths.long().contiguous(),
            KeyValueCache.empty(len(self.layers), self.layers[0].width),
            0,
        )

    def step(
        self, tokens: Int[Tensor, " rows"], state: TransformerCpuState, *, need_weights: bool
    ) -> StepOutput:
        """Read the newest token of each row and score the next one; there are no maps."""
        position, rows = state.position, len(tokens)
        ancestors = state.ancestors
        if position >= ancestors.shape[1]:
            ancestors = F.pad(ancestors, (0, max(ROOM, position)))
        caches = state.cache.room(position, rows)
        where, source, lengths = ancestors.numpy(), state.source.numpy(), state.lengths.numpy()
        longest = max(position + 1, state.memory[0][0].shape[1])
        scores, context = torch.empty(longest).numpy(), torch.empty(rows, self.dim)
        out = context.numpy()
        x = self.embedding.vectors(tokens)
        if self.embedding.positions is not None:
            x = self.embedding.positions(x[:, None], start=position)[:, 0]
        x = x.contiguous()
        normed = x if self.norm is None else self.norm(x)
        for layer, cache, (keys, values) in zip(self.layers, caches, state.memory, strict=True):
            heads, scale = layer.heads, layer.scale
            qkv = layer.qkv(normed).numpy()
            kernels.self_attention(
                qkv,
                layer.qkv_bias,
                cache,
                where,
                position,
                heads,
                layer.kv_heads,
                scale,
                scores,
                out,
            )
            x, normed = layer.own_sum(x, layer.own_out(context))
            kernels.cross_attention(
                layer.query(normed).numpy(), layer.query_bias, keys.numpy(), values.numpy(), source,
                lengths, heads, scale, scores, out,
            )  # fmt: skip
            x, normed = layer.cross_sum(x, layer.cross_out(context))
            x, normed = layer.block_sum(x, layer.outer(layer.activated(normed)))
        features = normed if self.projection is None else self.projection(normed)
        after = replace(state, ancestors=ancestors, position=position + 1)
        return StepOutput(self.output(features), after, {})
