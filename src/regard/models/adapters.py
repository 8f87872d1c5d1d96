"""Input adapters: what lets an encoder read vectors or images in place of tokens."""

from abc import ABC, abstractmethod
from typing import NamedTuple, final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard import masks
from regard.errors import ArgumentError
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

    It may make a source shorter. Its positions, if any, are those of the vectors that it gives.
    """

    dim: int
    positions: PositionalEncoding | None

    @abstractmethod
    def forward(self, src: Tensor, lengths: Lengths = None) -> Float[Tensor, "batch length dim"]:
        """Vectors. What `src` holds beyond `lengths` does not matter; all is real if None."""

    @abstractmethod
    def lengths(self, lengths: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
        """How many vectors become of sources of these lengths."""


class SourceVectors(NamedTuple):
    """A source as the layers of an encoder see it.

    Attributes:
        x: one vector for each position, (batch, src_len, dim).
        lengths: how many of them are real, (batch,).
        tokens: the ids that they were made of, if it was ids.
    """

    x: Tensor
    lengths: Tensor
    tokens: Tensor | None


def read_source(embedding: nn.Module, src: Src, lengths: Lengths) -> SourceVectors:
    """Reads with an adapter, or with any other module one vector for each token."""
    check_tensors(src=src, lengths=lengths)
    lengths = _wide(lengths)
    if isinstance(embedding, InputAdapter):
        x = embedding(src, lengths)
        real = real_lengths(x, None if lengths is None else embedding.lengths(lengths))
        return SourceVectors(x, real, None)
    check_source(src, lengths)
    return SourceVectors(embedding(src), real_lengths(src, lengths), src)


def _wide(lengths: Lengths) -> Lengths:
    """Lengths with which one can count: sums of narrow integers wrap around, unnoticed."""
    if lengths is None or lengths.is_floating_point() or lengths.dtype == torch.bool:
        return lengths  # refused where they are used
    return lengths.long()


@final
class VectorInput(InputAdapter):
    """Reads vectors, such as the frames of speech or the samples of a time series.

    With `stack`, neighbouring frames are joined into one, as in the reader of Chan et al. (2016),
    https://arxiv.org/abs/1508.01211, so that attention has less to look through. A source that
    does not fill its last one is filled up with zeros.

    Args:
        features: width of the vectors of a source.
        dim: width of the vectors that the encoder gets.
        positions: adds positions, for layers without an order of their own.
        dropout: probability of dropping a feature.
        stack: how many frames become one.
    """

    def __init__(
        self,
        features: int,
        dim: int,
        *,
        positions: PositionalEncoding | None = None,
        dropout: float = 0.0,
        stack: int = 1,
    ) -> None:
        super().__init__()
        check_positive(features=features, dim=dim, stack=stack)
        check_share(dropout=dropout)
        self.features, self.dim, self.stack = features, dim, stack
        self.project = nn.Linear(stack * features, dim)
        self.positions = positions
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, src: Float[Tensor, "batch frames features"], lengths: Lengths = None
    ) -> Float[Tensor, "batch length dim"]:
        """One vector for each `stack` frames."""
        check_axes("src", src, "batch frames features")
        check_float(src=src, weights=self.project.weight)
        if src.shape[2] != self.features:
            raise ArgumentError(
                "src",
                f"be (batch, frames, {self.features}), the features that VectorInput was made for",
                f"of shape {tuple(src.shape)}",
                "put the features last, and tell VectorInput how many there are",
            )
        x = F.pad(_only_real(src, lengths, "frames"), (0, 0, 0, -src.shape[1] % self.stack))
        x = x.reshape(x.shape[0], -1, self.stack * self.features)  # (batch, length, joined)
        return _placed(self.project(x), self.positions, self.dropout)

    def lengths(self, lengths: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
        """The number of frames over `stack`, rounded up."""
        return (lengths + self.stack - 1).div(self.stack, rounding_mode="floor")


class PatchGrid(NamedTuple):
    """How many patches an image has from top to bottom, and from left to right."""

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
        positions: adds positions, for layers without an order of their own.
        dropout: probability of dropping a feature.
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
        """One vector for each patch."""
        self.grid(src)
        check_float(src=src, weights=self.project.weight)
        size = self.patch
        cut = src.unfold(2, size, size).unfold(3, size, size)  # (.., rows, columns, size, size)
        patches = cut.movedim(1, 3).flatten(3).flatten(1, 2)  # (batch, patches, pixels)
        x = self.project(_only_real(patches, lengths, "patches"))
        return _placed(x, self.positions, self.dropout)

    def lengths(self, lengths: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
        """The number of patches, as it is."""
        return lengths

    def grid(self, src: Float[Tensor, "batch channels height width"]) -> PatchGrid:
        """How the patches lie: `weights.unflatten(-1, grid)` lays weights over the images."""
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
    """Zeros beyond the lengths: what stands there may be NaN, which no mask would stop later."""
    if lengths is None:
        return x
    check_lengths(lengths, x.shape[0], x.shape[1], unit)
    return x.where(masks.padding(lengths, x.shape[1])[:, 0, 0, :, None], 0.0)


def _placed(x: Tensor, positions: PositionalEncoding | None, dropout: nn.Dropout) -> Tensor:
    dropped: Tensor = dropout(x if positions is None else positions(x))
    return dropped
