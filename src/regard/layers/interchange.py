"""Conversion of modules from and to those of torch, weights included.

The leaves of both sides (linear maps, norms, dropouts) are the same classes, so they are copied
whole, with their dtype, device, mode and `requires_grad`. Attention and RNNs split their weights
differently.
"""

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar, cast, overload

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
from regard.ops.recurrence.cells import Cell

Made = TypeVar("Made", bound=nn.Module)
TorchLayer = nn.TransformerEncoderLayer | nn.TransformerDecoderLayer

# our name of each part of a layer, and torch's
ENCODER_PARTS: Final = {
    "attention": "self_attn",
    "attention_residual.norm": "norm1",
    "attention_residual.dropout": "dropout1",
    "feed_forward.inner": "linear1",
    "feed_forward.dropout": "dropout",
    "feed_forward.outer": "linear2",
    "feed_forward_residual.norm": "norm2",
    "feed_forward_residual.dropout": "dropout2",
}
DECODER_PARTS: Final = ENCODER_PARTS | {
    "cross": "multihead_attn",
    "cross_residual.norm": "norm2",
    "cross_residual.dropout": "dropout2",
    "feed_forward_residual.norm": "norm3",
    "feed_forward_residual.dropout": "dropout3",
}
RNN_CELLS: Final[dict[str, Cell]] = {"RNN_TANH": "rnn", "GRU": "gru", "LSTM": "lstm"}
ATTENTION_PARTS: Final = ("attention", "self_attn", "cross", "multihead_attn")


# fmt: off
@overload
def from_torch(module: nn.MultiheadAttention) -> MultiHeadAttention: ...
@overload
def from_torch(module: nn.TransformerEncoderLayer) -> TransformerEncoderLayer: ...
@overload
def from_torch(module: nn.TransformerEncoder) -> TransformerEncoder: ...
@overload
def from_torch(module: nn.TransformerDecoderLayer) -> TransformerDecoderLayer: ...
@overload
def from_torch(module: nn.TransformerDecoder) -> TransformerDecoder: ...
@overload
def from_torch(module: nn.RNNBase) -> RNNStack: ...
@overload
def from_torch(module: nn.Module) -> nn.Module: ...
# fmt: on
def from_torch(module: nn.Module) -> nn.Module:
    """Our module with a copy of the weights of torch's; raises for unsupported features.

    Ours are always batch first, whatever `module` is, and take our masks: `masks.from_torch` turns
    torch's. Our decoder is causal by itself. Dtype, device, mode (training or evaluation), dropout
    and `requires_grad` are kept; nothing is shared with `module`.

    Args:
        module: an `nn.MultiheadAttention`, `nn.TransformerEncoder`, `nn.TransformerEncoderLayer`,
            `nn.TransformerDecoder`, `nn.TransformerDecoderLayer`, `nn.LSTM`, `nn.GRU` or `nn.RNN`.

    Examples:
        >>> layer = torch.nn.TransformerEncoderLayer(12, 3, 24, batch_first=True)
        >>> type(regard.layers.from_torch(layer)).__name__
        'TransformerEncoderLayer'
    """
    return _convert(module, FROM_TORCH)


# fmt: off
@overload
def to_torch(module: MultiHeadAttention) -> nn.MultiheadAttention: ...
@overload
def to_torch(module: TransformerEncoderLayer) -> nn.TransformerEncoderLayer: ...
@overload
def to_torch(module: TransformerEncoder) -> nn.TransformerEncoder: ...
@overload
def to_torch(module: TransformerDecoderLayer) -> nn.TransformerDecoderLayer: ...
@overload
def to_torch(module: TransformerDecoder) -> nn.TransformerDecoder: ...
@overload
def to_torch(module: RNNStack) -> nn.RNNBase: ...
@overload
def to_torch(module: nn.Module) -> nn.Module: ...
# fmt: on
def to_torch(module: nn.Module) -> nn.Module:
    """Torch's module with a copy of the weights of ours; raises for unsupported features.

    It is made with `batch_first=True`, and an encoder with `enable_nested_tensor=False`, so that it
    returns padded positions too. It takes torch's masks: `masks.to_torch` turns ours. Torch's
    decoder is causal only if it is given such a mask. Dtype, device, mode (training or evaluation),
    dropout and `requires_grad` are kept; nothing is shared with `module`.

    Args:
        module: a `MultiHeadAttention`, `TransformerEncoder`, `TransformerEncoderLayer`,
            `TransformerDecoder`, `TransformerDecoderLayer` or `RNNStack`.

    Examples:
        >>> type(regard.layers.to_torch(regard.layers.RNNStack(5, 7, cell="gru"))).__name__
        'GRU'
    """
    return _convert(module, TO_TORCH)


Converters = Mapping[type[nn.Module], Callable[[Any], nn.Module]]


def _convert(module: nn.Module, table: Converters) -> nn.Module:
    # by exact type: a subclass may compute something else with the same weights
    if type(module) not in table:
        raise ArgumentError(
            "module",
            f"be one of {', '.join(kind.__name__ for kind in table)}",
            f"of type {type(module).__name__}",
            "convert its parts one by one, and reassemble them",
        )
    every = [parameter for _, parameter in module.named_parameters(remove_duplicate=False)]
    if len(set(every)) < len(every):
        raise ArgumentError(
            "module",
            "hold each weight once",
            f"one with {len(set(every))} weights in {len(every)} places",
            "copy the layers that share weights, or convert one of them and share it again",
        )
    # On the meta device, so that a parameter that is not replaced by a copy has no values and
    # cannot be overlooked. Initialising there may still draw random numbers.
    with torch.device("meta"), torch.random.fork_rng(devices=()):
        return table[type(module)](module)


def _attention_from_torch(theirs: nn.MultiheadAttention) -> MultiHeadAttention:
    """Ours, with three projections for the one tensor of torch."""
    given = {"add_bias_kv": theirs.bias_k is not None, "add_zero_attn": theirs.add_zero_attn}
    for name, value in given.items():
        _require(name, value, False, "ours sees given keys alone, so make torch's without it")
    ours = MultiHeadAttention(
        theirs.embed_dim,
        theirs.num_heads,
        key_size=theirs.kdim,
        value_size=theirs.vdim,
        bias=theirs.in_proj_bias is not None,
        dropout=theirs.dropout,
    )
    linears = (ours.query_proj, ours.key_proj, ours.value_proj)
    if theirs._qkv_same_embed_dim:
        _cut(theirs.in_proj_weight, "weight", linears)
    else:
        separate = (theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight)
        for linear, weight in zip(linears, separate, strict=True):
            linear.weight = _copied(weight)
    if theirs.in_proj_bias is not None:
        _cut(theirs.in_proj_bias, "bias", linears)
    _copy_linear(theirs.out_proj, ours.out_proj)
    return ours.train(theirs.training)


def _attention_to_torch(ours: MultiHeadAttention) -> nn.MultiheadAttention:
    """Torch's, with its one tensor for three projections."""
    fix = "torch's has nothing like it, so leave it out or keep this module"
    _require("num_kv_heads", ours.num_kv_heads, ours.num_heads, fix)
    _require("position_bias", ours.position_bias, None, fix)
    _require("rotation", ours.rotation, None, fix)
    theirs = nn.MultiheadAttention(
        ours.dim,
        ours.num_heads,
        dropout=ours.dropout,
        bias=ours.query_proj.bias is not None,
        kdim=ours.key_size,
        vdim=ours.value_size,
        batch_first=True,
    )
    linears = (ours.query_proj, ours.key_proj, ours.value_proj)
    if theirs._qkv_same_embed_dim:
        theirs.in_proj_weight = _joined("weight", linears)
    else:
        separate = (_copied(linear.weight) for linear in linears)
        theirs.q_proj_weight, theirs.k_proj_weight, theirs.v_proj_weight = separate
    if theirs.in_proj_bias is not None:
        theirs.in_proj_bias = _joined("bias", linears)
    _copy_linear(ours.out_proj, theirs.out_proj)
    return theirs.train(ours.training)


def _rnn_from_torch(theirs: nn.RNNBase) -> RNNStack:
    """A stack of single layers."""
    _require("proj_size", theirs.proj_size, 0, "ours has no projection, so make torch's without")
    fix = "ours has the paper's tanh alone, so keep torch's module or train one with tanh"
    _require("nonlinearity", getattr(theirs, "nonlinearity", "tanh"), "tanh", fix)
    ours = RNNStack(
        theirs.input_size,
        theirs.hidden_size,
        cell=RNN_CELLS[theirs.mode],
        num_layers=theirs.num_layers,
        bidirectional=theirs.bidirectional,
        dropout=theirs.dropout,
        bias=theirs.bias,
    )
    for layer, name, torch_name in _rnn_weights(ours):
        setattr(layer, name, _copied(getattr(theirs, torch_name)))
    return ours.train(theirs.training)


def _rnn_to_torch(ours: RNNStack) -> nn.RNNBase:
    """One module for all layers."""
    theirs = CELLS[ours.cell](
        ours.input_size,
        ours.hidden_size,
        num_layers=ours.num_layers,
        bias=cast(nn.RNNBase, ours.ahead[0]).bias,
        batch_first=True,
        bidirectional=ours.back is not None,
    )
    theirs.dropout = (
        ours.dropout.p
    )  # set here, since the constructor warns about dropout of a single layer
    for layer, name, torch_name in _rnn_weights(ours):
        setattr(theirs, torch_name, _copied(getattr(layer, name)))
    return theirs.train(ours.training)


def _rnn_weights(ours: RNNStack) -> Iterator[tuple[nn.RNNBase, str, str]]:
    """Each layer of ours with the names of its weights, here and in torch's stack."""
    directions = {"": ours.ahead} if ours.back is None else {"": ours.ahead, "_reverse": ours.back}
    for suffix, layers in directions.items():
        for i, layer in enumerate(cast(Sequence[nn.RNNBase], layers)):
            for name in layer._flat_weights_names:
                yield layer, name, f"{name.removesuffix('0')}{i}{suffix}"


def _cut(whole: nn.Parameter, name: str, linears: Sequence[nn.Linear]) -> None:
    """Give each of the three its third of torch's tensor."""
    for linear, third in zip(linears, whole.chunk(3), strict=True):
        setattr(linear, name, nn.Parameter(third.detach().clone(), whole.requires_grad))


def _joined(name: str, linears: Sequence[nn.Linear]) -> nn.Parameter:
    thirds: list[nn.Parameter] = [getattr(linear, name) for linear in linears]
    kinds = {(t.dtype, t.device, t.requires_grad) for t in thirds}
    if len(kinds) > 1:
        raise ArgumentError(
            f"{name} of query_proj, key_proj and value_proj",
            "agree in dtype, device and requires_grad, since torch keeps them in one tensor",
            " and ".join(sorted(map(str, kinds))),
            "make them agree first",
        )
    return nn.Parameter(torch.cat([t.detach() for t in thirds]), thirds[0].requires_grad)


def _copy_linear(source: nn.Linear, target: nn.Linear) -> None:
    target.weight = _copied(source.weight)
    if source.bias is not None:
        target.bias = _copied(source.bias)


def _copied(parameter: Tensor) -> nn.Parameter:
    return nn.Parameter(parameter.detach().clone(), parameter.requires_grad)


def _require(name: str, value: object, wanted: object, fix: str) -> None:
    """Raises if a module has a feature that the other side lacks."""
    if value != wanted:
        shown = type(value).__name__ if isinstance(value, nn.Module) else value
        raise ArgumentError(name, f"be {wanted} to be carried over", shown, fix)


def _encoder_layer_from_torch(theirs: nn.TransformerEncoderLayer) -> TransformerEncoderLayer:
    ours = TransformerEncoderLayer(*_sizes(theirs), _options(theirs))
    return _with_parts(ours, theirs, ENCODER_PARTS, FROM_TORCH)


def _encoder_layer_to_torch(ours: TransformerEncoderLayer) -> nn.TransformerEncoderLayer:
    theirs = nn.TransformerEncoderLayer(**_torch_options(ours))
    return _with_parts(theirs, ours, _inverted(ENCODER_PARTS), TO_TORCH)


def _decoder_layer_from_torch(theirs: nn.TransformerDecoderLayer) -> TransformerDecoderLayer:
    memory_size = theirs.multihead_attn.kdim
    ours = TransformerDecoderLayer(*_sizes(theirs), _options(theirs), memory_size=memory_size)
    return _with_parts(ours, theirs, DECODER_PARTS, FROM_TORCH)


def _decoder_layer_to_torch(ours: TransformerDecoderLayer) -> nn.TransformerDecoderLayer:
    if ours.cross is None:
        raise ArgumentError(
            "memory_size",
            "be a number, since every decoder layer of torch attends to a memory",
            None,
            "keep this module, or make one with a memory_size",
        )
    theirs = nn.TransformerDecoderLayer(**_torch_options(ours))
    return _with_parts(theirs, ours, _inverted(DECODER_PARTS), TO_TORCH)


def _encoder_from_torch(theirs: nn.TransformerEncoder) -> TransformerEncoder:
    layers = _layers(theirs, FROM_TORCH)
    first = cast(TransformerEncoderLayer, layers[0])
    ours = TransformerEncoder(first.attention.dim, 1, 1, 1)
    return _with_layers(ours, theirs, layers)


def _encoder_to_torch(ours: TransformerEncoder) -> nn.TransformerEncoder:
    layers = _layers(ours, TO_TORCH)
    first = cast(nn.TransformerEncoderLayer, layers[0])
    theirs = nn.TransformerEncoder(first, 0, enable_nested_tensor=False)
    theirs.num_layers = len(layers)
    return _with_layers(theirs, ours, layers)


def _decoder_from_torch(theirs: nn.TransformerDecoder) -> TransformerDecoder:
    layers = _layers(theirs, FROM_TORCH)
    first = cast(TransformerDecoderLayer, layers[0])
    memory_size = None if first.cross is None else first.cross.key_size
    ours = TransformerDecoder(first.attention.dim, 1, 1, 1, memory_size=memory_size)
    return _with_layers(ours, theirs, layers)


def _decoder_to_torch(ours: TransformerDecoder) -> nn.TransformerDecoder:
    layers = _layers(ours, TO_TORCH)
    theirs = nn.TransformerDecoder(cast(nn.TransformerDecoderLayer, layers[0]), 0)
    theirs.num_layers = len(layers)
    return _with_layers(theirs, ours, layers)


FROM_TORCH: Final[Converters] = {
    nn.MultiheadAttention: _attention_from_torch,
    nn.TransformerEncoderLayer: _encoder_layer_from_torch,
    nn.TransformerEncoder: _encoder_from_torch,
    nn.TransformerDecoderLayer: _decoder_layer_from_torch,
    nn.TransformerDecoder: _decoder_from_torch,
    nn.LSTM: _rnn_from_torch,
    nn.GRU: _rnn_from_torch,
    nn.RNN: _rnn_from_torch,
}
TO_TORCH: Final[Converters] = {
    MultiHeadAttention: _attention_to_torch,
    TransformerEncoderLayer: _encoder_layer_to_torch,
    TransformerEncoder: _encoder_to_torch,
    TransformerDecoderLayer: _decoder_layer_to_torch,
    TransformerDecoder: _decoder_to_torch,
    RNNStack: _rnn_to_torch,
}


def _with_parts(made: Made, source: nn.Module, names: Mapping[str, str], table: Converters) -> Made:
    """Replace each part of `made` by a copy of that of `source`."""
    made.train(source.training)
    for name, source_name in names.items():
        part = source.get_submodule(source_name)
        copied = _convert(part, table) if name in ATTENTION_PARTS else copy.deepcopy(part)
        made.set_submodule(name, copied)
    return made


def _layers(stack: nn.Module, table: Converters) -> list[nn.Module]:
    layers = cast(nn.ModuleList, stack.layers)
    check_positive(num_layers=len(layers))
    return [_convert(layer, table) for layer in layers]


def _with_layers(made: Made, source: nn.Module, layers: list[nn.Module]) -> Made:
    """Put these layers and a copy of the last norm of `source` into an empty stack."""
    made.layers = nn.ModuleList()
    made.train(source.training)
    made.layers.extend(layers)  # after the mode is set, since each layer has its own
    made.norm = copy.deepcopy(source.norm)
    return made


def _inverted(names: Mapping[str, str]) -> dict[str, str]:
    return {theirs: ours for ours, theirs in names.items()}


def _sizes(theirs: TorchLayer) -> tuple[int, int, int]:
    return theirs.self_attn.embed_dim, theirs.self_attn.num_heads, theirs.linear1.out_features


def _options(theirs: TorchLayer) -> LayerOptions:
    """Options that no part holds; dropouts, biases and the eps of norms come with the parts."""
    return LayerOptions(norm_first=theirs.norm_first, activation=_activation(theirs.activation))


def _torch_options(ours: TransformerEncoderLayer | TransformerDecoderLayer) -> dict[str, Any]:
    return {
        "d_model": ours.attention.dim,
        "nhead": ours.attention.num_heads,
        "dim_feedforward": ours.feed_forward.inner.out_features,
        "activation": ours.feed_forward.activation,
        "norm_first": ours.attention_residual.norm_first,
        "batch_first": True,
    }


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
