"""Decoders: score the next token from a memory and the target so far.

All have one form: tokens and a state in, logits and the state after them out. A whole target is one
call from the first state, a decoding step is a call with one token.

A decoder with attention and an external memory that it writes and reads.

The memory of Graves et al. (2014), see `ContentMemory`, beside the attention of Bahdanau et al.
(2015). Everywhere else, memory means the encoder's output; here it means the slots.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, cast, final

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from regard import ops
from regard.attention import Attention, Past, Projected, Scorer
from regard.errors import ArgumentError
from regard.layers import (
    ContentMemory,
    ConvDecoder,
    ConvState,
    RecurrentState,
    RNNStack,
    TransformerDecoder,
    TransformerState,
)
from regard.models.embedding import (
    OutputLayer,
    TokenEmbedding,
    check_unplaced,
)
from regard.models.language_model import CausalBody, run_decoder
from regard.models.protocol import Keep, Maps, Memory, Tgt
from regard.ops.check import check_equal
from regard.preemption import in_turn, is_preemptible
from regard.state import OF_SOURCE, State


class DecoderOutput(NamedTuple):
    """Logits (batch, tgt_len, tgt_vocab), the state after them, and the maps.

    The penalty, if any, is that of `ModelOutput`. Where only some positions are kept, the logits
    are (kept, tgt_vocab), row by row.
    """

    logits: Tensor
    state: State
    maps: Maps
    penalty: Tensor | None = None


class Decoder(nn.Module, ABC):
    """Scores the next token after each token."""

    #: whether targets may copy tokens of the source, which must have tokens then
    copies_source: ClassVar[bool] = False

    @abstractmethod
    def start(self, memory: Memory) -> State:
        """Return the state before the first token, with all of the memory that steps need."""

    @abstractmethod
    def forward(
        self, tokens: Tgt, state: State, *, keep: Keep = None, need_weights: bool = False
    ) -> DecoderOutput:
        """Continue from `state`; with `keep`, score these positions alone, (kept, tgt_vocab)."""


@dataclass(frozen=True)
class ProjectedMemory(State):
    """The memory as an attention needs it at every step.

    Attributes:
        keys: projected once.
        values: of the attention.
        mask: True at real tokens.
        past: position and weights of earlier steps.
    """

    keys: Tensor = field(metadata=OF_SOURCE)
    values: Float[Tensor, "batch src_len dim"] = field(metadata=OF_SOURCE)
    mask: Bool[Tensor, "batch 1 1 src_len"] = field(metadata=OF_SOURCE)
    past: Past

    @staticmethod
    def of(memory: Memory, attention: Attention) -> "ProjectedMemory":
        """Project a memory for the first step."""
        keys = attention.project_keys(memory.output if memory.keys is None else memory.keys)
        past = Past(torch.zeros_like(memory.lengths), None)
        return ProjectedMemory(keys.tensor, memory.output, memory.mask, past)

    def attend(
        self, attention: Attention, query: Tensor, *, need_weights: bool
    ) -> tuple[Tensor, Tensor | None, "ProjectedMemory"]:
        """Return contexts and weights of queries, and the memory for the next step."""
        context, weights = attention(
            query,
            Projected(self.keys),
            self.values,
            self.mask,
            past=self.past,
            need_weights=need_weights or attention.needs_past_weights,
        )
        if attention.needs_past_weights:
            past = self.past.after(weights)
        else:
            past = Past(self.past.position + query.shape[1], None)
        return context, weights if need_weights else None, replace(self, past=past)


@dataclass(frozen=True)
class RecurrentDecoderState(State):
    """The RNN's state, the last context, and the projected memory; None without attention."""

    rnn: RecurrentState
    context: Float[Tensor, "batch dim"]
    source: ProjectedMemory | None


class RecurrentFeatures(NamedTuple):
    """Features of a recurrent decoder, before any token is scored.

    Attributes:
        inputs: the tokens' vectors, (batch, tgt_len, embed).
        features: `[s_t; c_t]`, (batch, tgt_len, hidden + context).
        weights: of the attention, (batch, heads, tgt_len, src_len), if asked for.
        state: after the last token.
    """

    inputs: Tensor
    features: Tensor
    weights: Tensor | None
    state: RecurrentDecoderState


@final
class RecurrentDecoder(Decoder):
    """An RNN that reads the last context with each token, and attends again after each step.

    `s_t = rnn([y_t; c_{t-1}])`, `c_t = attention(s_t, memory)`, `softmax(W_o [s_t; c_t] + b_o)`.
    Without attention, c is the summary of the source at every step: the bottleneck.

    Args:
        embedding: of target tokens.
        stack: one direction; its inputs are as wide as an embedding and a context together.
        attention: over the memory; None for the bottleneck.
        context_size: width of a context.
        summary_size: width of the summary that the first state is made from.
        dropout: probability of dropping a feature before the output layer.
        tied: whether the output layer uses the embedding's table, see `OutputLayer`.
    """

    def __init__(
        self,
        embedding: TokenEmbedding,
        stack: RNNStack,
        attention: Attention | None,
        *,
        context_size: int,
        summary_size: int,
        dropout: float = 0.0,
        tied: bool = False,
    ) -> None:
        super().__init__()
        check_unplaced(embedding)
        self.embedding, self.stack, self.attention = embedding, stack, attention
        self.context_size = context_size
        states = stack.num_layers * stack.hidden_size
        self.bridge = nn.Linear(summary_size, states)
        self.memory_bridge = nn.Linear(summary_size, states) if stack.cell == "lstm" else None
        width = stack.output_size + context_size
        self.output = OutputLayer(width, embedding, dropout=dropout, tied=tied)

    def start(self, memory: Memory) -> State:
        """Return the first state, made from the summary of the source."""
        summary = _summary(memory)
        shape = (summary.shape[0], self.stack.num_layers, self.stack.hidden_size)
        hidden = torch.tanh(self.bridge(summary)).view(shape)
        cell = None if self.memory_bridge is None else self.memory_bridge(summary).view(shape)
        if self.attention is None:
            return RecurrentDecoderState(RecurrentState(hidden, cell), summary, None)
        return RecurrentDecoderState(
            RecurrentState(hidden, cell),
            summary.new_zeros(summary.shape[0], self.context_size),
            ProjectedMemory.of(memory, self.attention),
        )

    def forward(
        self, tokens: Tgt, state: State, *, keep: Keep = None, need_weights: bool = False
    ) -> DecoderOutput:
        """Read the tokens, and score the next one after each."""
        read = self.read(tokens, state, need_weights=need_weights)
        logits = self.output(read.features, self.embedding, keep)
        maps: Maps = {} if read.weights is None else {"cross": (read.weights,)}
        return DecoderOutput(logits, read.state, maps)

    def read(self, tokens: Tgt, state: State, *, need_weights: bool = False) -> RecurrentFeatures:
        """Run one step after another, since each needs the last one's context."""
        state, x = cast(RecurrentDecoderState, state), self.embedding(tokens)
        if state.source is None and tokens.shape[1] > 1:
            return self._from_summary(x, state)
        if self._fuses(tokens) and state.source is not None:
            return self._all_steps(x, state, state.source, need_weights)
        return self._step_by_step(x, state, need_weights)

    def _from_summary(self, x: Tensor, state: RecurrentDecoderState) -> RecurrentFeatures:
        """Run all steps by one call: without attention no step needs another's context."""
        context = state.context[:, None].expand(-1, x.shape[1], -1)
        hidden, rnn = self.stack(torch.cat([x, context], dim=-1), None, state.rnn)
        return RecurrentFeatures(
            x, torch.cat([hidden, context], dim=-1), None, replace(state, rnn=rnn)
        )

    def _fuses(self, tokens: Tensor) -> bool:
        """Return whether one operator runs all steps: it has one layer and is not preemptible."""
        known: object = self.attention  # mypy thinks that no Attention is a Scorer
        one_layer = self.stack.num_layers == 1 and isinstance(known, Scorer)
        return one_layer and tokens.shape[1] > 1 and not is_preemptible()

    def _all_steps(
        self, x: Tensor, state: RecurrentDecoderState, source: ProjectedMemory, need_weights: bool
    ) -> RecurrentFeatures:
        """Run all steps by one operator, with the embeddings' part of the gates in one product."""
        layer = cast(nn.RNNBase, self.stack.ahead[0])
        weight = cast(Tensor, layer.weight_ih_l0)
        width = x.shape[-1]
        memory = state.rnn.memory
        out = ops.attentive_rnn(
            F.linear(x, weight[:, :width], cast(Tensor, layer.bias_ih_l0) if layer.bias else None),
            ops.AttentiveState(
                state.rnn.hidden[:, 0], None if memory is None else memory[:, 0], state.context
            ),
            ops.AttentiveWeights(
                weight[:, width:],
                cast(Tensor, layer.weight_hh_l0),
                cast(Tensor, layer.bias_hh_l0) if layer.bias else None,
            ),
            cast(Scorer, self.attention).as_score(),
            source.keys,
            source.values,
            source.mask[:, 0, 0],
            cell=self.stack.cell,
            need_weights=need_weights,
        )
        hidden, memory, context = out.end
        rnn = RecurrentState(hidden[:, None], None if memory is None else memory[:, None])
        past = Past(source.past.position + x.shape[1], None)
        after = RecurrentDecoderState(rnn, context, replace(source, past=past))
        return RecurrentFeatures(
            x, torch.cat([out.hidden, out.context], dim=-1), out.weights, after
        )

    def _step_by_step(
        self, inputs: Tensor, state: RecurrentDecoderState, need_weights: bool
    ) -> RecurrentFeatures:
        rnn, context, source = state.rnn, state.context, state.source
        features, rows = [], []
        for x in in_turn(inputs.unbind(dim=1)):
            hidden, rnn = self.stack.step(torch.cat([x, context], dim=-1), rnn)
            if self.attention is not None and source is not None:
                contexts, weights, source = source.attend(
                    self.attention, hidden[:, None], need_weights=need_weights
                )
                context = contexts[:, 0]
                rows.append(weights)
            features.append(torch.cat([hidden, context], dim=-1))
        seen = [row for row in rows if row is not None]
        weights = torch.cat(seen, dim=2) if seen else None
        after = RecurrentDecoderState(rnn, context, source)
        return RecurrentFeatures(inputs, torch.stack(features, dim=1), weights, after)


@dataclass(frozen=True)
class ParallelDecoderState(State):
    """The states of the layers below and above the attention, and the projected memory."""

    body: State
    top: RecurrentState | None
    source: ProjectedMemory


@final
class ParallelDecoder(Decoder):
    """A decoder whose attention runs for all steps at once, since no step needs its context.

    The body reads the target alone and makes the queries; RNN layers above, if any, read its
    outputs with the contexts. So each part is one call for the whole target (Wu et al., 2016,
    https://arxiv.org/abs/1609.08144, with the context kept out of the lowest layer).

    Args:
        embedding: of target tokens.
        body: reads the target and makes the queries.
        attention: over the memory.
        top: RNN layers above; their inputs are as wide as an output of the body and a context.
        context_size: width of a context.
        summary_size: width of the summary that the body starts from; None to start from zeros.
        dropout: probability of dropping a feature before the output layer.
        tied: whether the output layer uses the embedding's table, see `OutputLayer`.
    """

    def __init__(
        self,
        embedding: TokenEmbedding,
        body: CausalBody,
        attention: Attention,
        top: RNNStack | None = None,
        *,
        context_size: int,
        summary_size: int | None = None,
        dropout: float = 0.0,
        tied: bool = False,
    ) -> None:
        super().__init__()
        check_unplaced(embedding)
        self.embedding, self.body, self.attention, self.top = embedding, body, attention, top
        starts = summary_size is not None and body.context_size > 0
        self.bridge = nn.Linear(summary_size or 1, body.context_size) if starts else None
        width = (body.output_size if top is None else top.output_size) + context_size
        self.output = OutputLayer(width, embedding, dropout=dropout, tied=tied)

    def start(self, memory: Memory) -> State:
        """Return the first state; the body may start from the summary of the source."""
        batch, like = memory.output.shape[0], memory.output
        context = None if self.bridge is None else torch.tanh(self.bridge(_summary(memory)))
        return ParallelDecoderState(
            self.body.start(batch, like, context),
            None if self.top is None else self.top.init_state(batch, like),
            ProjectedMemory.of(memory, self.attention),
        )

    def forward(
        self, tokens: Tgt, state: State, *, keep: Keep = None, need_weights: bool = False
    ) -> DecoderOutput:
        """Run the body, the attention and the layers above, one call each."""
        state = cast(ParallelDecoderState, state)
        body = self.body(self.embedding(tokens), state.body, need_weights=need_weights)
        context, weights, source = state.source.attend(
            self.attention, body.output, need_weights=need_weights
        )
        hidden, top = body.output, state.top
        if self.top is not None:
            hidden, top = self.top(torch.cat([hidden, context], dim=-1), None, top)
        logits = self.output(torch.cat([hidden, context], dim=-1), self.embedding, keep)
        maps: Maps = {f"decoder-{kind}": tensors for kind, tensors in body.maps.items()}
        if weights is not None:
            maps["cross"] = (weights,)
        return DecoderOutput(logits, ParallelDecoderState(body.state, top, source), maps)


def _summary(memory: Memory) -> Tensor:
    if memory.summary is None:
        raise ArgumentError(
            "memory",
            "have a summary for a recurrent decoder to start from",
            "made by an encoder without one",
            "use RecurrentEncoder or SelfAttentiveEncoder",
        )
    return memory.summary


@final
class AttentionDecoder(Decoder):
    """A Transformer decoder.

    Args:
        embedding: of target tokens.
        decoder: the layers.
        output: options of the output layer, see `OutputLayer`.
    """

    def __init__(
        self, embedding: TokenEmbedding, decoder: TransformerDecoder, **output: Any
    ) -> None:
        super().__init__()
        self.embedding, self.decoder = embedding, decoder
        self.output = OutputLayer(decoder.dim, embedding, **output)

    def start(self, memory: Memory) -> State:
        """Return empty caches, and the memory's keys and values of every layer."""
        return self.decoder.start(memory.output, memory.mask, key=memory.keys)

    def forward(
        self, tokens: Tgt, state: State, *, keep: Keep = None, need_weights: bool = False
    ) -> DecoderOutput:
        """Score; the maps are `decoder-self` and `cross`, of each layer."""
        state = cast(TransformerState, state)
        x = self.embedding(tokens, start=state.position)
        out = run_decoder(self.decoder, x, state, need_weights=need_weights)
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
        self.output = OutputLayer(decoder.dim, embedding)

    def start(self, memory: Memory) -> State:
        """Return zeros before the first token."""
        keys = memory.output if memory.keys is None else memory.keys
        return self.decoder.start(keys, memory.output, memory.mask)

    def forward(
        self, tokens: Tgt, state: State, *, keep: Keep = None, need_weights: bool = False
    ) -> DecoderOutput:
        """Score; the maps are `cross`, of each layer."""
        state = cast(ConvState, state)
        x = self.embedding(tokens, start=state.position)
        output, after, weights = self.decoder(x, state, need_weights=need_weights)
        maps: Maps = {"cross": weights} if need_weights else {}
        return DecoderOutput(self.output(output, self.embedding, keep), after, maps)


@dataclass(frozen=True)
class MemoryState(State):
    """The state of the recurrent decoder, and the slots.

    The last context of that decoder is `[c; r]`, of the attention and of the memory.
    """

    recurrent: RecurrentDecoderState
    slots: Float[Tensor, "batch slots width"]


class MemoryStep(NamedTuple):
    """The result of one token.

    Attributes:
        features: `[s_t; c_t; r_t]`, (batch, features).
        cross_weights: over the source, (batch, heads, 1, src_len), if asked for.
        slot_weights: over the slots, (batch, slots).
        state: after it.
    """

    features: Tensor
    cross_weights: Tensor | None
    slot_weights: Tensor
    state: MemoryState


@final
class MemoryDecoder(Decoder):
    """A recurrent decoder with attention and an external memory.

    `s_t = rnn([y_t; c_{t-1}; r_{t-1}])`, `c_t = attention(s_t, source)`, then the slots are written
    and read by keys that are made from `[s_t; c_t]`, and r_t is what is read;
    `softmax(W_o [s_t; c_t; r_t] + b_o)`.
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
        """Return the state of the recurrent decoder, with the learned slots."""
        recurrent = cast(RecurrentDecoderState, self.recurrent.start(memory))
        return MemoryState(recurrent, self.external.start(memory.output.shape[0]))

    def forward(
        self, tokens: Tgt, state: State, *, keep: Keep = None, need_weights: bool = False
    ) -> DecoderOutput:
        """Run one step after another, since each needs the contexts of the last one."""
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
        context, weights, source = cast(ProjectedMemory, before.source).attend(
            cast(Attention, self.recurrent.attention), hidden[:, None], need_weights=need_weights
        )
        seen = torch.cat([hidden, context[:, 0]], dim=-1)
        found = self.external(seen, state.slots)
        features = torch.cat([seen, found.read], dim=-1)
        after = RecurrentDecoderState(rnn, features[:, stack.output_size :], source)
        return MemoryStep(features, weights, found.weights, MemoryState(after, found.slots))


def _maps(steps: list[MemoryStep]) -> Maps:
    cross = [step.cross_weights for step in steps if step.cross_weights is not None]
    slots = torch.stack([step.slot_weights for step in steps], dim=1)[:, None]
    return {"cross": (torch.cat(cross, dim=2),), "memory": (slots,)}
