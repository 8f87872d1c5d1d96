"""Encoders: from source tokens to a memory."""

from abc import ABC, abstractmethod
from typing import final

import torch
from jaxtyping import Int
from torch import Tensor, nn

from regard import masks
from regard.layers import ConvEncoder, RNNStack, TransformerEncoder
from regard.models.bodies import SelfAttentiveBody
from regard.models.protocol import Memory, check_source


class Encoder(nn.Module, ABC):
    """Reads a source into one vector of width `output_size` per token.

    `embedding` may be any module from what the source is made of to (batch, src_len, dim).
    """

    output_size: int
    summary_size: int | None = None

    @abstractmethod
    def forward(
        self,
        src: Int[Tensor, "batch src_len"],
        lengths: Int[Tensor, " batch"],
        *,
        need_weights: bool = False,
    ) -> Memory:
        """Reads. What `src` holds beyond `lengths` does not matter."""


@final
class RecurrentEncoder(Encoder):
    """RNN layers, in one direction or both; the summary is the last layer's final state."""

    def __init__(self, embedding: nn.Module, stack: RNNStack) -> None:
        super().__init__()
        self.embedding, self.stack = embedding, stack
        self.output_size = self.summary_size = stack.output_size

    def forward(
        self,
        src: Int[Tensor, "batch src_len"],
        lengths: Int[Tensor, " batch"],
        *,
        need_weights: bool = False,
    ) -> Memory:
        """Both directions end at the ends of each source, not of the batch."""
        check_source(src, lengths)
        output, state = self.stack(self.embedding(src), lengths)
        summary = state.hidden[:, -self.stack.directions :].flatten(1)
        return Memory(output, lengths, summary, tokens=src)


@final
class SelfAttentiveEncoder(Encoder):
    """A self-attentive RNN; the summary is its last output, `[h_n; c_n]`."""

    def __init__(self, embedding: nn.Module, body: SelfAttentiveBody) -> None:
        super().__init__()
        self.embedding, self.body = embedding, body
        self.output_size = self.summary_size = body.output_size

    def forward(
        self,
        src: Int[Tensor, "batch src_len"],
        lengths: Int[Tensor, " batch"],
        *,
        need_weights: bool = False,
    ) -> Memory:
        """The map is `encoder-history`: what each token looked back at."""
        check_source(src, lengths)
        x = self.embedding(src)
        state = self.body.start(src.shape[0], x)
        out = self.body(x, state, lengths=lengths, need_weights=need_weights)
        last = (lengths - 1).clamp(min=0)[:, None, None].expand(-1, 1, out.output.shape[2])
        summary = out.output.gather(1, last).squeeze(1)
        maps = {f"encoder-{kind}": tensors for kind, tensors in out.maps.items()}
        return Memory(out.output, lengths, summary, tokens=src, maps=maps)


@final
class AttentionEncoder(Encoder):
    """A Transformer encoder."""

    def __init__(self, embedding: nn.Module, encoder: TransformerEncoder) -> None:
        super().__init__()
        self.embedding, self.encoder = embedding, encoder
        self.output_size = encoder.dim

    def forward(
        self,
        src: Int[Tensor, "batch src_len"],
        lengths: Int[Tensor, " batch"],
        *,
        need_weights: bool = False,
    ) -> Memory:
        """The maps are `encoder-self`, of each layer."""
        check_source(src, lengths)
        mask = masks.padding(lengths, src.shape[1])
        output, weights = self.encoder(self.embedding(src), mask, need_weights=need_weights)
        maps = {"encoder-self": weights} if need_weights else {}
        return Memory(output, lengths, tokens=src, maps=maps)


@final
class ConvolutionalEncoder(Encoder):
    """Gated convolutions; what is mixed is the encoding plus the embedding, as in the paper."""

    def __init__(self, embedding: nn.Module, encoder: ConvEncoder) -> None:
        super().__init__()
        self.embedding, self.encoder = embedding, encoder
        self.output_size = encoder.dim

    def forward(
        self,
        src: Int[Tensor, "batch src_len"],
        lengths: Int[Tensor, " batch"],
        *,
        need_weights: bool = False,
    ) -> Memory:
        """A convolution looks at nothing: there are no maps."""
        check_source(src, lengths)
        mask = masks.padding(lengths, src.shape[1])
        x = self.embedding(src)
        keys = self.encoder(x, mask)
        values = torch.where(mask[:, 0, 0, :, None], keys + x, 0.0)
        return Memory(values, lengths, keys=keys, tokens=src)
