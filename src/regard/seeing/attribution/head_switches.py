"""Switch attention heads off: what a head adds to the output of its attention becomes zero.

The contexts of all heads stand side by side in the input of an attention's output projection. With
the weights of one head's slice at zero, the head contributes nothing, whatever kernel computes the
attention. The weights are put back when the block ends.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from regard.attention import MultiHeadAttention
from regard.errors import ArgumentError
from regard.layers.transformer import TransformerDecoderLayer, TransformerEncoderLayer
from regard.ops import AttentionOutput
from regard.seeing.capture.capture_result import CapturedModule
from regard.seeing.trace.head_habits import HeadKey


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
def heads_muted(
    heads: Iterable[HeadSwitch] = (), attentions: Iterable[nn.Module] = ()
) -> Iterator[None]:
    """Switch heads off inside the block for this thread alone, by hooks instead of weights.

    For models that other threads run meanwhile. Each output projection must be called as a module.

    Args:
        heads: whose slices of the input of their output projection become zero.
        attentions: mechanisms of one head, whose contexts become zero.
    """
    thread = threading.get_ident()

    def mute(head: HeadSwitch) -> Callable[..., Any]:
        def before(module: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
            if threading.get_ident() != thread:
                return None
            merged = inputs[0].clone()
            merged[..., head.start : head.end] = 0.0
            return (merged, *inputs[1:])

        return before

    def without_context(module: nn.Module, inputs: Any, output: AttentionOutput) -> Any:
        if threading.get_ident() != thread:
            return None
        return output._replace(context=torch.zeros_like(output.context))

    with ExitStack() as stack:
        for head in heads:
            handle = head.projection.register_forward_pre_hook(mute(head))
            stack.callback(handle.remove)
        for attention in attentions:
            stack.callback(attention.register_forward_hook(without_context).remove)
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
    root: nn.Module, attentions: Mapping[tuple[str, int], CapturedModule]
) -> dict[HeadKey, HeadSwitch]:
    """Return the switch of each head of any model.

    Args:
        root: the model.
        attentions: its attention modules, from `CaptureResult.modules`.

    Raises:
        ArgumentError: for an attention without an output projection.
    """
    # by their memory: some maps use a view, the transposed weight
    owners = {part.weight.data_ptr(): part for part in root.modules() if _inputs(part)}  # type: ignore[operator]
    found: dict[HeadKey, HeadSwitch] = {}
    for (kind, layer), (name, heads, weight) in attentions.items():
        projection = None if weight is None else owners.get(weight.data_ptr())
        if projection is None:
            raise ArgumentError(
                "attention",
                "have its heads read side by side by one linear module, to switch one off",
                name or type(root).__name__,
                "look at its habits alone",
            )
        found |= _switches(kind, layer, projection, heads)
    return found


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
