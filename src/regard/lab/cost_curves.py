"""Measure the cost of layers at growing sizes, and read the results as curves over one size."""

import statistics
import time
import weakref
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from regard import ops
from regard.errors import ArgumentError
from regard.lab.estimates import MIN_SIZES, MeanInterval, Numbers, PowerLaw, crossing, power_law
from regard.lab.experiment import Data
from regard.lab.layers import FamilySpec, build
from regard.lab.small_models import seeded

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


LayerSize = dict[str, int]
CostRow = dict[str, Any]

#: timed runs of a point: enough for quartiles, and no more than a median needs
MIN_RUNS, MAX_RUNS = 3, 20
#: untimed runs before them, which select kernels and allocate memory; one if it is slow
WARMUPS: Final = 2
SEED: Final = 0
#: exponents are fitted to the largest sizes: at small ones the overhead of calls hides them
FITTED: Final = 5


def repeat(run: Callable[[], Any], device: torch.device, *, patience: float) -> list[float]:
    """Return the seconds of several runs, after warming up.

    Args:
        run: what is timed.
        device: device that it runs on; a CUDA device is synchronised.
        patience: seconds after which no further run is started, once there are `MIN_RUNS`.
    """
    for _ in range(WARMUPS):
        if _seconds(run, device) > patience:
            break
    taken: list[float] = []
    while len(taken) < MIN_RUNS or (len(taken) < MAX_RUNS and sum(taken) < patience):
        taken.append(_seconds(run, device))
    return taken


def _seconds(run: Callable[[], Any], device: torch.device) -> float:
    def synchronize() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    synchronize()
    start = time.perf_counter()
    run()
    synchronize()
    return time.perf_counter() - start


def time_sizes(
    *,
    family: FamilySpec,
    sizes: Sequence[LayerSize],
    batch: int,
    backend: str,
    patience: float,
    room: int,
    device: torch.device,
) -> list[CostRow]:
    """Return time and memory of a family's layer, forward and in training, at growing sizes.

    After `MIN_SIZES` sizes, the first size whose training runs take longer than `patience`, or
    need more than a quarter of `room`, is the last: slow families stop at shorter sequences, and
    large ones leave memory to others.

    Args:
        family: from `Family.spec`.
        sizes: from small to large, each with a `length`, a `width` and options of the family.
        batch: number of sequences.
        backend: as for `ops.use_backend`.
        patience: seconds; also the least time that a point is timed for.
        room: bytes.
        device: device to run on.
    """
    rows: list[CostRow] = []
    with ops.use_backend(backend):
        for size in sizes:
            layer, x = _layer(family, size, batch, device)
            try:
                row = _time(layer, x, patience)
            except torch.OutOfMemoryError:
                break
            rows.append({**size, **row})
            slow = row["training"]["seconds"] > patience
            if len(rows) >= MIN_SIZES and (slow or row["training"]["bytes"] * 4 > room):
                break
    return rows


def _time(layer: nn.Module, x: Tensor, patience: float) -> CostRow:
    def forward() -> None:
        with torch.no_grad():
            layer(x)

    def training() -> None:
        layer(inputs).sum().backward()
        layer.zero_grad()
        inputs.grad = None

    inputs = x.clone().requires_grad_()
    row = {}
    for name, run in (("forward", forward), ("training", training)):
        taken = repeat(run, x.device, patience=patience)
        low, middle, high = statistics.quantiles(taken, n=4, method="inclusive")
        row[name] = {
            "seconds": middle, "low": low, "high": high, "runs": len(taken),
            "bytes": peak_bytes(run, x.device),
        }  # fmt: skip
    return row


def count_sizes(
    *, family: FamilySpec, sizes: Sequence[LayerSize], device: torch.device
) -> list[CostRow]:
    """Return multiply-adds, dependent products and parameters of a layer for one sequence.

    They are counted on the CPU on the definition, since fused kernels hide what they compute.
    """
    del device
    rows = []
    with ops.use_backend("reference"):
        for size in sizes:
            layer, x = _layer(family, size, 1, torch.device("cpu"))
            with torch.no_grad():
                products = multiply_adds(partial(layer, x))
            chain = longest_chain(layer(x.requires_grad_()))
            parameters = sum(p.numel() for p in layer.parameters())
            rows.append({**size, "operations": products, "chain": chain, "parameters": parameters})
    return rows


def _layer(
    family: FamilySpec, size: LayerSize, batch: int, device: torch.device
) -> tuple[nn.Module, Tensor]:
    options = {name: value for name, value in size.items() if name not in ("length", "width")}
    layer = seeded(SEED, build, family, size["width"], **options).to(device)
    generator = torch.Generator().manual_seed(SEED)
    x = torch.randn(batch, size["length"], size["width"], generator=generator).to(device)
    with torch.no_grad():
        shape = layer(x[:, :1]).shape
    if shape != x[:, :1].shape:
        raise ArgumentError(
            family["name"],
            "return vectors of the shape it takes, (batch, length, width)",
            f"{tuple(shape)} for {tuple(x[:, :1].shape)}",
            "project them back to the width",
        )
    return layer, x


class CostCurve(NamedTuple):
    """Values over ascending sizes, with the quartiles of their runs if they were timed."""

    x: list[int]
    bands: list[MeanInterval]

    @property
    def y(self) -> Numbers:
        """The values alone."""
        return [band.mean for band in self.bands]

    def law(self) -> PowerLaw:
        """Return the power law of the largest sizes."""
        # a layer without any product has a chain of length 0, which has no logarithm
        return power_law(self.x[-FITTED:], [max(y, 1e-9) for y in self.y[-FITTED:]])


def counted(data: Data, family: str, sweep: str, what: str) -> CostCurve:
    """Return `operations`, `chain` or `parameters` over `length`, `width` or `kernel_size`."""
    rows = data["counts"][family][sweep]
    return CostCurve([row[sweep] for row in rows], [MeanInterval(*[row[what]] * 3) for row in rows])


def timed(data: Data, family: str, path: str, sweep: str, mode: str = "training") -> CostCurve:
    """Return seconds of the `fast` or the `reference` path, `forward` or in `training`."""
    rows = data["runs"][family][path][sweep]
    bands = [MeanInterval(*(row[mode][key] for key in ("seconds", "low", "high"))) for row in rows]
    return CostCurve([row[sweep] for row in rows], bands)


def peak_memory(data: Data, family: str, path: str, sweep: str) -> CostCurve:
    """Return the peak memory of training in bytes."""
    rows = data["runs"][family][path][sweep]
    bands = [MeanInterval(*[row["training"]["bytes"]] * 3) for row in rows]
    return CostCurve([row[sweep] for row in rows], bands)


def crossover(rising: CostCurve, other: CostCurve) -> tuple[float | None, str]:
    """Return the size from which one curve stays above another, as a number and as text.

    Curves begin at one size, and a slow layer's ends earlier.
    """
    count = min(len(rising.x), len(other.x))
    at = crossing(rising.x[:count], rising.y[:count], other.y[:count])
    if at is None:
        return None, f"not up to {rising.x[count - 1]:,}"
    return at, f"{float(f'{at:.2g}'):,.0f}"
