"""How far a signal has to go from the first input to the last output, counted on real layers."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final, cast

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node, get_gradient_edge

from regard import ops
from regard.errors import ArgumentError
from regard.lab.families import Recurrent, SelfAttentive
from regard.layers.rnn import RecurrentState
from regard.ops import History

#: nodes of the autograd graph that move numbers about and compute nothing
MOVES: Final = (
    *("Alias", "Cat", "Clone", "Expand", "Permute", "ReshapeAlias", "Select", "Slice", "Split"),
    *("Squeeze", "Stack", "T", "ToCopy", "Transpose", "Unbind", "UnsafeSplit", "UnsafeView"),
    *("Unsqueeze", "View"),
)


Step = Callable[[Tensor, object], tuple[Tensor, object, list[Tensor]]]
"""One step: of an input and a state, the output, the state after it, and all of its tensors."""


def layers_needed(layer: nn.Module, length: int, width: int) -> int:
    """How many such layers on top of each other let the last output depend on the first input.

    Which outputs of one layer depend on which inputs is read off its gradients.
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
    """The fewest steps in which anything is computed on a way from the first input to the last
    output of a recurrent layer, found by walking the autograd graph of its definition.

    A step that only hands on what it has kept, as a tape of earlier states, is no step of the way.
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


def _stepper(layer: nn.Module) -> tuple[Step, object]:
    """A layer's step, and where it starts. For a self-attentive RNN the output is the context: its
    hidden states leave as a piece of the tape, in which a graph of whole tensors sees every step.
    """
    like = next(layer.parameters())
    if isinstance(layer, Recurrent):
        stack = layer.stack

        def run(x: Tensor, state: object) -> tuple[Tensor, object, list[Tensor]]:
            output, after = stack.step(x, cast(RecurrentState, state))
            return output, after, [t for t in (after.hidden, after.memory) if t is not None]

        return run, stack.init_state(1, like)
    if isinstance(layer, SelfAttentive):
        looking = layer.layer

        def look(x: Tensor, state: object) -> tuple[Tensor, object, list[Tensor]]:
            found = looking.step(x, cast(History | None, state))
            after = found.state
            tapes = (after.context, after.hidden, after.keys, after.memory)
            return found.context, after, [t for t in tapes if t is not None]

        return look, None
    raise ArgumentError(
        "layer", "be recurrent", type(layer).__name__, "layers_needed counts layers of other kinds"
    )


def _new_nodes(tensors: list[Tensor], known: dict[Node, int]) -> Iterator[Node]:
    """Nodes that tensors rest on and that are not known, each as soon as it is found."""
    waiting = [tensor.grad_fn for tensor in tensors]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in known:
            yield node
            waiting.extend(below for below, _ in node.next_functions)


def _fewest_steps(start: Node, goal: Node, born: dict[Node, int]) -> int:
    """The shortest way in a graph in which an edge into a node that computes costs 1 if the node
    was born in another step than the last such node: a breadth-first search in two speeds."""
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
