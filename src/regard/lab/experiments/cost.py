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
from collections.abc import Sequence
from itertools import product
from typing import Final

import torch
from matplotlib.figure import Figure

from regard.lab.context import ExperimentContext
from regard.lab.cost_curves import (
    CostCurve,
    LayerSize,
    count_sizes,
    counted,
    crossover,
    format_law,
    format_size,
    peak_memory,
    time_sizes,
    timed,
)
from regard.lab.estimates import PowerLaw, crossing
from regard.lab.experiment import Claim, Data, Plot, ReportTable, verdict
from regard.lab.layers import (
    BARE,
    CONVOLUTION,
    FAMILIES,
    KERNEL,
    RNN,
    SELF_ATTENTION,
    SELF_ATTENTIVE,
    Family,
)
from regard.lab.plots import colour_of, legend, line_with_band, new_figure
from regard.seeing.draw.shapes import TEXT

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
        "batch": context.choose(4, 8), "kernel": KERNEL, "counts": {}, "runs": {},
    }  # fmt: skip
    for family in families:
        own = sweeps | ({"kernel_size": kernels} if family is CONVOLUTION else {})
        data["counts"][family.name] = _count(context, family, own)
        data["runs"][family.name] = _time(context, family, own, data["batch"])
    return data


def _count(context: ExperimentContext, family: Family, sweeps: dict[str, list[LayerSize]]) -> Data:
    longest = context.choose(512, 2048)  # a loop over more steps would count nothing new
    return {
        name: context.cached(
            f"{family.name}, operations",
            count_sizes,
            family=family.spec(),
            sizes=[size for size in sizes if size["length"] <= longest],
        )
        for name, sizes in sweeps.items()
    }


def _time(
    context: ExperimentContext, family: Family, sweeps: dict[str, list[LayerSize]], batch: int
) -> Data:
    return {
        path: {
            name: context.cached(
                f"{family.name}, {path}, {name}",
                time_sizes,
                family=family.spec(),
                sizes=sizes,
                batch=batch,
                backend=backend,
                patience=context.choose(0.06, 0.2),
                room=context.choose(1, 16) * 2**30,
            )
            for name, sizes in sweeps.items()
        }
        for path, backend in BACKENDS.items()
    }


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


def _order(data: Data, family: Family, order: str, exponents: dict[str, int]) -> Claim:
    """Judge an order by its counts; the times decide whether it holds without limits."""
    counts = {s: counted(data, family.name, s, "operations").law() for s in exponents}
    times = {s: timed(data, family.name, "fast", s).law() for s in exponents}
    right = _follow(counts, exponents, COUNT_TOLERANCE)
    on_time = _follow(times, exponents, TIME_TOLERANCE)
    evidence = (
        f"Multiply-adds grow with exponents {_listed(counts)}; "
        f"training on the fast path takes time with exponents {_listed(times)}."
    )
    if right and not on_time:
        evidence += " The count is right; the times on this machine follow it only in part."
    return Claim(
        TABLE,
        f"A layer of the kind {family.name} costs {order}.",
        verdict(right, on_time),
        evidence,
    )


def _attention_order(data: Data) -> Claim:
    exponents = {"length": 2, "width": 1}
    whole, bare = (
        {s: counted(data, family.name, s, "operations").law() for s in exponents}
        for family in (SELF_ATTENTION, BARE)
    )
    times = {s: timed(data, SELF_ATTENTION.name, "fast", s).law() for s in exponents}
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
    name = SELF_ATTENTIVE.name
    law = counted(data, name, "length", "operations").law()
    base = counted(data, RNN.name, "length", "operations").law()
    steps = _attention_law(data)
    times = timed(data, name, "fast", "length").law()
    seconds = timed(data, name, "reference", "length").law()
    shown = _is(times, 2, TIME_TOLERANCE)
    return Claim(
        "document 1, summary",
        "A self-attentive RNN costs 1 + 2 + ... + T = O(T²), where a plain RNN costs O(T).",
        verdict(
            _is(steps, 2, COUNT_TOLERANCE) and _is(base, 1, COUNT_TOLERANCE),
            _is(law, 2, COUNT_TOLERANCE) and shown,
        ),
        f"Attention to the past alone takes multiply-adds with exponent {format_law(steps)}; with "
        f"the four matrices of each step it is {format_law(law)}, and {format_law(base)} for the "
        f"plain RNN. Times in training: {format_law(times)} on the fast path, "
        f"{format_law(seconds)} in the definition."
        + ("" if shown else " The times do not show the square at these lengths."),
    )


def _attention_law(data: Data) -> PowerLaw | None:
    """Fit what is left without the matrices of each step: 4 d² for the cell `rnn`."""
    rows = data["counts"][SELF_ATTENTIVE.name]["length"]
    left = [row["operations"] - (4 * row["length"] + 1) * row["width"] ** 2 for row in rows]
    return CostCurve([row["length"] for row in rows], left, left, left).law()


def _parallel(data: Data) -> Claim:
    claimed = {CONVOLUTION.name: 0, RNN.name: 1, SELF_ATTENTION.name: 0}
    chains = {name: counted(data, name, "length", "chain") for name in claimed}
    right = all(_is(chains[name].law(), claimed[name], COUNT_TOLERANCE) for name in claimed)
    attentive = counted(data, SELF_ATTENTIVE.name, "length", "chain")
    listed = ", ".join(f"{name} {curve.y[-1]:,}" for name, curve in chains.items())
    return Claim(
        TABLE,
        "Convolution and self-attention handle all n positions at once, an RNN one by one.",
        verdict(right, right),
        f"The longest chain of dependent products, at n = {attentive.x[-1]:,}: {listed}. The "
        f"self-attentive RNN, which the table does not have, has one of {attentive.y[-1]:,}: "
        f"attention to the past does not make it parallel (exponent "
        f"{format_law(attentive.law())}).",
    )


def _memory(data: Data) -> Claim:
    definition, fused = (
        peak_memory(data, BARE.name, path, "length") for path in ("reference", "fast")
    )
    slow, fast, longest = definition.law(), fused.law(), definition.x[-1]
    numbers = definition.y[-1] / (data["batch"] * longest**2) / BYTES_PER_FLOAT
    at_longest = fused.y[fused.x.index(longest)] if longest in fused.x else fused.y[-1]
    square = 2 - TIME_TOLERANCE
    return Claim(
        "document 3, summary",
        "Self-attention needs O(n² d) of memory.",
        verdict(
            slow is not None and slow.last > square,
            numbers >= data["width"] / 2 and fast is not None and fast.last > square,
        ),
        f"In training the definition stores {numbers:.1f} numbers for each pair of positions at "
        f"n = {longest:,}, not d = {data['width']} of them: the weights are n², with exponent "
        f"{format_law(slow)}. The fast path stores no weights, and needs memory with exponent "
        f"{format_law(fast)}: {definition.y[-1] / at_longest:.1f} times less.",
    )


def _long_sequences(data: Data) -> Claim:
    attention = timed(data, SELF_ATTENTION.name, "fast", "length")
    found = {}
    for family in (RNN, CONVOLUTION):
        other = timed(data, family.name, "fast", "length")
        found[family.name] = (crossover(attention, other), min(attention.x[-1], other.x[-1]))
    reached = [at is not None for at, _ in found.values()]
    listed = "; ".join(f"than the {name} {format_size(*where)}" for name, where in found.items())
    return Claim(
        "document 3, summary",
        "Long sequences are the bottleneck of self-attention.",
        verdict(any(reached), all(reached)),
        f"The length n from which a layer of width {data['width']} trains more slowly on the fast "
        f"path of this machine ({data['machine']}): {listed}.",
    )


def _follow(laws: dict[str, PowerLaw | None], exponents: dict[str, int], within: float) -> bool:
    return all(_is(laws[sweep], exponent, within) for sweep, exponent in exponents.items())


def _is(law: PowerLaw | None, exponent: int, within: float) -> bool:
    return law is not None and law.includes(exponent, within=within)


def _listed(laws: dict[str, PowerLaw | None]) -> str:
    return ", ".join(f"{LETTERS[sweep]}: {format_law(law)}" for sweep, law in laws.items())


def draw(data: Data) -> list[Plot]:
    """Draw operations, times and memory in log-log, where a power law is a straight line."""
    fixed = f"At width {data['width']} or length {data['length']}, on {data['machine']}."
    names = list(data["counts"])
    operations = {
        label: {name: counted(data, name, sweep, "operations") for name in names}
        for sweep, label in LABELS.items()
    }
    memory = {
        f"{LABELS['length']} ({path_name})": {
            name: peak_memory(data, name, path, "length") for name in names
        }
        for path, path_name in PATHS.items()
    }
    plots = [
        Plot(
            "operations",
            "Multiply-adds of one layer for one sequence, over its length and its width. "
            f"Straight lines are power laws. {fixed}",
            _figure("Counted operations", "multiply-adds", operations),
        )
    ]
    for sweep in LABELS:
        times = {
            f"{LABELS[sweep]} ({path_name})": {
                name: timed(data, name, path, sweep) for name in names
            }
            for path, path_name in PATHS.items()
        }
        caption = (
            f"Seconds of one training run, forward and backward, over the {sweep}: medians, with "
            f"bands from quartile to quartile. {fixed}"
        )
        figure = _figure(f"Time in training against {sweep}", "seconds", times)
        plots.append(Plot(f"time-{sweep}", caption, figure))
    caption = f"Peak memory in training, in the definition and on the fast path. {fixed}"
    figure = _figure("Memory in training", "bytes", memory)
    return [*plots, Plot("memory-length", caption, figure)]


def _figure(title: str, unit: str, panels: dict[str, dict[str, CostCurve]]) -> Figure:
    figure, axes = new_figure(columns=len(panels))
    for panel, (label, curves) in zip(axes, panels.items(), strict=True):
        for i, (name, curve) in enumerate(curves.items()):
            line_with_band(
                panel, curve.x, curve.y, curve.low, curve.high, label=name, colour=colour_of(i)
            )
        panel.set_xscale("log", base=2)  # the sizes are powers of two
        panel.set(yscale="log", xlabel=label, ylabel=unit)
    figure.suptitle(title, color=TEXT)
    legend(axes[0], below=True, columns=3)
    return figure


def tabulate(data: Data) -> list[ReportTable]:
    """Tabulate all exponents, the crossovers and the sizes of the layers."""
    return [_exponents(data, "length"), _exponents(data, "width"), _crossovers(data), _layers(data)]


def _exponents(data: Data, sweep: str) -> ReportTable:
    columns = ["family", "multiply-adds"]
    columns += [f"{mode}, {path}" for path, mode in product(PATHS.values(), MODES.values())]
    columns += [f"memory, {path}" for path in PATHS.values()]
    rows = []
    for name in data["counts"]:
        curves = [counted(data, name, sweep, "operations")]
        curves += [timed(data, name, path, sweep, mode) for path, mode in product(PATHS, MODES)]
        curves += [peak_memory(data, name, path, sweep) for path in PATHS]
        rows.append([name, *(format_law(curve.law()) for curve in curves)])
    return ReportTable(
        f"Exponents of {LETTERS[sweep]} with 95% intervals, over the five largest sizes of each "
        "curve.",
        columns,
        rows,
    )


def _crossovers(data: Data) -> ReportTable:
    attention, rows = SELF_ATTENTION.name, []
    for name in data["counts"]:
        if name == attention:
            continue
        cells = [name]
        for path, mode in product(PATHS, MODES):
            ours, other = (timed(data, n, path, "length", mode) for n in (attention, name))
            cells.append(format_size(crossover(ours, other), min(ours.x[-1], other.x[-1])))
        rows.append(cells)
    columns = [f"{mode}, {path}" for path, mode in product(PATHS.values(), MODES.values())]
    return ReportTable(
        "The length n from which self-attention is slower, interpolated in log-log; the shortest "
        f"length if it is always slower. {data['machine']}, width {data['width']}.",
        ["than", *columns],
        rows,
    )


def _layers(data: Data) -> ReportTable:
    rows = []
    for name in data["counts"]:
        chain = counted(data, name, "length", "chain")
        parameters = counted(data, name, "length", "parameters").y[-1]
        ends = [f"{chain.y[0]:,}", f"{chain.y[-1]:,}"]
        rows.append([name, f"{parameters:,}", *ends, format_law(chain.law())])
    first, last = chain.x[0], chain.x[-1]
    return ReportTable(
        f"One layer of width {data['width']}: parameters, and the longest chain of dependent "
        "matrix products.",
        ["family", "parameters", f"chain at n = {first:,}", f"at n = {last:,}", "exponent of n"],
        rows,
    )
