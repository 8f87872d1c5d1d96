"""Count the length of the path from the first input to the last output of real layers."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge

from regard import ops
from regard.errors import ArgumentError
from regard.lab.layers import RecurrentLayer, SelfAttentiveLayer
from regard.layers.rnn import RecurrentState
from regard.ops import History

#: autograd nodes that only move numbers
MOVES: Final = (
    *("Alias", "Cat", "Clone", "Expand", "Permute", "ReshapeAlias", "Select", "Slice", "Split"),
    *("Squeeze", "Stack", "T", "ToCopy", "Transpose", "Unbind", "UnsafeSplit", "UnsafeView"),
    *("Unsqueeze", "View"),
)

#: one step: from an input and a state to the output, the next state and all of its tensors
_StepFunction = Callable[[Tensor, object], tuple[Tensor, object, list[Tensor]]]


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
    """Return the fewest computing steps on a path from the first input to the last output.

    The layer is recurrent, and the path is searched in the autograd graph of its definition. Steps
    that only pass on stored values, such as a tape of earlier states, do not count.
    """
    run, state = _stepper(layer)
    first, born = torch.randn(1, width, requires_grad=True), dict[Node, int]()
    output = first
    with ops.use_backend("reference"):
        for t in range(length):
            x = first if t == 0 else torch.randn(1, width, requires_grad=True)
            output, state, tensors = run(x, state)
            for node in _new_nodes([output, *tensors], born):
                born[node] = t
    assert output.grad_fn is not None
    return _fewest_steps(output.grad_fn, get_gradient_edge(first).node, born)


def _stepper(layer: nn.Module) -> tuple[_StepFunction, object]:
    """Return the step function and the initial state of a layer.

    The output of a self-attentive RNN is taken to be its context: hidden states are returned as a
    slice of the tape, through which a graph of whole tensors depends on every step.
    """
    like = next(layer.parameters())
    if isinstance(layer, RecurrentLayer):
        stack = layer.stack

        def run(x: Tensor, state: object) -> tuple[Tensor, object, list[Tensor]]:
            output, after = stack.step(x, cast(RecurrentState, state))
            return output, after, [t for t in (after.hidden, after.memory) if t is not None]

        return run, stack.init_state(1, like)
    if isinstance(layer, SelfAttentiveLayer):
        attentive = layer.layer

        def attend(x: Tensor, state: object) -> tuple[Tensor, object, list[Tensor]]:
            found = attentive.step(x, cast(History | None, state))
            after = found.state
            tapes = (after.context, after.hidden, after.keys, after.memory)
            return found.context, after, [t for t in tapes if t is not None]

        return attend, None
    raise ArgumentError(
        "layer", "be recurrent", type(layer).__name__, "layers_needed counts layers of other kinds"
    )


def _new_nodes(tensors: list[Tensor], known: dict[Node, int]) -> Iterator[Node]:
    """Yield the unknown nodes that tensors depend on, each as soon as it is found."""
    waiting = [tensor.grad_fn for tensor in tensors]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in known:
            yield node
            waiting.extend(below for below, _ in node.next_functions)


def _fewest_steps(start: Node, goal: Node, born: dict[Node, int]) -> int:
    """Return the cost of the shortest path by 0-1 breadth-first search.

    An edge into a computing node costs 1 if the node belongs to another step than the last one.
    """
    waiting: deque[tuple[Node, int, int]] = deque([(start, -1, 0)])
    seen: set[tuple[Node, int]] = set()
    while waiting:
        node, last, cost = waiting.popleft()
        if node is goal:
            return cost
        if (node, last) in seen:
            continue
        seen.add((node, last))
        for below, _ in node.next_functions:
            if below is None:
                continue
            step = last if below is goal or _moves(below) else born[below]
            entry = (below, step, cost + (step != last))
            waiting.append(entry) if step != last else waiting.appendleft(entry)
    raise ArgumentError("output", "depend on the input", "one that does not", "check the layer")


def _moves(node: Node) -> bool:
    name = node.name().rstrip("0123456789").removesuffix("Backward")
    return name in MOVES or name.endswith("AccumulateGrad")
