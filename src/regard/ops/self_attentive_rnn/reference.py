"""The self-attentive recurrence, written to be read: the fast paths are tested against this."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypedDict

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.ops.primitives import masked_softmax
from regard.ops.recurrence.scores import Cell, ScoreFunction, gru_cell, lstm_cell, rnn_cell
from regard.state import State


@dataclass(frozen=True)
class History(State):
    """All steps so far.

    Attributes:
        context: input of the next step in place of a hidden state; zero before the first.
        hidden: hidden states.
        keys: hidden states as projected by the score function.
        memory: memories of the `lstm` cell; None for the others.
        real: False at padding, to which no later step attends.

    Examples:
        >>> out = regard.layers.SelfAttentiveRNN(5, 7)(torch.randn(2, 3, 5))
        >>> out.state.hidden.shape  # (batch, steps, hidden)
        torch.Size([2, 3, 7])
    """

    context: Float[Tensor, "batch hidden"]
    hidden: Float[Tensor, "batch steps hidden"]
    keys: Float[Tensor, "batch steps score_dim"]
    memory: Float[Tensor, "batch steps hidden"] | None
    real: Bool[Tensor, "batch steps"]

    def with_context(
        self, context: Float[Tensor, "batch hidden"], real: Bool[Tensor, "batch 1"]
    ) -> "History":
        """This history with a new context; a padded row keeps that of its last real step."""
        return replace(self, context=torch.where(real, context, self.context))


class RecurrenceOptions(TypedDict):
    """Keyword arguments that every implementation of the recurrence takes."""

    cell: Cell
    recurrent_bias: Float[Tensor, " gates"] | None
    query_inputs: Float[Tensor, "batch length score_dim"] | None
    lengths: Int[Tensor, " batch"] | None
    need_weights: bool


class SelfAttentiveOutput(NamedTuple):
    """Outputs of the whole sequence, and the history for the next call.

    Attributes:
        hidden: h_t, (batch, length, hidden).
        context: c_t, the input of step t + 1, (batch, length, hidden).
        weights: (batch, 1, length, steps), steps including the earlier history; or None.
        state: the history to continue.

    Examples:
        >>> rnn = regard.layers.SelfAttentiveRNN(5, 7)
        >>> first = rnn(torch.randn(2, 3, 5))
        >>> rnn(torch.randn(2, 1, 5), state=first.state, need_weights=True).weights.shape
        torch.Size([2, 1, 1, 4])
    """

    hidden: Tensor
    context: Tensor
    weights: Tensor | None
    state: History


def empty_history(
    like: Tensor, batch: int, hidden: int, score_dim: int, *, with_memory: bool
) -> History:
    """The history before the first step, with the device and dtype of `like`."""
    tape = like.new_zeros(batch, 0, hidden)
    return History(
        context=like.new_zeros(batch, hidden),
        hidden=tape,
        keys=like.new_zeros(batch, 0, score_dim),
        memory=tape if with_memory else None,
        real=torch.zeros(batch, 0, dtype=torch.bool, device=like.device),
    )


class RecurrenceParameters(NamedTuple):
    """Parameters of every step: the weights that are applied to the context, and the score."""

    weight: Float[Tensor, "gates hidden"]
    bias: Float[Tensor, " gates"] | None
    score: ScoreFunction

    def gates(self, context: Float[Tensor, "batch hidden"]) -> Float[Tensor, "batch gates"]:
        """The context's half of `A [x_t, c_{t-1}] + b`."""
        return F.linear(context, self.weight, self.bias)


class StepInputs(NamedTuple):
    """Inputs of one step: its gates, its query (cell `lstm` alone), and which rows are real."""

    gates: Float[Tensor, "batch gates"]
    query: Float[Tensor, "batch score_dim"] | None
    real: Bool[Tensor, "batch 1"]


def self_attentive_rnn(
    inputs: Float[Tensor, "batch length gates"],
    recurrent_weight: Float[Tensor, "gates hidden"],
    score: ScoreFunction,
    state: History,
    *,
    cell: Cell = "rnn",
    recurrent_bias: Float[Tensor, " gates"] | None = None,
    query_inputs: Float[Tensor, "batch length score_dim"] | None = None,
    lengths: Int[Tensor, " batch"] | None = None,
    need_weights: bool = False,
) -> SelfAttentiveOutput:
    """One step after another; the operator describes the arguments."""
    recurrence = RecurrenceParameters(recurrent_weight, recurrent_bias, score)
    length = inputs.shape[1]
    before = state.hidden.shape[1]
    real = real_steps(inputs, lengths)
    inputs, query_inputs = without_padding(inputs, query_inputs, real)
    contexts, rows = [], []
    for t in range(length):
        query = None if query_inputs is None else query_inputs[:, t]
        step = StepInputs(inputs[:, t], query, real[:, t])
        state, weights = STEPS[cell](recurrence, step, state)
        contexts.append(state.context)
        rows.append(F.pad(weights, (0, before + length - weights.shape[1])))
    return SelfAttentiveOutput(
        hidden=state.hidden[:, before:].where(real, 0.0),
        context=torch.stack(contexts, dim=1).where(real, 0.0),
        weights=torch.stack(rows, dim=1).where(real, 0.0)[:, None] if need_weights else None,
        state=state,
    )


def real_steps(
    inputs: Float[Tensor, "batch length gates"], lengths: Int[Tensor, " batch"] | None
) -> Bool[Tensor, "batch length 1"]:
    """True where a step is not padding."""
    batch, length, _ = inputs.shape
    positions = torch.arange(length, device=inputs.device)
    limit = positions.new_full((batch,), length) if lengths is None else lengths
    return (positions < limit[:, None])[:, :, None]


def without_padding(
    inputs: Float[Tensor, "batch length gates"],
    query_inputs: Float[Tensor, "batch length score_dim"] | None,
    real: Bool[Tensor, "batch length 1"],
) -> tuple[Tensor, Tensor | None]:
    """Zeros in the padding, which may hold NaN: a zero weight would not remove it."""
    queries = None if query_inputs is None else query_inputs.where(real, 0.0)
    return inputs.where(real, 0.0), queries


def _rnn_step(r: RecurrenceParameters, step: StepInputs, state: History) -> tuple[History, Tensor]:
    hidden = rnn_cell(step.gates, r.gates(state.context))
    return _attend_from(hidden, r, step, state)


def _gru_step(r: RecurrenceParameters, step: StepInputs, state: History) -> tuple[History, Tensor]:
    hidden = gru_cell(step.gates, r.gates(state.context), state.context)
    return _attend_from(hidden, r, step, state)


def _lstm_step(r: RecurrenceParameters, step: StepInputs, state: History) -> tuple[History, Tensor]:
    """Attends first, computes second: the LSTMN of Cheng et al. (2016), equations 4 to 9."""
    assert step.query is not None
    assert state.memory is not None
    weights = _attend(step.query + r.score.query(state.context), state, r.score)
    context = _mix(weights, state.hidden)
    hidden, memory = lstm_cell(step.gates + r.gates(context), _mix(weights, state.memory))
    after = _append(state, hidden, r.score.key(hidden), memory, step.real)
    return after.with_context(context, step.real), weights


#: one step of each cell
STEPS: Final[
    dict[str, Callable[[RecurrenceParameters, StepInputs, History], tuple[History, Tensor]]]
] = {
    "rnn": _rnn_step,
    "gru": _gru_step,
    "lstm": _lstm_step,
}


def _attend_from(
    hidden: Float[Tensor, "batch hidden"], r: RecurrenceParameters, step: StepInputs, state: History
) -> tuple[History, Tensor]:
    """h_t scores h_1 to h_t, itself included, and mixes them into c_t."""
    after = _append(state, hidden, r.score.key(hidden), None, step.real)
    weights = _attend(r.score.query(hidden), after, r.score)
    return after.with_context(_mix(weights, after.hidden), step.real), weights


def _attend(
    query: Float[Tensor, "batch score_dim"], history: History, score: ScoreFunction
) -> Float[Tensor, "batch steps"]:
    scores = score.scores(query, history.keys)
    return masked_softmax(scores[:, None, None], history.real[:, None, None])[:, 0, 0]


def _mix(
    weights: Float[Tensor, "batch steps"], tape: Float[Tensor, "batch steps hidden"]
) -> Float[Tensor, "batch hidden"]:
    return (weights[:, None].to(tape.dtype) @ tape).squeeze(1)


def _append(
    state: History, hidden: Tensor, key: Tensor, memory: Tensor | None, real: Tensor
) -> History:
    """New tapes, one step longer: h_t, its key, its memory, and whether it is real."""

    def longer(tape: Tensor, new: Tensor) -> Tensor:
        return torch.cat([tape, new[:, None].to(tape.dtype)], dim=1)

    return History(
        context=state.context,
        hidden=longer(state.hidden, hidden),
        keys=longer(state.keys, key),
        memory=None if state.memory is None or memory is None else longer(state.memory, memory),
        real=torch.cat([state.real, real], dim=1),
    )
