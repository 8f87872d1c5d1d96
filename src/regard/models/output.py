"""The output layer: from features to scores of all tokens."""

from typing import final

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from regard.models.embedding import TokenEmbedding
from regard.models.keep import kept
from regard.models.protocol import Keep


@final
class Output(nn.Module):
    """`W x + b`, or with tied weights `E P x + b`: E is the table of the target's embedding.

    A tied layer judges a token by the vector that stands for it (Press and Wolf, 2017,
    https://arxiv.org/abs/1608.05859). P is there where the features are not as wide as E.

    Args:
        width: of the features.
        embedding: of the target tokens; a tied layer gets its table with each call, and keeps none.
        dropout: probability of dropping a feature.
        tied: whether E is used in place of a matrix of its own.
    """

    weight: Tensor | None

    def __init__(
        self, width: int, embedding: TokenEmbedding, *, dropout: float = 0.0, tied: bool = False
    ) -> None:
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        if tied:
            self.register_parameter("weight", None)
            self.bias = nn.Parameter(torch.zeros(embedding.vocab))
            narrow = width != embedding.dim
            self.projection = nn.Linear(width, embedding.dim, bias=False) if narrow else None
        else:
            linear = nn.Linear(width, embedding.vocab)
            self.weight, self.bias, self.projection = linear.weight, linear.bias, None

    def forward(
        self,
        features: Float[Tensor, "batch tgt_len width"],
        embedding: TokenEmbedding,
        keep: Keep | None = None,
    ) -> Float[Tensor, "batch tgt_len vocab"] | Float[Tensor, "kept vocab"]:
        """Scores of every token; of the positions to keep alone, so that padding costs nothing."""
        x = self.dropout(features if keep is None else kept(features, keep))
        if self.weight is not None:
            return F.linear(x, self.weight, self.bias)
        x = x if self.projection is None else self.projection(x)
        return F.linear(x, embedding.table.weight, self.bias)
