"""The pointer-generator: a decoder that generates a token, or copies one from its source.

See et al., 2017, https://arxiv.org/abs/1704.04368, eq. 8 to 13: the probability of y at step t is
`g softmax(W_o [s_t; c_t] + b_o)_y + (1 - g) sum_i a_i [x_i = y]`, where a is the attention and the
gate is `g = sigmoid(w [s_t; c_t; y_t] + b)`, of the newest token's vector y_t.
"""

from dataclasses import dataclass, field
from typing import ClassVar, Final, cast, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.errors import ArgumentError
from regard.models.decoders import Decoder, DecoderOutput, RecurrentDecoder, RecurrentDecoderState
from regard.models.embedding import TokenEmbedding
from regard.models.protocol import Keep, Maps, Memory, Tgt, select_positions
from regard.ops.primitives import log_softmax
from regard.state import OF_SOURCE, State

#: Lower bound of probabilities whose logarithm and reciprocal are taken: both stay finite, also
#: after the loss scaling of fp16.
LEAST: Final = 1e-30


@dataclass(frozen=True)
class PointerState(State):
    """The state of the recurrent decoder, and the source tokens to copy."""

    recurrent: RecurrentDecoderState
    tokens: Int[Tensor, "batch src_len"] = field(metadata=OF_SOURCE)


@final
class GenerationGate(nn.Module):
    """`sigmoid(w x + b)`: the probability of generating a token rather than copying it.

    A module of its own, so that a forward hook sees it.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 1)

    def forward(
        self, features: Float[Tensor, "batch tgt_len width"]
    ) -> Float[Tensor, "batch tgt_len"]:
        """Return a probability for each token, in float32 at least."""
        return widened(self.linear(features)).sigmoid().squeeze(-1)


@final
class PointerDecoder(Decoder):
    """A recurrent decoder with attention that also copies tokens of the source.

    Its logits are log-probabilities. The attention on tokens that cannot be copied is added to the
    probability of generating.
    """

    copies_source: ClassVar = True

    def __init__(
        self, recurrent: RecurrentDecoder, *, src_only: int = 0, coverage: float = 0.0
    ) -> None:
        super().__init__()
        if recurrent.attention is None:
            raise ArgumentError(
                "recurrent", "have an attention to copy by", "without one", "pass one to it"
            )
        self.recurrent, self.coverage = recurrent, coverage
        self.copied = recurrent.embedding.vocab - src_only
        width = recurrent.stack.output_size + recurrent.context_size + recurrent.embedding.dim
        self.gate = GenerationGate(width)

    @property
    def embedding(self) -> TokenEmbedding:
        """Of target tokens."""
        return self.recurrent.embedding

    def start(self, memory: Memory) -> State:
        """Return the state of the recurrent decoder, with the source tokens."""
        if memory.tokens is None:
            raise ArgumentError(
                "memory", "have the tokens to copy", "without them", "have the encoder keep them"
            )
        recurrent = cast(RecurrentDecoderState, self.recurrent.start(memory))
        return PointerState(recurrent, memory.tokens)

    def forward(
        self, tokens: Tgt, state: State, *, keep: Keep = None, need_weights: bool = False
    ) -> DecoderOutput:
        """Return log-probabilities of the mixture, and the coverage loss of each token."""
        state = cast(PointerState, state)
        read = self.recurrent.read(tokens, state.recurrent, need_weights=True)
        assert read.weights is not None
        generated = self.recurrent.output(read.features, self.embedding, keep)
        gate = self.gate(torch.cat([read.features, read.inputs], dim=-1))
        weights = widened(read.weights[:, 0])
        with torch.autocast(weights.device.type, enabled=False):
            copied = merge_equal_tokens(weights, state.tokens, self.copied)
            ids = state.tokens[:, None].expand_as(copied)
            penalty = self._penalty(weights, state.recurrent) if self.coverage else None
            gate, copied, ids = (select_positions(x, keep) for x in (gate, copied, ids))
            penalty = None if penalty is None else select_positions(penalty, keep)
            logits = mixture(generated, gate, copied, ids)
        after = PointerState(read.state, state.tokens)
        maps: Maps = {"cross": (read.weights,)} if need_weights else {}
        return DecoderOutput(logits, after, maps, penalty)

    def _penalty(
        self, weights: Float[Tensor, "batch tgt_len src_len"], state: RecurrentDecoderState
    ) -> Float[Tensor, "batch tgt_len"]:
        before = None if state.source is None else state.source.past.coverage
        return self.coverage * coverage_loss(weights, None if before is None else before[:, 0])


def merge_equal_tokens(
    weights: Float[Tensor, "batch tgt_len src_len"],
    tokens: Int[Tensor, "batch src_len"],
    copied: int,
) -> Float[Tensor, "batch tgt_len src_len"]:
    """Sum the weights of equal tokens at the first of them; zero at all others.

    So no two weights are added by `scatter_add`, whose order on a GPU is not deterministic: results
    are reproducible bit for bit. Token ids of `copied` or more get no weight.
    """
    same = tokens[:, :, None] == tokens[:, None, :]  # (batch, src_len, src_len)
    first = ~same.tril(-1).any(dim=2) & (tokens < copied)
    return weights @ (same & first[:, None]).to(weights.dtype)


def mixture(
    logits: Float[Tensor, "*rows vocab"],
    gate: Float[Tensor, "*rows"],
    copied: Float[Tensor, "*rows src_len"],
    tokens: Int[Tensor, "*rows src_len"],
) -> Float[Tensor, "*rows vocab"]:
    """Return log-probabilities of `(1 - (1 - g) m) softmax(logits) + (1 - g) copied`, never -inf.

    m is the sum of `copied`: 1, and then this is the paper's mixture, unless the attention is on
    tokens that cannot be copied.
    """
    rest = (1 - copied.sum(dim=-1)).clamp_min(0.0)
    share = gate + (1 - gate) * rest
    generated = log_softmax(logits) + share.clamp_min(LEAST).log()[..., None]
    weights = (1 - gate)[..., None] * copied
    copies = torch.zeros_like(generated).scatter_add(-1, tokens, weights.to(generated.dtype))
    return torch.logaddexp(generated, copies.clamp_min(LEAST).log())


def coverage_loss(
    weights: Float[Tensor, "batch tgt_len src_len"],
    before: Float[Tensor, "batch 1 src_len"] | None = None,
) -> Float[Tensor, "batch tgt_len"]:
    """Return `sum_i min(a_t,i, c_t,i)`, c_t being the sum of weights before step t (eq. 12)."""
    steps = weights.shape[1]
    coverage = weights.new_ones(steps, steps).tril(-1) @ weights
    coverage = coverage if before is None else coverage + before
    return torch.minimum(weights, coverage).sum(dim=-1)


def widened(x: Tensor) -> Tensor:
    """Return x in float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
