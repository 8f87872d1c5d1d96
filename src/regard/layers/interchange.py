"""Conversion of modules from and to those of torch, weights included.

A module of the other side is made with the same options, and gets a copy of the weights under the
names that it has for them. Attention of torch keeps three projections in one tensor.
"""

import copy
import re
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.attention import MultiHeadAttention
from regard.errors import ArgumentError
from regard.layers.rnn import CELLS, RNNStack
from regard.layers.transformer import (
    Activation,
    LayerOptions,
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)
from regard.ops.check import check_positive
from regard.ops.recurrence.scores import Cell

# our name of each part of a layer, and torch's
ENCODER_PARTS: Final = {
    "attention": "self_attn",
    "attention_residual.norm": "norm1",
    "feed_forward.inner": "linear1",
    "feed_forward.outer": "linear2",
    "feed_forward_residual.norm": "norm2",
}
DECODER_PARTS: Final = ENCODER_PARTS | {
    "cross": "multihead_attn",
    "cross_residual.norm": "norm2",
    "feed_forward_residual.norm": "norm3",
}


NOTHING_LIKE_IT: Final = "torch's has nothing like it, so leave it out or keep this module"


def from_torch(module: nn.Module) -> nn.Module:
    """Our module with a copy of the weights of torch's; raises for unsupported features.

    Ours are always batch first, whatever `module` is, and take our masks: `masks.from_torch` turns
    torch's. Our decoder is causal by itself. Dtype, device, mode (training or evaluation) and
    dropout are kept; nothing is shared with `module`.

    Args:
        module: an `nn.MultiheadAttention`, `nn.TransformerEncoder`, `nn.TransformerEncoderLayer`,
            `nn.TransformerDecoder`, `nn.TransformerDecoderLayer`, `nn.LSTM`, `nn.GRU` or `nn.RNN`.

    Examples:
        >>> layer = torch.nn.TransformerEncoderLayer(12, 3, 24, batch_first=True)
        >>> type(regard.layers.from_torch(layer)).__name__
        'TransformerEncoderLayer'
    """
    ours, weights = _made(module, FROM_TORCH), module.state_dict()
    taken = {}
    for name in _names(ours):
        whole = weights[name.theirs]
        taken[name.ours] = whole if name.third is None else whole.chunk(3)[name.third]
    return _filled(ours, taken, module)


def to_torch(module: nn.Module) -> nn.Module:
    """Torch's module with a copy of the weights of ours; raises for unsupported features.

    It is made with `batch_first=True`, and an encoder with `enable_nested_tensor=False`, so that it
    returns padded positions too. It takes torch's masks: `masks.to_torch` turns ours. Torch's
    decoder is causal only if it is given such a mask. Dtype, device, mode (training or evaluation)
    and dropout are kept; nothing is shared with `module`.

    Args:
        module: a `MultiHeadAttention`, `TransformerEncoder`, `TransformerEncoderLayer`,
            `TransformerDecoder`, `TransformerDecoderLayer` or `RNNStack`.

    Examples:
        >>> type(regard.layers.to_torch(regard.layers.RNNStack(5, 7, cell="gru"))).__name__
        'GRU'
    """
    theirs, weights = _made(module, TO_TORCH), module.state_dict()
    parts: dict[str, list[Tensor]] = {}
    for name in _names(module):  # thirds of one tensor come in order
        parts.setdefault(name.theirs, []).append(weights[name.ours])
    return _filled(theirs, {name: torch.cat(part) for name, part in parts.items()}, module)


class WeightName(NamedTuple):
    """Our name of a weight, torch's, and which third of torch's tensor it is, if not all of it."""

    ours: str
    theirs: str
    third: int | None


def _names(module: nn.Module) -> Iterator[WeightName]:
    """Yield the names of all weights of one of our modules."""
    is_decoder = isinstance(module, TransformerDecoder | TransformerDecoderLayer)
    parts = DECODER_PARTS if is_decoder else ENCODER_PARTS
    for name in module.state_dict():
        if isinstance(module, RNNStack):
            way, layer, leaf = name.split(".")
            suffix = "" if way == "ahead" else "_reverse"
            yield WeightName(name, f"{leaf.removesuffix('0')}{layer}{suffix}", None)
            continue
        theirs, third = name, None
        for ours, other in parts.items():
            theirs = re.sub(rf"(^|^layers\.\d+\.){re.escape(ours)}\.", rf"\1{other}.", theirs)
        found = re.fullmatch(r"(.*?)(query|key|value)_proj\.(weight|bias)", theirs)
        if found is not None:
            owner = cast(MultiHeadAttention, module.get_submodule(name.rsplit(".", 2)[0]))
            if isinstance(module, MultiHeadAttention):
                owner = module
            theirs = f"{found[1]}in_proj_{found[3]}"
            third = ("query", "key", "value").index(found[2])
            if found[3] == "weight" and {owner.key_size, owner.value_size} != {owner.dim}:
                theirs, third = f"{found[1]}{found[2][0]}_proj_weight", None
        yield WeightName(name, theirs, third)


def _made(module: nn.Module, table: dict[type[nn.Module], Callable[[Any], nn.Module]]) -> nn.Module:
    """Return a module of the other side without its weights."""
    # by exact type: a subclass may compute something else with the same weights
    if type(module) not in table:
        raise ArgumentError(
            "module",
            f"be one of {', '.join(kind.__name__ for kind in table)}",
            f"of type {type(module).__name__}",
            "convert its parts one by one, and reassemble them",
        )
    with torch.random.fork_rng(devices=()):
        return table[type(module)](module)


def _filled(made: nn.Module, weights: dict[str, Tensor], source: nn.Module) -> nn.Module:
    """Return a module with copies of these weights, in the mode of its source."""
    copies = {name: weight.detach().clone() for name, weight in weights.items()}
    made.load_state_dict(copies, assign=True)
    return made.train(source.training)


def _attention_from_torch(theirs: nn.MultiheadAttention) -> MultiHeadAttention:
    given = {"add_bias_kv": theirs.bias_k is not None, "add_zero_attn": theirs.add_zero_attn}
    for name, value in given.items():
        _require(name, value, False, "ours sees given keys alone, so make torch's without it")
    return MultiHeadAttention(
        theirs.embed_dim,
        theirs.num_heads,
        key_size=theirs.kdim,
        value_size=theirs.vdim,
        bias=theirs.in_proj_bias is not None,
        dropout=theirs.dropout,
    )


def _attention_to_torch(ours: MultiHeadAttention) -> nn.MultiheadAttention:
    _require("num_kv_heads", ours.num_kv_heads, ours.num_heads, NOTHING_LIKE_IT)
    _require("position_bias", ours.position_bias, None, NOTHING_LIKE_IT)
    _require("rotation", ours.rotation, None, NOTHING_LIKE_IT)
    _require("window", ours.window, None, NOTHING_LIKE_IT)
    _require("head_dim", ours.head_dim * ours.num_heads, ours.dim, NOTHING_LIKE_IT)
    _require("qkv_bias", ours.query_proj.bias is None, ours.out_proj.bias is None, NOTHING_LIKE_IT)
    return nn.MultiheadAttention(
        ours.dim,
        ours.num_heads,
        dropout=ours.dropout,
        bias=ours.query_proj.bias is not None,
        kdim=ours.key_size,
        vdim=ours.value_size,
        batch_first=True,
    )


def _layer_arguments(theirs: nn.Module) -> tuple[int, int, int, LayerOptions]:
    """Return the sizes and the options of a layer of torch, for ours."""
    if type(theirs) not in (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer):
        _made(theirs, FROM_TORCH)  # raises
    layer = cast(nn.TransformerEncoderLayer, theirs)
    options = LayerOptions(
        dropout=layer.dropout.p,
        norm_first=layer.norm_first,
        activation=_activation(layer.activation),
        eps=layer.norm1.eps,
        bias=layer.linear1.bias is not None,
        attention_dropout=layer.self_attn.dropout,
    )
    attention = layer.self_attn
    return attention.embed_dim, attention.num_heads, layer.linear1.out_features, options


def _decoder_layer_from_torch(theirs: nn.TransformerDecoderLayer) -> TransformerDecoderLayer:
    memory_size = theirs.multihead_attn.kdim
    return TransformerDecoderLayer(*_layer_arguments(theirs), memory_size=memory_size)


def _stack_from_torch(
    theirs: nn.TransformerEncoder | nn.TransformerDecoder,
) -> TransformerEncoder | TransformerDecoder:
    check_positive(num_layers=len(theirs.layers))
    dim, heads, inner, options = _layer_arguments(theirs.layers[0])
    sizes = (dim, heads, inner, len(theirs.layers))
    made: TransformerEncoder | TransformerDecoder
    if isinstance(theirs, nn.TransformerEncoder):
        made = TransformerEncoder(*sizes, options)
    else:
        memory_size = cast(nn.TransformerDecoderLayer, theirs.layers[0]).multihead_attn.kdim
        made = TransformerDecoder(*sizes, options, memory_size=memory_size)
    made.norm = copy.deepcopy(theirs.norm)
    return made


def _layer_to_torch(
    ours: TransformerEncoderLayer | TransformerDecoderLayer,
) -> nn.TransformerEncoderLayer | nn.TransformerDecoderLayer:
    residual, block = ours.attention_residual, ours.feed_forward
    _require("norm", type(residual.norm).__name__, "LayerNorm", NOTHING_LIKE_IT)
    _require("gated", block.gate is not None, False, NOTHING_LIKE_IT)
    if block.activation not in ("relu", "gelu"):
        _require("activation", block.activation, "gelu", NOTHING_LIKE_IT)
    options: dict[str, Any] = {
        "dropout": block.dropout.p,
        "activation": block.activation,
        "layer_norm_eps": cast(nn.LayerNorm, residual.norm).eps,
        "norm_first": residual.norm_first,
        "bias": block.inner.bias is not None,
        "batch_first": True,
    }
    sizes = (ours.attention.dim, ours.attention.num_heads, block.inner.out_features)
    if isinstance(ours, TransformerEncoderLayer):
        encoder = nn.TransformerEncoderLayer(*sizes, **options)
        encoder.self_attn = _attention_to_torch(ours.attention)
        return encoder
    if ours.cross is None:
        raise ArgumentError(
            "memory_size",
            "be a number, since every decoder layer of torch attends to a memory",
            None,
            "keep this module, or make one with a memory_size",
        )
    decoder = nn.TransformerDecoderLayer(*sizes, **options)
    decoder.self_attn = _attention_to_torch(ours.attention)
    decoder.multihead_attn = _attention_to_torch(ours.cross)
    return decoder


def _stack_to_torch(
    ours: TransformerEncoder | TransformerDecoder,
) -> nn.TransformerEncoder | nn.TransformerDecoder:
    _require("shared_bias", ours.position_bias, None, NOTHING_LIKE_IT)
    _require("repeats", getattr(ours, "repeats", 1), 1, NOTHING_LIKE_IT)
    layer, norm = _layer_to_torch(cast(Any, ours.layers[0])), copy.deepcopy(ours.norm)
    if isinstance(layer, nn.TransformerEncoderLayer):
        return nn.TransformerEncoder(layer, len(ours.layers), norm, enable_nested_tensor=False)
    return nn.TransformerDecoder(layer, len(ours.layers), norm)


def _rnn_from_torch(theirs: nn.RNNBase) -> RNNStack:
    _require("proj_size", theirs.proj_size, 0, "ours has no projection, so make torch's without")
    fix = "ours has the paper's tanh alone, so keep torch's module or train one with tanh"
    _require("nonlinearity", getattr(theirs, "nonlinearity", "tanh"), "tanh", fix)
    return RNNStack(
        theirs.input_size,
        theirs.hidden_size,
        cell=cast(Cell, next(cell for cell, kind in CELLS.items() if type(theirs) is kind)),
        num_layers=theirs.num_layers,
        bidirectional=theirs.bidirectional,
        dropout=theirs.dropout,
        bias=theirs.bias,
    )


def _rnn_to_torch(ours: RNNStack) -> nn.RNNBase:
    theirs = CELLS[ours.cell](
        ours.input_size,
        ours.hidden_size,
        num_layers=ours.num_layers,
        bias=cast(nn.RNNBase, ours.ahead[0]).bias,
        batch_first=True,
        bidirectional=ours.back is not None,
    )
    theirs.dropout = ours.dropout.p  # the constructor warns about dropout of a single layer
    return theirs


def _require(name: str, value: object, wanted: object, fix: str) -> None:
    """Raises if a module has a feature that the other side lacks."""
    if value != wanted:
        shown = type(value).__name__ if isinstance(value, nn.Module) else value
        raise ArgumentError(name, f"be {wanted} to be carried over", shown, fix)


def _activation(activation: object) -> Activation:
    if activation in (F.relu, torch.relu) or type(activation) is nn.ReLU:
        return "relu"
    if activation is F.gelu or repr(activation) == repr(nn.GELU()):
        return "gelu"
    raise ArgumentError(
        "activation",
        "be relu, or gelu without approximation, to be carried over",
        getattr(activation, "__name__", repr(activation)),
        "keep torch's module, or train one with one of these",
    )


FROM_TORCH: Final[dict[type[nn.Module], Callable[[Any], nn.Module]]] = {
    nn.MultiheadAttention: _attention_from_torch,
    nn.TransformerEncoderLayer: lambda theirs: TransformerEncoderLayer(*_layer_arguments(theirs)),
    nn.TransformerEncoder: _stack_from_torch,
    nn.TransformerDecoderLayer: _decoder_layer_from_torch,
    nn.TransformerDecoder: _stack_from_torch,
    nn.LSTM: _rnn_from_torch,
    nn.GRU: _rnn_from_torch,
    nn.RNN: _rnn_from_torch,
}
TO_TORCH: Final[dict[type[nn.Module], Callable[[Any], nn.Module]]] = {
    MultiHeadAttention: _attention_to_torch,
    TransformerEncoderLayer: _layer_to_torch,
    TransformerEncoder: _stack_to_torch,
    TransformerDecoderLayer: _layer_to_torch,
    TransformerDecoder: _stack_to_torch,
    RNNStack: _rnn_to_torch,
}
