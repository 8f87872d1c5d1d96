"""Attention and RNNs of torch as ours and back: the same weights, cut in different ways."""

from collections.abc import Iterator, Sequence
from typing import Final, cast

import torch
from torch import Tensor, nn

from regard.attention import MultiHeadAttention
from regard.errors import ArgumentError
from regard.layers.rnn import CELLS, Cell, RNNStack

RNN_CELLS: Final[dict[str, Cell]] = {"RNN_TANH": "rnn", "GRU": "gru", "LSTM": "lstm"}


def attention_from_torch(theirs: nn.MultiheadAttention) -> MultiHeadAttention:
    """Ours, with three projections for the tensor that torch keeps them in."""
    given = {"add_bias_kv": theirs.bias_k is not None, "add_zero_attn": theirs.add_zero_attn}
    for name, value in given.items():
        require(name, value, False, "ours sees given keys alone, so make torch's without it")
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


def attention_to_torch(ours: MultiHeadAttention) -> nn.MultiheadAttention:
    """Torch's, with its one tensor where it would have one."""
    fix = "torch's has nothing like it, so leave it out or keep this module"
    require("num_kv_heads", ours.num_kv_heads, ours.num_heads, fix)
    require("position_bias", ours.position_bias, None, fix)
    require("rotation", ours.rotation, None, fix)
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


def rnn_from_torch(theirs: nn.RNNBase) -> RNNStack:
    """A stack of single layers."""
    require("proj_size", theirs.proj_size, 0, "ours has no projection, so make torch's without")
    fix = "ours has the paper's tanh alone, so keep torch's module or train one with tanh"
    require("nonlinearity", getattr(theirs, "nonlinearity", "tanh"), "tanh", fix)
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


def rnn_to_torch(ours: RNNStack) -> nn.RNNBase:
    """One module for all layers."""
    theirs = CELLS[ours.cell](
        ours.input_size,
        ours.hidden_size,
        num_layers=ours.num_layers,
        bias=cast(nn.RNNBase, ours.ahead[0]).bias,
        batch_first=True,
        bidirectional=ours.back is not None,
    )
    theirs.dropout = ours.dropout.p  # its constructor warns of one that a single layer never uses
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
    """Gives each of the three its third of what torch keeps in one tensor."""
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


def require(name: str, value: object, wanted: object, fix: str) -> None:
    """Raises where a module has what the other side does not know."""
    if value != wanted:
        shown = type(value).__name__ if isinstance(value, nn.Module) else value
        raise ArgumentError(name, f"be {wanted} to be carried over", shown, fix)
