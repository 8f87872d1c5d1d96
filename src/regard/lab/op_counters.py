"""Count what a computation costs: multiply-adds, peak memory, chains of dependent products."""

import weakref
from collections.abc import Callable
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd.graph import Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

#: autograd nodes that multiply matrices
PRODUCTS: Final = ("Mm", "Addmm", "Bmm", "Baddbmm", "Mv", "Dot", "Convolution", "Linear", "Einsum")


def multiply_adds(run: Callable[[], Any]) -> int:
    """Return the multiply-adds of all matrix products in `run`.

    Sums, softmax and activations are not counted. Fused kernels are opaque to the counter: run the
    definition.
    """
    with FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops()) // 2


def peak_bytes(run: Callable[[], Any], device: torch.device) -> int:
    """Return the peak memory of `run` beyond what was allocated before.

    On CUDA torch's allocator reports it. On the CPU it is the sum of live tensors that operators
    have returned; temporary memory inside a kernel is not seen there.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        run()
        torch.cuda.synchronize(device)
        return int(torch.cuda.max_memory_allocated(device) - before)
    live = _LiveStorages()
    with live:
        run()
    return live.peak


class _LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sums the sizes of the storages that operators create, until they are freed."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.peak = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not _returns_alias(func):
            for value in result if isinstance(result, tuple | list) else (result,):
                if isinstance(value, Tensor):
                    self._add(value.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        if storage in self._known:
            return
        self._known.add(storage)
        size = storage.nbytes()
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._remove, size)

    def _remove(self, size: int) -> None:
        self.now -= size


@cache
def _returns_alias(func: Any) -> bool:
    """Return whether an operator returns a view or works in place, and so allocates nothing."""
    return any(result.alias_info is not None for result in func._schema.returns)


def longest_chain(output: Tensor) -> int:
    """Return the length of the longest chain of dependent matrix products in the autograd graph.

    Independent products can run at the same time on a machine that is wide enough.
    """
    longest: dict[Node, int] = {}
    for node in _leaves_first(output):
        below = max((longest[n] for n, _ in node.next_functions if n is not None), default=0)
        longest[node] = below + _is_product(node)
    return max(longest.values(), default=0)


def _is_product(node: Node) -> bool:
    return node.name().removesuffix("0").removesuffix("Backward") in PRODUCTS


def _leaves_first(output: Tensor) -> list[Node]:
    """Return all nodes that an output depends on in topological order, leaves first."""
    order: list[Node] = []
    seen: set[Node] = set()
    waiting = [(output.grad_fn, False)]
    while waiting:
        node, done = waiting.pop()
        if node is None or (node in seen and not done):
            continue
        if done:
            order.append(node)
            continue
        seen.add(node)
        waiting.append((node, True))
        waiting.extend((below, False) for below, _ in node.next_functions)
    return order
