"""The word-by-word model, with the position of each row in a tensor."""

from dataclasses import dataclass, field, replace
from typing import Any, cast, final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from regard.models import SequenceModel
from regard.models.encoder_only import CERTAIN, Tagger, TaggerState
from regard.models.protocol import Memory, ModelOutput, StepOutput
from regard.state import OF_SOURCE, State
from regard.symbols import EOS


def with_positions(model: SequenceModel) -> SequenceModel:
    """The model, its positions in a tensor if it is one that needs that."""
    return ExportedTagger(model) if isinstance(model, Tagger) else model


@dataclass(frozen=True)
class Tags(State):
    """The scores of every position, the lengths of the sources, and the position that is next."""

    logits: Float[Tensor, "batch src_len tgt_vocab"] = field(metadata=OF_SOURCE)
    ends: Int[Tensor, " batch"] = field(metadata=OF_SOURCE)
    position: Int[Tensor, " batch"]


@final
class ExportedTagger(SequenceModel):
    """A `Tagger` that picks its scores by an index, since a slice would be as long as in a trace.

    Args:
        tagger: what is to be computed.
    """

    def __init__(self, tagger: Tagger) -> None:
        super().__init__()
        self.tagger = tagger

    def encode(self, src: Tensor, lengths: Tensor | None, *, need_weights: bool = False) -> Memory:
        """Reads the source."""
        return self.tagger.encode(src, lengths, need_weights=need_weights)

    def start(self, memory: Memory) -> State:
        """Scores all positions: no step depends on another."""
        state = cast(TaggerState, self.tagger.start(memory))
        return Tags(state.logits, state.lengths, torch.zeros_like(state.lengths))

    def step(self, tokens: Tensor, state: State, *, need_weights: bool = False) -> StepOutput:
        """The scores of the next position, and `eos` after the last."""
        tags = cast(Tags, state)
        batch, length, vocab = tags.logits.shape
        place = tags.position.clamp(max=length - 1)[:, None, None].expand(batch, 1, vocab)
        only_eos = torch.where(torch.arange(vocab) == EOS, CERTAIN, -CERTAIN)
        ended = (tags.position >= tags.ends)[:, None]
        logits = torch.where(ended, only_eos, tags.logits.gather(1, place).squeeze(1))
        return StepOutput(logits, replace(tags, position=tags.position + 1), {})

    def forward(self, *args: Any, **options: Any) -> ModelOutput:
        """As the tagger does."""
        output: ModelOutput = self.tagger(*args, **options)
        return output
