"""Switch attention heads off: what a head adds to the output of its attention becomes zero.

The contexts of all heads stand side by side in the input of an attention's output projection. With
the weights of one head's slice at zero, the head contributes nothing, whatever kernel computes the
attention. The weights are put back when the block ends.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Final, NamedTuple

import torch
from torch import Tensor, nn

from regard.attention import MultiHeadAttention
from regard.errors import ArgumentError
from regard.layers.transformer import TransformerDecoderLayer, TransformerEncoderLayer
from regard.seeing.head_habits import HeadKey

#: names of the output projection in an attention, as libraries have them
OUTPUTS: Final = (
    *("out_proj", "o_proj", "c_proj", "o", "wo", "out_lin", "dense", "proj", "proj_out", "to_out"),
    *("output.dense", "to_out.0"),
)


class HeadSwitch(NamedTuple):
    """The slice of an output projection's input that belongs to one head."""

    projection: nn.Module
    start: int
    end: int

    @property
    def weights(self) -> Tensor:
        """The weights of the slice, as a view."""
        weight = self.projection.weight
        assert isinstance(weight, Tensor)
        # the Conv1D of transformers has its weights as (inputs, outputs)
        by_input = weight if _is_transposed(self.projection) else weight.T
        return by_input[self.start : self.end]


@contextmanager
def heads_off(*heads: HeadSwitch) -> Iterator[None]:
    """Switch heads off inside the block; the weights are restored after it, bit by bit."""
    with ExitStack() as stack:
        for head in heads:
            stack.enter_context(_off(head))
        yield


@contextmanager
def _off(head: HeadSwitch) -> Iterator[None]:
    with torch.no_grad():
        own = head.weights.clone()
        head.weights.zero_()
    try:
        yield
    finally:
        with torch.no_grad():
            head.weights.copy_(own)


def transformer_switches(model: nn.Module) -> dict[HeadKey, HeadSwitch]:
    """Return the switch of each head of a model that is made of regard's Transformer layers.

    Layers are counted in the order of the modules, as in the maps of a trace. Attention of other
    sorts has one head, which is all that the model has, and no switch.
    """
    found: dict[HeadKey, HeadSwitch] = {}
    layers: dict[str, int] = {}
    for module in model.modules():
        own: dict[str, nn.Module | None] = {}
        if isinstance(module, TransformerEncoderLayer):
            own = {"encoder-self": module.attention}
        elif isinstance(module, TransformerDecoderLayer):
            own = {"decoder-self": module.attention, "cross": module.cross}
        for kind, attention in own.items():
            if isinstance(attention, MultiHeadAttention):
                layer = layers[kind] = layers.get(kind, -1) + 1
                found |= _switches(kind, layer, attention.out_proj, attention.num_heads)
    return found


def module_switches(
    root: nn.Module, attentions: Mapping[tuple[str, int], tuple[str, int]]
) -> dict[HeadKey, HeadSwitch]:
    """Return the switch of each head of any model, by the names of its attention modules.

    Args:
        root: the model.
        attentions: name of the module and number of heads, by kind of map and layer.

    Raises:
        ArgumentError: for an attention whose output projection is not found.
    """
    found: dict[HeadKey, HeadSwitch] = {}
    for (kind, layer), (name, heads) in attentions.items():
        found |= _switches(kind, layer, output_projection(root, name, heads), heads)
    return found


def output_projection(root: nn.Module, name: str, heads: int) -> nn.Module:
    """Return the linear map after the heads of an attention: inside of it, or beside it.

    Args:
        root: the model.
        name: of the attention, as in `named_modules`.
        heads: their number, which divides the inputs of the projection.
    """
    modules: dict[str, nn.Module] = dict(root.named_modules())
    place = name
    for _ in range(2):  # the attention itself, then the module that holds it
        for output in OUTPUTS:
            found = modules.get(f"{place}.{output}" if place else output)
            if found is not None and _inputs(found) and _inputs(found) % heads == 0:
                return found
        place = place.rpartition(".")[0]
    raise ArgumentError(
        "attention",
        f"have an output projection, by one of the names {', '.join(OUTPUTS)}, to switch off a "
        f"head",
        name or type(root).__name__,
        "look at its habits alone",
    )


def _switches(
    kind: str, layer: int, projection: nn.Module, heads: int
) -> dict[HeadKey, HeadSwitch]:
    size = _inputs(projection) // heads
    return {
        (kind, layer, head): HeadSwitch(projection, head * size, (head + 1) * size)
        for head in range(heads)
    }


def _is_transposed(module: nn.Module) -> bool:
    return type(module).__name__ == "Conv1D"


def _inputs(module: nn.Module) -> int:
    """Return the width of the inputs of a linear map; 0 for any other module."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2 or not weight.is_floating_point():
        return 0
    if not (isinstance(module, nn.Linear) or _is_transposed(module)):
        return 0
    return int(weight.shape[0] if _is_transposed(module) else weight.shape[1])
