"""Inputs of exported graphs: token ids, or frames, patches and rows before scaling."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Final, cast, final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard import masks
from regard.data import FrameScaler, PictureEncoder
from regard.data.series_windows import SeriesScaler
from regard.models import (
    AnyModel,
    ConvInput,
    EncoderDecoder,
    PictureInput,
    TimeConvInput,
    VectorInput,
)
from regard.models.adapters import InputAdapter
from regard.models.protocol import Lengths
from regard.symbols import EOS, SYMBOLS

#: the axis of a source, and of what the model makes of it
SOURCE: Final = "source"

#: what reads frames
FrameAdapter = VectorInput | ConvInput | TimeConvInput


class GraphInputs(ABC):
    """The sources of a model, as an exported graph reads them; by default as the model does."""

    #: type of the graph's input
    dtype: ClassVar[str] = "float32"

    @property
    @abstractmethod
    def shape(self) -> list[int | str]:
        """Of the graph's input; a name stands for a size that may change."""

    @abstractmethod
    def draw(self, lengths: Int[Tensor, " batch"], chance: torch.Generator) -> Tensor:
        """Some sources as a user gives them, padded."""

    def lengths(self, positions: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
        """Lengths of sources of which the model makes so many positions, if they may differ."""
        return self.possible(positions)

    def possible(self, lengths: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
        """Return these lengths, or those that sources have whatever is asked for."""
        fixed = self.shape[1]
        return torch.full_like(lengths, fixed) if isinstance(fixed, int) else lengths

    def as_read(self, src: Tensor) -> Tensor:
        """The same as the model reads them outside a graph."""
        return src

    def prepare(self, model: AnyModel) -> AnyModel:
        """Let a copy of the model read what a user gives, and return it."""
        return model


@final
@dataclass(frozen=True)
class TokenInputs(GraphInputs):
    """Ids of so many tokens, `eos` last."""

    dtype: ClassVar[str] = "int64"
    vocab: int

    @property
    def shape(self) -> list[int | str]:
        """An id for each position."""
        return ["batch", SOURCE]

    def draw(self, lengths: Int[Tensor, " batch"], chance: torch.Generator) -> Tensor:
        """Any tokens but symbols."""
        rows, shape = len(lengths), (len(lengths), int(lengths.max()))
        least = min(len(SYMBOLS), self.vocab - 1)
        src = torch.randint(least, self.vocab, shape, generator=chance)
        src[torch.arange(rows), lengths - 1] = EOS
        return src


@final
@dataclass(frozen=True)
class FrameInputs(GraphInputs):
    """VectorSource of numbers that are not yet brought to scale."""

    frames: FrameScaler

    @property
    def shape(self) -> list[int | str]:
        """A row for each frame; several may become one position."""
        axis = SOURCE if self.frames.stack == 1 else "frames"
        return ["batch", axis, self.frames.features]

    def lengths(self, positions: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
        """The fewest frames that have so many positions."""
        return (positions - 1) * self.frames.stack + 1

    def draw(self, lengths: Int[Tensor, " batch"], chance: torch.Generator) -> Tensor:
        """Numbers as they were in the training data; beyond the end anything but a number."""
        shape = (len(lengths), int(lengths.max()), self.frames.features)
        src = torch.randn(shape, generator=chance, dtype=torch.float64)
        src = src * _double(self.frames.scale) + _double(self.frames.mean)
        real = masks.padding(lengths, shape[1])[:, 0, 0, :, None]
        return src.where(real, torch.nan).float()

    def as_read(self, src: Tensor) -> Tensor:
        """Brought to scale as everywhere else."""
        return torch.from_numpy(self.frames.encode(src.numpy()))

    def prepare(self, model: AnyModel) -> AnyModel:
        """Bring numbers to scale in the graph."""
        encoder = cast(EncoderDecoder, model).encoder
        adapter = cast(FrameAdapter, encoder.embedding)
        encoder.embedding = ScaledInput(adapter, self.frames)
        return model


@final
class ScaledInput(InputAdapter):
    """An adapter of numbers as they are, in a form that a graph can hold.

    They are brought to scale in float64, as `FrameScaler` does it: what is far from 0 and changes
    little would lose its digits otherwise.

    Args:
        adapter: what is to be computed.
        frames: the scale, and how many frames are joined.
    """

    def __init__(self, adapter: FrameAdapter, frames: FrameScaler) -> None:
        super().__init__()
        self.adapter, self.stack, self.centred = adapter, frames.stack, frames.centred
        self.dim, self.positions = adapter.dim, adapter.positions
        self.register_buffer("mean", _double(frames.mean))
        self.register_buffer("scale", _double(frames.scale))

    def forward(
        self, src: Float[Tensor, "batch frames features"], lengths: Lengths = None
    ) -> Float[Tensor, "batch length dim"]:
        """One vector for each `stack` frames."""
        batch, length, _ = src.shape
        real = masks.padding(cast(Tensor, lengths), length)[:, 0, 0, :, None]
        given = src.double()
        if self.centred:
            frames = cast(Tensor, lengths).clamp(min=1)[:, None, None]
            given = given - given.where(real, 0.0).sum(dim=1, keepdim=True) / frames
        scaled = ((given - cast(Tensor, self.mean)) / cast(Tensor, self.scale)).float()
        x = scaled.where(real, 0.0)
        if not isinstance(self.adapter, VectorInput):  # which rounds lengths by itself
            return cast(Tensor, self.adapter(x, lengths))
        if self.stack > 1:
            # as many zeros as could be needed, less those that are not: how many would be a guess
            count = (length + self.stack - 1) // self.stack
            x = F.pad(x, (0, 0, 0, self.stack - 1))[:, : count * self.stack]
            x = x.reshape(batch, count, -1)
        vectors: Tensor = self.adapter.project(x)
        return vectors if self.positions is None else cast(nn.Module, self.positions)(vectors)

    def lengths(self, lengths: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
        """As the adapter has it."""
        return self.adapter.lengths(lengths)


@final
@dataclass(frozen=True)
class PictureInputs(GraphInputs):
    """Patches of pictures, (cells, numbers), with levels from 0 to 255."""

    encoder: PictureEncoder

    @property
    def shape(self) -> list[int | str]:
        """A row for each patch."""
        return ["batch", self.encoder.cells, self.encoder.frame_size]

    def draw(self, lengths: Int[Tensor, " batch"], chance: torch.Generator) -> Tensor:
        """Return pictures of random pixels."""
        shape = (len(lengths), self.encoder.cells, self.encoder.frame_size)
        return torch.randint(0, 256, shape, generator=chance).float()

    def as_read(self, src: Tensor) -> Tensor:
        """Return the patches as the encoder cuts them from pictures."""
        one = self.encoder
        (down, across), side = one.grid, one.patch
        patches = src.numpy()[:, int(one.class_token) :]
        cut = patches.reshape(-1, down, across, side, side, one.channels).swapaxes(2, 3)
        pictures = cut.reshape(len(src), one.height, -1)
        return torch.stack([torch.from_numpy(one.encode(picture)) for picture in pictures])

    def prepare(self, model: AnyModel) -> AnyModel:
        """Let the graph standardise the levels of each channel."""
        encoder = cast(EncoderDecoder, model).encoder
        encoder.embedding = ScaledPatches(cast(PictureInput, encoder.embedding), self.encoder)
        return model


@final
class ScaledPatches(InputAdapter):
    """A `PictureInput` of levels from 0 to 255, which it standardises.

    Args:
        adapter: reads standardised patches.
        encoder: has mean and deviation of each channel.
    """

    def __init__(self, adapter: PictureInput, encoder: PictureEncoder) -> None:
        super().__init__()
        self.adapter, self.dim = adapter, adapter.dim
        # the channels of a pixel lie side by side
        pixels = encoder.patch * encoder.patch
        self.register_buffer("mean", _double(encoder.mean).repeat(pixels))
        self.register_buffer("scale", _double(encoder.scale).repeat(pixels))

    def forward(
        self, src: Float[Tensor, "batch patches numbers"], lengths: Lengths = None
    ) -> Float[Tensor, "batch cells dim"]:
        """Return one vector for each patch."""
        scaled = (src.double() - cast(Tensor, self.mean)) / cast(Tensor, self.scale)
        return cast(Tensor, self.adapter(scaled.float(), lengths))

    def lengths(self, lengths: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
        """Return the lengths, which count patches."""
        return lengths


@final
@dataclass(frozen=True)
class SeriesInputs(GraphInputs):
    """The last rows of series, as they are; the graph of a forecaster standardises them."""

    #: numbers have all their digits: a series may be far from 0 and change little
    dtype: ClassVar[str] = "float64"
    scaler: SeriesScaler
    look_back: int

    @property
    def shape(self) -> list[int | str]:
        """The rows that the model reads."""
        return ["batch", self.look_back, self.scaler.frame_size]

    def draw(self, lengths: Int[Tensor, " batch"], chance: torch.Generator) -> Tensor:
        """Return random walks at the scale of the training data."""
        shape = (len(lengths), self.look_back, self.scaler.frame_size)
        steps = 0.3 * torch.randn(shape, generator=chance, dtype=torch.float64)
        return steps.cumsum(dim=1) * _double(self.scaler.scale) + _double(self.scaler.mean)


def _double(values: tuple[float, ...]) -> Float[Tensor, " features"]:
    return torch.tensor(values, dtype=torch.float64)
