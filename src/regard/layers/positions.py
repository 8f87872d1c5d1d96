"""Position encodings: sinusoidal, learned, of a grid, and rotary."""

import math
from typing import Literal, NamedTuple, final, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.errors import ArgumentError
from regard.ops.check import check_axes, check_choice, check_equal, check_positive, check_width

SinusoidalLayout = Literal["paired", "halves", "fairseq", "whisper"]


@final
class SinusoidalPositions(nn.Module):
    """Adds sines and cosines of many wavelengths (Vaswani et al., 2017, section 3.5).

    `PE(p, 2i) = sin(p / 10000^(2i/dim))`, `PE(p, 2i+1) = cos(p / 10000^(2i/dim))`. Nothing is
    learned, and the length is unlimited.

    Args:
        dim: width of the vectors.
        layout: "paired" as in the paper; "halves" has all sines before all cosines, as Marian;
            "whisper" has such halves and `2i/(dim-2)` for `2i/dim`; "fairseq" also starts at
            position 2.

    Examples:
        >>> regard.layers.SinusoidalPositions(dim=4)(torch.zeros(1, 2, 4))[0, 0]
        tensor([0., 1., 0., 1.])
    """

    def __init__(self, dim: int, layout: SinusoidalLayout = "paired") -> None:
        super().__init__()
        check_positive(dim=dim)
        check_choice("layout", layout, get_args(SinusoidalLayout))
        self.dim, self.layout = dim, layout

    def forward(
        self, x: Float[Tensor, "batch length dim"], *, start: int = 0
    ) -> Float[Tensor, "batch length dim"]:
        """Add the positions `start`, `start + 1`, ..."""
        check_width("x", x, self.dim)
        first = start + 2 if self.layout == "fairseq" else start
        span = self.dim - 2 if self.layout in ("fairseq", "whisper") else self.dim
        frequencies = 10000.0 ** -(_exponents(self.dim, x.device) / span)
        angles = _angles(first, x.shape[1], frequencies)
        both, paired = [angles.sin(), angles.cos()], self.layout == "paired"
        waves = torch.stack(both, dim=-1).flatten(-2) if paired else torch.cat(both, dim=-1)
        return x + waves[..., : self.dim].to(x.dtype)


@final
class LearnedPositions(nn.Module):
    """Adds a learned vector for each position.

    Args:
        max_len: number of positions.
        dim: width of the vectors.

    Examples:
        >>> regard.layers.LearnedPositions(max_len=7, dim=5)(torch.zeros(2, 3, 5)).shape
        torch.Size([2, 3, 5])
    """

    def __init__(self, max_len: int, dim: int) -> None:
        super().__init__()
        check_positive(max_len=max_len, dim=dim)
        self.dim = dim
        self.table = nn.Parameter(torch.randn(max_len, dim) * dim**-0.5)

    @property
    def max_len(self) -> int:
        """Number of positions."""
        return len(self.table)

    def forward(
        self, x: Float[Tensor, "batch length dim"], *, start: int = 0
    ) -> Float[Tensor, "batch length dim"]:
        """Add the positions `start`, `start + 1`, ..."""
        check_width("x", x, self.dim)
        end = start + x.shape[1]
        if end > len(self.table):
            raise ArgumentError(
                "x",
                f"end at position {len(self.table)}, the last that was learned",
                f"at position {end}",
                "choose a larger max_len, cut the sequence, or use SinusoidalPositions",
            )
        return x + self.table[start:end].to(x.dtype)


@final
class GridPositions(nn.Module):
    """Adds a learned vector for each row of a grid, and one for each column.

    Cells go row by row. Sums have fewer weights than a vector for each cell, and what is learned
    of a row or a column holds for all of its cells.

    Args:
        rows: of the grid.
        columns: of the grid.
        dim: width of the vectors.

    Examples:
        >>> regard.layers.GridPositions(rows=2, columns=3, dim=8)(torch.zeros(1, 6, 8)).shape
        torch.Size([1, 6, 8])
    """

    def __init__(self, rows: int, columns: int, dim: int) -> None:
        super().__init__()
        check_positive(rows=rows, columns=columns, dim=dim)
        self.dim = dim
        self.rows = nn.Parameter(torch.randn(rows, dim) * dim**-0.5)
        self.columns = nn.Parameter(torch.randn(columns, dim) * dim**-0.5)

    @property
    def max_len(self) -> int:
        """Number of cells."""
        return len(self.rows) * len(self.columns)

    def forward(
        self, x: Float[Tensor, "batch length dim"], *, start: int = 0
    ) -> Float[Tensor, "batch length dim"]:
        """Add the positions of the cells `start`, `start + 1`, ..."""
        check_width("x", x, self.dim)
        cells = (self.rows[:, None] + self.columns).flatten(0, 1)  # (cells, dim)
        end = start + x.shape[1]
        if end > len(cells):
            raise ArgumentError(
                "x",
                f"end at cell {len(cells)}, the last of the grid",
                f"at cell {end}",
                "pass the cells of one grid",
            )
        return x + cells[start:end].to(x.dtype)


class RotaryScaling(NamedTuple):
    """Scaling of rotary positions for longer texts; see `RotaryPositions`."""

    factor: float
    low: float
    high: float
    length: float

    def __call__(self, frequencies: Float[Tensor, " pairs"]) -> Float[Tensor, " pairs"]:
        """Return the frequencies, in radians per position, of the longer waves."""
        times = self.length * frequencies / (2 * math.pi)
        kept = ((times - self.low) / (self.high - self.low)).clamp(0, 1)
        return frequencies * (kept + (1 - kept) / self.factor)


@final
class RotaryPositions(nn.Module):
    """Rotates pairs of features by angles that grow with the position (Su et al., 2021).

    https://arxiv.org/abs/2104.09864. The product of a rotated query and a rotated key depends on
    their distance alone. Feature i is paired with feature i + head_dim / 2.

    Args:
        head_dim: width of a head; even.
        base: the longest wave is about `2 pi base` positions long.
        scaling: for texts longer than the `length` that was trained on, as in Llama 3: waves that
            it holds fewer than `low` times are made `factor` times longer, those that it holds
            more than `high` times are not, and between these the change is gradual.

    Examples:
        >>> rotation = regard.layers.RotaryPositions(head_dim=4)
        >>> attention = regard.attention.MultiHeadAttention(12, 3, rotation=rotation)
        >>> x = torch.randn(2, 5, 12)
        >>> attention(x, x, x).context.shape
        torch.Size([2, 5, 12])
    """

    def __init__(
        self, head_dim: int, *, base: float = 10000.0, scaling: RotaryScaling | None = None
    ) -> None:
        super().__init__()
        check_positive(head_dim=head_dim, base=base)
        if head_dim % 2:
            raise ArgumentError(
                "head_dim",
                "be even, since features are rotated in pairs",
                head_dim,
                "add one feature",
            )
        self.head_dim, self.base, self.scaling = head_dim, base, scaling

    def forward(
        self, x: Float[Tensor, "batch heads length head_dim"], *, start: int = 0
    ) -> Float[Tensor, "batch heads length head_dim"]:
        """Rotate vectors that stand at `start`, `start + 1`, ..."""
        check_axes("x", x, "batch heads length head_dim")
        check_equal("agree in head_dim", x=x.shape[3], positions=self.head_dim)
        angles = _angles(start, x.shape[2], self.frequencies(x.device))
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        left, right = x.chunk(2, dim=-1)
        return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)

    def frequencies(self, device: torch.device) -> Float[Tensor, " pairs"]:
        """The angle of each pair at position 1, in float64 where the device has it."""
        frequencies = self.base ** -(_exponents(self.head_dim, device) / self.head_dim)
        return frequencies if self.scaling is None else self.scaling(frequencies)


def _exponents(dim: int, device: torch.device) -> Float[Tensor, " pairs"]:
    """`2i`, in float64 where the device has it, for exact late positions."""
    dtype = torch.float32 if device.type == "mps" else torch.float64
    return torch.arange(0, dim, 2, device=device, dtype=dtype)


def _angles(
    start: int, length: int, frequencies: Float[Tensor, " pairs"]
) -> Float[Tensor, "length pairs"]:
    """The angles at positions `start`, `start + 1`, ..."""
    dtype, device = frequencies.dtype, frequencies.device
    return torch.arange(start, start + length, device=device, dtype=dtype)[:, None] * frequencies
