"""Steps of a Transformer decoder on the CPU."""

from dataclasses import dataclass, replace
from typing import Any, cast, final

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor, nn

from regard.layers.transformer import ACTIVATIONS, Residual, TransformerDecoderLayer
from regard.models.cpu import kernels
from regard.models.cpu.products import Product, output_weight, product, product_of
from regard.models.decoders import AttentionDecoder
from regard.models.int8 import Int8OutputLayer
from regard.models.protocol import Memory, StepOutput
from regard.state import State, StateT

#: positions and rows for which a cache has room at first
ROOM = 16


class KeyValueCache:
    """Keys and values of all layers, positions and rows of one search; written in place."""

    def __init__(self, layers: int, width: int) -> None:
        self.tensor = torch.empty(layers, 0, 0, width)
        self.length = 0

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
        position: number of tokens so far.
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


class _Norms:
    """A residual connection whose norm comes before or after its block."""

    def __init__(self, residual: Residual) -> None:
        self.norm, self.first = residual.norm, residual.norm_first

    def before(self, x: Tensor) -> Tensor:
        """Return the input of the block."""
        return self._normed(x) if self.first else x

    def after(self, x: Tensor, block: Tensor) -> Tensor:
        """Return the sum of the block's input and output; `block` may be overwritten."""
        total = block.add_(x)
        return total if self.first else self._normed(total)

    def _normed(self, x: Tensor) -> Tensor:
        norm = self.norm
        return F.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


class _Layer:
    """The products and norms of one layer."""

    def __init__(self, layer: TransformerDecoderLayer) -> None:
        own, cross, block = layer.attention, layer.cross, layer.feed_forward
        assert cross is not None
        assert layer.cross_residual is not None
        self.qkv = product_of(own.query_proj, own.key_proj, own.value_proj)
        self.own_out = product_of(own.out_proj)
        self.query, self.cross_out = product_of(cross.query_proj), product_of(cross.out_proj)
        self.keys, self.values = product_of(cross.key_proj), product_of(cross.value_proj)
        self.inner, self.outer = product_of(block.inner), product_of(block.outer)
        self.activation = ACTIVATIONS[block.activation]
        self.own_norms = _Norms(layer.attention_residual)
        self.cross_norms = _Norms(layer.cross_residual)
        self.block_norms = _Norms(layer.feed_forward_residual)
        self.heads, self.kv_heads, self.scale = own.num_heads, own.num_kv_heads, own.head_dim**-0.5
        self.width = 2 * own.num_kv_heads * own.head_dim


def refuse_transformer(decoder: AttentionDecoder) -> str | None:
    """Return the reason why `TransformerSteps` cannot run a decoder, or None."""
    for layer in decoder.decoder.layers:
        assert isinstance(layer, TransformerDecoderLayer)
        if layer.cross is None:
            return "it has no memory"
        for attention in (layer.attention, layer.cross):
            if attention.position_bias is not None or attention.rotation is not None:
                return "its attention has positions of its own"
    return None


@final
class TransformerSteps:
    """Starts and steps of a Transformer decoder, with weights joined once.

    Args:
        decoder: that `refuse_transformer` does not refuse.
    """

    def __init__(self, decoder: AttentionDecoder) -> None:
        self.embedding, self.norm = decoder.embedding, decoder.decoder.norm
        self.layers = [_Layer(cast(TransformerDecoderLayer, x)) for x in decoder.decoder.layers]
        self.dim = decoder.decoder.dim
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
                (layer.keys(keys).contiguous(), layer.values(memory.output).contiguous())
                for layer in self.layers
            ),
            memory.lengths,
            KeyValueCache(len(self.layers), self.layers[0].width),
            0,
        )

    def step(self, tokens: Int[Tensor, " rows"], state: TransformerCpuState) -> StepOutput:
        """Read the newest token of each row and score the next one."""
        position, rows = state.position, len(tokens)
        ancestors = state.ancestors
        if position >= ancestors.shape[1]:
            ancestors = F.pad(ancestors, (0, max(ROOM, position)))
        caches = state.cache.room(position, rows)
        where, source, lengths = ancestors.numpy(), state.source.numpy(), state.lengths.numpy()
        longest = max(position + 1, state.memory[0][0].shape[1])
        scores, context = torch.empty(longest).numpy(), torch.empty(rows, self.dim)
        out = context.numpy()
        x = F.embedding(tokens, self.embedding.table.weight) * self.embedding.scale
        if self.embedding.positions is not None:
            x = self.embedding.positions(x[:, None], start=position)[:, 0]
        for layer, cache, (keys, values) in zip(self.layers, caches, state.memory, strict=True):
            heads = layer.heads, layer.kv_heads, layer.scale, scores, out
            qkv = layer.qkv(layer.own_norms.before(x)).numpy()
            kernels.self_attention(qkv, cache, where, position, *heads)
            x = layer.own_norms.after(x, layer.own_out(context))
            query = layer.query(layer.cross_norms.before(x)).numpy()
            heads = layer.heads, layer.heads, layer.scale, scores, out
            kernels.cross_attention(query, keys.numpy(), values.numpy(), source, lengths, *heads)
            x = layer.cross_norms.after(x, layer.cross_out(context))
            inner = layer.activation(layer.inner(layer.block_norms.before(x)))
            x = layer.block_norms.after(x, layer.outer(inner))
        x = x if self.norm is None else self.norm(x)
        x = x if self.projection is None else self.projection(x)
        after = replace(state, ancestors=ancestors, position=position + 1)
        return StepOutput(self.output(x), after, {})
