"""Stacks of RNN, GRU and LSTM layers over padded batches.

Padding is handled with masks and indices rather than with `PackedSequence`, which disables cuDNN's
fast kernels. The content of padding does not matter, and padded outputs are zero.

Self-attentive RNN: a context vector takes the place of the hidden state.

Cheng et al., 2016, "Long Short-Term Memory-Networks for Machine Reading",
https://arxiv.org/abs/1601.06733.
"""

from dataclasses import dataclass
from typing import Final, NamedTuple, cast, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard import masks, ops
from regard.attention import AdditiveAttention, ScaledDotProductAttention, Scorer
from regard.device import can_read_values
from regard.errors import ArgumentError
from regard.layers.dropout import Dropout
from regard.ops import History, SelfAttentiveOutput
from regard.ops.check import check_axes, check_choice, check_equal, check_positive, check_width
from regard.ops.recurrence.scores import GATES, Cell
from regard.ops.self_attentive_rnn.reference import empty_history
from regard.state import State


def real_steps(
    x: Float[Tensor, "batch length dim"], lengths: Int[Tensor, " batch"]
) -> Bool[Tensor, "batch length 1"]:
    """True on the first `lengths[b]` steps of row b."""
    real = masks.padding(lengths, x.shape[1])[:, 0, 0, :, None]
    check_equal("agree in batch", lengths=lengths.shape[0], x=x.shape[0])
    return real


def no_padding(x: Float[Tensor, "batch length width"], lengths: Int[Tensor, " batch"]) -> bool:
    """Return whether all rows are known to be full, as batches by length mostly are."""
    if not can_read_values(lengths):
        return False
    one_each = lengths.shape == x.shape[:1] and not lengths.is_floating_point()
    return one_each and bool((lengths == x.shape[1]).all())


def mirrored(
    real: Bool[Tensor, "batch length 1"], lengths: Int[Tensor, " batch"]
) -> Int[Tensor, "batch length 1"]:
    """The index of each step in its reversed row; padding keeps its place."""
    positions = torch.arange(real.shape[1], device=lengths.device)[:, None]
    return torch.where(real, lengths[:, None, None] - 1 - positions, positions)


def reverse(
    x: Float[Tensor, "batch length dim"], mirror: Int[Tensor, "batch length 1"]
) -> Float[Tensor, "batch length dim"]:
    """Each row reversed, its padding left in place."""
    return x.gather(1, mirror.expand_as(x))


CELLS: Final[dict[str, type[nn.RNN] | type[nn.GRU] | type[nn.LSTM]]] = {
    "rnn": nn.RNN,
    "gru": nn.GRU,
    "lstm": nn.LSTM,
}

# In the gates of an LSTM: large enough that a sigmoid is exactly 0 or 1, small enough for float16.
FREEZE: Final = 1e4


@dataclass(frozen=True)
class RecurrentState(State):
    """The last state of every layer, forward before backward.

    Attributes:
        hidden: h.
        memory: c of an LSTM; None for the others.

    Examples:
        >>> stack = regard.layers.RNNStack(5, 7, num_layers=2)
        >>> state = stack(torch.randn(2, 3, 5)).state
        >>> stack(torch.randn(2, 1, 5), state=state).state.hidden.shape  # a step further
        torch.Size([2, 2, 7])
    """

    hidden: Float[Tensor, "batch layers hidden"]
    memory: Float[Tensor, "batch layers hidden"] | None


class RecurrentOutput(NamedTuple):
    """Outputs of the last layer, (batch, length, directions * hidden), and the final state.

    Examples:
        >>> output, state = regard.layers.RNNStack(5, 7)(torch.randn(2, 3, 5))
        >>> bool((output[:, -1] == state.hidden[:, 0]).all())
        True
    """

    output: Tensor
    state: RecurrentState


class _LayerRun(NamedTuple):
    """One layer in one direction: outputs, final hidden state, final memory."""

    output: Tensor
    hidden: Tensor
    memory: Tensor | None


@final
class RNNStack(nn.Module):
    """Recurrent layers on top of each other, equal to torch's on real positions.

    Args:
        input_size: width of the inputs.
        hidden_size: width of each layer and direction.
        cell: "rnn" (tanh), "gru" or "lstm".
        num_layers: number of layers.
        bidirectional: whether a second set of layers reads each sequence from its own end.
        dropout: probability of dropping a feature between layers.

    Examples:
        >>> stack = regard.layers.RNNStack(5, 7, cell="gru", bidirectional=True)
        >>> stack(torch.randn(2, 3, 5), torch.tensor([3, 1])).output.shape
        torch.Size([2, 3, 14])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        cell: Cell = "lstm",
        num_layers: int = 1,
        bidirectional: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_positive(input_size=input_size, hidden_size=hidden_size, num_layers=num_layers)
        check_choice("cell", cell, CELLS)
        self.input_size, self.hidden_size, self.cell = input_size, hidden_size, cell
        self.num_layers, self.directions = num_layers, 2 if bidirectional else 1
        self.output_size = self.directions * hidden_size

        def layers() -> nn.ModuleList:
            sizes = [input_size] + [self.output_size] * (num_layers - 1)
            return nn.ModuleList(CELLS[cell](size, hidden_size, batch_first=True) for size in sizes)

        self.ahead = layers()
        self.back = layers() if bidirectional else None
        self.dropout = Dropout(dropout)

    def init_state(self, batch: int, like: Tensor) -> RecurrentState:
        """The zero state, on the device and of the type of `like`."""
        zeros = like.new_zeros(batch, self.num_layers * self.directions, self.hidden_size)
        return RecurrentState(zeros, zeros if self.cell == "lstm" else None)

    def forward(
        self,
        x: Float[Tensor, "batch length input_size"],
        lengths: Int[Tensor, " batch"] | None = None,
        state: RecurrentState | None = None,
    ) -> RecurrentOutput:
        """Run all steps.

        Args:
            x: the inputs.
            lengths: number of real steps of each row; all of them if None.
            state: the initial state; zero if None.
        """
        check_width("x", x, self.input_size)
        state = self.init_state(x.shape[0], x) if state is None else state
        self._check_state(state, x)
        padding = None if lengths is None or no_padding(x, lengths) else _Padding.of(x, lengths)
        runs = []
        for layer in range(self.num_layers):
            if layer:
                x = self.dropout(x)
            if padding is not None:
                x = x.where(padding.real, 0.0)
            both = [self._run(x, layer, 0, state, padding)]
            if self.back is not None:
                both.append(self._run(x, layer, 1, state, padding))
            x = torch.cat([run.output for run in both], dim=-1) if self.back else both[0].output
            runs += both
        if padding is not None:
            x = x.where(padding.real, 0.0)
        return RecurrentOutput(x, _stack(runs))

    def step(
        self, x: Float[Tensor, "batch input_size"], state: RecurrentState
    ) -> tuple[Float[Tensor, "batch hidden_size"], RecurrentState]:
        """One step of all layers, without the overhead of a sequence: for decoders."""
        if self.back is not None:
            raise ArgumentError(
                "step", "be called on a stack of one direction", "bidirectional", "use forward"
            )
        check_axes("x", x, "batch input_size")
        check_equal("agree in width", x=x.shape[1], input_size=self.input_size)
        self._check_state(state, x)
        runs = []
        for i, layer in enumerate(self.ahead):
            x = self.dropout(x) if i else x
            memory = None if state.memory is None else state.memory[:, i]
            hidden, memory = _cell_step(cast(nn.RNNBase, layer), x, state.hidden[:, i], memory)
            runs.append(_LayerRun(hidden, hidden, memory))
            x = hidden
        return x, _stack(runs)

    def _check_state(self, state: RecurrentState, x: Tensor) -> None:
        check_equal("agree in batch", state=state.hidden.shape[0], x=x.shape[0])
        layers = self.num_layers * self.directions
        check_equal("agree in layers", state=state.hidden.shape[1], stack=layers)
        if (state.memory is not None) != (self.cell == "lstm"):
            raise ArgumentError(
                "state",
                "have a memory for the cell 'lstm' and for no other",
                f"one {'without' if state.memory is None else 'with'} it for {self.cell!r}",
                "start from init_state, or from the state of such a stack",
            )

    def _run(
        self,
        x: Tensor,
        layer: int,
        direction: int,
        state: RecurrentState,
        padding: "_Padding | None",
    ) -> _LayerRun:
        modules = self.ahead if direction == 0 or self.back is None else self.back
        module = cast(nn.RNNBase, modules[layer])
        row = layer * self.directions + direction
        hidden = state.hidden[:, row]
        memory = None if state.memory is None else state.memory[:, row]
        ordered = x if direction == 0 else _reverse(x, padding)
        run = _run_layer(module, ordered, hidden, memory, padding)
        return run if direction == 0 else run._replace(output=_reverse(run.output, padding))


class _Padding(NamedTuple):
    """Lengths, mask and reversal of a padded batch, computed once for all layers."""

    lengths: Int[Tensor, " batch"]
    real: Bool[Tensor, "batch length 1"]
    mirror: Int[Tensor, "batch length 1"]

    @staticmethod
    def of(x: Tensor, lengths: Int[Tensor, " batch"]) -> "_Padding":
        real, lengths = real_steps(x, lengths), lengths.long()  # narrow ones cannot be indices
        return _Padding(lengths, real, mirrored(real, lengths))


def _reverse(x: Tensor, padding: _Padding | None) -> Tensor:
    """Each sequence reversed, its padding left in place."""
    return x.flip(1) if padding is None else reverse(x, padding.mirror)


def _run_layer(
    module: nn.RNNBase,
    x: Tensor,
    hidden: Tensor,
    memory: Tensor | None,
    padding: _Padding | None,
) -> _LayerRun:
    """One layer forward in time. Padding stands at the end, where it cannot affect real outputs;
    the final state of a padded row is that of its last real step."""
    start = hidden[None].contiguous()
    if memory is None:
        output, last = module(x, start)
        return _LayerRun(output, _at_end(output, last[0], hidden, padding), None)
    both = (start, memory[None].contiguous())
    if padding is None:
        output, (last, last_memory) = module(x, both)
        return _LayerRun(output, last[0], last_memory[0])
    output, last, last_memory = _freezing_lstm(module, x, both, padding)
    # a row without any real step keeps its memory and its hidden state
    return _LayerRun(output, _at_end(output, last[0], hidden, padding), last_memory[0])


def _at_end(output: Tensor, last: Tensor, first: Tensor, padding: _Padding | None) -> Tensor:
    """The output of the last real step of each row, or the first state where there is none."""
    if padding is None:
        return last
    index = (padding.lengths - 1).clamp(min=0)[:, None, None]
    end = output.gather(1, index.expand(-1, 1, output.shape[2])).squeeze(1)
    return torch.where(padding.lengths[:, None] > 0, end, first)


def _freezing_lstm(
    module: nn.RNNBase, x: Tensor, start: tuple[Tensor, Tensor], padding: _Padding
) -> tuple[Tensor, Tensor, Tensor]:
    """An LSTM whose memory does not change in padding.

    No kernel returns the memory of steps before the last. So an input that is 1 in padding opens
    the forget gate and closes the input gate there, `c_t = 1 c_{t-1} + 0 g_t`, exactly: the memory
    after the last step is that after the last real step.
    """
    pad = (~padding.real).to(x.dtype)
    weights = [getattr(module, name) for name in module._flat_weights_names]
    column = torch.zeros_like(weights[0][:, :1])
    closed, opened = module.hidden_size, 2 * module.hidden_size
    column[:closed], column[closed:opened] = -FREEZE, FREEZE
    weights[0] = torch.cat([weights[0], column], dim=1)
    return torch.lstm(
        torch.cat([x, pad], dim=-1), start, _contiguous_weights(weights), module.bias, 1, 0.0,
        module.training, False, True,
    )  # fmt: skip


def _contiguous_weights(weights: list[Tensor]) -> list[Tensor]:
    """Weights as views of one buffer, which cuDNN would otherwise copy with a warning."""
    flat = torch.cat([w.flatten() for w in weights])
    parts = torch.split_with_sizes(flat, [w.numel() for w in weights])
    return [part.view_as(w) for part, w in zip(parts, weights, strict=True)]


def _cell_step(
    module: nn.RNNBase, x: Tensor, hidden: Tensor, memory: Tensor | None
) -> tuple[Tensor, Tensor | None]:
    weights = [getattr(module, name) for name in module._flat_weights_names]
    if memory is not None:
        hidden, memory = torch.lstm_cell(x, (hidden, memory), *weights)
        return hidden, memory
    cell = torch.gru_cell if isinstance(module, nn.GRU) else torch.rnn_tanh_cell
    return cell(x, hidden, *weights), None


def _stack(runs: list[_LayerRun]) -> RecurrentState:
    memories = [run.memory for run in runs if run.memory is not None]
    return RecurrentState(
        torch.stack([run.hidden for run in runs], dim=1),
        torch.stack(memories, dim=1) if memories else None,
    )


@final
class SelfAttentiveRNN(nn.Module):
    """An RNN in which every step attends to all steps before it.

    The cell `rnn` is `h_t = tanh(A [x_t, c_{t-1}] + b)`; h_t scores h_1 to h_t, and their mixture
    c_t goes to step t + 1. The cell `gru` gates the same recurrence. The cell `lstm` is the LSTMN
    of the paper: it attends to h_1 to h_{t-1} with a query from x_t and its last mixture, and mixes
    hidden states and memories.

    Args:
        input_size: width of the inputs.
        hidden_size: width of h and c.
        cell: "rnn", "gru" or "lstm".
        attention: scores of steps: any mechanism with the methods of `Scorer`, of queries and
            keys of width `hidden_size`. If None, scaled dot-product, and additive for `lstm` as in
            the paper.

    Examples:
        >>> rnn = regard.layers.SelfAttentiveRNN(5, 7, cell="gru")
        >>> out = rnn(torch.randn(2, 3, 5), need_weights=True)
        >>> out.hidden.shape, out.weights.shape
        (torch.Size([2, 3, 7]), torch.Size([2, 1, 3, 3]))
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        *,
        cell: Cell = "rnn",
        attention: Scorer | None = None,
    ) -> None:
        super().__init__()
        check_positive(input_size=input_size, hidden_size=hidden_size)
        check_choice("cell", cell, GATES)
        self.input_size, self.hidden_size, self.cell = input_size, hidden_size, cell
        gates = GATES[cell] * hidden_size
        self.input_proj = nn.Linear(input_size, gates)
        self.recurrent_proj = nn.Linear(hidden_size, gates, bias=cell == "gru")
        if attention is None:
            default = AdditiveAttention if cell == "lstm" else ScaledDotProductAttention
            attention = default(hidden_size, hidden_size, hidden_size)
        self.attention = attention
        self.query_proj = None
        if cell == "lstm":
            self.query_proj = nn.Linear(input_size, self._score_dim(), bias=False)

    def _score_dim(self) -> int:
        probe = self.recurrent_proj.weight.new_zeros(1, self.hidden_size)
        return self.attention.as_score().key(probe).shape[-1]

    def init_state(self, batch: int, like: Tensor) -> History:
        """The empty history, with the device and dtype of `like`."""
        return empty_history(
            like, batch, self.hidden_size, self._score_dim(), with_memory=self.cell == "lstm"
        )

    def forward(
        self,
        x: Float[Tensor, "batch length input_size"],
        lengths: Int[Tensor, " batch"] | None = None,
        state: History | None = None,
        *,
        need_weights: bool = False,
    ) -> SelfAttentiveOutput:
        """Run a sequence, or a continuation of it.

        Args:
            x: the inputs.
            lengths: number of real steps of each row; all of them if None.
            state: the history to continue; empty if None.
            need_weights: whether to return the weights, (batch, 1, length, steps).
        """
        check_width("x", x, self.input_size)
        if lengths is not None:
            # a NaN in the padding would reach the gradients of the projections, even times zero
            x = x.where(real_steps(x, lengths), 0.0)
        return ops.self_attentive_rnn(
            self.input_proj(x),
            self.recurrent_proj.weight,
            self.attention.as_score(),
            state,
            cell=self.cell,
            recurrent_bias=self.recurrent_proj.bias,
            query_inputs=None if self.query_proj is None else self.query_proj(x),
            lengths=lengths,
            need_weights=need_weights,
        )

    def step(
        self,
        x: Float[Tensor, "batch input_size"],
        state: History | None = None,
        *,
        need_weights: bool = False,
    ) -> SelfAttentiveOutput:
        """Run one step, for decoding and streaming: `hidden` and `context` are (batch, hidden)."""
        check_axes("x", x, "batch input_size")
        output: SelfAttentiveOutput = self(x[:, None], None, state, need_weights=need_weights)
        return output._replace(hidden=output.hidden[:, 0], context=output.context[:, 0])
