"""The families of layers that experiments put side by side, and how a reader adds one.

A family turns a width into a module over (batch, length, width). Its module runs by the definition
under `ops.use_backend("reference")`, and by the fastest path otherwise.
"""

import hashlib
import inspect
import pkgutil
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from regard.attention import MultiHeadAttention, SimpleSelfAttention
from regard.errors import ArgumentError
from regard.layers import ConvEncoder, RNNStack, SelfAttentiveRNN
from regard.layers.conv import HALF, GatedConvolution
from regard.ops.backend import active_backend
from regard.ops.recurrence.cells import Cell

KERNEL: Final = 3
#: one head for each 64 of the width, as large as the fused kernels like them
HEAD: Final = 64


@dataclass(frozen=True)
class Family:
    """A kind of layer.

    Attributes:
        name: What plots call it.
        build: Makes the layer of a width, a module from and to (batch, length, width). A function
            or class at the top of a module, so that kept results know what they were made with.
    """

    name: str
    build: Callable[..., nn.Module]

    def __post_init__(self) -> None:
        name = getattr(self.build, "__qualname__", "")
        if not name.isidentifier():
            raise ArgumentError(
                "build",
                "be a function or class at the top of a module",
                name or repr(self.build),
                "define it there with a name",
            )

    def told(self) -> dict[str, str]:
        """What JSON can hold of it: enough to find it again, and to see that it has changed."""
        place = f"{self.build.__module__}:{self.build.__qualname__}"
        return {"name": self.name, "build": place, "source": _digest(self.build)}


def build(told: dict[str, str], width: int, **options: Any) -> nn.Module:
    """The layer of a family that `Family.told` has told of."""
    module = pkgutil.resolve_name(told["build"])(width, **options)
    if not isinstance(module, nn.Module):
        raise ArgumentError(
            told["name"], "build a torch module", type(module).__name__, "return an nn.Module"
        )
    return module


def seeded(told: dict[str, str], width: int, seed: int, **options: Any) -> nn.Module:
    """The same with weights that follow from the seed, whatever was drawn before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(told, width, **options)


def _digest(made: Callable[..., nn.Module]) -> str:
    """A text that changes with the file that `made` stands in; always new where there is none."""
    try:
        return hashlib.blake2b(Path(inspect.getfile(made)).read_bytes(), digest_size=8).hexdigest()
    except (OSError, TypeError):
        return uuid.uuid4().hex


@final
class Convolution(nn.Module):
    """Centred gated convolutions with residual connections.

    Args:
        width: of the vectors.
        kernel_size: how many positions each spans; odd.
        num_layers: how many lie on top of each other.
    """

    def __init__(self, width: int, *, kernel_size: int = KERNEL, num_layers: int = 1) -> None:
        super().__init__()
        self.encoder = ConvEncoder(width, num_layers, kernel_size=kernel_size, dropout=0.0)

    def forward(self, x: Float[Tensor, "batch length width"]) -> Tensor:
        """One convolution after the other."""
        if active_backend() != "reference":
            result: Tensor = self.encoder(x)
            return result
        for layer in self.encoder.layers:
            assert isinstance(layer, GatedConvolution)
            x = (x + _convolve(layer.conv, x, self.encoder.reach)) * HALF
        return x


def _convolve(conv: nn.Conv1d, x: Tensor, reach: int) -> Tensor:
    """The definition: a product of a matrix and the sequence for every place in the kernel."""
    padded, length = F.pad(x, (0, 0, reach, reach)), x.shape[1]
    products = [
        padded[:, place : place + length] @ conv.weight[:, :, place].T
        for place in range(conv.weight.shape[2])
    ]
    total = products[0] if conv.bias is None else products[0] + conv.bias
    for product in products[1:]:
        total = total + product
    return F.glu(total, dim=-1)


@final
class Recurrent(nn.Module):
    """A plain RNN, a GRU or an LSTM."""

    def __init__(self, width: int, *, cell: Cell = "rnn") -> None:
        super().__init__()
        self.stack = RNNStack(width, width, cell=cell)

    def forward(self, x: Float[Tensor, "batch length width"]) -> Tensor:
        """All steps by torch's kernel, or one after the other by the definition."""
        if active_backend() != "reference":
            result: Tensor = self.stack(x).output
            return result
        state, outputs = self.stack.init_state(len(x), x), []
        for vectors in x.unbind(1):
            output, state = self.stack.step(vectors, state)
            outputs.append(output)
        return torch.stack(outputs, dim=1)


def gru(width: int) -> Recurrent:
    """An RNN with a reset gate and an update gate."""
    return Recurrent(width, cell="gru")


def lstm(width: int) -> Recurrent:
    """An RNN with a memory behind three gates."""
    return Recurrent(width, cell="lstm")


@final
class SelfAttentive(nn.Module):
    """An RNN in which every step looks back at all steps before it.

    Args:
        width: of the vectors.
        cell: "rnn", "gru" or "lstm".
        output: which of a step's vectors comes out.
    """

    def __init__(
        self, width: int, *, cell: Cell = "rnn", output: Literal["hidden", "context"] = "hidden"
    ) -> None:
        super().__init__()
        self.layer = SelfAttentiveRNN(width, width, cell=cell)
        self.output = output

    def forward(self, x: Float[Tensor, "batch length width"]) -> Tensor:
        """All steps."""
        result: Tensor = getattr(self.layer(x), self.output)
        return result


def self_attentive_lstm(width: int) -> SelfAttentive:
    """The LSTMN, which mixes its memory tape as well."""
    return SelfAttentive(width, cell="lstm")


@final
class SelfAttention(nn.Module):
    """Multi-head self-attention: queries, keys, values and the output have their matrices."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = MultiHeadAttention(width, max(1, width // HEAD))

    def forward(self, x: Float[Tensor, "batch length width"]) -> Tensor:
        """Every position looks at all."""
        context: Tensor = self.attention(x, x, x, need_weights=False).context
        return context


@final
class BareSelfAttention(nn.Module):
    """Self-attention without any matrix: `softmax(x x^T / sqrt(width)) x`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = SimpleSelfAttention(width**-0.5)

    def forward(self, x: Float[Tensor, "batch length width"]) -> Tensor:
        """Every position looks at all."""
        context: Tensor = self.attention(x, need_weights=False).context
        return context


CONVOLUTION: Final = Family("convolution", Convolution)
RNN: Final = Family("RNN", Recurrent)
GRU: Final = Family("GRU", gru)
LSTM: Final = Family("LSTM", lstm)
SELF_ATTENTIVE: Final = Family("self-attentive RNN", SelfAttentive)
SELF_ATTENTIVE_LSTM: Final = Family("self-attentive LSTM", self_attentive_lstm)
SELF_ATTENTION: Final = Family("self-attention", SelfAttention)
BARE: Final = Family("self-attention, no matrices", BareSelfAttention)

#: what the documents compare
FAMILIES: Final = (CONVOLUTION, RNN, SELF_ATTENTIVE, SELF_ATTENTION, BARE)
