"""Layers and states in a form that can be traced for sequences of any length.

Tracing would unroll loops over time to the length of the example, so the recurrent layers of an
encoder are replaced by equivalent ones that are a single operator or a loop of the graph.
"""

import copy
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, Final, NamedTuple, TypeVar, cast, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan

from regard.errors import ExportError
from regard.layers import RecurrentState, RNNStack, SelfAttentiveRNN
from regard.layers.rnn import RecurrentOutput
from regard.models import EncoderDecoder, JointDecoder, SequenceModel
from regard.models.decoders import ProjectedMemory
from regard.models.encoders import RecurrentEncoder, SelfAttentiveEncoder
from regard.models.forecasters import AttentiveNetwork
from regard.models.monotonic_decoder import MonotonicDecoder, MonotonicState
from regard.models.protocol import Lengths, Memory, real_lengths
from regard.models.span_reader import SpanDecoder
from regard.ops import History, SelfAttentiveOutput
from regard.ops.self_attentive_rnn import reference
from regard.state import State

ModelT = TypeVar("ModelT", bound=nn.Module)


class Node(NamedTuple):
    """The ONNX operator of a recurrent cell.

    Attributes:
        name: name of the operator.
        gates: its gates, by their position in torch.
        attributes: attributes that make it compute as torch does.
    """

    name: str
    gates: tuple[int, ...]
    attributes: dict[str, int]


NODES: Final = {
    "rnn": Node("RNN", (0,), {}),
    "gru": Node("GRU", (1, 0, 2), {"linear_before_reset": 1}),
    "lstm": Node("LSTM", (0, 3, 1, 2), {}),
}


#: modules that run recurrent layers over whole sequences, and the names of these layers
STACKS: Final[dict[type[nn.Module], tuple[str, ...]]] = {
    RecurrentEncoder: ("stack",),
    AttentiveNetwork: ("encoder",),
}


def exportable(model: ModelT) -> ModelT:
    """Return a copy of the model that can be traced, with its own copy of the weights."""
    model = copy.deepcopy(model).eval()
    for module in list(model.modules()):
        for name in next((own for kind, own in STACKS.items() if isinstance(module, kind)), ()):
            setattr(module, name, NodeStack(cast(RNNStack, getattr(module, name))))
        if isinstance(module, SelfAttentiveEncoder):
            layers = (cast(SelfAttentiveRNN, layer) for layer in module.body.layers)
            module.body.layers = nn.ModuleList(LoopedRNN(layer) for layer in layers)
    return model


@final
class NodeStack(nn.Module):
    """An `RNNStack` as ONNX operators, which handle padding themselves."""

    def __init__(self, stack: RNNStack) -> None:
        super().__init__()
        self.directions, self.hidden_size = stack.directions, stack.hidden_size
        self.node = NODES[stack.cell]
        self.layers = stack.num_layers
        for layer in range(stack.num_layers):
            sides = [stack.ahead[layer], *([] if stack.back is None else [stack.back[layer]])]
            for name in ("weight_ih", "weight_hh"):
                rows = [self._ordered(getattr(side, f"{name}_l0")) for side in sides]
                self.register_buffer(f"{name}_{layer}", torch.stack(rows))
            names = (f"bias_{part}_l0" for part in ("ih", "hh"))
            biases = [torch.stack([self._ordered(getattr(s, n)) for s in sides]) for n in names]
            self.register_buffer(f"bias_{layer}", torch.cat(biases, dim=1))

    def _ordered(self, rows: Tensor) -> Tensor:
        """Return the rows of the gates in the order of ONNX."""
        parts = rows.detach().chunk(len(self.node.gates))
        return torch.cat([parts[place] for place in self.node.gates])

    def forward(
        self, x: Float[Tensor, "batch length input_size"], lengths: Lengths = None
    ) -> RecurrentOutput:
        """Run all steps from the zero state."""
        hidden, memory = [], []
        lengths = real_lengths(x, lengths)
        for layer in range(self.layers):
            x, *last = self._run(x, lengths, layer)
            hidden.append(last[0])
            memory += last[1:]
        return RecurrentOutput(
            x,
            RecurrentState(_batch_first(hidden), _batch_first(memory) if memory else None),
        )

    def _run(self, x: Tensor, lengths: Tensor, layer: int) -> tuple[Tensor, ...]:
        """Run one layer; returns the outputs and the last states."""
        batch, length, _ = x.shape
        state = (self.directions, batch, self.hidden_size)
        count = 3 if self.node.name == "LSTM" else 2
        names = ("weight_ih", "weight_hh", "bias")
        weights = [cast(Tensor, getattr(self, f"{name}_{layer}")) for name in names]
        output, *last = torch.onnx.ops.symbolic_multi_out(
            self.node.name,
            (x.transpose(0, 1), *weights, lengths.int()),
            {
                "hidden_size": self.hidden_size,
                "direction": "bidirectional" if self.directions == 2 else "forward",
                **self.node.attributes,
            },
            dtypes=(x.dtype,) * count,
            shapes=((length, *state), *(state,) * (count - 1)),
        )
        return output.permute(2, 0, 1, 3).flatten(2), *last  # (batch, length, both directions)


def _batch_first(states: list[Tensor]) -> Tensor:
    return torch.cat(states).transpose(0, 1)


@final
class LoopedRNN(nn.Module):
    """A `SelfAttentiveRNN` as a loop of the graph, with buffers as long as the sequence."""

    def __init__(self, layer: SelfAttentiveRNN) -> None:
        super().__init__()
        self.layer = layer

    def init_state(self, batch: int, like: Tensor) -> History:
        """Return the initial state of the layer."""
        return self.layer.init_state(batch, like)

    def forward(
        self,
        x: Float[Tensor, "batch length input_size"],
        lengths: Int[Tensor, " batch"],
        state: History,
        *,
        need_weights: bool = False,
    ) -> SelfAttentiveOutput:
        """Run all steps from the empty history."""
        layer, length = self.layer, x.shape[1]
        projection = layer.recurrent_proj
        recurrence = reference.RecurrenceParameters(
            projection.weight, projection.bias, layer.attention.as_score()
        )
        gates = layer.input_proj(x)
        real = reference.real_steps(gates, lengths)
        positions = torch.arange(length)
        inputs = [gates, real] + ([] if layer.query_proj is None else [layer.query_proj(x)])
        places = (
            positions[:, None] == positions
        )  # (steps, length): the position that each step writes

        def step(buffers: list[Tensor], now: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            place, gate, is_real, *query = now
            begun = reference.StepInputs(gate, query[0] if query else None, is_real)
            after, _ = reference.STEPS[layer.cell](recurrence, begun, _history(buffers))
            # the newest step is the last entry of buffers that are one too long
            written = [_put(buffer, place) for buffer in _buffers(after)[1:]]
            return [after.context.clone(), *written], [after.hidden[:, -1].clone(), after.context]

        start = [_widened(buffer, length) for buffer in _buffers(state)]
        steps = [places, *(part.transpose(0, 1) for part in inputs)]
        buffers, (hidden, context) = scan(step, start, steps)
        return SelfAttentiveOutput(
            hidden=hidden.transpose(0, 1).where(real, 0.0),
            context=context.transpose(0, 1).where(real, 0.0),
            weights=None,
            state=_history(buffers),
        )


def first_state(model: SequenceModel, memory: Memory) -> State:
    """Return the state before the first step, with all the tensors of later states."""
    state = _each(model.start(memory), _never_empty)
    if any(getattr(module, "needs_past_weights", False) for module in model.modules()):
        state = _each(state, _nothing_covered)
    if isinstance(state, MonotonicState):
        state = _at_0(state, cast(MonotonicDecoder, model.decoder).embedding.vocab)
    return cast(State, state)


def _each(value: Any, change: Callable[[State], State]) -> Any:
    """Apply a function to a state and its nested states, the inner ones first."""
    if isinstance(value, State):
        inner = {own.name: _each(getattr(value, own.name), change) for own in fields(value)}
        return change(replace(value, **inner))
    return tuple(_each(part, change) for part in value) if isinstance(value, tuple) else value


def _never_empty(state: State) -> State:
    """Add a padding step to an empty history that is attended to before it grows.

    The `lstm` cell does so, and onnxruntime cannot reduce over an empty axis of keys.
    """
    if not isinstance(state, History) or state.memory is None:
        return state
    return _history([_widened(buffer, 1) for buffer in _buffers(state)])


def _nothing_covered(state: State) -> State:
    """Set the weights and the coverage before the first step to zeros."""
    if not isinstance(state, ProjectedMemory):
        return state
    zeros = torch.zeros_like(state.mask, dtype=state.keys.dtype)
    return replace(state, past=replace(state.past, weights=zeros, coverage=zeros))


def _at_0(state: MonotonicState, vocab: int) -> MonotonicState:
    """Set the position before the first output to 0, whatever token is read."""
    batch, length = state.mask.shape
    at_0 = torch.arange(length)[:, None] == 0
    joint = torch.where(at_0, 0.0, float("-inf")).expand(batch, -1, vocab)
    return replace(state, joint=joint.to(state.keys.dtype))


def _buffers(history: History) -> list[Tensor]:
    buffers = [history.context, history.real, history.hidden, history.keys]
    return buffers if history.memory is None else [*buffers, history.memory]


def _history(buffers: list[Tensor]) -> History:
    context, real, hidden, keys, *memory = buffers
    return History(context, hidden, keys, memory[0] if memory else None, real)


def _widened(buffer: Tensor, length: int) -> Tensor:
    """Return an empty buffer with room for all steps; the context is not a buffer."""
    if buffer.ndim == 2 and buffer.dtype != torch.bool:
        return buffer
    return buffer.new_zeros(buffer.shape[0], length, *buffer.shape[2:])


def _put(buffer: Tensor, place: Tensor) -> Tensor:
    """Return the buffer with its last entry moved to its position."""
    if buffer.dtype == torch.bool:
        return buffer[:, :-1] | (buffer[:, -1:] & place)  # `where` has no booleans in onnxruntime
    return torch.where(place[None, :, None], buffer[:, -1:], buffer[:, :-1])


def plain_decoder(model: SequenceModel) -> SequenceModel:
    """Return the model without a CTC loss, which only training has.

    Raises ExportError for a model that points at spans, whose steps differ by their number; and if
    CTC scores the tokens of a search: ONNX has no operator for its sums of logarithms.
    """
    decoder = getattr(model, "decoder", None)
    if isinstance(decoder, SpanDecoder):
        raise ExportError(
            "an exported model must write its tokens, but this run points at a span of the "
            "passage: export a run of pointer or bahdanau."
        )
    if not isinstance(model, EncoderDecoder) or not isinstance(decoder, JointDecoder):
        return model
    if decoder.search_weight:
        raise ExportError(
            f"an exported model must score tokens by its decoder alone, but this run has "
            f"ctc_search={decoder.search_weight:g}: train with ctc_search=0 to export it."
        )
    return EncoderDecoder(model.encoder, decoder.decoder)
