"""Pictures as an encoder reads them: a stem makes a vector of each patch, at its row and column."""

from typing import Final, final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import ArgumentError
from regard.layers import GridPositions
from regard.models.adapters import InputAdapter
from regard.models.protocol import Lengths, check_lengths
from regard.ops.check import check_axes, check_float, check_positive, check_share

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
        cell_dropout: probability of dropping the vector of a whole patch, but for its position.
        shift: largest shift in pixels, down or up and right or left; the border is repeated.
        flip: whether half of the pictures are mirrored left to right.

    Examples:
        >>> stem = regard.models.ConvStem(channels=1, patch=4, dim=12)
        >>> adapter = regard.models.PictureInput(stem, grid=(2, 3), patch=4, channels=1, dim=12)
        >>> adapter(torch.randn(2, 6, 16)).shape
        torch.Size([2, 6, 12])
    """

    positions: GridPositions

    def __init__(
        self,
        stem: nn.Module,
        grid: tuple[int, int],
        patch: int,
        channels: int,
        dim: int,
        *,
        dropout: float = 0.0,
        cell_dropout: float = 0.0,
        shift: int = 0,
        flip: bool = False,
    ) -> None:
        super().__init__()
        check_positive(rows=grid[0], columns=grid[1], patch=patch, channels=channels, dim=dim)
        check_share(dropout=dropout, cell_dropout=cell_dropout)
        self.stem, self.grid, self.patch, self.channels, self.dim = stem, grid, patch, channels, dim
        self.positions = GridPositions(*grid, dim)
        self.dropout = nn.Dropout(dropout)
        self.cell_dropout, self.shift, self.flip = cell_dropout, shift, flip

    def forward(
        self, src: Float[Tensor, "batch patches numbers"], lengths: Lengths = None
    ) -> Float[Tensor, "batch cells dim"]:
        """Return one vector for each patch of the grid; further ones are padding."""
        picture = self.picture(src, lengths)
        if self.training and (self.shift or self.flip):
            picture = augmented(picture, self.shift, flip=self.flip)
        cells: Tensor = self.stem(picture)  # (batch, dim, rows, columns)
        x = cells.flatten(2).transpose(1, 2)
        if self.training and self.cell_dropout:
            x = x * F.dropout(x.new_ones(*x.shape[:2], 1), self.cell_dropout)
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
        check_float(src=src, weights=self.positions.rows)
        (rows, columns), side = self.grid, self.patch
        cells, numbers = rows * columns, side * side * self.channels
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
        cut = src[:, :cells].reshape(-1, rows, columns, side, side, self.channels)
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
        if dim % 2:
            raise ArgumentError("dim", "be even, half for form", dim, "add or take one")
        half = dim // 2
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
