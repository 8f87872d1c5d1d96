"""Causal bodies: the layers of decoders and language models that read from left to right."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, cast, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from regard.layers import RecurrentState, RNNStack, SelfAttentiveRNN
from regard.layers.transformer import (
    TransformerDecoder,
    TransformerDecoderOutput,
    TransformerState,
)
from regard.models.protocol import Maps
from regard.ops import History
from regard.ops.check import check_positive
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
        self.dropout = nn.Dropout(dropout)
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
        out: TransformerDecoderOutput = self.decoder(
            x, cast(TransformerState, state), need_weights=need_weights
        )
        return BodyOutput(out.output, out.state, {"self": out.self_weights} if need_weights else {})
