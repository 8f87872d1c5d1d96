"""Steps of a recurrent decoder with additive attention on the CPU.

The context of a step is a mixture of the source's vectors, so a product with the context is the
same mixture of products with these vectors: `W c_t = sum_i a_ti W v_i`. They are computed once for
a source, where that costs less than a product for every hypothesis at every step.
"""

from dataclasses import dataclass, replace
from typing import Any, Final, cast, final

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor, nn

from regard.attention import AdditiveAttention
from regard.models.cpu import recurrent_kernels as kernels
from regard.models.decoders import RecurrentDecoder, RecurrentDecoderState
from regard.models.int8 import Int8Linear, Int8OutputLayer, Product, output_weight, product
from regard.models.protocol import Memory, StepOutput
from regard.state import State, StateT

#: numbers of the largest table of gates, one row for each token, that is computed at once, and of
#: the largest that is computed as tokens are read
TABLE: Final = 1 << 22
LARGE_TABLE: Final = 1 << 25
#: tokens whose rows of a large table are computed together: always the same ones, so that their
#: rounding does not depend on what was read before
BLOCK: Final = 64
#: numbers of the largest tensor of scores of source vectors
SCORES: Final = 1 << 25


@dataclass(frozen=True)
class RecurrentSource:
    """Arrays of the sources of a search, one row each.

    Attributes:
        keys: of the attention, projected.
        values: the vectors that are mixed.
        gates: their part of the gates.
        lengths: of the sources.
        shortest: the least of these.
    """

    keys: Any
    values: Any
    gates: Any
    lengths: Any
    shortest: int


@dataclass(frozen=True)
class RecurrentCpuState(State):
    """The state between two steps.

    Attributes:
        hidden: of the RNN.
        memory: of an LSTM; None for the others.
        known: products with the hidden state: the query, and the recurrent part of the gates.
        weights: of the last attention.
        source: of each row.
        sources: see `RecurrentSource`.
        scores: an array of the tokens' scores by each vector of each source; None until they pay.
    """

    hidden: Float[Tensor, "rows hidden"]
    memory: Float[Tensor, "rows hidden"] | None
    known: Float[Tensor, "rows width"]
    weights: Float[Tensor, "rows src_len"]
    source: Int[Tensor, " rows"]
    sources: RecurrentSource
    scores: Any = None

    def reorder(self: StateT, indices: Int[Tensor, " rows"]) -> StateT:
        """Return the state whose row i is row `indices[i]`; sources are not copied."""
        assert isinstance(self, RecurrentCpuState)
        return replace(
            self,
            hidden=self.hidden.index_select(0, indices),
            memory=None if self.memory is None else self.memory.index_select(0, indices),
            known=self.known.index_select(0, indices),
            weights=self.weights.index_select(0, indices),
            source=self.source.index_select(0, indices),
        )


def refuse_recurrent(decoder: RecurrentDecoder) -> str | None:
    """Return the reason why `RecurrentSteps` cannot run a decoder, or None."""
    if not isinstance(decoder.attention, AdditiveAttention):
        return "its attention is not additive"
    if decoder.stack.num_layers != 1:
        return "it has several layers"
    return None


@final
class RecurrentSteps:
    """Starts and steps of a recurrent decoder, with weights joined once."""

    def __init__(self, decoder: RecurrentDecoder) -> None:
        attention, output = cast(AdditiveAttention, decoder.attention), decoder.output
        self.decoder, self.cell, self.size = decoder, decoder.stack.cell, decoder.stack.hidden_size
        projected: nn.Module = attention.query_proj
        scored: nn.Module = output
        int8 = isinstance(projected, Int8Linear)
        self.query_size, self.embedding = attention.v.shape[0], decoder.embedding
        self.w = (attention.v.detach() * -2.0).contiguous().numpy()
        layer, width = cast(nn.RNNBase, decoder.stack.ahead[0]), decoder.embedding.dim
        read = cast(Tensor, layer.weight_ih_l0).detach()
        known = torch.cat([attention.query_proj.weight.detach(), _of(layer, "weight_hh_l0")])
        bias = F.pad(_of(layer, "bias_hh_l0"), (self.query_size, 0))
        bias_in = _of(layer, "bias_ih_l0")
        self.known = product(known, bias, int8=int8)
        self.from_token = product(read[:, :width], bias_in, int8=int8)
        self.from_context = product(read[:, width:], None, int8=int8)
        self.step_cell = kernels.cell_step(self.cell)
        self.table: Tensor | None = None
        self._computed: NDArray[np.bool_] | None = None  # blocks of a large table
        vocab = self.embedding.vocab
        if vocab * len(read) <= TABLE:
            table = self.embedding.table.weight.detach() * self.embedding.scale
            self.table = F.linear(table, read[:, :width], bias_in)
        elif vocab * len(read) <= LARGE_TABLE and not int8:
            self.table = torch.empty(vocab, len(read))
            self._computed = np.zeros(-(-vocab // BLOCK), np.bool_)
        self.gates, self.projection = len(read), output.projection
        weight, int8 = output_weight(output, self.embedding), isinstance(scored, Int8OutputLayer)
        self.output: Product = product(weight, output.bias, int8=int8)
        self.by_hidden: Product | None = None
        if self.projection is None and weight.shape[1] > self.size:
            # weights of attention sum to 1, so that the bias of a mixture is the bias
            self.by_hidden = product(weight[:, : self.size], None, int8=int8)
            self.by_context = product(weight[:, self.size :], output.bias, int8=int8)

    def start(self, memory: Memory) -> RecurrentCpuState:
        """Return the state before the first token, with all products of the sources."""
        first = cast(RecurrentDecoderState, self.decoder.start(memory))
        assert first.source is not None
        keys, values = first.source.keys.contiguous(), first.source.values.contiguous()
        sources, width = keys.shape[:2]
        lengths = memory.lengths.long().contiguous().numpy()
        hidden = first.rnn.hidden[:, 0].contiguous()
        cell = first.rnn.memory
        return RecurrentCpuState(
            hidden,
            None if cell is None else cell[:, 0].contiguous(),
            self.known(hidden),
            torch.zeros(sources, width),
            torch.arange(sources),
            RecurrentSource(
                keys.numpy(),
                values.numpy(),
                self.from_context(values).contiguous().numpy(),
                lengths,
                int(lengths.min()),
            ),
        )

    def step(
        self, tokens: Int[Tensor, " rows"], state: RecurrentCpuState, *, need_weights: bool = True
    ) -> StepOutput:
        """Read the newest token of each row and score the next one; the map is `cross`."""
        sources, rows = state.sources, tokens.shape[0]
        place = state.source.numpy(), sources.lengths
        hidden, memory = self._cell(tokens, state, place)
        known = self.known(hidden)
        weights = torch.empty_like(state.weights)
        mixed = weights.numpy()
        kernels.additive_weights(known.numpy(), sources.keys, self.w, *place, mixed)
        scores = self.scores_of(state, rows)
        if scores is not None:
            assert self.by_hidden is not None
            logits = self.by_hidden(hidden)
            kernels.add_contexts(mixed, scores, *place, logits.numpy())
        else:
            features = torch.empty(rows, self.size + sources.values.shape[2])
            features[:, : self.size] = hidden
            kernels.contexts(mixed, sources.values, *place, self.size, features.numpy())
            features = features if self.projection is None else self.projection(features)
            logits = self.output(features)
        after = RecurrentCpuState(hidden, memory, known, weights, state.source, sources, scores)
        return StepOutput(logits, after, {"cross": (weights[:, None, None],)})

    def scores_of(self, state: RecurrentCpuState, rows: int) -> Any:
        """Return the tokens' scores by each vector of each source; None where they do not pay."""
        if state.scores is not None or not self._projection_pays(rows, state.sources):
            return state.scores
        return self.by_context(torch.from_numpy(state.sources.values)).contiguous().numpy()

    def _cell(
        self, tokens: Tensor, state: RecurrentCpuState, place: tuple[Any, Any]
    ) -> tuple[Tensor, Tensor | None]:
        """Return the hidden state and the memory after the tokens."""
        if self.table is not None:
            inputs, index = self._table_of(tokens), tokens
        else:
            vectors = F.embedding(tokens, self.embedding.table.weight) * self.embedding.scale
            inputs, index = self.from_token(vectors), torch.arange(len(tokens))
        hidden = torch.empty_like(state.hidden)
        given: tuple[Any, ...] = (
            inputs.numpy(),
            index.numpy(),
            state.known.numpy(),
            self.query_size,
            state.weights.numpy(),
            state.sources.gates,
            *place,
        )
        scratch = torch.empty(self.gates + 6 * self.size).numpy()
        x, saved = scratch[: self.gates], scratch[self.gates :]
        if self.cell == "rnn":
            self.step_cell(*given, x, hidden.numpy())
            return hidden, None
        if state.memory is None:
            self.step_cell(*given, state.hidden.numpy(), x, saved[: 4 * self.size], hidden.numpy())
            return hidden, None
        memory = torch.empty_like(hidden)
        after = hidden.numpy(), memory.numpy()
        self.step_cell(*given, state.memory.numpy(), x, saved, *after)
        return hidden, memory

    def _table_of(self, tokens: Tensor) -> Tensor:
        """Return the tokens' part of the gates, by token; the rows of these tokens are computed."""
        assert self.table is not None
        if self._computed is None:
            return self.table
        blocks = tokens.numpy() // BLOCK
        for block in np.unique(blocks[~self._computed[blocks]]).tolist():
            some = slice(block * BLOCK, (block + 1) * BLOCK)
            vectors = self.embedding.table.weight.detach()[some] * self.embedding.scale
            self.table[some] = self.from_token(vectors)
            self._computed[block] = True
        return self.table

    def _projection_pays(self, rows: int, known: RecurrentSource) -> bool:
        """Return whether to score every vector of the sources: with several hypotheses of each.

        A source without vectors has no weights that sum to 1.
        """
        if self.by_hidden is None or not known.shortest:
            return False
        sources, width, size = known.values.shape
        numbers = sources * width * self.embedding.vocab
        return bool(rows > 2 * sources and 8 * width <= size and numbers <= SCORES)


def _of(layer: nn.Module, name: str) -> Tensor:
    return cast(Tensor, getattr(layer, name)).detach()
