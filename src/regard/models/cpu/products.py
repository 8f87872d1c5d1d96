"""Products with weights, as the steps of a decoder take them: in 32 bits or with int8 weights."""

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.models.embedding import OutputLayer, TokenEmbedding
from regard.models.int8 import Int8Linear, Int8OutputLayer, pack


class Product(Protocol):
    """`W x + b` of rows of vectors."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return (rows, outputs) of (rows, inputs)."""
        ...


class FloatProduct:
    """`W x + b` in 32 bits."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight.detach(), None if bias is None else bias.detach()

    def __call__(self, x: Tensor) -> Tensor:
        """Return the product."""
        return F.linear(x, self.weight, self.bias)


def product(weight: Tensor, bias: Tensor | None, *, int8: bool) -> Product:
    """Return a product with a matrix of weights."""
    weight = weight.detach()
    return pack(weight, bias) if int8 else FloatProduct(weight.contiguous(), bias)


def product_of(*layers: nn.Module) -> Product:
    """Return one product with the weights of linear layers that read the same vectors."""
    weights, biases = [], []
    for layer in layers:
        assert isinstance(layer, nn.Linear | Int8Linear)
        weights.append(layer.weight.detach())
        biases.append(layer.bias)
    int8 = any(isinstance(layer, Int8Linear) for layer in layers)
    return product(torch.cat(weights), _joined(biases, weights), int8=int8)


def _joined(biases: Sequence[Tensor | None], weights: Sequence[Tensor]) -> Tensor | None:
    """Return all biases one after another, zeros for those that are missing."""
    if all(bias is None for bias in biases):
        return None
    pairs = zip(biases, weights, strict=True)
    return torch.cat(
        [weight.new_zeros(len(weight)) if bias is None else bias.detach() for bias, weight in pairs]
    )


def output_weight(output: OutputLayer | Int8OutputLayer, embedding: TokenEmbedding) -> Tensor:
    """Return the matrix of an output layer, which may be the table of the embedding."""
    weight = embedding.table.weight if output.weight is None else output.weight
    return weight.detach()
