"""A decoder that looks at its source, and also writes and reads a memory of its own.

The memory of Graves et al. (2014), see `ContentMemory`, beside the attention of Bahdanau et al.
(2015). What an encoder leaves is called memory everywhere else; here the word is for the slots.
"""

from dataclasses import dataclass
from typing import NamedTuple, cast, final

import torch
from jaxtyping import Float, Int
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
from regard.models.protocol import Keep, Maps, Memory
from regard.ops.check import check_equal
from regard.preemption import in_turn
from regard.state import State


@dataclass(frozen=True)
class MemoryState(State):
    """The state of the decoder that reads and looks, and what the slots hold.

    The last context of that decoder is `[c; r]`: what it saw of the source, and what it recalled.
    """

    recurrent: RecurrentDecoderState
    slots: Float[Tensor, "batch slots width"]


class MemoryStep(NamedTuple):
    """What one token leads to.

    Attributes:
        features: `[s_t; c_t; r_t]`, (batch, features).
        looked: weights over the source, (batch, heads, 1, src_len), if asked for.
        recalled: weights over the slots, (batch, slots).
        state: after it.
    """

    features: Tensor
    looked: Tensor | None
    recalled: Tensor
    state: MemoryState


@final
class MemoryDecoder(Decoder):
    """A recurrent decoder with attention and an external memory.

    `s_t = rnn([y_t; c_{t-1}; r_{t-1}])`, `c_t = attention(s_t, source)`, then the slots are written
    and read by keys that are made from `[s_t; c_t]`, and r_t is what is read;
    `softmax(W_o [s_t; c_t; r_t] + b_o)`.

    Args:
        recurrent: what reads, looks and writes tokens. Its contexts are as wide as one of its
            attention and a slot together.
        external: the memory.
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
        """That of the recurrent decoder, with the slots as they were learned."""
        recurrent = cast(RecurrentDecoderState, self.recurrent.start(memory))
        return MemoryState(recurrent, self.external.start(memory.output.shape[0]))

    def forward(
        self,
        tokens: Int[Tensor, "batch tgt_len"],
        state: State,
        *,
        keep: Keep | None = None,
        need_weights: bool = False,
    ) -> DecoderOutput:
        """One step after another, since each needs what the last one saw and recalled."""
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
        context, looked, source = cast(ProjectedMemory, before.source).look(
            cast(Attention, self.recurrent.attention), hidden[:, None], need_weights=need_weights
        )
        seen = torch.cat([hidden, context[:, 0]], dim=-1)
        found = self.external(seen, state.slots)
        features = torch.cat([seen, found.read], dim=-1)
        after = RecurrentDecoderState(rnn, features[:, stack.output_size :], source)
        return MemoryStep(features, looked, found.weights, MemoryState(after, found.slots))


def _maps(steps: list[MemoryStep]) -> Maps:
    looked = [step.looked for step in steps if step.looked is not None]
    recalled = torch.stack([step.recalled for step in steps], dim=1)[:, None]
    return {"cross": (torch.cat(looked, dim=2),), "memory": (recalled,)}
