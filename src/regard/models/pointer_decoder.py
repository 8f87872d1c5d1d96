"""The pointer-generator: a decoder that writes a token, or copies one from its source.

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
from regard.models.protocol import Keep, Maps, Memory, select_positions
from regard.ops.primitives import log_softmax
from regard.state import OF_SOURCE, State

#: The least that can be copied of a token: its logarithm, and one through it, are finite numbers,
#: those that fp16's scaling makes of them too.
LEAST: Final = 1e-30


@dataclass(frozen=True)
class PointerState(State):
    """The state of the decoder that reads and looks, and the source that is copied from."""

    recurrent: RecurrentDecoderState
    tokens: Int[Tensor, "batch src_len"] = field(metadata=OF_SOURCE)


@final
class GenerationGate(nn.Module):
    """`sigmoid(w x + b)`: how much of each token is written, and not copied.

    A module of its own, so that a forward hook sees it.

    Args:
        width: of the features.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 1)

    def forward(
        self, features: Float[Tensor, "batch tgt_len width"]
    ) -> Float[Tensor, "batch tgt_len"]:
        """A share for each token, in float32 at least."""
        return widened(self.linear(features)).sigmoid().squeeze(-1)


@final
class PointerDecoder(Decoder):
    """A recurrent decoder with attention that also copies tokens of the source.

    Its logits are log-probabilities. What its attention gives to tokens that cannot be copied, it
    writes.

    Args:
        recurrent: what reads, looks and writes. Its attention has one head, and its vocabulary is
            that of the source.
        src_only: how many tokens at the end of the vocabulary are never copied: features, which no
            target has.
        coverage: the weight of the coverage loss; with 0 there is none.
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
        """That of the recurrent decoder, with the source."""
        if memory.tokens is None:
            raise ArgumentError(
                "memory", "have the tokens to copy", "without them", "have the encoder keep them"
            )
        recurrent = cast(RecurrentDecoderState, self.recurrent.start(memory))
        return PointerState(recurrent, memory.tokens)

    def forward(
        self,
        tokens: Int[Tensor, "batch tgt_len"],
        state: State,
        *,
        keep: Keep | None = None,
        need_weights: bool = False,
    ) -> DecoderOutput:
        """Log-probabilities of the mixture, and the coverage loss of each token."""
        state = cast(PointerState, state)
        read = self.recurrent.read(tokens, state.recurrent, need_weights=True)
        assert read.weights is not None
        written = self.recurrent.output(read.features, self.embedding, keep)
        gate = self.gate(torch.cat([read.features, read.inputs], dim=-1))
        looked = read.weights[:, 0]
        with torch.autocast(looked.device.type, enabled=False):
            taken = put_together(widened(looked), state.tokens, self.copied)
            ids = state.tokens[:, None].expand_as(taken)
            penalty = self._penalty(widened(looked), state.recurrent) if self.coverage else None
            if keep is not None:
                gate, taken, ids = (select_positions(x, keep) for x in (gate, taken, ids))
                penalty = None if penalty is None else select_positions(penalty, keep)
            logits = mixture(written, gate, taken, ids)
        after = PointerState(read.state, state.tokens)
        maps: Maps = {"cross": (read.weights,)} if need_weights else {}
        return DecoderOutput(logits, after, maps, penalty)

    def _penalty(
        self, weights: Float[Tensor, "batch tgt_len src_len"], state: RecurrentDecoderState
    ) -> Float[Tensor, "batch tgt_len"]:
        before = None if state.source is None else state.source.past.coverage
        return self.coverage * coverage_loss(weights, None if before is None else before[:, 0])


def put_together(
    weights: Float[Tensor, "batch tgt_len src_len"],
    tokens: Int[Tensor, "batch src_len"],
    copied: int,
) -> Float[Tensor, "batch tgt_len src_len"]:
    """The weights of equal tokens, summed, at the first of them; zero at all others.

    Then no two are added up in memory, whose order a GPU leaves open: results can be had again bit
    for bit. Tokens that are `copied` or more have no weight.
    """
    same = tokens[:, :, None] == tokens[:, None, :]  # (batch, src_len, src_len)
    first = ~same.tril(-1).any(dim=2) & (tokens < copied)
    return weights @ (same & first[:, None]).to(weights.dtype)


def mixture(
    logits: Float[Tensor, "*rows vocab"],
    gate: Float[Tensor, "*rows"],
    taken: Float[Tensor, "*rows src_len"],
    tokens: Int[Tensor, "*rows src_len"],
) -> Float[Tensor, "*rows vocab"]:
    """Log-probabilities of `(1 - (1 - g) m) softmax(logits) + (1 - g) taken`, never -inf.

    m is the sum of what is taken: 1, and then this is the paper's mixture, unless the attention
    looks at what cannot be copied.

    Args:
        logits: of what is written.
        gate: g, the share of writing.
        taken: the share of each source token in what is copied, see `put_together`.
        tokens: those of the source.
    """
    rest = (1 - taken.sum(dim=-1)).clamp_min(0.0)
    share = gate + (1 - gate) * rest
    written = log_softmax(logits) + share.clamp_min(LEAST).log()[..., None]
    ahead = (1 - gate)[..., None] * taken
    copies = torch.zeros_like(written).scatter_add(-1, tokens, ahead.to(written.dtype))
    return torch.logaddexp(written, copies.clamp_min(LEAST).log())


def coverage_loss(
    weights: Float[Tensor, "batch tgt_len src_len"],
    before: Float[Tensor, "batch 1 src_len"] | None = None,
) -> Float[Tensor, "batch tgt_len"]:
    """`sum_i min(a_t,i, c_t,i)`, where c_t is the sum of the weights before step t (eq. 12).

    Args:
        weights: a, of all steps.
        before: the sum of the weights of still earlier steps.
    """
    steps = weights.shape[1]
    coverage = weights.new_ones(steps, steps).tril(-1) @ weights
    coverage = coverage if before is None else coverage + before
    return torch.minimum(weights, coverage).sum(dim=-1)


def widened(x: Tensor) -> Tensor:
    """In float32 at least."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
