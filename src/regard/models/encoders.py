"""Encoders: from a source to a memory; and adapters in place of their embeddings."""

from abc import ABC, abstractmethod
from typing import TypeVar, cast, final

import torch
from torch import nn

from regard import masks
from regard.errors import ArgumentError
from regard.layers import ConvEncoder, RNNStack, SelfAttentiveRNN, TransformerEncoder
from regard.models.adapters import InputAdapter, read_source
from regard.models.language_model import SelfAttentiveBody
from regard.models.protocol import Lengths, Memory, Src

ModelT = TypeVar("ModelT", bound=nn.Module)


class Encoder(nn.Module, ABC):
    """Encodes a source into one vector of width `output_size` per token.

    `embedding` gives the layers vectors of width `input_size`: an `InputAdapter`, or any module
    from tokens to (batch, src_len, dim).
    """

    embedding: nn.Module
    input_size: int
    output_size: int
    summary_size: int | None = None

    @abstractmethod
    def forward(self, src: Src, lengths: Lengths, *, need_weights: bool = False) -> Memory:
        """Encode the source. The values of `src` beyond `lengths` do not matter."""


@final
class RecurrentEncoder(Encoder):
    """RNN layers, in one direction or both; the summary is the last layer's final state."""

    def __init__(self, embedding: nn.Module, stack: RNNStack) -> None:
        super().__init__()
        self.embedding, self.stack = embedding, stack
        self.input_size = stack.input_size
        self.output_size = self.summary_size = stack.output_size

    def forward(self, src: Src, lengths: Lengths, *, need_weights: bool = False) -> Memory:
        """Encode; the backward direction starts at the end of each source, not of the batch."""
        x, real, tokens = read_source(self.embedding, src, lengths)
        output, state = self.stack(x, real)
        summary = state.hidden[:, -self.stack.directions :].flatten(1)
        return Memory(output, real, summary, tokens=tokens)


@final
class SelfAttentiveEncoder(Encoder):
    """A self-attentive RNN; the summary is its last output, `[h_n; c_n]`."""

    def __init__(self, embedding: nn.Module, body: SelfAttentiveBody) -> None:
        super().__init__()
        self.embedding, self.body = embedding, body
        self.input_size = cast(SelfAttentiveRNN, body.layers[0]).input_size
        self.output_size = self.summary_size = body.output_size

    def forward(self, src: Src, lengths: Lengths, *, need_weights: bool = False) -> Memory:
        """Encode; the maps are `encoder-history`, of each layer."""
        x, real, tokens = read_source(self.embedding, src, lengths)
        start = self.body.start(x.shape[0], x)
        out = self.body(x, start, lengths=real, need_weights=need_weights)
        last = (real - 1).clamp(min=0)[:, None, None].expand(-1, 1, out.output.shape[2])
        summary = out.output.gather(1, last).squeeze(1)
        maps = {"encoder-history": out.maps["history"]} if need_weights else {}
        return Memory(out.output, real, summary, tokens=tokens, maps=maps)


@final
class AttentionEncoder(Encoder):
    """A Transformer encoder."""

    def __init__(self, embedding: nn.Module, encoder: TransformerEncoder) -> None:
        super().__init__()
        self.embedding, self.encoder = embedding, encoder
        self.input_size = self.output_size = encoder.dim

    def forward(self, src: Src, lengths: Lengths, *, need_weights: bool = False) -> Memory:
        """Encode; the maps are `encoder-self`, of each layer."""
        x, real, tokens = read_source(self.embedding, src, lengths)
        mask = masks.padding(real, x.shape[1])
        output, weights = self.encoder(x, mask, need_weights=need_weights)
        maps = {"encoder-self": weights} if need_weights else {}
        return Memory(output, real, tokens=tokens, maps=maps)


@final
class ConvolutionalEncoder(Encoder):
    """Gated convolutions; attention values are encoding plus embedding, as in the paper."""

    def __init__(self, embedding: nn.Module, encoder: ConvEncoder) -> None:
        super().__init__()
        self.embedding, self.encoder = embedding, encoder
        self.input_size = self.output_size = encoder.dim

    def forward(self, src: Src, lengths: Lengths, *, need_weights: bool = False) -> Memory:
        """Encode; a convolution has no attention maps."""
        x, real, tokens = read_source(self.embedding, src, lengths)
        mask = masks.padding(real, x.shape[1])
        keys = self.encoder(x, mask)
        values = torch.where(mask[:, 0, 0, :, None], keys + x, 0.0)
        return Memory(values, real, keys=keys, tokens=tokens)


@final
class PointwiseEncoder(Encoder):
    """The embedded source as it is: no position knows another."""

    def __init__(self, embedding: nn.Module, dim: int, *, summary: bool = True) -> None:
        super().__init__()
        self.embedding, self.summary = embedding, summary
        self.input_size = self.output_size = self.summary_size = dim

    def forward(self, src: Src, lengths: Lengths, *, need_weights: bool = False) -> Memory:
        """Embed; there are no layers, and so no maps."""
        x, real, tokens = read_source(self.embedding, src, lengths)
        x = x.where(masks.padding(real, x.shape[1])[:, 0, 0, :, None], 0.0)
        mean = x.sum(dim=1) / real.clamp(min=1)[:, None].to(x.dtype)
        return Memory(x, real, mean if self.summary else torch.zeros_like(mean), tokens=tokens)


def with_input(model: ModelT, adapter: InputAdapter) -> ModelT:
    """Replace the embedding of a model's encoder by an adapter, and return the model.

    Args:
        model: an encoder-decoder, a tagger or a classifier, such as a preset makes, of any source
            vocabulary.
        adapter: `VectorInput` or another, as wide as the embedding that it replaces; with
            positions if that has some.

    Examples:
        >>> model = regard.models.PRESETS["bahdanau"](11, 13, embed=12, hidden=16, layers=1)
        >>> model = regard.models.with_input(model, regard.models.VectorInput(features=16, dim=12))
        >>> model(torch.randn(2, 7, 16), None, torch.tensor([[1, 6], [1, 8]])).logits.shape
        torch.Size([2, 2, 13])
    """
    if not isinstance(adapter, InputAdapter):
        raise ArgumentError(
            "adapter",
            "be an InputAdapter, such as VectorInput(...)",
            f"a {type(adapter).__name__}",
            "make one, or inherit InputAdapter",
        )
    encoder = _encoder(model)
    if adapter.dim != encoder.input_size:
        raise ArgumentError(
            "adapter.dim",
            f"be {encoder.input_size}, the width that the encoder reads",
            adapter.dim,
            "change it, or make the model with another embed or dim",
        )
    if getattr(encoder.embedding, "positions", None) is not None and adapter.positions is None:
        raise ArgumentError(
            "adapter.positions",
            "be given, since this encoder gets its order from them",
            None,
            f"pass positions=SinusoidalPositions({adapter.dim}) to {type(adapter).__name__}",
        )
    encoder.embedding = adapter
    return model


def _encoder(model: nn.Module) -> Encoder:
    encoder = getattr(model, "encoder", None)
    if not isinstance(encoder, Encoder):
        raise ArgumentError(
            "model",
            "have an encoder that reads a source",
            f"of the class {type(model).__name__}",
            "choose a preset such as bahdanau",
        )
    if getattr(getattr(model, "decoder", None), "copies_source", False):
        raise ArgumentError(
            "model",
            "not copy tokens of its source, since an adapter reads none",
            "one with a PointerDecoder",
            "choose the preset bahdanau, which is the same without copying",
        )
    return encoder
