"""The encoder-decoder: any encoder with any decoder."""

from typing import final

from jaxtyping import Int
from torch import Tensor

from regard.models.decoders import Decoder, DecoderOutput
from regard.models.embedding import positions_of
from regard.models.encoders import Encoder
from regard.models.protocol import (
    Keep,
    Lengths,
    Memory,
    ModelOutput,
    SequenceModel,
    Src,
    StepOutput,
)
from regard.ops.check import check_axes
from regard.state import State


@final
class EncoderDecoder(SequenceModel):
    """Reads a source with one module and writes a target with another."""

    def __init__(self, encoder: Encoder, decoder: Decoder) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    @property
    def src_positions(self) -> int | None:
        """How many positions the encoder has learned."""
        return positions_of(self.encoder.embedding)

    @property
    def tgt_positions(self) -> int | None:
        """How many positions the decoder has learned."""
        return positions_of(getattr(self.decoder, "embedding", None))

    def encode(
        self,
        src: Src,
        lengths: Lengths,
        *,
        need_weights: bool = False,
    ) -> Memory:
        """Reads the source."""
        memory: Memory = self.encoder(src, lengths, need_weights=need_weights)
        return memory

    def start(self, memory: Memory) -> State:
        """The state before the first target token."""
        return self.decoder.start(memory)

    def step(
        self, tokens: Int[Tensor, " batch"], state: State, *, need_weights: bool = False
    ) -> StepOutput:
        """Takes the newest token of each row and scores the next one."""
        check_axes("tokens", tokens, "batch")
        out: DecoderOutput = self.decoder(tokens[:, None], state, need_weights=need_weights)
        return StepOutput(out.logits[:, 0], out.state, out.maps)

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
        memory = self.encode(src, lengths, need_weights=need_weights)
        out: DecoderOutput = self.decoder(
            tgt, self.start(memory), keep=keep, need_weights=need_weights
        )
        return ModelOutput(out.logits, memory.maps | out.maps, out.penalty, memory.lengths)
