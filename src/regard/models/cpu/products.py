"""Products with weights, as the steps of a decoder take them: in 32 bits or with int8 weights."""

from typing import Final, Protocol, cast, runtime_checkable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.models.embedding import OutputLayer, TokenEmbedding
from regard.models.int8 import Int8Linear, Int8OutputLayer, pack

#: weights of a matrix, and rows of vectors, from which on MKL's own layout pays
LARGE: Final = 1 << 20
FEW: Final = 32


@runtime_checkable
class Product(Protocol):
    """`W x + b` of rows of vectors."""

    def __call__(self, x: Tensor) -> Tensor:
        """Return (..., outputs) of (..., inputs)."""
        ...


class FloatProduct:
    """`W x + b` in 32 bits.

    Where MKL is built in, the weights of a large matrix are kept in its own layout, made for a
    number of rows, after that number has come twice in a row: this saves a fifth of the time, and
    making the layout takes as long as a product.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = weight.detach(), None if bias is None else bias.detach()
        self.packs = weight.numel() >= LARGE and torch._C.has_mkl
        self._rows, self._packed = 0, (0, weight)

    def __call__(self, x: Tensor) -> Tensor:
        """Return the product."""
        rows = x.shape[:-1].numel()
        if not self.packs or rows < FEW or x.ndim != 2:
            return F.linear(x, self.weight, self.bias)
        count, packed = self._packed  # one read: other threads may replace it
        if count != rows:
            before, self._rows = self._rows, rows
            if before != rows:
                return F.linear(x, self.weight, self.bias)
            count, packed = rows, torch.ops.mkl._mkl_reorder_linear_weight(self.weight, rows)
            self._packed = count, packed
        found: Tensor = torch.ops.mkl._mkl_linear(x, packed, self.weight, self.bias, rows)
        return found


def product(weight: Tensor, bias: Tensor | None, *, int8: bool) -> Product:
    """Return a product with a matrix of weights."""
    weight = weight.detach()
    return pack(weight, bias) if int8 else FloatProduct(weight.contiguous(), bias)


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
