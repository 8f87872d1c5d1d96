"""The encoder-decoder model: any encoder with any decoder."""

from typing import final

from jaxtyping import Int
from torch import Tensor

from regard.models.decoders import Decoder, DecoderOutput
from regard.models.encoders import Encoder
from regard.models.protocol import (
    Keep,
    Lengths,
    Memory,
    ModelOutput,
    SequenceModel,
    Src,
    StepOutput,
    Tgt,
    positions_of,
)
from regard.ops.check import check_axes
from regard.state import State


@final
class EncoderDecoder(SequenceModel):
    """Encodes a source with one module and decodes a target with another.

    Examples:
        >>> model = regard.models.PRESETS["bahdanau"](src_vocab=11, tgt_vocab=13, size="tiny")
        >>> src, tgt = torch.tensor([[5, 7, 4, 2]]), torch.tensor([[1, 6, 8]])
        >>> out = model(src, None, tgt, need_weights=True)
        >>> out.logits.shape, out.maps["cross"][0].shape
        (torch.Size([1, 3, 13]), torch.Size([1, 1, 3, 4]))
    """

    def __init__(self, encoder: Encoder, decoder: Decoder) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    @property
    def tgt_positions(self) -> int | None:
        """The number of learned positions of the decoder; None if unlimited."""
        return positions_of(self.decoder)

    def start(self, memory: Memory) -> State:
        """Return the state before the first target token."""
        return self.decoder.start(memory)

    def step(
        self, tokens: Int[Tensor, " batch"], state: State, *, need_weights: bool = False
    ) -> StepOutput:
        """Read the newest token of each row and score the next one."""
        check_axes("tokens", tokens, "batch")
        out: DecoderOutput = self.decoder(tokens[:, None], state, need_weights=need_weights)
        return StepOutput(out.logits[:, 0], out.state, out.maps)

    def forward(
        self, src: Src, lengths: Lengths, tgt: Tgt, *, keep: Keep = None, need_weights: bool = False
    ) -> ModelOutput:
        """Score all next tokens at once, given the right ones before them."""
        memory = self.encode(src, lengths, need_weights=need_weights)
        out: DecoderOutput = self.decoder(
            tgt, self.start(memory), keep=keep, need_weights=need_weights
        )
        return ModelOutput(out.logits, memory.maps | out.maps, out.penalty, memory.lengths)
