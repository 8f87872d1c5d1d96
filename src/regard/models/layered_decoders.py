"""Decoders of which every layer looks at the memory: Transformers and convolutions."""

from typing import cast, final

from jaxtyping import Int
from torch import Tensor

from regard.layers import ConvDecoder, ConvState, TransformerDecoder, TransformerState
from regard.models.decoders import Decoder, DecoderOutput
from regard.models.embedding import TokenEmbedding
from regard.models.output import Output
from regard.models.protocol import Keep, Maps, Memory
from regard.state import State


@final
class AttentionDecoder(Decoder):
    """A Transformer decoder.

    Args:
        embedding: of target tokens.
        decoder: the layers.
        tied: whether the output layer uses the embedding's table, see `Output`.
    """

    def __init__(
        self, embedding: TokenEmbedding, decoder: TransformerDecoder, *, tied: bool = False
    ) -> None:
        super().__init__()
        self.embedding, self.decoder = embedding, decoder
        self.output = Output(decoder.dim, embedding, tied=tied)

    def start(self, memory: Memory) -> State:
        """Empty caches, and the memory's keys and values of every layer."""
        return self.decoder.start(memory.output, memory.mask, key=memory.keys)

    def forward(
        self,
        tokens: Int[Tensor, "batch tgt_len"],
        state: State,
        *,
        keep: Keep | None = None,
        need_weights: bool = False,
    ) -> DecoderOutput:
        """The maps are `decoder-self` and `cross`, of each layer."""
        state = cast(TransformerState, state)
        x = self.embedding(tokens, start=state.position)
        out = self.decoder(x, state, need_weights=need_weights)
        maps: Maps = {}
        if need_weights:
            maps = {"decoder-self": out.self_weights, "cross": out.cross_weights}
        logits = self.output(out.output, self.embedding, keep)
        return DecoderOutput(logits, out.state, maps)


@final
class ConvolutionalDecoder(Decoder):
    """Gated convolutions with attention in every layer."""

    def __init__(self, embedding: TokenEmbedding, decoder: ConvDecoder) -> None:
        super().__init__()
        self.embedding, self.decoder = embedding, decoder
        self.output = Output(decoder.dim, embedding)

    def start(self, memory: Memory) -> State:
        """Zeros before the first token."""
        keys = memory.output if memory.keys is None else memory.keys
        return self.decoder.start(keys, memory.output, memory.mask)

    def forward(
        self,
        tokens: Int[Tensor, "batch tgt_len"],
        state: State,
        *,
        keep: Keep | None = None,
        need_weights: bool = False,
    ) -> DecoderOutput:
        """The maps are `cross`, of each layer."""
        state = cast(ConvState, state)
        x = self.embedding(tokens, start=state.position)
        output, after, weights = self.decoder(x, state, need_weights=need_weights)
        maps: Maps = {"cross": weights} if need_weights else {}
        return DecoderOutput(self.output(output, self.embedding, keep), after, maps)
