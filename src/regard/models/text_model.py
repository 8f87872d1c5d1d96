"""A language model as training and decoding know models: one that has nothing to read."""

from typing import final

from jaxtyping import Int
from torch import Tensor

from regard.models.embedding import positions_of
from regard.models.heads import LanguageModel
from regard.models.protocol import (
    Keep,
    Lengths,
    Memory,
    ModelOutput,
    SequenceModel,
    Src,
    StepOutput,
    check_source,
    real_lengths,
)
from regard.state import State


@final
class TextModel(SequenceModel):
    """Writes texts token by token, and looks at its own past alone.

    There must be a source, as for every model, but what it holds changes nothing.

    Args:
        language: what scores the next token.
    """

    def __init__(self, language: LanguageModel) -> None:
        super().__init__()
        self.language = language

    @property
    def tgt_positions(self) -> int | None:
        """How many positions the language model has learned."""
        return positions_of(self.language.embedding)

    def encode(
        self,
        src: Src,
        lengths: Lengths,
        *,
        need_weights: bool = False,
    ) -> Memory:
        """A memory of width 0: the source is not read."""
        check_source(src, lengths)
        nothing = self.language.embedding.table.weight.new_empty(*src.shape, 0)
        return Memory(nothing, real_lengths(src, lengths))

    def start(self, memory: Memory) -> State:
        """The state before the first token."""
        return self.language.start(len(memory.lengths))

    def step(
        self, tokens: Int[Tensor, " batch"], state: State, *, need_weights: bool = False
    ) -> StepOutput:
        """Takes the newest token of each row and scores the next one."""
        return self.language.step(tokens, state, need_weights=need_weights)

    def forward(
        self,
        src: Src,
        lengths: Lengths,
        tgt: Int[Tensor, "batch tgt_len"],
        *,
        keep: Keep | None = None,
        need_weights: bool = False,
    ) -> ModelOutput:
        """Scores all next tokens at once, given the right ones before them."""
        check_source(src, lengths)
        out: StepOutput = self.language(tgt, keep=keep, need_weights=need_weights)
        return ModelOutput(out.logits, out.maps)
