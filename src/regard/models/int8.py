"""Linear layers with int8 weights, quantised when a model is loaded.

Weights have a scale for each output; inputs are quantised at each call, with one scale. Products
are then sums of integers, for which newer chips have instructions (AVX-512 VNNI, AMX), and weights
take a quarter of the memory traffic.
"""

import copy
import platform
import warnings
from collections.abc import Callable
from functools import cache, partial
from threading import Lock
from typing import Any, Final, cast, final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from regard.errors import ArgumentError
from regard.models.embedding import OutputLayer, TokenEmbedding
from regard.models.protocol import Keep, SequenceModel, select_positions

#: weights of a matrix from which on int8 is faster than 32 bits
LEAST_WEIGHTS: Final = 1 << 15
_packing: Final = Lock()  # torch chooses the engine by a setting of the whole process


@cache
def int8_engine() -> str:
    """Return torch's engine of int8 products on this chip; raises if there is none.

    Without VNNI, oneDNN's sums of two products may overflow, and fbgemm takes inputs of 7 bits.
    """
    known = torch.backends.quantized.supported_engines
    if "onednn" in known and torch.cpu._is_vnni_supported():
        return "onednn"
    for name in ("fbgemm", "qnnpack"):
        if name in known and _runs(name):
            return name
    raise ArgumentError(
        "precision",
        "be one that this build of torch can compute on this chip",
        f"int8, for which it has no engine on {platform.machine()}",
        "use 32, or bf16",
    )


class PackedProduct:
    """`W x + b` with int8 weights in the layout of an engine."""

    def __init__(self, weight: Tensor, bias: Tensor | None, engine: str) -> None:
        scales = (weight.abs().amax(dim=1) / 127).clamp(min=torch.finfo(torch.float32).tiny)
        zeros = torch.zeros(len(weight), dtype=torch.long)
        self.reduce_range = engine == "fbgemm"
        with _packing, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that quantised tensors are to move to torchao
            before = torch.backends.quantized.engine
            torch.backends.quantized.engine = engine
            try:
                rounded = torch.quantize_per_channel(weight, scales.double(), zeros, 0, torch.qint8)
                self.packed = torch.ops.quantized.linear_prepack(rounded, bias)
            finally:
                torch.backends.quantized.engine = before

    def __call__(self, x: Tensor) -> Tensor:
        """Return the product with each row of `x`."""
        found: Tensor = torch.ops.quantized.linear_dynamic(
            x, self.packed, reduce_range=self.reduce_range
        )
        return found


def pack(weight: Tensor, bias: Tensor | None) -> PackedProduct:
    """Quantise a matrix of weights."""
    detached = None if bias is None else bias.detach().float()
    return PackedProduct(weight.detach().float(), detached, int8_engine())


def _runs(engine: str) -> bool:
    """Return whether an engine computes a small product."""
    try:
        PackedProduct(torch.eye(8), None, engine)(torch.ones(2, 8))
    except RuntimeError:
        return False
    return True


@final
class Int8Linear(nn.Module):
    """A linear layer with int8 weights; gradients are those of the weights of 32 bits."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.product = pack(self.weight, self.bias)

    def forward(self, x: Tensor) -> Tensor:
        """`W x + b`."""
        if torch.is_grad_enabled() and x.requires_grad:
            return F.linear(x, self.weight, self.bias)
        return self.product(x)


@final
class Int8OutputLayer(nn.Module):
    """An `OutputLayer` with int8 weights."""

    def __init__(self, layer: OutputLayer, embedding: TokenEmbedding) -> None:
        super().__init__()
        self.projection = layer.projection
        weight = embedding.table.weight if layer.weight is None else layer.weight
        self.weight, self.bias, self.tied = weight, layer.bias, layer.weight is None
        self.product = pack(weight, layer.bias)

    def forward(self, features: Tensor, embedding: TokenEmbedding, keep: Keep = None) -> Tensor:
        """Score every token at the positions to keep."""
        x = select_positions(features, keep)
        x = x if self.projection is None else self.projection(x)
        if torch.is_grad_enabled() and x.requires_grad:
            return F.linear(x, self.weight, self.bias)
        return self.product(x)


def int8_copy(model: SequenceModel) -> SequenceModel:
    """Return a model with int8 weights in its large linear layers; the others are shared.

    Recurrent layers keep their 32 bits, but for the products of a decoder's step on the CPU.
    """
    tensors: tuple[Any, ...] = (*model.parameters(), *model.buffers())
    duplicate = copy.deepcopy(model, {id(tensor): tensor for tensor in tensors})
    for module in list(duplicate.modules()):
        embedding = getattr(module, "embedding", None)
        for name, child in list(module.named_children()):
            if isinstance(child, nn.Linear) and child.weight.numel() >= LEAST_WEIGHTS:
                setattr(module, name, Int8Linear(child))
            elif (
                isinstance(child, OutputLayer)
                and isinstance(embedding, TokenEmbedding)
                and embedding.vocab * embedding.dim >= LEAST_WEIGHTS
            ):
                setattr(module, name, Int8OutputLayer(child, embedding))
    return duplicate


def is_int8(model: nn.Module) -> bool:
    """Return whether a model has int8 weights."""
    return any(isinstance(module, Int8Linear | Int8OutputLayer) for module in model.modules())


#: `W x + b` of rows of vectors
Product = Callable[[Tensor], Tensor]
#: weights of a matrix that no cache holds: oneDNN reads it in its own order
LARGE: Final = 1 << 21
#: rows for which it is packed; for others the order is the same
PACKED_FOR: Final = 16
#: columns beyond a transposed matrix, since rows a power of two apart share places in a cache
APART: Final = 16


def product(weight: Tensor, bias: Tensor | None, *, int8: bool) -> Product:
    """Return a product of rows with a copy of a matrix of weights.

    A search has few rows, for which `F.linear` takes up to three times as long on a CPU.
    """
    weight, bias = weight.detach(), None if bias is None else bias.detach()
    if int8:
        return pack(weight, bias)
    backends: Any = torch.backends
    on_x86 = backends.mkldnn.is_available() and backends.mkl.is_available()
    if weight.numel() >= LARGE and on_x86:
        run: Any = torch.ops.mkldnn._linear_pointwise
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), PACKED_FOR)
        return lambda x: run(x, packed, bias, "none", [], "")
    columns = weight.new_empty(weight.shape[1], len(weight) + APART)[:, : len(weight)]
    columns.copy_(weight.t())
    return partial(F.linear, weight=columns.t(), bias=bias)


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
