"""Input adapters, by which an encoder reads vectors or images in place of tokens."""

import functools
import itertools
from abc import ABC, abstractmethod
from typing import NamedTuple, final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard import masks
from regard.errors import ArgumentError
from regard.layers import SpecAugment
from regard.models.embedding import PositionalEncoding
from regard.models.protocol import (
    Lengths,
    Src,
    check_lengths,
    check_source,
    check_tensors,
    real_lengths,
)
from regard.ops.check import check_axes, check_float, check_positive, check_share


class InputAdapter(nn.Module, ABC):
    """Turns sources that are not tokens into vectors of width `dim`, for any encoder.

    It may shorten a source. Its positions, if any, are added to the vectors that it returns.

    Examples:
        >>> isinstance(regard.models.VectorInput(16, 12), regard.models.InputAdapter)
        True
    """

    dim: int
    positions: PositionalEncoding | None

    @abstractmethod
    def forward(self, src: Tensor, lengths: Lengths = None) -> Float[Tensor, "batch length dim"]:
        """Return vectors. Values beyond `lengths` do not matter; all are real if None."""

    @abstractmethod
    def lengths(self, lengths: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
        """Return the number of vectors made of sources of these lengths."""


class SourceVectors(NamedTuple):
    """A source as the layers of an encoder see it.

    Attributes:
        x: one vector for each position, (batch, src_len, dim).
        lengths: number of real vectors, (batch,).
        tokens: the source tokens; None if it has none.
    """

    x: Tensor
    lengths: Tensor
    tokens: Tensor | None


def read_source(embedding: nn.Module, src: Src, lengths: Lengths) -> SourceVectors:
    """Apply an adapter, or any other module that returns one vector per token."""
    check_tensors(src=src, lengths=lengths)
    lengths = _wide(lengths)
    if isinstance(embedding, InputAdapter):
        augment: SpecAugment | None = getattr(embedding, "augment", None)
        if augment is not None:
            src, lengths = augment(src, real_lengths(src, lengths))
        x = embedding(src, lengths)
        real = real_lengths(x, None if lengths is None else embedding.lengths(lengths))
        return SourceVectors(x, real, None)
    check_source(src, lengths)
    return SourceVectors(embedding(src), real_lengths(src, lengths), src)


def _wide(lengths: Lengths) -> Lengths:
    """Return the lengths as int64: sums of narrower integers overflow silently."""
    if lengths is None or lengths.is_floating_point() or lengths.dtype == torch.bool:
        return lengths  # rejected where they are used
    return lengths.long()


@final
class VectorInput(InputAdapter):
    """Reads vectors, such as the frames of speech or the samples of a time series.

    With `stack`, neighbouring frames are concatenated, as in the listener of Chan et al. (2016),
    https://arxiv.org/abs/1508.01211, so that attention has fewer keys. The last stack of a source
    is padded with zeros.

    Args:
        features: width of the vectors of a source.
        dim: width of the vectors that the encoder gets.
        positions: adds positions, for layers that are otherwise blind to order.
        dropout: probability of dropping a feature.
        stack: number of frames that become one.
        augment: changes sources in training.

    Examples:
        >>> adapter = regard.models.VectorInput(features=16, dim=12, stack=4)
        >>> adapter(torch.randn(2, 40, 16)).shape
        torch.Size([2, 10, 12])
    """

    def __init__(
        self,
        features: int,
        dim: int,
        *,
        positions: PositionalEncoding | None = None,
        dropout: float = 0.0,
        stack: int = 1,
        augment: SpecAugment | None = None,
    ) -> None:
        super().__init__()
        check_positive(features=features, dim=dim, stack=stack)
        check_share(dropout=dropout)
        self.features, self.dim, self.stack = features, dim, stack
        self.project = nn.Linear(stack * features, dim)
        self.positions = positions
        self.dropout = nn.Dropout(dropout)
        self.augment = augment

    def forward(
        self, src: Float[Tensor, "batch frames features"], lengths: Lengths = None
    ) -> Float[Tensor, "batch length dim"]:
        """Return one vector for each `stack` frames."""
        _check_frames(self, src, self.features, self.project.weight)
        x = F.pad(_only_real(src, lengths, "frames"), (0, 0, 0, -src.shape[1] % self.stack))
        x = x.reshape(x.shape[0], -1, self.stack * self.features)  # (batch, length, joined)
        return _placed(self.project(x), self.positions, self.dropout)

    def lengths(self, lengths: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
        """Return the number of frames over `stack`, rounded up."""
        return (lengths + self.stack - 1).div(self.stack, rounding_mode="floor")


@final
class ConvInput(InputAdapter):
    """Reads frames through strided convolutions over time and bands.

    Each layer of 3 x 3 filters halves both axes, rounded up, as in the Speech-Transformer of Dong
    et al. (2018), https://doi.org/10.1109/ICASSP.2018.8462506. Features must be in order, as the
    bands of a spectrum are.

    Args:
        features: width of the frames of a source.
        dim: width of the vectors that the encoder gets.
        positions: adds positions, for layers that are otherwise blind to order.
        dropout: probability of dropping a feature.
        layers: number of convolutions; `2 ** layers` frames become one vector.
        channels: number of filters of each.
        augment: changes sources in training.

    Examples:
        >>> adapter = regard.models.ConvInput(features=16, dim=12, channels=5)
        >>> adapter(torch.randn(2, 40, 16)).shape, adapter.lengths(torch.tensor([40, 9]))
        (torch.Size([2, 10, 12]), tensor([10,  3]))
    """

    def __init__(
        self,
        features: int,
        dim: int,
        *,
        positions: PositionalEncoding | None = None,
        dropout: float = 0.0,
        layers: int = 2,
        channels: int = 64,
        augment: SpecAugment | None = None,
    ) -> None:
        super().__init__()
        check_positive(features=features, dim=dim, layers=layers, channels=channels)
        check_share(dropout=dropout)
        self.features, self.dim = features, dim
        widths = [1, *[channels] * layers]
        self.convolutions = nn.ModuleList(
            nn.Conv2d(before, after, 3, stride=2, padding=1)
            for before, after in itertools.pairwise(widths)
        )
        bands = functools.reduce(lambda count, _: (count + 1) // 2, range(layers), features)
        self.project = nn.Linear(channels * bands, dim)
        self.positions = positions
        self.dropout = nn.Dropout(dropout)
        self.augment = augment

    def forward(
        self, src: Float[Tensor, "batch frames features"], lengths: Lengths = None
    ) -> Float[Tensor, "batch length dim"]:
        """Return one vector for each `2 ** layers` frames."""
        _check_frames(self, src, self.features, self.project.weight)
        x = _only_real(src, lengths, "frames")[:, None]  # (batch, channels, frames, bands)
        for convolution in self.convolutions:
            x = convolution(x).relu()
            if lengths is not None:  # the next filters reach beyond the end of a source
                lengths = _half(lengths)
                x = x.where(masks.padding(lengths, x.shape[2]).movedim(3, 2), 0.0)
        return _placed(self.project(x.transpose(1, 2).flatten(2)), self.positions, self.dropout)

    def lengths(self, lengths: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
        """Return the lengths, halved and rounded up for each convolution."""
        return functools.reduce(lambda halved, _: _half(halved), self.convolutions, lengths)


def _half(lengths: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
    return (lengths + 1).div(2, rounding_mode="floor")


def _check_frames(adapter: nn.Module, src: Tensor, features: int, weights: Tensor) -> None:
    """Raises unless sources have the features that an adapter was made for."""
    name = type(adapter).__name__
    check_axes("src", src, "batch frames features")
    check_float(src=src, weights=weights)
    if src.shape[2] != features:
        raise ArgumentError(
            "src",
            f"be (batch, frames, {features}), the features that {name} was made for",
            f"of shape {tuple(src.shape)}",
            f"put the features last, and tell {name} how many there are",
        )


class PatchGrid(NamedTuple):
    """The number of patches of an image from top to bottom, and from left to right."""

    rows: int
    columns: int


@final
class PatchInput(InputAdapter):
    """Reads images, cut into square patches, row by row (Dosovitskiy et al., 2021).

    https://arxiv.org/abs/2010.11929. Lengths count patches, so that images of one width and
    different heights can be padded at the bottom.

    Args:
        channels: 1 for grey images, 3 for coloured ones.
        patch: side of a patch, in pixels.
        dim: width of the vectors that the encoder gets.
        positions: adds positions, for layers that are otherwise blind to order.
        dropout: probability of dropping a feature.

    Examples:
        >>> adapter = regard.models.PatchInput(channels=3, patch=4, dim=12)
        >>> adapter(torch.randn(2, 3, 8, 12)).shape
        torch.Size([2, 6, 12])
    """

    def __init__(
        self,
        channels: int,
        patch: int,
        dim: int,
        *,
        positions: PositionalEncoding | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_positive(channels=channels, patch=patch, dim=dim)
        check_share(dropout=dropout)
        self.channels, self.patch, self.dim = channels, patch, dim
        self.project = nn.Linear(channels * patch * patch, dim)
        self.positions = positions
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, src: Float[Tensor, "batch channels height width"], lengths: Lengths = None
    ) -> Float[Tensor, "batch patches dim"]:
        """Return one vector for each patch."""
        self.grid(src)
        check_float(src=src, weights=self.project.weight)
        size = self.patch
        cut = src.unfold(2, size, size).unfold(3, size, size)  # (.., rows, columns, size, size)
        patches = cut.movedim(1, 3).flatten(3).flatten(1, 2)  # (batch, patches, pixels)
        x = self.project(_only_real(patches, lengths, "patches"))
        return _placed(x, self.positions, self.dropout)

    def lengths(self, lengths: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
        """Return the lengths, which count patches."""
        return lengths

    def grid(self, src: Float[Tensor, "batch channels height width"]) -> PatchGrid:
        """Return the layout of patches: `weights.unflatten(-1, grid)` lays weights over images."""
        check_axes("src", src, "batch channels height width")
        _, channels, height, width = src.shape
        if channels != self.channels or height % self.patch or width % self.patch:
            raise ArgumentError(
                "src",
                f"be (batch, {self.channels}, height, width) with sides that {self.patch} divides, "
                "as PatchInput was made for",
                f"of shape {tuple(src.shape)}",
                "cut or pad the images, or make PatchInput for other channels or patches",
            )
        return PatchGrid(height // self.patch, width // self.patch)


def _only_real(
    x: Float[Tensor, "batch length features"], lengths: Lengths, unit: str
) -> Float[Tensor, "batch length features"]:
    """Zero the values beyond the lengths: there may be NaNs, which a mask would not stop."""
    if lengths is None:
        return x
    check_lengths(lengths, x.shape[0], x.shape[1], unit)
    return x.where(masks.padding(lengths, x.shape[1])[:, 0, 0, :, None], 0.0)


def _placed(x: Tensor, positions: PositionalEncoding | None, dropout: nn.Dropout) -> Tensor:
    dropped: Tensor = dropout(x if positions is None else positions(x))
    return dropped
