"""External memory with content-based addressing.

Graves, Wayne and Danihelka, 2014, Neural Turing Machines, https://arxiv.org/abs/1410.5401: the
heads of section 3, which address by content (3.3.1) and not by location.
"""

from typing import Final, NamedTuple, final

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import softplus

from regard.ops.check import check_positive

#: added to a squared norm, so that a slot of zeros has a finite gradient
TINY: Final = 1e-8


class ContentMemoryOutput(NamedTuple):
    """Result of one step of the memory.

    Attributes:
        read: the mixture of the slots, (batch, width).
        weights: weights of the slots in it, (batch, slots).
        slots: the slots after writing, (batch, slots, width).

    Examples:
        >>> memory = regard.layers.ContentMemory(input_size=5, slots=3, width=7)
        >>> first = memory(torch.randn(2, 5), memory.start(batch=2))
        >>> second = memory(torch.randn(2, 5), first.slots)
        >>> second.slots.shape
        torch.Size([2, 3, 7])
    """

    read: Tensor
    weights: Tensor
    slots: Tensor


@final
class ContentMemory(nn.Module):
    """Slots that are written and then read at every step, each by a key.

    A linear layer computes from an input x: for either head a key k and a sharpness
    `beta = 1 + softplus(..) >= 1`, and for writing also what to erase, `e = sigmoid(..)`, and what
    to add, `a = tanh(..)`. The initial slots are learned.

    Slots are kept in float32 at least, so that they are not rounded at every step.

    Args:
        input_size: width of x.
        slots: number of slots.
        width: width of a slot.

    Examples:
        >>> memory = regard.layers.ContentMemory(input_size=5, slots=3, width=7)
        >>> out = memory(torch.randn(2, 5), memory.start(batch=2))
        >>> out.read.shape, out.weights.shape
        (torch.Size([2, 7]), torch.Size([2, 3]))
    """

    def __init__(self, input_size: int, slots: int, width: int) -> None:
        super().__init__()
        check_positive(input_size=input_size, slots=slots, width=width)
        self.input_size, self.width = input_size, width
        # random: equal slots would get equal weights and equal gradients, and stay equal
        self.first = nn.Parameter(torch.randn(slots, width) / width**0.5)
        self.heads = nn.Linear(input_size, 4 * width + 2)

    def start(self, batch: int) -> Float[Tensor, "batch slots width"]:
        """The slots before the first step."""
        return _widened(self.first).expand(batch, -1, -1)

    def forward(
        self, x: Float[Tensor, "batch input_size"], slots: Float[Tensor, "batch slots width"]
    ) -> ContentMemoryOutput:
        """Write to the slots, then read them."""
        projected = self.heads(x)
        with torch.autocast(x.device.type, enabled=False):
            to_read, to_write, erase, add, sharpness = torch.split_with_sizes(
                _widened(projected), [*[self.width] * 4, 2], dim=-1
            )
            beta = 1 + softplus(sharpness)
            where = content_weights(slots, to_write, beta[:, :1])
            slots = written(slots, where, erase.sigmoid(), add.tanh())
            weights = content_weights(slots, to_read, beta[:, 1:])
            read = (weights.unsqueeze(1) @ slots).squeeze(1)
        return ContentMemoryOutput(read.to(x.dtype), weights.to(x.dtype), slots)


def content_weights(
    slots: Float[Tensor, "batch slots width"],
    key: Float[Tensor, "batch width"],
    beta: Float[Tensor, "batch 1"],
) -> Float[Tensor, "batch slots"]:
    """`softmax over i of beta cos(k, M_i)` (eq. 5 and 6)."""
    cosine = (_unit(slots) * _unit(key).unsqueeze(1)).sum(dim=-1)
    return (beta * cosine).softmax(dim=-1)


def written(
    slots: Float[Tensor, "batch slots width"],
    weights: Float[Tensor, "batch slots"],
    erase: Float[Tensor, "batch width"],
    add: Float[Tensor, "batch width"],
) -> Float[Tensor, "batch slots width"]:
    """`M_i (1 - w_i e) + w_i a` (eq. 3 and 4)."""
    w = weights.unsqueeze(2)
    return slots * (1 - w * erase.unsqueeze(1)) + w * add.unsqueeze(1)


def _unit(x: Tensor) -> Tensor:
    """Vectors of length 1 along the last axis."""
    return x * (x.square().sum(dim=-1, keepdim=True) + TINY).rsqrt()


def _widened(x: Tensor) -> Tensor:
    """In float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
