"""Cost of layers as sequences grow longer and vectors wider.

Question: What do a convolution, an RNN, a self-attentive RNN and self-attention cost as sequences
grow longer and vectors wider?

Method: One layer of each family, of equal width, on random vectors: over the length at a fixed
width, and over the width at a fixed length; the convolution over its kernel size too.
Self-attention has one head per 64 of its width. Multiply-adds and chains of dependent products are
counted on the definition, without sums and activations. Times are medians of at least three runs
after a warm-up, with quartiles as bands, for the definition and the fast path, forward alone and
with the backward pass. Memory is the peak beyond weights and inputs: from torch's allocator on
CUDA, and as the sum of live tensors on the CPU. Exponents are fitted in log-log to the five largest
sizes of each curve, with 95% intervals; if the points bend or scatter, none is reported. A curve
ends early if a run takes too long or too much memory.
"""

import platform
import statistics
import time
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from graphlib import TopologicalSorter
from itertools import product
from typing import Any, Final, NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.autograd.graph import Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from regard import ops
from regard.lab.context import (
    MIN_SIZES,
    ExperimentContext,
    MeanInterval,
    Numbers,
    PowerLaw,
    crossing,
    power_law,
)
from regard.lab.experiment import Claim, Data, Plot, ReportTable, verdict
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
from regard.lab.plots import draw_lines, legend, new_figure
from regard.lab.small_models import seeded
from regard.seeing.draw.shapes import TEXT

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
        kind = node.name().removesuffix("0").removesuffix("Backward")
        longest[node] = below + (kind in PRODUCTS)
    return max(longest.values(), default=0)


def _leaves_first(output: Tensor) -> list[Node]:
    """Return all nodes that an output depends on in topological order, leaves first."""
    graph: dict[Node, list[Node]] = {}
    waiting = [output.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is not None and node not in graph:
            graph[node] = [below for below, _ in node.next_functions if below is not None]
            waiting += graph[node]
    return list(TopologicalSorter(graph).static_order())


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
    family: Family,
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
        family: the family of the layer.
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
    *, family: Family, sizes: Sequence[LayerSize], device: torch.device
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
    family: Family, size: LayerSize, batch: int, device: torch.device
) -> tuple[nn.Module, Tensor]:
    options = {name: value for name, value in size.items() if name not in ("length", "width")}
    layer = seeded(SEED, build, family, size["width"], **options).to(device)
    generator = torch.Generator().manual_seed(SEED)
    x = torch.randn(batch, size["length"], size["width"], generator=generator)
    return layer, x.to(device)


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


#: power laws by swept size
Laws = dict[str, PowerLaw]
#: backend of each path, and its name in the report
BACKENDS: Final = {"fast": "auto", "reference": "reference"}
PATHS: Final = {"fast": "fast path", "reference": "definition"}
MODES: Final = {"forward": "forward", "training": "forward and backward"}
#: letter and label of each swept size
LETTERS: Final = {"length": "n", "width": "d", "kernel_size": "k"}
LABELS: Final = {"length": "length n", "width": "width d"}
KERNELS: Final = (1, 3, 5, 9, 17, 33)
#: tolerance of counted exponents: only a lower power beside the highest can move them
COUNT_TOLERANCE: Final = 0.05
#: tolerance of timed exponents, which caches and call overheads bend
TIME_TOLERANCE: Final = 0.2
BYTES_PER_FLOAT: Final = 4
TABLE: Final = "document 3, table of CNN, RNN and self-attention"


def measure(context: ExperimentContext, families: Sequence[Family] = FAMILIES) -> Data:
    """Count and time all families, which may include your own."""
    lengths: Sequence[int] = [2**i for i in context.choose(range(5, 12), range(7, 15))]
    widths: Sequence[int] = [2**i for i in context.choose(range(6, 11), range(7, 13))]
    length, width = context.choose((128, 64), (256, 256))
    sweeps = {
        "length": [{"length": n, "width": width} for n in lengths],
        "width": [{"length": length, "width": d} for d in widths],
    }
    kernels = [{"length": length, "width": width, "kernel_size": k} for k in KERNELS]
    data: Data = {
        "machine": _machine(context.device), "length": length, "width": width,
        "batch": context.choose(4, 8), "counts": {}, "runs": {},
    }  # fmt: skip
    longest = context.choose(512, 2048)  # a loop over more steps would count nothing new
    limits = {"patience": context.choose(0.06, 0.2), "room": context.choose(1, 16) * 2**30}
    for family in families:
        name = family.name
        data["counts"][name], data["runs"][name] = {}, {path: {} for path in BACKENDS}
        own = sweeps | ({"kernel_size": kernels} if family is CONVOLUTION else {})
        for sweep, sizes in own.items():
            short = [size for size in sizes if size["length"] <= longest]
            data["counts"][name][sweep] = context.call(
                f"{name}, operations", count_sizes, family=family, sizes=short
            )
        for (path, backend), (sweep, sizes) in product(BACKENDS.items(), own.items()):
            data["runs"][name][path][sweep] = context.call(
                f"{name}, {path}, {sweep}",
                time_sizes,
                family=family,
                sizes=sizes,
                batch=data["batch"],
                backend=backend,
                **limits,
            )
    return data


def _machine(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"CPU ({platform.machine()}), {threads} thread{'s' if threads > 1 else ''}"


def judge(data: Data) -> list[Claim]:
    """Compare the documents' orders of growth with counts, times and memory."""
    return [
        _order(data, CONVOLUTION, "O(k n d²)", {"kernel_size": 1, "length": 1, "width": 2}),
        _order(data, RNN, "O(n d²)", {"length": 1, "width": 2}),
        _attention_order(data),
        _self_attentive_order(data),
        _parallel(data),
        _memory(data),
        _long_sequences(data),
    ]


def _laws(data: Data, family: Family, sweeps: Iterable[str]) -> tuple[Laws, Laws]:
    """Return the power laws of counts, and of times in training on the fast path, by sweep."""
    counts = {sweep: counted(data, family.name, sweep, "operations").law() for sweep in sweeps}
    return counts, {sweep: timed(data, family.name, "fast", sweep).law() for sweep in sweeps}


def _follow(laws: Laws, exponents: Mapping[str, int], within: float) -> bool:
    return all(laws[sweep].includes(exponents[sweep], within=within) for sweep in exponents)


def _listed(laws: Laws) -> str:
    return ", ".join(f"{LETTERS[sweep]}: {law}" for sweep, law in laws.items())


def _order(data: Data, family: Family, order: str, exponents: dict[str, int]) -> Claim:
    """Judge an order by its counts; the times decide whether it holds without limits."""
    counts, times = _laws(data, family, exponents)
    right = _follow(counts, exponents, COUNT_TOLERANCE)
    on_time = _follow(times, exponents, TIME_TOLERANCE)
    evidence = (
        f"Multiply-adds grow with exponents {_listed(counts)}; "
        f"training on the fast path takes time with exponents {_listed(times)}."
    )
    if right and not on_time:
        evidence += " The count is right; the times on this machine follow it only in part."
    text = f"A layer of the kind {family.name} costs {order}."
    return Claim(TABLE, text, verdict(right, on_time), evidence)


def _attention_order(data: Data) -> Claim:
    exponents = {"length": 2, "width": 1}
    bare, _ = _laws(data, BARE, exponents)
    whole, times = _laws(data, SELF_ATTENTION, exponents)
    fully = _follow(whole, exponents, COUNT_TOLERANCE) and _follow(times, exponents, TIME_TOLERANCE)
    evidence = (
        f"Without projections the multiply-adds have exponents {_listed(bare)}. "
        f"With those of query, key, value and output they have {_listed(whole)}: "
        "the table leaves out their n d². "
    )
    equal = projections_crossover(data)
    if equal is not None:
        evidence += (
            f"At d = {data['width']} the pairs outweigh the projections only from n = {equal:.0f}. "
        )
    return Claim(
        TABLE,
        "A layer of self-attention costs O(n² d).",
        verdict(_follow(bare, exponents, COUNT_TOLERANCE), fully),
        f"{evidence}Times in training on the fast path: {_listed(times)}.",
    )


def projections_crossover(data: Data) -> float | None:
    """Return the length from which products of pairs outnumber those of the projections."""
    whole, pairs = (
        counted(data, family.name, "length", "operations") for family in (SELF_ATTENTION, BARE)
    )
    rest = [total - part for total, part in zip(whole.y, pairs.y, strict=True)]
    return crossing(pairs.x, pairs.y, rest) if min(rest) > 0 else None


def _self_attentive_order(data: Data) -> Claim:
    name, square = SELF_ATTENTIVE.name, {"length": 2}
    law, times = _laws(data, SELF_ATTENTIVE, square)
    base, _ = _laws(data, RNN, square)
    # what is left without the matrices of each step: 4 d² for the cell `rnn`
    rows = data["counts"][name]["length"]
    left = [row["operations"] - (4 * row["length"] + 1) * row["width"] ** 2 for row in rows]
    steps = CostCurve([row["length"] for row in rows], [MeanInterval(*[n] * 3) for n in left]).law()
    seconds = timed(data, name, "reference", "length").law()
    shown = _follow(times, square, TIME_TOLERANCE)
    linear = _follow(base, {"length": 1}, COUNT_TOLERANCE)
    return Claim(
        "document 1, summary",
        "A self-attentive RNN costs 1 + 2 + ... + T = O(T²), where a plain RNN costs O(T).",
        verdict(
            steps.includes(2, within=COUNT_TOLERANCE) and linear,
            _follow(law, square, COUNT_TOLERANCE) and shown,
        ),
        f"Attention to the past alone takes multiply-adds with exponent {steps}; with "
        f"the four matrices of each step it is {law['length']}, and {base['length']} for the "
        f"plain RNN. Times in training: {times['length']} on the fast path, "
        f"{seconds} in the definition."
        + ("" if shown else " The times do not show the square at these lengths."),
    )


def _parallel(data: Data) -> Claim:
    claimed = {CONVOLUTION.name: 0, RNN.name: 1, SELF_ATTENTION.name: 0}
    chains = {name: counted(data, name, "length", "chain") for name in claimed}
    laws = {name: curve.law() for name, curve in chains.items()}
    right = _follow(laws, claimed, COUNT_TOLERANCE)
    attentive = counted(data, SELF_ATTENTIVE.name, "length", "chain")
    listed = ", ".join(f"{name} {curve.y[-1]:,}" for name, curve in chains.items())
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
        peak_memory(data, BARE.name, path, "length") for path in ("reference", "fast")
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
    attention = timed(data, SELF_ATTENTION.name, "fast", "length")
    found = {
        family.name: crossover(attention, timed(data, family.name, "fast", "length"))
        for family in (RNN, CONVOLUTION)
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
    """Draw operations, times and memory in log-log, where a power law is a straight line."""
    fixed = f"At width {data['width']} or length {data['length']}, on {data['machine']}."
    names = list(data["counts"])
    operations = {
        label: {name: counted(data, name, sweep, "operations") for name in names}
        for sweep, label in LABELS.items()
    }
    plots = [
        Plot(
            "operations",
            "Multiply-adds of one layer for one sequence, over its length and its width. "
            f"Straight lines are power laws. {fixed}",
            _figure("Counted operations", "multiply-adds", operations),
        )
    ]
    for sweep, label in LABELS.items():
        times = {
            f"{label} ({path_name})": {name: timed(data, name, path, sweep) for name in names}
            for path, path_name in PATHS.items()
        }
        caption = (
            f"Seconds of one training run, forward and backward, over the {sweep}: medians, with "
            f"bands from quartile to quartile. {fixed}"
        )
        figure = _figure(f"Time in training against {sweep}", "seconds", times)
        plots.append(Plot(f"time-{sweep}", caption, figure))
    memory = {
        f"{LABELS['length']} ({path_name})": {
            n: peak_memory(data, n, path, "length") for n in names
        }
        for path, path_name in PATHS.items()
    }
    caption = f"Peak memory in training, in the definition and on the fast path. {fixed}"
    figure = _figure("Memory in training", "bytes", memory)
    return [*plots, Plot("memory-length", caption, figure)]


def _figure(title: str, unit: str, panels: dict[str, dict[str, CostCurve]]) -> Figure:
    figure, axes = new_figure(columns=len(panels))
    for panel, (label, curves) in zip(axes, panels.items(), strict=True):
        sizes = max((curve.x for curve in curves.values()), key=len)
        lines = {name: curve.bands for name, curve in curves.items()}
        draw_lines(panel, sizes, lines, base=2, yscale="log", xlabel=label, ylabel=unit)
    figure.suptitle(title, color=TEXT)
    legend(axes[0], below=True, columns=3)
    return figure


def tabulate(data: Data) -> list[ReportTable]:
    """Tabulate all exponents, the crossovers and the sizes of the layers."""
    ways = list(product(PATHS, MODES))
    columns = [f"{MODES[mode]}, {PATHS[path]}" for path, mode in ways]
    exponents = [
        ReportTable(
            f"Exponents of {letter} with 95% intervals, over the five largest sizes of each curve.",
            ["family", "multiply-adds", *columns, *(f"memory, {path}" for path in PATHS.values())],
            [
                [
                    name,
                    str(counted(data, name, sweep, "operations").law()),
                    *(str(timed(data, name, path, sweep, mode).law()) for path, mode in ways),
                    *(str(peak_memory(data, name, path, sweep).law()) for path in PATHS),
                ]
                for name in data["counts"]
            ],
        )
        for letter, sweep in (("n", "length"), ("d", "width"))
    ]
    attention = SELF_ATTENTION.name
    crossovers = [
        [name]
        + [
            crossover(*(timed(data, n, path, "length", mode) for n in (attention, name)))[1]
            for path, mode in ways
        ]
        for name in data["counts"]
        if name != attention
    ]
    layers = []
    for name in data["counts"]:
        chain = counted(data, name, "length", "chain")
        parameters = counted(data, name, "length", "parameters").y[-1]
        ends = [f"{chain.y[0]:,}", f"{chain.y[-1]:,}"]
        layers.append([name, f"{parameters:,}", *ends, str(chain.law())])
    first, last = chain.x[0], chain.x[-1]
    return [
        *exponents,
        ReportTable(
            "The length n from which self-attention is slower, interpolated in log-log; the "
            f"shortest length if it is always slower. {data['machine']}, width {data['width']}.",
            ["than", *columns],
            crossovers,
        ),
        ReportTable(
            f"One layer of width {data['width']}: parameters, and the longest chain of dependent "
            "matrix products.",
            ["family", "parameters", f"chain at n = {first:,}", f"at n = {last:,}",
             "exponent of n"],
            layers,
        ),
    ]  # fmt: skip
