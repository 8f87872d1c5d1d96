"""Input adapters, by which an encoder reads vectors or images in place of tokens."""

import functools
import itertools
from abc import ABC, abstractmethod
from typing import Final, NamedTuple, final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard import masks
from regard.errors import ArgumentError
from regard.layers import GridPositions, LearnedPositions, SinusoidalPositions, SpecAugment
from regard.layers.dropout import Dropout
from regard.models.embedding import PositionalEncoding
from regard.models.protocol import (
    Lengths,
    Src,
    check_lengths,
    check_source,
    check_tensors,
    real_lengths,
)
from regard.ops.check import check_axes, check_float, check_positive, check_share, half_of


class InputAdapter(nn.Module, ABC):
    """Turns sources that are not tokens into vectors of width `dim`, for any encoder.

    It may shorten a source. Its positions, if any, are added to the vectors that it returns.

    Examples:
        >>> isinstance(regard.models.VectorInput(16, 12), regard.models.InputAdapter)
        True
    """

    dim: int
    positions: PositionalEncoding | None
    #: whether what is encoded keeps the source beside its vectors
    keeps_source = False

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
        tokens: the source tokens, or a source that is kept; None if there is neither.
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
        return SourceVectors(x, real, src if embedding.keeps_source else None)
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
        self.dropout = Dropout(dropout)
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
class ColumnInput(InputAdapter):
    """Reads rows of numbers, (batch, columns, 1), each column by weights of its own.

    As the feature tokenizer of Gorishniy et al. (2021), https://arxiv.org/abs/2106.11959: what a
    number means follows from its place. With `stack`, neighbouring columns make one vector.

    Examples:
        >>> adapter = regard.models.ColumnInput(columns=5, dim=12, stack=2)
        >>> adapter(torch.randn(3, 5, 1)).shape
        torch.Size([3, 3, 12])
    """

    def __init__(self, columns: int, dim: int, *, stack: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        check_positive(columns=columns, dim=dim, stack=stack)
        self.columns, self.dim, self.stack = columns, dim, stack
        places = -(-columns // stack)
        self.weight = nn.Parameter(torch.randn(places, stack, dim) * stack**-0.5)
        self.positions = LearnedPositions(places, dim)
        self.dropout = Dropout(dropout)

    def forward(
        self, src: Float[Tensor, "batch columns 1"], lengths: Lengths = None
    ) -> Float[Tensor, "batch length dim"]:
        """Return one vector for each `stack` columns."""
        _check_frames(self, src, 1, self.weight)
        x = F.pad(src[..., 0], (0, -src.shape[1] % self.stack))
        x = x.reshape(len(x), -1, self.stack)
        return _placed(torch.einsum("bps,psd->bpd", x, self.weight), self.positions, self.dropout)

    def lengths(self, lengths: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
        """Return the number of columns over `stack`, rounded up."""
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
        self.dropout = Dropout(dropout)
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


@final
class TimeConvInput(InputAdapter):
    """Reads frames through two convolutions over time, the second of stride 2.

    As the encoder of Whisper, with its sinusoidal positions (Radford et al., 2022,
    https://arxiv.org/abs/2212.04356).

    Args:
        features: width of the frames of a source.
        dim: width of the vectors that the encoder gets.
        dropout: probability of dropping a feature.
        augment: changes sources in training.

    Examples:
        >>> adapter = regard.models.TimeConvInput(features=16, dim=12)
        >>> adapter(torch.randn(2, 40, 16)).shape
        torch.Size([2, 20, 12])
    """

    def __init__(
        self, features: int, dim: int, *, dropout: float = 0.0, augment: SpecAugment | None = None
    ) -> None:
        super().__init__()
        check_positive(features=features, dim=dim)
        check_share(dropout=dropout)
        self.features, self.dim = features, dim
        self.first = nn.Conv1d(features, dim, 3, padding=1)
        self.second = nn.Conv1d(dim, dim, 3, stride=2, padding=1)
        self.positions = SinusoidalPositions(dim, "whisper")
        self.dropout = Dropout(dropout)
        self.augment = augment

    def forward(
        self, src: Float[Tensor, "batch frames features"], lengths: Lengths = None
    ) -> Float[Tensor, "batch length dim"]:
        """Return one vector for each two frames."""
        _check_frames(self, src, self.features, self.first.weight)
        x = F.gelu(self.first(_only_real(src, lengths, "frames").mT))
        x = F.gelu(self.second(_only_real(x.mT, lengths, "frames").mT))
        return _placed(x.mT, self.positions, self.dropout)

    def lengths(self, lengths: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
        """Return the lengths, halved and rounded up."""
        return _half(lengths)


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


def _only_real(
    x: Float[Tensor, "batch length features"], lengths: Lengths, unit: str
) -> Float[Tensor, "batch length features"]:
    """Zero the values beyond the lengths: there may be NaNs, which a mask would not stop."""
    if lengths is None:
        return x
    check_lengths(lengths, x.shape[0], x.shape[1], unit)
    return x.where(masks.padding(lengths, x.shape[1])[:, 0, 0, :, None], 0.0)


def _placed(x: Tensor, positions: PositionalEncoding | None, dropout: Dropout) -> Tensor:
    dropped: Tensor = dropout(x if positions is None else positions(x))
    return dropped


#: width of the first convolution of a stem, as a share of the last
NARROW: Final = 2
#: deviations of a level that are squashed to 1
GAIN: Final = 2.0


@final
class PictureInput(InputAdapter):
    """Reads patches, (batch, patches, patch * patch * channels), row by row from the top left.

    They are put together to the picture again, of which a stem makes a vector for each patch.
    During training a picture may be shifted or mirrored; both are drawn like dropout, so that a
    resumed run draws what it would have drawn.

    Args:
        stem: from (batch, channels, height, width) to (batch, dim, rows, columns).
        grid: rows and columns of patches.
        patch: side of a patch, in pixels.
        channels: 1 for grey pictures, 3 for coloured ones.
        dim: width of the vectors.
        dropout: probability of dropping a feature.
        shift: largest shift in pixels, down or up and right or left; the border is repeated.
        flip: whether half of the pictures are mirrored left to right.
        class_token: whether a learned vector stands before the patches, in the place of a first
            row of the source; each place has then a position of its own (Dosovitskiy et al., 2021).

    Examples:
        >>> stem = regard.models.ConvStem(channels=1, patch=4, dim=12)
        >>> adapter = regard.models.PictureInput(stem, grid=(2, 3), patch=4, channels=1, dim=12)
        >>> adapter(torch.randn(2, 6, 16)).shape
        torch.Size([2, 6, 12])
    """

    positions: GridPositions | LearnedPositions

    def __init__(
        self,
        stem: nn.Module,
        grid: tuple[int, int],
        patch: int,
        channels: int,
        dim: int,
        *,
        dropout: float = 0.0,
        shift: int = 0,
        flip: bool = False,
        class_token: bool = False,
    ) -> None:
        super().__init__()
        check_positive(rows=grid[0], columns=grid[1], patch=patch, channels=channels, dim=dim)
        check_share(dropout=dropout)
        self.stem, self.grid, self.patch, self.channels, self.dim = stem, grid, patch, channels, dim
        cells = 1 + grid[0] * grid[1]
        self.positions = LearnedPositions(cells, dim) if class_token else GridPositions(*grid, dim)
        self.class_token = nn.Parameter(torch.zeros(dim)) if class_token else None
        self.dropout = Dropout(dropout)
        self.shift, self.flip = shift, flip

    def forward(
        self, src: Float[Tensor, "batch patches numbers"], lengths: Lengths = None
    ) -> Float[Tensor, "batch cells dim"]:
        """Return one vector for each patch of the grid; further ones are padding."""
        picture = self.picture(src, lengths)
        if self.training and (self.shift or self.flip):
            picture = augmented(picture, self.shift, flip=self.flip)
        cells: Tensor = self.stem(picture)  # (batch, dim, rows, columns)
        x = cells.flatten(2).transpose(1, 2)
        if self.class_token is not None:
            x = torch.cat([self.class_token.expand(len(x), 1, -1), x], dim=1)
        dropped: Tensor = self.dropout(self.positions(x))
        return dropped

    def lengths(self, lengths: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
        """Return the lengths, which count patches."""
        return lengths

    def picture(
        self, src: Float[Tensor, "batch patches numbers"], lengths: Lengths = None
    ) -> Float[Tensor, "batch channels height width"]:
        """Put patches together to pictures."""
        check_axes("src", src, "batch patches numbers")
        check_float(src=src, weights=next(self.stem.parameters()))
        (rows, columns), side, first = self.grid, self.patch, int(self.class_token is not None)
        cells, numbers = first + rows * columns, side * side * self.channels
        if src.shape[1] < cells or src.shape[2] != numbers:
            raise ArgumentError(
                "src",
                f"be (batch, {cells}, {numbers}), the patches that PictureInput was made for",
                f"of shape {tuple(src.shape)}",
                "cut the pictures by the encoder of the run",
            )
        if lengths is not None:
            check_lengths(lengths, src.shape[0], src.shape[1], "patches")
        # batches of a fixed shape are padded to more patches than a picture has
        cut = src[:, first:cells].reshape(-1, rows, columns, side, side, self.channels)
        # (batch, rows, columns, down, across, channels) to (batch, channels, rows, down, ...)
        return cut.permute(0, 5, 1, 3, 2, 4).flatten(4, 5).flatten(2, 3)


def augmented(
    picture: Float[Tensor, "batch channels height width"], shift: int, *, flip: bool
) -> Float[Tensor, "batch channels height width"]:
    """Shift each picture by its own number of pixels, and mirror half of them if `flip`."""
    batch, _, height, width = picture.shape
    device = picture.device
    down, across = torch.randint(2 * shift + 1, (2, batch, 1), device=device)
    rows = down + torch.arange(height, device=device)  # (batch, height)
    columns = across + torch.arange(width, device=device)
    if flip:
        mirrored = torch.rand(batch, 1, device=device) < 0.5
        columns = torch.where(mirrored, columns.flip(1), columns)
    padded = F.pad(picture, (shift,) * 4, mode="replicate") if shift else picture
    every = torch.arange(batch, device=device)[:, None, None]
    # indices beside a slice put the channels last
    return padded[every, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def patch_stem(channels: int, patch: int, dim: int) -> nn.Module:
    """Return a linear layer of each patch by itself (Dosovitskiy et al., 2021).

    https://arxiv.org/abs/2010.11929
    """
    return nn.Conv2d(channels, dim, patch, stride=patch)


@final
class ConvStem(nn.Module):
    """A few small convolutions, so that a patch knows its edges (Xiao et al., 2021).

    https://arxiv.org/abs/2106.14881. Each convolution looks at 3 x 3 places; after the first, one
    halves the picture as long as the side of a patch is even, and the last takes the rest of it.
    Features are normalised at each place alone: nothing of one place reaches another but
    through convolutions.

    Args:
        channels: of the picture.
        patch: side of a patch, in pixels.
        dim: width of the vectors.

    Examples:
        >>> regard.models.ConvStem(channels=3, patch=4, dim=12)(torch.randn(2, 3, 8, 12)).shape
        torch.Size([2, 12, 2, 3])
    """

    def __init__(self, channels: int, patch: int, dim: int) -> None:
        super().__init__()
        check_positive(channels=channels, patch=patch, dim=dim)
        width = max(1, dim // NARROW)
        layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1)]
        while patch % 2 == 0:
            layers += [_PlaceNorm(width), nn.GELU(), nn.Conv2d(width, dim, 3, 2, padding=1)]
            patch, width = patch // 2, dim
        layers += [_PlaceNorm(width), nn.GELU(), nn.Conv2d(width, dim, patch, patch)]
        self.layers = nn.Sequential(*layers)

    def forward(
        self, picture: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch dim rows columns"]:
        """Return a vector for each patch."""
        cells: Tensor = self.layers(picture)
        return cells


@final
class SplitStem(nn.Module):
    """Form and colour apart, each in half of a patch's vector.

    Form is seen by small convolutions over one grey level, the largest channel, squashed so that
    its contrast says little of the colour. Colour is the strongest response within the patch of
    layers that see one pixel at a time. Where both are seen by one network, it learns which forms
    go with which colours, and misreads a form in a colour that it has not seen it in.
    """

    def __init__(self, channels: int, patch: int, dim: int) -> None:
        super().__init__()
        check_positive(channels=channels, patch=patch, dim=dim)
        half = half_of(dim=dim)
        self.form = ConvStem(1, patch, half)
        self.colour = nn.Sequential(
            nn.Conv2d(channels, half, 1), nn.ReLU(), nn.Conv2d(half, half, 1), nn.MaxPool2d(patch)
        )

    def forward(
        self, picture: Float[Tensor, "batch channels height width"]
    ) -> Float[Tensor, "batch dim rows columns"]:
        """Return a vector for each patch."""
        grey = torch.tanh(GAIN * picture.amax(dim=1, keepdim=True))
        return torch.cat([self.form(grey), self.colour(picture)], dim=1)


@final
class _PlaceNorm(nn.Module):
    """Layer normalisation of the features of each place."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(
        self, x: Float[Tensor, "batch width rows columns"]
    ) -> Float[Tensor, "batch width rows columns"]:
        normed: Tensor = self.norm(x.movedim(1, 3)).movedim(3, 1)
        return normed
