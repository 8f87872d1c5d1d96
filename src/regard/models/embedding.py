"""From token ids to vectors."""

from typing import Protocol, final, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.models.protocol import check_tokens
from regard.ops.check import check_axes, check_positive


@runtime_checkable
class Positions(Protocol):
    """Adds positions to vectors, e.g. `SinusoidalPositions`."""

    def __call__(self, x: Tensor, *, start: int = 0) -> Tensor:
        """Vectors that stand at `start`, `start + 1`, ..."""
        ...


@final
class TokenEmbedding(nn.Module):
    """A vector for each token, scaled, with positions and dropout.

    Args:
        vocab: number of different tokens.
        dim: width of the vectors.
        positions: adds positions, for layers without an order of their own.
        scale: what the vectors are multiplied by before positions are added.
        dropout: probability of dropping a feature.
        name: what errors call the ids.
    """

    def __init__(
        self,
        vocab: int,
        dim: int,
        *,
        positions: Positions | None = None,
        scale: float = 1.0,
        dropout: float = 0.0,
        name: str = "src",
    ) -> None:
        super().__init__()
        check_positive(vocab=vocab, dim=dim)
        self.vocab, self.dim, self.scale, self.name = vocab, dim, scale, name
        self.table = nn.Embedding(vocab, dim)
        nn.init.normal_(self.table.weight, std=dim**-0.5)
        self.positions = positions
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, tokens: Int[Tensor, "batch length"], *, start: int = 0
    ) -> Float[Tensor, "batch length dim"]:
        """Vectors of tokens that stand at `start`, `start + 1`, ..."""
        check_axes(self.name, tokens, "batch length")
        check_tokens(self.name, tokens, self.vocab)
        x: Tensor = self.table(tokens) * self.scale
        if self.positions is not None:
            x = self.positions(x, start=start)
        dropped: Tensor = self.dropout(x)
        return dropped
