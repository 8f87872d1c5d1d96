"""Language models, and the adapter by which training and decoding use them."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, cast, final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.layers import RecurrentState, RNNStack, SelfAttentiveRNN
from regard.layers.dropout import Dropout
from regard.layers.transformer import (
    TransformerDecoder,
    TransformerDecoderOutput,
    TransformerState,
)
from regard.models.embedding import OutputLayer, TokenEmbedding
from regard.models.protocol import (
    Keep,
    Lengths,
    Maps,
    Memory,
    ModelOutput,
    SequenceModel,
    Src,
    StepOutput,
    Tgt,
    check_source,
    positions_of,
    real_lengths,
)
from regard.ops import History
from regard.ops.backend import refuse_step
from regard.ops.check import check_axes, check_positive
from regard.state import State


class BodyOutput(NamedTuple):
    """Outputs (batch, length, output_size), the state after them, and the maps."""

    output: Tensor
    state: State
    maps: Maps


class CausalBody(nn.Module, ABC):
    """Maps vectors to vectors of width `output_size`, none of which depends on a later one."""

    output_size: int
    #: width of the initial context of all layers together; 0 if there is none
    context_size: int = 0

    @abstractmethod
    def start(self, batch: int, like: Tensor, context: Tensor | None = None) -> State:
        """Return the state before the first vector, on the device and of the type of `like`.

        `context`, (batch, context_size), replaces the zeros that the first step reads.
        """

    @abstractmethod
    def forward(
        self, x: Float[Tensor, "batch length dim"], state: State, *, need_weights: bool = False
    ) -> BodyOutput:
        """Continue from `state`."""


@final
class RecurrentBody(CausalBody):
    """A stack of RNN layers."""

    def __init__(self, stack: RNNStack) -> None:
        super().__init__()
        self.stack = stack
        self.output_size = stack.output_size
        self.context_size = stack.num_layers * stack.hidden_size

    def start(self, batch: int, like: Tensor, context: Tensor | None = None) -> State:
        """Return zeros, or the context as the hidden states of all layers."""
        state = self.stack.init_state(batch, like)
        return state if context is None else replace(state, hidden=context.view_as(state.hidden))

    def forward(
        self, x: Float[Tensor, "batch length dim"], state: State, *, need_weights: bool = False
    ) -> BodyOutput:
        """Continue from `state`; an RNN has no attention maps."""
        output, after = self.stack(x, None, cast(RecurrentState, state))
        return BodyOutput(output, after, {})


@dataclass(frozen=True)
class Histories(State):
    """The histories of all layers."""

    layers: tuple[History, ...]


@final
class SelfAttentiveBody(CausalBody):
    """A stack of self-attentive RNNs; each passes on `[h_t; c_t]`."""

    def __init__(self, layers: Sequence[SelfAttentiveRNN], *, dropout: float = 0.0) -> None:
        super().__init__()
        check_positive(layers=len(layers))
        self.layers = nn.ModuleList(layers)
        self.dropout = Dropout(dropout)
        self.output_size = 2 * layers[-1].hidden_size
        # the first step of the lstm cell attends to nothing, so a context would have no effect
        starts_from_context = all(layer.cell != "lstm" for layer in layers)
        self.context_size = sum(layer.hidden_size for layer in layers) * starts_from_context

    def start(self, batch: int, like: Tensor, context: Tensor | None = None) -> State:
        """Return empty histories, with zeros or a part of the context as c_0 of each layer."""
        layers = [cast(SelfAttentiveRNN, layer) for layer in self.layers]
        histories = [layer.init_state(batch, like) for layer in layers]
        if context is not None:
            parts = torch.split(context, [layer.hidden_size for layer in layers], dim=-1)
            histories = [replace(h, context=c) for h, c in zip(histories, parts, strict=True)]
        return Histories(tuple(histories))

    def forward(
        self,
        x: Float[Tensor, "batch length dim"],
        state: State,
        *,
        lengths: Tensor | None = None,
        need_weights: bool = False,
    ) -> BodyOutput:
        """Continue; the maps are `history`, each step's weights over itself and earlier steps."""
        after, maps, before = [], [], cast(Histories, state)
        for i, layer in enumerate(self.layers):
            x = self.dropout(x) if i else x
            history = before.layers[i]
            hidden, context, weights, history = layer(
                x, lengths, history, need_weights=need_weights
            )
            x = torch.cat([hidden, context], dim=-1)
            after.append(history)
            maps.append(weights)
        seen: Maps = {"history": tuple(maps)} if need_weights else {}
        return BodyOutput(x, Histories(tuple(after)), seen)


def run_decoder(
    decoder: TransformerDecoder, x: Tensor, state: TransformerState, *, need_weights: bool
) -> TransformerDecoderOutput:
    """Decode vectors; a search's step by kernels, if they know the decoder."""
    if not need_weights and refuse_step(x) is None:
        from regard.layers import decoder_step  # loads triton

        if decoder_step.refuse_decoder(decoder) is None:
            return decoder_step.take_step(decoder, x, state)
    out: TransformerDecoderOutput = decoder(x, state, need_weights=need_weights)
    return out


@final
class TransformerBody(CausalBody):
    """A Transformer decoder without a memory."""

    def __init__(self, decoder: TransformerDecoder) -> None:
        super().__init__()
        self.decoder = decoder
        self.output_size = decoder.dim

    def start(self, batch: int, like: Tensor, context: Tensor | None = None) -> State:
        """Return empty caches; a context is ignored."""
        return self.decoder.start_without(batch, like)

    def forward(
        self, x: Float[Tensor, "batch length dim"], state: State, *, need_weights: bool = False
    ) -> BodyOutput:
        """Continue from `state`; the maps are `self`, of each layer."""
        before = cast(TransformerState, state)
        out = run_decoder(self.decoder, x, before, need_weights=need_weights)
        return BodyOutput(out.output, out.state, {"self": out.self_weights} if need_weights else {})


@dataclass(frozen=True)
class LanguageState(State):
    """The state of the body, and the number of tokens it has read."""

    body: State
    position: int


@final
class LanguageModel(nn.Module):
    """Scores the next token after each token of a text.

    Args:
        embedding: of the tokens.
        body: reads them.
        dropout: probability of dropping a feature before the output layer.
        tied: whether the output layer shares the table of the embedding.
        learns_bias: whether the biases of the logits are learned, or stay as they are.
        reads_bos: whether all tokens know of the `bos` before them, or the first one alone.

    Examples:
        >>> model = regard.models.LANGUAGE_MODELS["transformer"](vocab=11, size="tiny")
        >>> model(torch.tensor([[1, 5, 7]])).logits.shape
        torch.Size([1, 3, 11])
    """

    def __init__(
        self,
        embedding: TokenEmbedding,
        body: CausalBody,
        *,
        dropout: float = 0.0,
        tied: bool = False,
        learns_bias: bool = True,
        reads_bos: bool = True,
    ) -> None:
        super().__init__()
        self.embedding, self.body, self.reads_bos = embedding, body, reads_bos
        self.output = OutputLayer(
            body.output_size, embedding, dropout=dropout, tied=tied, learns_bias=learns_bias
        )

    def start(self, batch: int) -> State:
        """Return the state before the first token."""
        return LanguageState(self.body.start(batch, self.embedding.table.weight), 0)

    def step(
        self, tokens: Int[Tensor, " batch"], state: State, *, need_weights: bool = False
    ) -> StepOutput:
        """Read the newest token of each row and score the next one."""
        check_axes("tokens", tokens, "batch")
        out = self.forward(tokens[:, None], state, need_weights=need_weights)
        return out._replace(logits=out.logits[:, 0])

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        state: State | None = None,
        *,
        keep: Keep = None,
        need_weights: bool = False,
    ) -> StepOutput:
        """Return logits (batch, length, vocab) after `state`; position t scores token t + 1.

        With `keep`, only these positions are scored, (kept, vocab), row by row.
        """
        before = cast(LanguageState, self.start(len(tokens)) if state is None else state)
        out = self._read(tokens, before, need_weights=need_weights)
        after = LanguageState(out.state, before.position + tokens.shape[1])
        maps = {f"decoder-{kind}": tensors for kind, tensors in out.maps.items()}
        return StepOutput(self.output(out.output, self.embedding, keep), after, maps)

    def _read(
        self, tokens: Int[Tensor, "batch length"], before: LanguageState, *, need_weights: bool
    ) -> BodyOutput:
        """Return what the body makes of tokens; a `bos` that is not read has weights of 0."""
        start = before.position - (not self.reads_bos and before.position > 0)
        first = tokens if self.reads_bos or before.position else tokens[:, :1]
        x = self.embedding(first, start=start)
        out: BodyOutput = self.body(x, before.body, need_weights=need_weights)
        if self.reads_bos:
            return out
        if before.position:
            maps = {k: tuple(F.pad(m, (1, 0)) for m in layers) for k, layers in out.maps.items()}
            return out._replace(maps=maps)
        if tokens.shape[1] == 1:
            return out._replace(state=before.body)
        x = self.embedding(tokens[:, 1:])
        rest: BodyOutput = self.body(x, before.body, need_weights=need_weights)
        maps = {
            kind: tuple(
                torch.cat([F.pad(a, (0, b.shape[3])), F.pad(b, (1, 0))], dim=2)
                for a, b in zip(layers, rest.maps[kind], strict=True)
            )
            for kind, layers in out.maps.items()
        }
        return BodyOutput(torch.cat([out.output, rest.output], dim=1), rest.state, maps)


@final
class TextModel(SequenceModel):
    """A language model behind the protocol of sequence models.

    A source must be given, as to every model, but its tokens are ignored.

    Args:
        language: scores the next token.

    Examples:
        >>> language = regard.models.LANGUAGE_MODELS["rnn"](vocab=11, size="tiny")
        >>> model = regard.models.TextModel(language)
        >>> model(torch.tensor([[2]]), None, torch.tensor([[1, 5, 7]])).logits.shape
        torch.Size([1, 3, 11])
    """

    def __init__(self, language: LanguageModel) -> None:
        super().__init__()
        self.language = language

    @property
    def tgt_positions(self) -> int | None:
        """The number of learned positions; None if unlimited."""
        most = positions_of(self.language)
        return most if most is None or self.language.reads_bos else most + 1

    def encode(self, src: Src, lengths: Lengths, *, need_weights: bool = False) -> Memory:
        """Return a memory of width 0: the source is not read."""
        check_source(src, lengths)
        nothing = self.language.embedding.table.weight.new_empty(*src.shape, 0)
        return Memory(nothing, real_lengths(src, lengths))

    def start(self, memory: Memory) -> State:
        """Return the state before the first token."""
        return self.language.start(len(memory.lengths))

    def step(
        self, tokens: Int[Tensor, " batch"], state: State, *, need_weights: bool = False
    ) -> StepOutput:
        """Read the newest token of each row and score the next one."""
        return self.language.step(tokens, state, need_weights=need_weights)

    def forward(
        self, src: Src, lengths: Lengths, tgt: Tgt, *, keep: Keep = None, need_weights: bool = False
    ) -> ModelOutput:
        """Score all next tokens at once, given the right ones before them."""
        check_source(src, lengths)
        out: StepOutput = self.language(tgt, keep=keep, need_weights=need_weights)
        return ModelOutput(out.logits, out.maps)
