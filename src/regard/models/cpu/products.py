"""Products with weights, as the steps of a decoder take them: in 32 bits or with int8 weights."""

from collections.abc import Callable
from functools import partial
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.models.embedding import OutputLayer, TokenEmbedding
from regard.models.int8 import Int8Linear, Int8OutputLayer, pack

#: `W x + b` of rows of vectors
Product = Callable[[Tensor], Tensor]


def product(weight: Tensor, bias: Tensor | None, *, int8: bool) -> Product:
    """Return a product with a matrix of weights."""
    weight = weight.detach().contiguous()
    if int8:
        return pack(weight, bias)
    return partial(F.linear, weight=weight, bias=None if bias is None else bias.detach())


def product_of(*layers: nn.Module) -> Product:
    """Return one product with the weights of linear layers that read the same, without biases."""
    return product(
        torch.cat([cast(Tensor, layer.weight).detach() for layer in layers]),
        None,
        int8=any(isinstance(layer, Int8Linear) for layer in layers),
    )


def bias_of(*layers: nn.Module) -> Tensor:
    """Return the biases of layers one after another, zeros for those that have none."""
    parts = []
    for layer in layers:
        bias, weight = cast(Tensor | None, layer.bias), cast(Tensor, layer.weight)
        parts.append(weight.new_zeros(len(weight)) if bias is None else bias)
    return torch.cat(parts).detach()


def output_weight(output: OutputLayer | Int8OutputLayer, embedding: TokenEmbedding) -> Tensor:
    """Return the matrix of an output layer, which may be the table of the embedding."""
    weight = embedding.table.weight if output.weight is None else output.weight
    return weight.detach()
