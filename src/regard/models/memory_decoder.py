"""A decoder with attention and an external memory that it writes and reads.

The memory of Graves et al. (2014), see `ContentMemory`, beside the attention of Bahdanau et al.
(2015). Everywhere else, memory means the encoder's output; here it means the slots.
"""

from dataclasses import dataclass
from typing import NamedTuple, cast, final

import torch
from jaxtyping import Float
from torch import Tensor

from regard.attention import Attention
from regard.errors import ArgumentError
from regard.layers import ContentMemory
from regard.models.decoders import (
    Decoder,
    DecoderOutput,
    ProjectedMemory,
    RecurrentDecoder,
    RecurrentDecoderState,
)
from regard.models.embedding import TokenEmbedding
from regard.models.protocol import Keep, Maps, Memory, Tgt
from regard.ops.check import check_equal
from regard.preemption import in_turn
from regard.state import State


@dataclass(frozen=True)
class MemoryState(State):
    """The state of the recurrent decoder, and the slots.

    The last context of that decoder is `[c; r]`, of the attention and of the memory.
    """

    recurrent: RecurrentDecoderState
    slots: Float[Tensor, "batch slots width"]


class MemoryStep(NamedTuple):
    """The result of one token.

    Attributes:
        features: `[s_t; c_t; r_t]`, (batch, features).
        cross_weights: over the source, (batch, heads, 1, src_len), if asked for.
        slot_weights: over the slots, (batch, slots).
        state: after it.
    """

    features: Tensor
    cross_weights: Tensor | None
    slot_weights: Tensor
    state: MemoryState


@final
class MemoryDecoder(Decoder):
    """A recurrent decoder with attention and an external memory.

    `s_t = rnn([y_t; c_{t-1}; r_{t-1}])`, `c_t = attention(s_t, source)`, then the slots are written
    and read by keys that are made from `[s_t; c_t]`, and r_t is what is read;
    `softmax(W_o [s_t; c_t; r_t] + b_o)`.
    """

    def __init__(self, recurrent: RecurrentDecoder, external: ContentMemory) -> None:
        super().__init__()
        if recurrent.attention is None:
            raise ArgumentError(
                "recurrent", "have an attention to the source", "without one", "pass one to it"
            )
        context = recurrent.context_size - external.width
        made_from = recurrent.stack.output_size + context
        check_equal("agree in width", recurrent=made_from, external=external.input_size)
        self.recurrent, self.external = recurrent, external

    @property
    def embedding(self) -> TokenEmbedding:
        """Of target tokens."""
        return self.recurrent.embedding

    def start(self, memory: Memory) -> State:
        """Return the state of the recurrent decoder, with the learned slots."""
        recurrent = cast(RecurrentDecoderState, self.recurrent.start(memory))
        return MemoryState(recurrent, self.external.start(memory.output.shape[0]))

    def forward(
        self, tokens: Tgt, state: State, *, keep: Keep = None, need_weights: bool = False
    ) -> DecoderOutput:
        """Run one step after another, since each needs the contexts of the last one."""
        state, steps = cast(MemoryState, state), []
        for x in in_turn(self.embedding(tokens).unbind(dim=1)):
            steps.append(self._step(x, state, need_weights))
            state = steps[-1].state
        features = torch.stack([step.features for step in steps], dim=1)
        logits = self.recurrent.output(features, self.embedding, keep)
        return DecoderOutput(logits, state, _maps(steps) if need_weights else {})

    def _step(self, x: Tensor, state: MemoryState, need_weights: bool) -> MemoryStep:
        stack, before = self.recurrent.stack, state.recurrent
        hidden, rnn = stack.step(torch.cat([x, before.context], dim=-1), before.rnn)
        context, weights, source = cast(ProjectedMemory, before.source).attend(
            cast(Attention, self.recurrent.attention), hidden[:, None], need_weights=need_weights
        )
        seen = torch.cat([hidden, context[:, 0]], dim=-1)
        found = self.external(seen, state.slots)
        features = torch.cat([seen, found.read], dim=-1)
        after = RecurrentDecoderState(rnn, features[:, stack.output_size :], source)
        return MemoryStep(features, weights, found.weights, MemoryState(after, found.slots))


def _maps(steps: list[MemoryStep]) -> Maps:
    cross = [step.cross_weights for step in steps if step.cross_weights is not None]
    slots = torch.stack([step.slot_weights for step in steps], dim=1)[:, None]
    return {"cross": (torch.cat(cross, dim=2),), "memory": (slots,)}
