"""Norms of the vectors that attention carries (Kobayashi et al., 2020).

https://aclanthology.org/2020.emnlp-main.574: a large weight on a short vector carries little. With
`f_h(x_j) = W_h v_hj`, the value of key j in head h after its part of the output projection, query i
gets the vector `sum_h a_hij f_h(x_j)` from key j. Its norm says how much that is.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention import MultiHeadAttention
from regard.layers import TransformerDecoderLayer, TransformerEncoderLayer

Array = npt.NDArray[Any]


class ValueProjection(NamedTuple):
    """Values of one attention, and the matrix that its concatenated heads go through.

    Attributes:
        value: (kv_heads, keys, head_dim).
        projection: (dim, heads * head_dim); None if there is none.
    """

    value: Tensor
    projection: Tensor | None


def value_norms(
    weights: Float[np.ndarray, "heads queries keys"], values: ValueProjection
) -> Float[np.ndarray, "queries keys"]:
    """Return `|| sum_h a_hij f_h(x_j) ||` of each query i and key j.

    The squared norm is a quadratic form in the weights of the heads, `sum_hg a_hij a_gij
    (f_h(x_j) . f_g(x_j))`: no vector is made for each pair of a query and a key.
    """
    value = values.value.detach().double().cpu()
    heads = len(weights)
    value = value.repeat_interleave(heads // len(value), dim=0)  # shared by groups of queries
    if values.projection is not None:
        matrix = values.projection.detach().double().cpu()
        parts = matrix.reshape(len(matrix), heads, -1)  # (dim, heads, head_dim)
        value = torch.einsum("dhk,hjk->hjd", parts, value)
    products = torch.einsum("hjd,gjd->jhg", value, value).numpy()
    squares = np.einsum("hij,jhg,gij->ij", weights, products, weights, optimize=True)
    norms: Array = np.sqrt(np.maximum(squares, 0.0))
    return norms


@contextmanager
def record_values(model: nn.Module) -> Iterator[dict[str, list[ValueProjection]]]:
    """Record the values of the multi-head attentions of regard's Transformers, by kind of map.

    Attentions whose values depend on the distance, as with `ShawRelativePositions`, are left out.
    """
    found: dict[str, list[ValueProjection]] = {}

    def keep(kind: str, part: MultiHeadAttention, *call: Any) -> None:
        value: Tensor = call[2][0]  # a hook gets the module, its inputs and its output
        split = value.reshape(len(value), part.num_kv_heads, -1).transpose(0, 1)
        found.setdefault(kind, []).append(ValueProjection(split, part.out_proj.weight))

    handles = [
        part.value_proj.register_forward_hook(partial(keep, kind, part))
        for kind, part in _attentions(model)
    ]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def _attentions(model: nn.Module) -> Iterator[tuple[str, MultiHeadAttention]]:
    for layer in model.modules():
        if isinstance(layer, TransformerEncoderLayer):
            parts = [("encoder-self", layer.attention)]
        elif isinstance(layer, TransformerDecoderLayer):
            parts = [("decoder-self", layer.attention)]
            parts += [("cross", layer.cross)] if layer.cross is not None else []
        else:
            continue
        for kind, part in parts:
            if part.position_bias is None or not part.position_bias.mixes:
                yield kind, part
