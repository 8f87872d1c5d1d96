"""Weights from torch's modules and back, so that a model can be switched over and back again.

The leaves of both sides (linear maps, norms, dropouts) are the same classes, so they are copied
whole, with their dtype, device, mode and `requires_grad`. Attention and RNNs are cut differently.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar, cast, overload

import torch
import torch.nn.functional as F
from torch import nn

from regard.attention import MultiHeadAttention
from regard.errors import ArgumentError
from regard.layers.interchange_parts import (
    attention_from_torch,
    attention_to_torch,
    rnn_from_torch,
    rnn_to_torch,
)
from regard.layers.rnn import RNNStack
from regard.layers.transformer import (
    TransformerDecoder,
    TransformerDecoderLayer,
    TransformerEncoder,
    TransformerEncoderLayer,
)
from regard.layers.transformer_blocks import Activation, LayerOptions
from regard.ops.check import check_positive

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
    """Our module with a copy of the weights of torch's; what cannot be carried over raises.

    Ours are always batch first, whatever `module` is, and take our masks: `masks.from_torch` turns
    torch's. Our decoder is causal by itself. Dtype, device, mode (training or evaluation), dropout
    and `requires_grad` are kept; nothing is shared with `module`.

    Args:
        module: an `nn.MultiheadAttention`, `nn.TransformerEncoder`, `nn.TransformerEncoderLayer`,
            `nn.TransformerDecoder`, `nn.TransformerDecoderLayer`, `nn.LSTM`, `nn.GRU` or `nn.RNN`.
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
    """Torch's module with a copy of the weights of ours; what cannot be carried over raises.

    It is made with `batch_first=True`, and an encoder with `enable_nested_tensor=False`, so that it
    returns padded positions too. It takes torch's masks: `masks.to_torch` turns ours. Torch's
    decoder is causal only if it is given such a mask. Dtype, device, mode (training or evaluation),
    dropout and `requires_grad` are kept; nothing is shared with `module`.

    Args:
        module: a `MultiHeadAttention`, `TransformerEncoder`, `TransformerEncoderLayer`,
            `TransformerDecoder`, `TransformerDecoderLayer` or `RNNStack`.
    """
    return _convert(module, TO_TORCH)


Table = Mapping[type[nn.Module], Callable[[Any], nn.Module]]


def _convert(module: nn.Module, table: Table) -> nn.Module:
    # by its very type: a subclass may compute something else with the same weights
    if type(module) not in table:
        raise ArgumentError(
            "module",
            f"be one of {', '.join(kind.__name__ for kind in table)}",
            f"of type {type(module).__name__}",
            "convert its parts one by one, and put them together again",
        )
    every = [parameter for _, parameter in module.named_parameters(remove_duplicate=False)]
    if len(set(every)) < len(every):
        raise ArgumentError(
            "module",
            "hold each weight once",
            f"one with {len(set(every))} weights in {len(every)} places",
            "copy the layers that share weights, or convert one of them and share it again",
        )
    # On no device: whatever is not replaced by a copy has no values, and cannot be overlooked.
    # Where torch has loaded its definitions for that device, even they draw random numbers.
    with torch.device("meta"), torch.random.fork_rng(devices=()):
        return table[type(module)](module)


def _encoder_layer_from_torch(theirs: nn.TransformerEncoderLayer) -> TransformerEncoderLayer:
    ours = TransformerEncoderLayer(*_sizes(theirs), _options(theirs))
    return _with_parts(ours, theirs, ENCODER_PARTS, FROM_TORCH)


def _encoder_layer_to_torch(ours: TransformerEncoderLayer) -> nn.TransformerEncoderLayer:
    theirs = nn.TransformerEncoderLayer(**_torch_options(ours))
    return _with_parts(theirs, ours, _turned(ENCODER_PARTS), TO_TORCH)


def _decoder_layer_from_torch(theirs: nn.TransformerDecoderLayer) -> TransformerDecoderLayer:
    memory_size = theirs.multihead_attn.kdim
    ours = TransformerDecoderLayer(*_sizes(theirs), _options(theirs), memory_size=memory_size)
    return _with_parts(ours, theirs, DECODER_PARTS, FROM_TORCH)


def _decoder_layer_to_torch(ours: TransformerDecoderLayer) -> nn.TransformerDecoderLayer:
    if ours.cross is None:
        raise ArgumentError(
            "memory_size",
            "be a number, since every decoder layer of torch looks at a memory",
            None,
            "keep this module, or make one with a memory_size",
        )
    theirs = nn.TransformerDecoderLayer(**_torch_options(ours))
    return _with_parts(theirs, ours, _turned(DECODER_PARTS), TO_TORCH)


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


FROM_TORCH: Final[Table] = {
    nn.MultiheadAttention: attention_from_torch,
    nn.TransformerEncoderLayer: _encoder_layer_from_torch,
    nn.TransformerEncoder: _encoder_from_torch,
    nn.TransformerDecoderLayer: _decoder_layer_from_torch,
    nn.TransformerDecoder: _decoder_from_torch,
    nn.LSTM: rnn_from_torch,
    nn.GRU: rnn_from_torch,
    nn.RNN: rnn_from_torch,
}
TO_TORCH: Final[Table] = {
    MultiHeadAttention: attention_to_torch,
    TransformerEncoderLayer: _encoder_layer_to_torch,
    TransformerEncoder: _encoder_to_torch,
    TransformerDecoderLayer: _decoder_layer_to_torch,
    TransformerDecoder: _decoder_to_torch,
    RNNStack: rnn_to_torch,
}


def _with_parts(made: Made, source: nn.Module, names: Mapping[str, str], table: Table) -> Made:
    """Puts a copy of each part of `source` where it belongs."""
    made.train(source.training)
    for name, source_name in names.items():
        part = source.get_submodule(source_name)
        copied = _convert(part, table) if name in ATTENTION_PARTS else copy.deepcopy(part)
        made.set_submodule(name, copied)
    return made


def _layers(stack: nn.Module, table: Table) -> list[nn.Module]:
    layers = cast(nn.ModuleList, stack.layers)
    check_positive(num_layers=len(layers))
    return [_convert(layer, table) for layer in layers]


def _with_layers(made: Made, source: nn.Module, layers: list[nn.Module]) -> Made:
    """Puts these layers and a copy of the last norm of `source` into an empty stack."""
    made.layers = nn.ModuleList()
    made.train(source.training)
    made.layers.extend(layers)  # after the mode is set, since each layer has its own
    made.norm = copy.deepcopy(source.norm)
    return made


def _turned(names: Mapping[str, str]) -> dict[str, str]:
    return {theirs: ours for ours, theirs in names.items()}


def _sizes(theirs: TorchLayer) -> tuple[int, int, int]:
    return theirs.self_attn.embed_dim, theirs.self_attn.num_heads, theirs.linear1.out_features


def _options(theirs: TorchLayer) -> LayerOptions:
    """What is no part: dropouts, biases and the eps of norms come with theirs."""
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
