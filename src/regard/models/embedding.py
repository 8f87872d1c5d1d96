"""Token embeddings, and output layers, which may share their tables."""

from typing import Any, Protocol, final, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard import ops
from regard.errors import ArgumentError
from regard.layers.dropout import Dropout
from regard.models.protocol import Keep, check_tokens, select_positions
from regard.ops.backend import refuse_step
from regard.ops.check import check_axes, check_positive, check_share
from regard.symbols import BOS, EOS


@runtime_checkable
class PositionalEncoding(Protocol):
    """Adds positional encodings to vectors, e.g. `SinusoidalPositions`."""

    def __call__(self, x: Tensor, *, start: int = 0) -> Tensor:
        """Return the vectors at positions `start`, `start + 1`, ...; rows may differ in it."""
        ...


@final
class TokenEmbedding(nn.Module):
    """A vector for each token, scaled, with positions, a norm, dropout and a projection.

    Args:
        vocab: number of different tokens.
        dim: width of the vectors.
        positions: adds positions, for layers that are otherwise blind to order.
        scale: factor of the vectors before positions are added.
        dropout: probability of dropping a feature.
        word_dropout: probability of dropping a whole token, whose vector is then zero but for its
            position (Sennrich et al., 2016, https://arxiv.org/abs/1606.02891).
        name: the name of the ids in errors.
        norm: of the vectors with their positions, if any.
        projection: from vectors of the table's width to those of the layers, if these differ (Lan
            al., 2020, https://arxiv.org/abs/1909.11942).
        bos_as_eos: whether `bos` has the vector of `eos`, as where one token begins and ends texts.
    """

    def __init__(
        self,
        vocab: int,
        dim: int,
        *,
        positions: PositionalEncoding | None = None,
        scale: float = 1.0,
        dropout: float = 0.0,
        word_dropout: float = 0.0,
        name: str = "src",
        norm: nn.Module | None = None,
        projection: nn.Module | None = None,
        bos_as_eos: bool = False,
    ) -> None:
        super().__init__()
        check_positive(vocab=vocab, dim=dim)
        check_share(word_dropout=word_dropout)
        self.word_dropout, self.bos_as_eos = word_dropout, bos_as_eos
        self.vocab, self.dim, self.scale, self.name = vocab, dim, scale, name
        self.table = nn.Embedding(vocab, dim)
        nn.init.normal_(self.table.weight, std=dim**-0.5)
        self.positions, self.norm, self.projection = positions, norm, projection
        self.dropout = Dropout(dropout)

    def forward(
        self, tokens: Int[Tensor, "batch length"], *, start: int = 0
    ) -> Float[Tensor, "batch length width"]:
        """Return the vectors of tokens at positions `start`, `start + 1`, ..."""
        check_axes(self.name, tokens, "batch length")
        check_tokens(self.name, tokens, self.vocab)
        x: Tensor = self.vectors(tokens)
        if self.training and self.word_dropout:
            x = x * ops.dropout(x.new_ones(*tokens.shape, 1), self.word_dropout)
        if self.positions is not None:
            x = self.positions(x, start=start)
        x = self.dropout(x if self.norm is None else self.norm(x))
        return x if self.projection is None else self.projection(x)

    def vectors(self, tokens: Tensor) -> Tensor:
        """Return the scaled rows of tokens, without positions."""
        tokens = tokens.masked_fill(tokens == BOS, EOS) if self.bos_as_eos else tokens
        rows: Tensor = self.table(tokens)
        return rows * self.scale

    @property
    def unusual_option(self) -> str | None:
        """An option of `TransformerOptions` that changes more than the vectors, or None."""
        return "embed_norm" if self.norm is not None else "embed" if self.projection else None

    def share(self, owner: "TokenEmbedding") -> None:
        """Use the table of another embedding. A state dict holds it once, as the owner's."""
        self.table = owner.table
        self.register_state_dict_post_hook(_leave_out)  # type: ignore[no-untyped-call]
        self.register_load_state_dict_pre_hook(_put_back)  # type: ignore[no-untyped-call]


def check_unplaced(embedding: TokenEmbedding) -> None:
    """Raises for an embedding with positions, in a decoder that does not count its steps.

    Each step would put its token at position 0, so that decoding would be wrong after a training
    that seems to work.
    """
    if embedding.positions is not None:
        raise ArgumentError(
            "embedding",
            "add no positions, since this decoder does not count its steps",
            f"one with {type(embedding.positions).__name__}",
            "leave them out, or give the layers of its body relative ones by LayerOptions",
        )


def _leave_out(
    module: nn.Module, state: dict[str, Tensor], prefix: str, metadata: dict[str, Any]
) -> None:
    """Leave the shared table out: a file of weights cannot hold one tensor under two names."""
    state.pop(f"{prefix}table.weight", None)


def _put_back(
    module: nn.Module, state: dict[str, Tensor], prefix: str, *_: object, **__: object
) -> None:
    """Load the current values for the borrower; the owner's name brings the new ones."""
    assert isinstance(module, TokenEmbedding)
    state[f"{prefix}table.weight"] = module.table.weight.detach()


@final
class OutputLayer(nn.Module):
    """`W x + b`, or with tied weights `E P x + b`: E is the table of the target's embedding.

    A tied layer scores a token by its embedding (Press and Wolf, 2017,
    https://arxiv.org/abs/1608.05859). P projects features that are not as wide as E.

    Args:
        width: of the features.
        embedding: of the target tokens; a tied layer gets its table with each call.
        dropout: probability of dropping a feature.
        tied: whether E replaces a matrix of its own.
        learns_bias: whether b is learned, or stays as it is.
    """

    weight: Tensor | None

    def __init__(
        self,
        width: int,
        embedding: TokenEmbedding,
        *,
        dropout: float = 0.0,
        tied: bool = False,
        learns_bias: bool = True,
    ) -> None:
        super().__init__()
        self.dropout = Dropout(dropout)
        if tied:
            self.register_parameter("weight", None)
            self.bias = nn.Parameter(torch.zeros(embedding.vocab))
            narrow = width != embedding.dim
            self.projection = nn.Linear(width, embedding.dim, bias=False) if narrow else None
        else:
            linear = nn.Linear(width, embedding.vocab)
            self.weight, self.bias, self.projection = linear.weight, linear.bias, None
        if not learns_bias:
            del self.bias
            self.register_buffer("bias", torch.zeros(embedding.vocab))

    def forward(
        self,
        features: Float[Tensor, "batch tgt_len width"],
        embedding: TokenEmbedding,
        keep: Keep = None,
    ) -> Float[Tensor, "batch tgt_len vocab"] | Float[Tensor, "kept vocab"]:
        """Score every token at the positions to keep, so that padding costs nothing."""
        x = self.dropout(select_positions(features, keep))
        x = x if self.projection is None else self.projection(x)
        weight = embedding.table.weight if self.weight is None else self.weight
        if refuse_step(x) is not None:
            return F.linear(x, weight, self.bias)
        from regard.ops import triton_step  # loads triton

        return triton_step.scores(x[:, 0], weight, self.bias)[:, None]
