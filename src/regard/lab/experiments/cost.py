"""Cost of layers as sequences grow longer and vectors wider.

Question: What do a convolution, an RNN, a self-attentive RNN and self-attention cost as sequences
grow longer and vectors wider?

Method: One layer of each family, of equal width, on random vectors: over the length at a fixed
width, over the width at a fixed length, and the convolution over its kernel size too. Self-
attention has one head per 64 of its width. Multiply-adds and chains of dependent products are
counted on the definition, without sums and activations. Times are of training, forward and
backward: medians of at least three runs after a warm-up, with quartiles as bands. Memory is the
peak beyond weights and inputs: from torch's allocator on CUDA, and as the sum of live tensors on
the CPU. Exponents are fitted in log-log to the five largest sizes of each curve, with 95%
intervals; if the points bend or scatter, none is reported. A curve ends early if a run takes too
long or too much memory.
"""

import math
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from graphlib import TopologicalSorter
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from regard import ops
from regard.lab.context import ExperimentContext, device_name
from regard.lab.estimates import MIN_SIZES, MeanInterval, PowerLaw, crossing, power_law
from regard.lab.experiment import Claim, Data, Plot, ReportTable, Rows, verdict
from regard.lab.layers import (
    BARE,
    CONVOLUTION,
    FAMILIES,
    RNN,
    SELF_ATTENTION,
    SELF_ATTENTIVE,
    Family,
    build,
)
from regard.lab.plots import curves
from regard.lab.small_models import seeded

#: autograd nodes that multiply matrices
PRODUCTS: Final = ("Mm", "Addmm", "Bmm", "Baddbmm", "Mv", "Dot", "Convolution", "Linear", "Einsum")
#: timed runs of a point: enough for quartiles, and no more than a median needs
MIN_RUNS, MAX_RUNS = 3, 20
SEED: Final = 0
#: exponents are fitted to the largest sizes: at small ones the overhead of calls hides them
FITTED: Final = 5
#: letter of each swept size, and the kernels of the convolution
LETTERS: Final = {"length": "n", "width": "d", "kernel_size": "k"}
KERNELS: Final = (1, 3, 5, 9, 17, 33)
#: backend of each path, and its name in the report
BACKENDS: Final = {"fast": "auto", "reference": "reference"}
PATHS: Final = {"reference": "definition", "fast": "fast path"}
#: tolerance of counted exponents: only a lower power beside the highest can move them
COUNT_TOLERANCE: Final = 0.05
#: tolerance of timed exponents, which caches and call overheads bend
TIME_TOLERANCE: Final = 0.2
BYTES_PER_FLOAT: Final = 4
TABLE: Final = "document 3, table of CNN, RNN and self-attention"


def multiply_adds(run: Callable[[], Any]) -> int:
    """Return the multiply-adds of all matrix products in `run`.

    Sums, softmax and activations are not counted. Fused kernels are opaque to the counter: run the
    definition.
    """
    with FlopCounterMode(display=False) as counter:
        run()
    return int(counter.get_total_flops()) // 2


def longest_chain(output: Tensor) -> int:
    """Return the length of the longest chain of dependent matrix products in the autograd graph.

    Independent products can run at the same time on a machine that is wide enough.
    """
    graph: dict[Node, list[Node]] = {}
    waiting = [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in graph:
            graph[node] = [below for below, _ in node.next_functions if below is not None]
            waiting += graph[node]
    longest: dict[Node, int] = {}
    for node in TopologicalSorter(graph).static_order():
        kind = node.name().removesuffix("0").removesuffix("Backward")
        longest[node] = max((longest[n] for n in graph[node]), default=0) + (kind in PRODUCTS)
    return max(longest.values(), default=0)


def peak_bytes(run: Callable[[], Any], device: torch.device) -> int:
    """Return the peak memory of `run` beyond what was allocated before.

    On CUDA torch's allocator reports it. On the CPU it is the sum of live tensors that operators
    have returned; temporary memory inside a kernel is not seen there.
    """
    if device.type == "cuda":
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        run()
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
        made: Any = result if isinstance(result, tuple | list) else (result,)
        for value, told in zip(made, func._schema.returns, strict=False):
            # a view, or what is changed in place, is no new storage
            if isinstance(value, Tensor) and told.alias_info is None:
                self._add(value.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        if storage not in self._known:
            self._known.add(storage)
            weakref.finalize(storage, self._grow, -storage.nbytes())
            self._grow(storage.nbytes())
            self.peak = max(self.peak, self.now)

    def _grow(self, size: int) -> None:
        self.now += size


def repeat(run: Callable[[], Any], device: torch.device, *, patience: float) -> list[float]:
    """Return the seconds of several runs, after one that selects kernels and allocates memory.

    Args:
        run: what is timed.
        device: device that it runs on; a CUDA device is synchronised.
        patience: seconds after which no further run is started, once there are `MIN_RUNS`.
    """

    def synchronize() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    taken: list[float] = []
    while len(taken) <= MIN_RUNS or (len(taken) <= MAX_RUNS and sum(taken) < patience):
        synchronize()
        start = time.perf_counter()
        run()
        synchronize()
        taken.append(time.perf_counter() - start)
    return taken[1:]


def time_sizes(
    *,
    family: Family,
    sizes: Sequence[dict[str, int]],
    batch: int,
    backend: str,
    patience: float,
    room: int,
    device: torch.device,
) -> Rows:
    """Return time and memory of training a family's layer at growing sizes.

    After `MIN_SIZES` sizes, the first size whose runs take longer than `patience`, or need more
    than a quarter of `room`, is the last: slow families stop at shorter sequences, and large ones
    leave memory to others.

    Args:
        family: the family of the layer.
        sizes: from small to large, each with a `length`, a `width` and options of the family.
        batch: number of sequences.
        backend: as for `ops.use_backend`.
        patience: seconds; also the least time that a point is timed for.
        room: bytes.
        device: device to run on.
    """
    rows: Rows = []

    def run(layer: nn.Module, x: Tensor) -> None:
        layer(x).sum().backward()
        layer.zero_grad()
        x.grad = None

    with ops.use_backend(backend):
        for size in sizes:
            step = partial(run, *_layer(family, batch, device, **size))
            try:
                taken, peak = repeat(step, device, patience=patience), peak_bytes(step, device)
            except torch.OutOfMemoryError:
                break
            low, middle, high = np.quantile(taken, [0.25, 0.5, 0.75]).tolist()
            found = {"seconds": middle, "low": low, "high": high, "runs": len(taken), "bytes": peak}
            rows.append({**size, "training": found})
            if len(rows) >= MIN_SIZES and (middle > patience or peak * 4 > room):
                break
    return rows


def count_sizes(*, family: Family, sizes: Sequence[dict[str, int]], device: torch.device) -> Rows:
    """Return multiply-adds, dependent products and parameters of a layer for one sequence.

    They are counted on the CPU on the definition, since fused kernels hide what they compute.
    """
    rows = []
    with ops.use_backend("reference"):
        for size in sizes:
            layer, x = _layer(family, 1, torch.device("cpu"), **size)
            with torch.no_grad():
                products = multiply_adds(partial(layer, x))
            found = {"operations": products, "chain": longest_chain(layer(x))}
            found["parameters"] = sum(p.numel() for p in layer.parameters())
            rows.append({**size, **found})
    return rows


def _layer(
    family: Family, batch: int, device: torch.device, *, length: int, width: int, **options: int
) -> tuple[nn.Module, Tensor]:
    layer = seeded(SEED, build, family, width, **options).to(device)
    x = torch.randn(batch, length, width, generator=torch.Generator().manual_seed(SEED))
    return layer, x.to(device).requires_grad_()


class CostCurve(NamedTuple):
    """Values over ascending sizes, with the quartiles of their runs if they were timed."""

    x: list[int]
    bands: list[MeanInterval]

    @property
    def y(self) -> list[float]:
        """The values alone."""
        return [band.mean for band in self.bands]

    def law(self) -> PowerLaw:
        """Return the power law of the largest sizes."""
        # a layer without any product has a chain of length 0, which has no logarithm
        return power_law(self.x[-FITTED:], [max(y, 1e-9) for y in self.y[-FITTED:]])


def curve(
    data: Data, family: str, what: str, sweep: str = "length", path: str = "fast"
) -> CostCurve:
    """Return what was counted or measured over `length` or `width`.

    Counted are `operations`, `chain` and `parameters`; measured on the `fast` or the `reference`
    path are `seconds` and `bytes`.
    """
    rows = data["counts"][family][sweep]
    if what in ("seconds", "bytes"):
        rows = [row | row["training"] for row in data["runs"][family][path][sweep]]
    ends = ("seconds", "low", "high") if what == "seconds" else (what,) * 3
    bands = [MeanInterval(*(row[end] for end in ends)) for row in rows]
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


def measure(context: ExperimentContext, families: Sequence[Family] = FAMILIES) -> Data:
    """Count and time all families, which may include your own."""
    lengths = [2**i for i in context.choose(range(5, 12), range(7, 15))]
    widths = [2**i for i in context.choose(range(6, 11), range(7, 13))]
    length, width = context.choose((128, 64), (256, 256))
    sweeps = {
        "length": [{"length": n, "width": width} for n in lengths],
        "width": [{"length": length, "width": d} for d in widths],
    }
    kernels = [{"length": length, "width": width, "kernel_size": k} for k in KERNELS]
    longest = context.choose(512, 2048)  # a loop over more steps would count nothing new
    limits = {"patience": context.choose(0.06, 0.2), "room": context.choose(1, 16) * 2**30}
    batch = context.choose(4, 8)
    data: Data = {"machine": device_name(context.device), "length": length, "width": width}
    data |= {"batch": batch, "counts": {}, "runs": {}}
    for family in families:
        own = sweeps | ({"kernel_size": kernels} if family is CONVOLUTION else {})
        data["counts"][family.name] = {
            sweep: context.call(
                f"{family.name}, operations",
                count_sizes,
                family=family,
                sizes=[size for size in sizes if size["length"] <= longest],
            )
            for sweep, sizes in own.items()
        }
        data["runs"][family.name] = {
            path: {
                sweep: context.call(
                    f"{family.name}, {path}, {sweep}",
                    time_sizes,
                    family=family,
                    sizes=sizes,
                    batch=batch,
                    backend=backend,
                    **limits,
                )
                for sweep, sizes in own.items()
                if path == "fast" or sweep == "length"
            }
            for path, backend in BACKENDS.items()
        }
    return data


def judge(data: Data) -> list[Claim]:
    """Compare the documents' orders of growth with counts, times and memory."""
    return [
        _order(data, CONVOLUTION, "O(k n d²)", {"kernel_size": 1, "length": 1, "width": 2}),
        _order(data, RNN, "O(n d²)", {"length": 1, "width": 2}),
        _attention(data),
        _self_attentive(data),
        _parallel(data),
        _memory(data),
        _long_sequences(data),
    ]


def _laws(
    data: Data, family: Family, what: str, sweeps: Iterable[str] = ("length", "width")
) -> dict[str, PowerLaw]:
    """Return the power laws over these sizes."""
    return {sweep: curve(data, family.name, what, sweep).law() for sweep in sweeps}


def _follow(laws: Mapping[str, PowerLaw], exponents: Mapping[str, int], within: float) -> bool:
    return all(laws[name].includes(exponents[name], within=within) for name in exponents)


def _listed(laws: Mapping[str, PowerLaw]) -> str:
    return ", ".join(f"{LETTERS[sweep]}: {law}" for sweep, law in laws.items())


def _order(data: Data, family: Family, order: str, exponents: Mapping[str, int]) -> Claim:
    """Judge the order by its counts; the times decide whether it holds without limits."""
    counts, times = (_laws(data, family, what, exponents) for what in ("operations", "seconds"))
    right = _follow(counts, exponents, COUNT_TOLERANCE)
    return Claim(
        TABLE,
        f"A layer of the kind {family.name} costs {order}.",
        verdict(right, _follow(times, exponents, TIME_TOLERANCE)),
        f"Multiply-adds grow with exponents {_listed(counts)}; "
        f"training on the fast path takes time with exponents {_listed(times)}.",
    )


def _attention(data: Data) -> Claim:
    exponents = {"length": 2, "width": 1}
    bare, whole = (_laws(data, family, "operations") for family in (BARE, SELF_ATTENTION))
    times = _laws(data, SELF_ATTENTION, "seconds")
    pairs, total = (curve(data, f.name, "operations") for f in (BARE, SELF_ATTENTION))
    rest = [all_ - part for all_, part in zip(total.y, pairs.y, strict=True)]
    equal = crossing(pairs.x, pairs.y, rest) if min(rest) > 0 else None
    fully = _follow(whole, exponents, COUNT_TOLERANCE)
    return Claim(
        TABLE,
        "A layer of self-attention costs O(n² d).",
        verdict(
            _follow(bare, exponents, COUNT_TOLERANCE),
            fully and _follow(times, exponents, TIME_TOLERANCE),
        ),
        f"Without projections the multiply-adds have exponents {_listed(bare)}. With those of "
        f"query, key, value and output they have {_listed(whole)}: the table leaves out their "
        f"n d². At d = {data['width']} the pairs outweigh the projections only from n = "
        f"{equal or math.inf:.0f}. Times in training on the fast path: {_listed(times)}.",
    )


def _self_attentive(data: Data) -> Claim:
    base = curve(data, RNN.name, "operations").law()
    whole = curve(data, SELF_ATTENTIVE.name, "operations")
    # what is left without the matrices of each step: 4 d² for the cell `rnn`
    matrices = [(4 * n + 1) * data["width"] ** 2 for n in whole.x]
    left = [total - part for total, part in zip(whole.y, matrices, strict=True)]
    past = power_law(whole.x[-FITTED:], left[-FITTED:])
    times = curve(data, SELF_ATTENTIVE.name, "seconds").law()
    right = past.includes(2, within=COUNT_TOLERANCE) and base.includes(1, within=COUNT_TOLERANCE)
    shown = whole.law().includes(2, within=COUNT_TOLERANCE)
    return Claim(
        "document 1, summary",
        "A self-attentive RNN costs 1 + 2 + ... + T = O(T²), where a plain RNN costs O(T).",
        verdict(right, shown and times.includes(2, within=TIME_TOLERANCE)),
        f"Attention to the past alone takes multiply-adds with exponent {past}; with the four "
        f"matrices of each step it is {whole.law()}, and {base} for the plain RNN. Times in "
        f"training on the fast path: {times}.",
    )


def _parallel(data: Data) -> Claim:
    claimed = {CONVOLUTION.name: 0, RNN.name: 1, SELF_ATTENTION.name: 0}
    chains = {name: curve(data, name, "chain") for name in claimed}
    right = _follow({n: c.law() for n, c in chains.items()}, claimed, COUNT_TOLERANCE)
    attentive = curve(data, SELF_ATTENTIVE.name, "chain")
    listed = ", ".join(f"{name} {chain.y[-1]:,}" for name, chain in chains.items())
    return Claim(
        TABLE,
        "Convolution and self-attention handle all n positions at once, an RNN one by one.",
        verdict(right, right),
        f"The longest chain of dependent products, at n = {attentive.x[-1]:,}: {listed}. The "
        f"self-attentive RNN, which the table does not have, has one of {attentive.y[-1]:,}: "
        f"attention to the past does not make it parallel (exponent {attentive.law()}).",
    )


def _memory(data: Data) -> Claim:
    definition, fused = (
        curve(data, BARE.name, "bytes", path=path) for path in ("reference", "fast")
    )
    slow, fast, longest = definition.law(), fused.law(), definition.x[-1]
    numbers = definition.y[-1] / (data["batch"] * longest**2) / BYTES_PER_FLOAT
    at_longest = fused.y[min(len(definition.x), len(fused.x)) - 1]
    square = 2 - TIME_TOLERANCE
    return Claim(
        "document 3, summary",
        "Self-attention needs O(n² d) of memory.",
        verdict(slow.last > square, numbers >= data["width"] / 2 and fast.last > square),
        f"In training the definition stores {numbers:.1f} numbers for each pair of positions at "
        f"n = {longest:,}, not d = {data['width']} of them: the weights are n², with exponent "
        f"{slow}. The fast path stores no weights, and needs memory with exponent "
        f"{fast}: {definition.y[-1] / at_longest:.1f} times less.",
    )


def _long_sequences(data: Data) -> Claim:
    attention = curve(data, SELF_ATTENTION.name, "seconds")
    found = {
        f.name: crossover(attention, curve(data, f.name, "seconds")) for f in (RNN, CONVOLUTION)
    }
    reached = [at is not None for at, _ in found.values()]
    return Claim(
        "document 3, summary",
        "Long sequences are the bottleneck of self-attention.",
        verdict(any(reached), all(reached)),
        f"The length n from which a layer of width {data['width']} trains more slowly on the fast "
        f"path of this machine ({data['machine']}): "
        + "; ".join(f"than the {name} {text}" for name, (_, text) in found.items())
        + ".",
    )


def draw(data: Data) -> list[Plot]:
    """Draw times in log-log, where a power law is a straight line."""
    panels = {
        f"length n ({title})": {
            name: curve(data, name, "seconds", path=path) for name in data["counts"]
        }
        for path, title in PATHS.items()
    }
    sizes = max((line.x for lines in panels.values() for line in lines.values()), key=len)
    bands = {
        title: {name: line.bands for name, line in lines.items()} for title, lines in panels.items()
    }
    caption = (
        "Seconds of one training run, forward and backward, over the length: medians, with bands "
        f"from quartile to quartile. At width {data['width']}, on {data['machine']}."
    )
    axes: dict[str, Any] = {
        "xlabel": "length n",
        "ylabel": "seconds",
        "xscale": "log",
        "yscale": "log",
    }
    return [curves("time-length", caption, sizes, bands, below=True, **axes)]


def tabulate(data: Data) -> list[ReportTable]:
    """Tabulate sizes of the layers and all exponents."""
    rows = []
    for name in data["counts"]:
        chain, size = curve(data, name, "chain"), curve(data, name, "parameters")
        laws = [
            *(curve(data, name, "operations", sweep) for sweep in ("length", "width")),
            *(curve(data, name, "seconds", sweep) for sweep in ("length", "width")),
            *(curve(data, name, "bytes", path=path) for path in PATHS),
        ]
        exponents = [str(found.law()) for found in laws]
        rows.append([name, f"{size.y[-1]:,}", f"{chain.y[-1]:,}", *exponents])
    caption = (
        f"One layer of width {data['width']}: parameters, the longest chain of dependent matrix "
        f"products at n = {chain.x[-1]:,}, and exponents of length n and width d with 95% "
        "intervals, over the five largest sizes of each curve."
    )
    columns = [
        "family", "parameters", "chain", "multiply-adds, n", "multiply-adds, d", "time, n",
        "time, d", *(f"memory of the {path}, n" for path in PATHS.values()),
    ]  # fmt: skip
    return [ReportTable(caption, columns, rows)]
