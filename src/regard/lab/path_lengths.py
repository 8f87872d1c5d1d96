"""Count the length of the path from the first input to the last output of real layers."""

from typing import Any

import torch
from torch import Tensor, nn

from regard import ops
from regard.errors import ArgumentError
from regard.lab.layers import RecurrentLayer, SelfAttentiveLayer
from regard.state import State, map_leaves


def layers_needed(layer: nn.Module, length: int, width: int) -> int:
    """Return how many stacked layers it takes until the last output depends on the first input.

    The dependence of outputs on inputs is read off the gradients of one layer.
    """
    x = torch.randn(1, length, width, dtype=torch.float64, requires_grad=True)
    output = layer.double()(x)
    depends = torch.stack(
        [
            torch.autograd.grad(output[0, t].sum(), x, retain_graph=True)[0][0].abs().sum(1) > 0
            for t in range(length)
        ]
    )  # (outputs, inputs)
    reached = torch.zeros(length, dtype=torch.bool)
    reached[0] = True
    for layers in range(1, length + 1):
        reached = (depends & reached).any(1)
        if reached[-1]:
            return layers
    raise ArgumentError(
        "layer", "bring the first input nearer to the last output", "one that does not",
        "its outputs must depend on inputs before them",
    )  # fmt: skip


def steps_between(layer: nn.Module, length: int, width: int) -> int:
    """Return the fewest steps on a path from the first input to the last output of a recurrence.

    A step computes from its input and from vectors that earlier steps have left. Those are cut off
    from the graph, so that gradients tell which steps it reads; storing a vector is no step.
    """
    if not isinstance(layer, RecurrentLayer | SelfAttentiveLayer):
        rule, fix = "be recurrent", "layers_needed counts layers of other kinds"
        raise ArgumentError("layer", rule, type(layer).__name__, fix)
    tape = isinstance(layer, SelfAttentiveLayer)
    recurrence: Any = layer.stack if isinstance(layer, RecurrentLayer) else layer.layer
    state = recurrence.init_state(1, next(layer.parameters()))
    steps: list[int] = []
    with ops.use_backend("reference"):
        for t in range(length):
            state, left = _cut_off(state)
            found = recurrence(torch.randn(1, 1, width), state=state)
            state, output = found.state, found.context if tape else found.output
            gradients = torch.autograd.grad(output.sum(), left, allow_unused=True)
            reads = {s for g in gradients if g is not None for s in _steps(g, t, tape=tape)}
            steps.append(1 + min((steps[s] for s in reads if s >= 0), default=0))
    return steps[-1]


def _cut_off(state: State) -> tuple[State, list[Tensor]]:
    """Return a state whose vectors are leaves of the graph, and these leaves."""
    left: list[Tensor] = []

    def cut(name: str, leaf: Tensor, of_source: bool) -> Tensor:
        if not leaf.is_floating_point():
            return leaf
        left.append(leaf.detach().requires_grad_())
        return left[-1]

    return map_leaves(state, cut), left


def _steps(gradient: Tensor, t: int, *, tape: bool) -> list[int]:
    """Return the steps that have left what a gradient is of; a tape has a row for each."""
    if tape and gradient.ndim == 3:
        rows: list[int] = gradient[0].abs().sum(-1).nonzero().flatten().tolist()
        return rows
    return [t - 1] * bool(gradient.any())
