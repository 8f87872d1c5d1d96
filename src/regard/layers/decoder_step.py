"""A step of a Transformer decoder on a GPU: one new vector for each row, by few kernels.

It computes what the modules compute, up to rounding. A search replays it from a graph, see
`decoding.graphs`.
"""

from dataclasses import replace
from typing import Final, NamedTuple, cast
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard import ops
from regard.attention import MultiHeadAttention, PositionBias
from regard.layers.dropout import Dropout
from regard.layers.positions import RotaryPositions
from regard.layers.transformer import (
    FeedForward,
    LayerState,
    Residual,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerDecoderOutput,
    TransformerState,
    shared_bias,
)
from regard.ops import triton_step
from regard.ops.triton_step import StepLinear, StepNorm


class Vectors(NamedTuple):
    """A vector for each row, with what is still to be done: an addend, then a norm."""

    tensor: Tensor
    norm: nn.Module | None = None
    addend: Tensor | None = None

    @property
    def settled(self) -> Tensor:
        """The vectors when all is done."""
        total = self.tensor if self.addend is None else self.tensor + self.addend
        return total if self.norm is None else cast(Tensor, self.norm(total))


#: Modules that may stand in a decoder whose steps kernels take.
_KNOWN: Final = {
    *(TransformerDecoder, TransformerDecoderLayer, Residual, FeedForward, RotaryPositions),
    *(nn.ModuleList, nn.Linear, nn.LayerNorm, nn.RMSNorm, Dropout, nn.Embedding),
}


def refuse_decoder(decoder: TransformerDecoder) -> str | None:
    """Return the reason why kernels cannot take the steps of this decoder, or None."""
    for part in decoder.modules():
        if isinstance(part, MultiHeadAttention):
            if part.position_bias is not None:
                return "since the positions of a layer change its scores"
            if part.rotation is not None and type(part.rotation) is not RotaryPositions:
                return "since they know one rotation"
        elif type(part) not in _KNOWN and not isinstance(part, PositionBias):
            return f"since they do not know {type(part).__name__}"
    return "since it is in training" if decoder.training else None


def take_step(
    decoder: TransformerDecoder, x: Tensor, state: TransformerState
) -> TransformerDecoderOutput:
    """Decode one vector of each row, (rows, 1, dim), which has its position in it."""
    bias = shared_bias(decoder.position_bias, x, state.position + 1)
    new, layers = Vectors(x[:, 0]), []
    for layer, before in zip(decoder.layers, state.layers, strict=True):
        layer = cast(TransformerDecoderLayer, layer)
        new, key, value = step_layer(
            layer, new, before, state.memory_mask, order=state.order, bias=bias
        )
        layers.append(replace(before, key=key, value=value))
    output = new.settled[:, None]
    after = TransformerState(tuple(layers), state.memory_mask)
    output = output if decoder.norm is None else decoder.norm(output)
    return TransformerDecoderOutput(output, after, (), ())


def step_layer(
    layer: TransformerDecoderLayer,
    x: Vectors,
    state: LayerState,
    memory_mask: Tensor | None,
    *,
    order: Tensor | None = None,
    bias: Tensor | None = None,
) -> tuple[Vectors, Tensor, Tensor]:
    """Return the vectors after a layer, and the longer keys and values of its self-attention.

    Args:
        layer: to apply.
        x: the new vectors, (rows, dim).
        state: of the layer.
        memory_mask: of its memory.
        order: see `triton_step.attention`.
        bias: of the scores of self-attention.
    """
    own, residual = layer.attention, layer.attention_residual
    maps = (own.query_proj, own.key_proj, own.value_proj)
    inner, x = _before(residual, x)
    query, new_key, new_value = _products(inner, maps)
    rotation, device = cast(RotaryPositions | None, own.rotation), query.device
    context, key, value = triton_step.attention(
        query,
        new_key,
        new_value,
        state.key,
        state.value,
        order=order,
        frequencies=None if rotation is None else _kept_frequencies(rotation, device),
        bias=bias,
        window=own.window,
    )
    x = _after(residual, x, context, own.out_proj)
    if layer.cross is not None and layer.cross_residual is not None:
        cross, residual = layer.cross, layer.cross_residual
        inner, x = _before(residual, x)
        (query,) = _products(inner, (cross.query_proj,))
        heads = query.view(len(query), cross.num_heads, 1, cross.head_dim)
        assert state.memory_key is not None
        assert state.memory_value is not None
        found = ops.dot_product_attention(heads, state.memory_key, state.memory_value, memory_mask)
        context = found.context.transpose(1, 2).flatten(1)
        x = _after(residual, x, context, cross.out_proj)
    block, residual = layer.feed_forward, layer.feed_forward_residual
    inner, x = _before(residual, x)
    if _are_many(x):
        hidden = block(inner.tensor[:, None])[:, 0]
        return _with_addend(residual, x, hidden), key, value
    (hidden,) = _products(inner, (block.inner,), activation=block.activation, gate=block.gate)
    return _after(residual, x, hidden, block.outer), key, value


def _are_many(x: Vectors) -> bool:
    """Return whether products of a library are the faster ones."""
    return len(x.tensor) > triton_step.MAX_ROWS


def _before(residual: Residual, x: Vectors) -> tuple[Vectors, Vectors]:
    """Return what a block reads, and `x`; for many rows, both settled."""
    if not _are_many(x):
        return (Vectors(x.tensor, residual.norm), x) if residual.norm_first else (x, x)
    norm = _norm(residual.norm if residual.norm_first else x.norm)
    if norm is None:
        return x, x
    total, normal = map(Vectors, triton_step.normal_sum(x.tensor, x.addend, norm))
    return (normal, total) if residual.norm_first else (normal, normal)


def _after(residual: Residual, x: Vectors, inner: Tensor, outer: nn.Linear) -> Vectors:
    """Return the residual sum of `x` and a block's last map."""
    if _are_many(x):
        return _with_addend(residual, x, outer(inner))
    (total,) = _products(Vectors(inner), (outer,), residual=x)
    return _with_addend(residual, Vectors(total), None)


def _with_addend(residual: Residual, x: Vectors, addend: Tensor | None) -> Vectors:
    return Vectors(x.tensor, None if residual.norm_first else residual.norm, addend)


def _products(
    x: Vectors,
    maps: tuple[nn.Linear, ...],
    *,
    residual: Vectors | None = None,
    activation: str | None = None,
    gate: nn.Linear | None = None,
) -> tuple[Tensor, ...]:
    """Return what linear maps give; what is beside them is for few vectors alone."""
    if _are_many(x):
        return tuple(F.linear(x.tensor, one.weight, one.bias) for one in maps)
    if len({one.bias is None for one in maps}) > 1:  # as Whisper's, whose keys have none
        return tuple(_products(x, (one,))[0] for one in maps)
    out = triton_step.linear(
        x.tensor,
        tuple(StepLinear(one.weight, one.bias) for one in maps),
        norm=_norm(x.norm),
        activation=activation,
        gate=None if gate is None else StepLinear(gate.weight, gate.bias),
        residual=None if residual is None else residual.tensor,
        residual_norm=None if residual is None else _norm(residual.norm),
    )
    return torch.split(out, [one.out_features for one in maps], dim=1)


def _norm(norm: nn.Module | None) -> StepNorm | None:
    """Return a norm as the kernels read it."""
    if isinstance(norm, nn.LayerNorm):
        return StepNorm(norm.weight, norm.bias, norm.eps, has_mean=True)
    if isinstance(norm, nn.RMSNorm):
        eps = torch.finfo(norm.weight.dtype).eps if norm.eps is None else norm.eps
        return StepNorm(norm.weight, None, eps, has_mean=False)
    return None


_frequencies: WeakKeyDictionary[RotaryPositions, dict[torch.device, Tensor]] = WeakKeyDictionary()


def _kept_frequencies(rotation: RotaryPositions, device: torch.device) -> Tensor:
    """Return the same tensor again: graphs read its address, and compute nothing while recorded."""
    own = _frequencies.setdefault(rotation, {})
    if device not in own:
        own[device] = rotation.frequencies(device)
    return own[device]
