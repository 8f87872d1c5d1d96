"""A decoder with exact hard monotonic attention."""

import math
from dataclasses import dataclass, field, replace
from typing import Final, cast, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard import ops
from regard.attention import Projected, Scorer
from regard.errors import ArgumentError
from regard.layers.dropout import Dropout
from regard.models.decoders import Decoder, DecoderOutput
from regard.models.embedding import OutputLayer, TokenEmbedding, check_unplaced
from regard.models.language_model import CausalBody
from regard.models.protocol import Keep, Maps, Memory, Tgt, select_positions
from regard.ops.primitives import log_softmax
from regard.state import OF_SOURCE, State

# One number for each token at each position of each step: 1 GiB in float32, of which training has
# several copies at once. Batches of characters stay far below.
LARGEST: Final = 2**28


@dataclass(frozen=True)
class MonotonicState(State):
    """The state after the target so far.

    Attributes:
        body: the state of the body.
        keys: the memory, projected for the scores of positions.
        features: the memory's part of the hidden layer that scores tokens.
        mask: True at real tokens.
        joint: `log p(a = i, y = v)` of the last step, which becomes the distribution of its
            position once its token is known; None before the first step.
    """

    body: State
    keys: Float[Tensor, "batch src_len score_dim"] = field(metadata=OF_SOURCE)
    features: Float[Tensor, "batch src_len hidden"] = field(metadata=OF_SOURCE)
    mask: Bool[Tensor, "batch src_len"] = field(metadata=OF_SOURCE)
    joint: Float[Tensor, "batch src_len tgt_vocab"] | None


@final
class MonotonicDecoder(Decoder):
    """Aligns each output to one source position, which never moves back and is summed out exactly.

    Wu and Cotterell (2019), https://aclanthology.org/P19-1148; of their models the one whose
    scores do not depend on the last position, but whose transitions do. Mixing the distributions of
    positions, not their vectors, is from Wu, Shapiro and Cotterell (2018),
    https://aclanthology.org/D18-1473. With s_t the body's output for the target before `y_t`, and
    h_i the memory:

        p(y_t | a_t = i) = softmax(W_o tanh(W [s_t; h_i] + b) + b_o)
        p(a_t = i | a_{t-1} = j) = softmax over i >= j of score(s_t, h_i), the first from 0
        p(y_t | y_<t) = sum_i p(a_t = i | y_<t) p(y_t | a_t = i)

    The logits are the logarithms of the last line. The map `cross` is `p(a_t = i | y_<t)`, the
    distribution of positions before `y_t` is known.

    Every token is scored at every position of every step, so this is meant for small vocabularies,
    such as characters and phonemes.
    """

    def __init__(
        self,
        embedding: TokenEmbedding,
        body: CausalBody,
        attention: Scorer,
        *,
        memory_size: int,
        hidden_size: int,
        dropout: float = 0.0,
        tied: bool = False,
    ) -> None:
        super().__init__()
        check_unplaced(embedding)
        self.embedding, self.body, self.attention = embedding, body, attention
        self.dropout = Dropout(dropout)
        # W [s_t; h_i] in two halves, so that no pair is made before they are added
        self.body_proj = nn.Linear(body.output_size, hidden_size)
        self.memory_proj = nn.Linear(memory_size, hidden_size, bias=False)
        self.output = OutputLayer(hidden_size, embedding, tied=tied)

    def start(self, memory: Memory) -> State:
        """Return the first state; the position before the first output is 0."""
        keys = self.attention.project_keys(memory.output if memory.keys is None else memory.keys)
        return MonotonicState(
            self.body.start(memory.output.shape[0], memory.output),
            keys.tensor,
            self.memory_proj(self.dropout(memory.output)),
            memory.mask[:, 0, 0],
            None,
        )

    def forward(
        self, tokens: Tgt, state: State, *, keep: Keep = None, need_weights: bool = False
    ) -> DecoderOutput:
        """Score all tokens at all positions at once, then sum from step to step.

        The sums go through every step: `keep` spares the mixture over positions alone.
        """
        state = cast(MonotonicState, state)
        self._check_size(tokens, state)
        body = self.body(self.embedding(tokens), state.body, need_weights=need_weights)
        emission = self._emission(body.output, state)
        scores = self.attention.scores(body.output, Projected(state.keys))[:, 0].to(emission.dtype)
        expected = ops.monotonic_alignment(scores, _evidence(tokens, emission, state), state.mask)
        prior = _somewhere(expected, state.mask)
        maps: Maps = {f"decoder-{kind}": tensors for kind, tensors in body.maps.items()}
        if need_weights:
            maps["cross"] = (expected.exp()[:, None],)
        joint = emission[:, -1] + prior[:, -1, :, None]
        after = replace(state, body=body.state, joint=joint)
        return DecoderOutput(_mixture(prior, emission, keep), after, maps)

    def _emission(
        self, output: Tensor, state: MonotonicState
    ) -> Float[Tensor, "batch tgt_len src_len tgt_vocab"]:
        """Return `log p(y_t = v | a_t = i)`."""
        own = self.body_proj(self.dropout(output))
        hidden = torch.tanh(own[:, :, None] + state.features[:, None])
        logits = self.output(hidden.flatten(1, 2), self.embedding)  # (batch, tgt_len src_len, ...)
        return log_softmax(logits).view(*hidden.shape[:3], -1)

    def _check_size(self, tokens: Tensor, state: MonotonicState) -> None:
        sizes = (*tokens.shape, state.mask.shape[1], self.embedding.vocab)
        if math.prod(sizes) > LARGEST:
            raise ArgumentError(
                "batch x tgt_len x src_len x tgt_vocab",
                f"be at most {LARGEST:,}, since every token is scored at every position",
                " x ".join(map(str, sizes)),
                "use a target tokeniser with fewer tokens, as char or space for phonemes, or "
                "smaller batches (batch_tokens=1024)",
            )


def _evidence(
    tokens: Tensor, emission: Tensor, state: MonotonicState
) -> Float[Tensor, "batch tgt_len src_len"]:
    """Return the log-likelihood of the read tokens at each position of the step before them."""
    length = emission.shape[2]
    if state.joint is None:
        first = torch.full_like(emission[:, 0, :, 0], float("-inf"))
        first[:, 0].zero_()
    else:
        first = state.joint.gather(2, tokens[:, :1, None].expand(-1, length, 1)).squeeze(2)
    index = tokens[:, 1:, None, None].expand(-1, -1, length, 1)
    others = emission[:, :-1].gather(3, index).squeeze(3)
    return torch.cat([first[:, None], others], dim=1)


def _somewhere(
    expected: Float[Tensor, "batch tgt_len src_len"], mask: Bool[Tensor, "batch src_len"]
) -> Float[Tensor, "batch tgt_len src_len"]:
    """Give a source without tokens its first column, which is zeros, to write from."""
    nowhere = ~mask.any(dim=1)[:, None] & (torch.arange(mask.shape[1], device=mask.device) == 0)
    return expected.masked_fill(nowhere[:, None], 0.0)


def _mixture(
    prior: Float[Tensor, "batch tgt_len src_len"],
    emission: Float[Tensor, "batch tgt_len src_len tgt_vocab"],
    keep: Keep,
) -> Float[Tensor, "batch tgt_len tgt_vocab"] | Float[Tensor, "kept tgt_vocab"]:
    """Return `log sum_i p(a_t = i | y_<t) p(y_t = v | a_t = i)` at the positions to keep."""
    prior, emission = select_positions(prior, keep), select_positions(emission, keep)
    mixed = (prior[..., None] + emission).logsumexp(dim=-2)
    # a copy, since the loss overwrites its logits, which the backward pass of the sum needs
    return mixed.clone()
