"""Parts of a model in a form that a graph can hold, for sequences of any length.

Traced as they are, loops over time would be unrolled to the length of the example. So the layers of
an encoder are changed for others that compute the same.
"""

import copy
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, Final, NamedTuple, cast, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan

from regard.attention import CoverageAttention
from regard.layers import RecurrentState, RNNStack, SelfAttentiveRNN
from regard.layers.rnn import RecurrentOutput
from regard.models import SequenceModel
from regard.models.decoders import ProjectedMemory
from regard.models.encoders import RecurrentEncoder, SelfAttentiveEncoder
from regard.models.monotonic_decoder import MonotonicDecoder, MonotonicState
from regard.models.protocol import Memory
from regard.ops import History, SelfAttentiveOutput
from regard.ops.self_attentive_rnn import reference
from regard.state import State


class Node(NamedTuple):
    """An operator of ONNX for a cell.

    Attributes:
        name: of the operator.
        gates: the places of its gates among those of torch.
        attributes: what else it must be told to do as torch does.
    """

    name: str
    gates: tuple[int, ...]
    attributes: dict[str, int]


NODES: Final = {
    "rnn": Node("RNN", (0,), {}),
    "gru": Node("GRU", (1, 0, 2), {"linear_before_reset": 1}),
    "lstm": Node("LSTM", (0, 3, 1, 2), {}),
}


def exportable(model: SequenceModel) -> SequenceModel:
    """A copy of the model that can be traced, its own weights among it."""
    model = copy.deepcopy(model).eval()
    for module in list(model.modules()):
        if isinstance(module, RecurrentEncoder):
            module.stack = cast(Any, NodeStack(module.stack))
        elif isinstance(module, SelfAttentiveEncoder):
            for body in (module.body, *([] if module.back is None else [module.back])):
                layers = (cast(SelfAttentiveRNN, layer) for layer in body.layers)
                body.layers = nn.ModuleList(LoopedRNN(layer) for layer in layers)
    return model


@final
class NodeStack(nn.Module):
    """An `RNNStack` as operators of ONNX, which know of padding by themselves.

    Args:
        stack: what is to be computed.
    """

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
            biases = [self._biases(cast(nn.RNNBase, side)) for side in sides]
            self.register_buffer(f"bias_{layer}", torch.stack(biases))

    def _ordered(self, rows: Tensor) -> Tensor:
        """The rows of the gates in the order of ONNX."""
        parts = rows.detach().chunk(len(self.node.gates))
        return torch.cat([parts[place] for place in self.node.gates])

    def _biases(self, side: nn.RNNBase) -> Tensor:
        if not side.bias:
            return torch.zeros(2 * len(self.node.gates) * self.hidden_size)
        both = (cast(Tensor, side.bias_ih_l0), cast(Tensor, side.bias_hh_l0))
        return torch.cat([self._ordered(rows) for rows in both])

    def forward(
        self, x: Float[Tensor, "batch length input_size"], lengths: Int[Tensor, " batch"]
    ) -> RecurrentOutput:
        """Runs all steps from the zero state."""
        hidden, memory = [], []
        for layer in range(self.layers):
            x, *last = self._run(x, lengths, layer)
            hidden.append(last[0])
            memory += last[1:]
        return RecurrentOutput(
            x,
            RecurrentState(_batch_first(hidden), _batch_first(memory) if memory else None),
        )

    def _run(self, x: Tensor, lengths: Tensor, layer: int) -> tuple[Tensor, ...]:
        """One layer: outputs and its last states."""
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
    """A `SelfAttentiveRNN` whose steps are a loop in the graph, on tapes as long as the sequence.

    Args:
        layer: what is to be computed.
    """

    def __init__(self, layer: SelfAttentiveRNN) -> None:
        super().__init__()
        self.layer = layer

    def init_state(self, batch: int, like: Tensor) -> History:
        """As the layer's own."""
        return self.layer.init_state(batch, like)

    def forward(
        self,
        x: Float[Tensor, "batch length input_size"],
        lengths: Int[Tensor, " batch"],
        state: History,
        *,
        need_weights: bool = False,
    ) -> SelfAttentiveOutput:
        """Runs all steps from the empty history."""
        layer, length = self.layer, x.shape[1]
        projection = layer.recurrent_proj
        recurrence = reference.RecurrenceParameters(
            projection.weight, projection.bias, layer.attention.as_score()
        )
        gates = layer.input_proj(x)
        real = reference.real_steps(gates, lengths)
        positions = torch.arange(length)
        inputs = [gates, real] + ([] if layer.query_proj is None else [layer.query_proj(x)])
        places = positions[:, None] == positions  # one row a step: where its results belong

        def step(tapes: list[Tensor], now: list[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
            place, gate, is_real, *query = now
            begun = reference.StepInputs(gate, query[0] if query else None, is_real)
            after, _ = reference.STEPS[layer.cell](recurrence, begun, _history(tapes))
            # the newest step stands at the end of tapes that are one too long
            written = [_put(tape, place) for tape in _tapes(after)[1:]]
            return [after.context.clone(), *written], [after.hidden[:, -1].clone(), after.context]

        start = [_widened(tape, length) for tape in _tapes(state)]
        steps = [places, *(part.transpose(0, 1) for part in inputs)]
        tapes, (hidden, context) = scan(step, start, steps)
        return SelfAttentiveOutput(
            hidden=hidden.transpose(0, 1).where(real, 0.0),
            context=context.transpose(0, 1).where(real, 0.0),
            weights=None,
            state=_history(tapes),
        )


def first_state(model: SequenceModel, memory: Memory) -> State:
    """The state before the first step, with all parts that a later one has."""
    state = _each(model.start(memory), _never_empty)
    if any(isinstance(module, CoverageAttention) for module in model.modules()):
        state = _each(state, _nothing_covered)
    if isinstance(state, MonotonicState):
        state = _at_0(state, cast(MonotonicDecoder, model.decoder).embedding.vocab)
    return cast(State, state)


def _each(value: Any, change: Callable[[State], State]) -> Any:
    """A state whose states have been changed, the inner ones first."""
    if isinstance(value, State):
        inner = {field.name: _each(getattr(value, field.name), change) for field in fields(value)}
        return change(replace(value, **inner))
    return tuple(_each(part, change) for part in value) if isinstance(value, tuple) else value


def _never_empty(state: State) -> State:
    """With one step that is not real in tapes that are looked at before they grow.

    The `lstm` cell does so, and onnxruntime cannot ask whether any of no keys is real.
    """
    if not isinstance(state, History) or state.memory is None:
        return state
    return _history([_widened(tape, 1) for tape in _tapes(state)])


def _nothing_covered(state: State) -> State:
    """With zeros where steps before the first would have looked."""
    if not isinstance(state, ProjectedMemory):
        return state
    zeros = torch.zeros_like(state.mask, dtype=state.keys.dtype)
    return replace(state, past=replace(state.past, weights=zeros, coverage=zeros))


def _at_0(state: MonotonicState, vocab: int) -> MonotonicState:
    """With the position before the first output, which is 0 whatever token is read."""
    batch, length = state.mask.shape
    at_0 = torch.arange(length)[:, None] == 0
    joint = torch.where(at_0, 0.0, float("-inf")).expand(batch, -1, vocab)
    return replace(state, joint=joint.to(state.keys.dtype))


def _tapes(history: History) -> list[Tensor]:
    tapes = [history.context, history.real, history.hidden, history.keys]
    return tapes if history.memory is None else [*tapes, history.memory]


def _history(tapes: list[Tensor]) -> History:
    context, real, hidden, keys, *memory = tapes
    return History(context, hidden, keys, memory[0] if memory else None, real)


def _widened(tape: Tensor, length: int) -> Tensor:
    """An empty tape with room for all steps; the context is no tape."""
    if tape.ndim == 2 and tape.dtype != torch.bool:
        return tape
    return tape.new_zeros(tape.shape[0], length, *tape.shape[2:])


def _put(tape: Tensor, place: Tensor) -> Tensor:
    """The tape with its last entry at its place."""
    if tape.dtype == torch.bool:
        return tape[:, :-1] | (tape[:, -1:] & place)  # `where` has no booleans in onnxruntime
    return torch.where(place[None, :, None], tape[:, -1:], tape[:, :-1])
