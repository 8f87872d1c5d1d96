"""Length of the path from the first input to later outputs, and the gradient along it.

Question: How long is the path from the first input to a later output, and how much of its gradient
arrives?

Method: One layer of each family, of equal width, before any training, in double precision, on
random vectors; the convolution is a stack of as many layers as the length needs. The gradient's
size is the root mean square over {DIRECTIONS} random sequences and directions of the output; bands
are 95% intervals over seeds, of logarithms. The factor per step is the slope of the logarithm over
the distance. A plain RNN is measured with torch's initialisation, and with its recurrent matrix
scaled to spectral radii below, at and above one. Path lengths are counted: for layers, how many
must be stacked until the last output depends on the first input, read off gradients; for
recurrences, the fewest steps that compute anything on a path through the autograd graph of the
definition.
"""

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from regard import ops
from regard.errors import ArgumentError
from regard.lab.context import ExperimentContext
from regard.lab.estimates import MeanInterval, PowerLaw, column, interval, power_law
from regard.lab.experiment import Claim, Data, Plot, ReportTable, Rows, verdict
from regard.lab.layers import (
    CONVOLUTION,
    GRU,
    LSTM,
    RNN,
    SELF_ATTENTION,
    SELF_ATTENTIVE,
    SELF_ATTENTIVE_LSTM,
    Family,
    SequenceLayer,
    build,
)
from regard.lab.plots import curves
from regard.lab.small_models import seeded
from regard.layers import RNNStack, SelfAttentiveRNN
from regard.state import State, map_leaves

#: gradients whose sizes near and far differ by less than this factor count as equally large
EVEN: Final = 10.0
#: random output directions whose root mean square is the size of a gradient
DIRECTIONS: Final = 16
#: kernel size of the stacked convolutions
KERNEL: Final = 9
#: kernel sizes so large that (k - 1) / 2, the reach of a layer, is nearly k / 2
KERNELS: Final = (9, 17, 33, 65, 129)
KERNEL_SWEEP_LENGTH: Final = 257
LENGTHS: Final = (8, 16, 32, 64, 128)
#: spectral radii of a plain RNN's recurrent matrix: below one, at it, above it
RADII: Final = (0.5, 1.0, 2.0, 4.0)
#: added to the bias of an LSTM's forget gate, so that it forgets little at first
FORGET: Final = 4.0
#: tolerance of counted exponents, since the counts have n - 1 and k - 1 in place of n and k
TOLERANCE: Final = 0.2
#: a path whose length does not depend on n has an exponent of zero
FLAT: Final = 0.05
#: gradients below this are lost in the rounding of single precision
ROUNDING: Final = 1e-12
FAMILIES: Final = (RNN, GRU, LSTM, SELF_ATTENTIVE, SELF_ATTENTIVE_LSTM, SELF_ATTENTION, CONVOLUTION)
OPEN_GATE: Final = "LSTM, forget gate open"


def gradient_sizes(
    *,
    family: Family,
    radius: float | None = None,
    forget: float = 0.0,
    seed: int,
    width: int,
    length: int,
    distances: Sequence[int],
    device: torch.device,
) -> list[float]:
    """Return the size of d output / d first input at some distances, before any training.

    Args:
        family: the family of the layer.
        radius: spectral radius that a plain RNN's recurrent matrix is scaled to, or None.
        forget: added to the bias of an LSTM's forget gate.
        seed: seed of weights, inputs and directions.
        width: width of the vectors.
        length: length of the sequences.
        distances: positions between the first input and the output.
        device: device to run on.
    """
    layer = seeded(seed, build, family, width).double()
    if radius is not None:
        _set_radius(layer, radius)
    if forget:
        _open_forget_gate(layer, forget)
    generator = torch.Generator().manual_seed(seed)
    shape = (DIRECTIONS, length, width)
    x = torch.randn(shape, generator=generator, dtype=torch.float64).to(device).requires_grad_()
    ways = torch.randn(DIRECTIONS, width, generator=generator, dtype=torch.float64).to(device)
    ways = ways / ways.norm(dim=-1, keepdim=True)
    output = layer.to(device)(x)
    return [_size(output[:, distance], ways, x) for distance in distances]


def _size(output: Tensor, ways: Tensor, x: Tensor) -> float:
    (gradient,) = torch.autograd.grad((output * ways).sum(), x, retain_graph=True)
    return float(gradient[:, 0].square().sum(-1).mean().sqrt())


@torch.no_grad()
def _set_radius(layer: Any, radius: float) -> None:
    for cell in layer.layer.ahead:
        weight = cell.get_parameter("weight_hh_l0")
        weight.mul_(radius / torch.linalg.eigvals(weight).abs().max())


@torch.no_grad()
def _open_forget_gate(layer: Any, forget: float) -> None:
    for cell in layer.layer.ahead:
        bias = cell.get_parameter("bias_ih_l0")
        bias[len(bias) // 4 : len(bias) // 2] += forget


class GradientDecay(NamedTuple):
    """Summary of the gradients of a family over distance.

    Attributes:
        name: name of the family.
        factor: factor per step, over seeds.
        power: exponent of the distance, over seeds.
        ratio: size near divided by size far, over seeds.
        near: smallest distance.
        far: largest distance with a gradient above zero.
        exponential: whether the logarithm is closer to linear in the distance than in the
            logarithm of the distance.
    """

    name: str
    factor: MeanInterval
    power: MeanInterval
    ratio: MeanInterval
    near: int
    far: int
    exponential: bool

    def __str__(self) -> str:
        return (
            f"{self.name}: the gradient over {self.near} position{'s' * (self.near > 1)} is "
            f"{self.ratio.mean:.3g} times that over {self.far} ({self.factor} per step)."
        )


def gradient_decay(data: Data, name: str) -> GradientDecay:
    """Return the summary of a family's gradients."""
    runs = np.array(data["gradients"][name], np.float64)
    arrives = (runs > 0).all(axis=0)
    x = np.array(data["distances"])[arrives]
    logs, scales = np.log(runs[:, arrives]), (x, np.log(x))
    factor, power = (interval([np.polyfit(at, log, 1)[0] for log in logs]) for at in scales)
    linear, logarithmic = (
        np.polyfit(at, logs.mean(axis=0), 1, full=True)[1].sum() for at in scales
    )
    ratio = interval((logs[:, 0] - logs[:, -1]).tolist())
    ends = int(x[0]), int(x[-1])
    return GradientDecay(name, _exp(factor), power, _exp(ratio), *ends, bool(linear < logarithmic))


def geometric_means(data: Data, name: str) -> list[MeanInterval | None]:
    """Return the geometric mean over seeds at each distance; None if it is zero."""
    columns = list(zip(*data["gradients"][name], strict=True))
    return [
        _exp(interval([math.log(size) for size in sizes])) if min(sizes) > 0 else None
        for sizes in columns
    ]


def _exp(logs: MeanInterval) -> MeanInterval:
    """Return the exponential of an interval; infinite instead of an overflow."""
    return MeanInterval(*(math.exp(value) if value < 700 else math.inf for value in logs))


def reads_of(layer: nn.Module, length: int, width: int) -> list[set[int]]:
    """Return what each output reads without a detour: earlier steps of a recurrence, or inputs.

    Read off gradients; those of a recurrence step by step, each with the vectors that earlier steps
    have left, cut off from the graph: storing a vector is no step.
    """
    recurrence = recurrence_of(layer)
    if recurrence is None:
        x = torch.randn(1, length, width, dtype=torch.float64, requires_grad=True)
        outputs = layer.double()(x)[0].sum(1)
        found = [torch.autograd.grad(output, x, retain_graph=True)[0][0] for output in outputs]
        return [rows_of(gradient) for gradient in found]
    reads: list[set[int]] = []
    left: list[Tensor] = []

    def cut(name: str, leaf: Tensor, of_source: bool) -> Tensor:
        if leaf.is_floating_point():
            leaf = leaf.detach().requires_grad_()
            left.append(leaf)
        return leaf

    tape = isinstance(recurrence, SelfAttentiveRNN)
    state: State = recurrence.init_state(1, next(layer.parameters()))
    with ops.use_backend("reference"):
        for t in range(length):
            left.clear()
            found = recurrence(torch.randn(1, 1, width), state=map_leaves(state, cut))
            state, output = found.state, found.context if tape else found.output
            gradients = torch.autograd.grad(output.sum(), left, allow_unused=True)
            reads.append(set())
            for gradient in gradients:
                if gradient is not None and tape and gradient.ndim == 3:  # a row for each step
                    reads[t] |= rows_of(gradient[0])
                elif gradient is not None and gradient.any():
                    reads[t].add(max(t - 1, 0))
    return reads


def rows_of(gradient: Tensor) -> set[int]:
    """Return the rows that are not zero."""
    return {*gradient.abs().sum(-1).nonzero().flatten().tolist()}


def recurrence_of(layer: nn.Module) -> Any:
    """Return the recurrence of a layer, or None if it has none."""
    own = layer.layer if isinstance(layer, SequenceLayer) else layer
    return own if isinstance(own, RNNStack | SelfAttentiveRNN) else None


def count_path(*, family: Family, length: int, device: torch.device) -> int:
    """Return the length of the path from the first of `length` inputs to the last output.

    It is counted in layers, stacked until the last output depends on the first input, or in steps
    of a recurrence, whose path lies within one layer.
    """
    layer = seeded(0, build, family, 4)
    reads, seen, reached, hops = reads_of(layer, length, 4), set(), {length - 1}, 0
    while 0 not in reached:
        seen |= reached
        reached, hops = {s for t in reached for s in reads[t]} - seen, hops + 1
        if not reached:
            raise ArgumentError(
                "layer", "bring the first input nearer to the last output", "one that does not",
                "its outputs must depend on inputs before them",
            )  # fmt: skip
    return hops + (recurrence_of(layer) is not None)


def measure(context: ExperimentContext, families: Sequence[Family] = FAMILIES) -> Data:
    """Measure gradients and count path lengths of all families, which may include your own."""
    length, width = context.choose((64, 32), (256, 128))
    distances = sorted({round((length - 1) ** (i / 13)) for i in range(14)})
    layers = math.ceil((length - 1) / (KERNEL // 2))
    specs = {f.name: f for f in (*families, CONVOLUTION)}
    runs: dict[str, Data] = {name: {"family": family} for name, family in specs.items()}
    stack = CONVOLUTION.with_options(kernel_size=KERNEL, num_layers=layers)
    runs[CONVOLUTION.name] = {"family": stack}
    runs |= {f"RNN, radius {r:g}": {"family": RNN, "radius": r} for r in RADII}
    runs[OPEN_GATE] = {"family": LSTM, "forget": FORGET}
    sizes = {"width": width, "length": length, "distances": distances}
    gradients = {
        name: [
            context.call(f"{name}, seed {seed}", gradient_sizes, seed=seed, **run, **sizes)
            for seed in context.seeds
        ]
        for name, run in runs.items()
    }

    def path(family: Family, length: int, kernel: int = KERNEL) -> int:
        if family.name == CONVOLUTION.name:
            family = CONVOLUTION.with_options(kernel_size=kernel)
        counted: int = context.call(
            f"{family.name}, path", count_path, family=family, length=length
        )
        return counted

    paths = {
        name: [{"length": n, "path": path(family, n)} for n in LENGTHS]
        for name, family in specs.items()
    }
    far = KERNEL_SWEEP_LENGTH
    kernels = [{"kernel": k, "length": far, "path": path(CONVOLUTION, far, k)} for k in KERNELS]
    told: Data = {"length": length, "width": width, "layers": layers, "kernel": KERNEL}
    told |= {"distances": distances, "gradients": gradients, "families": list(specs)}
    return told | {"paths": paths, "kernels": kernels}


def path_law(rows: Rows, size: str) -> PowerLaw:
    """Fit the growth of counted paths with a size."""
    return power_law(column(rows, size), column(rows, "path"))


def judge(data: Data) -> list[Claim]:
    """Judge the documents' claims about paths and gradients."""
    paths, kernel = data["paths"], path_law(data["kernels"], "kernel")
    claimed = {CONVOLUTION.name: 1, RNN.name: 1, SELF_ATTENTION.name: 0}
    laws = {name: path_law(paths[name], "length") for name in claimed}
    right = all(laws[name].includes(claimed[name], within=TOLERANCE) for name in claimed)
    right = right and kernel.includes(-1, within=TOLERANCE)
    last = {name: rows[-1]["path"] for name, rows in paths.items()}
    attentives = (SELF_ATTENTIVE.name, SELF_ATTENTIVE_LSTM.name)
    short = all(path_law(paths[n], "length").includes(0, within=FLAT) for n in attentives)
    plain, attentive = (gradient_decay(data, name) for name in (RNN.name, attentives[0]))
    runs = {radius: gradient_decay(data, f"RNN, radius {radius:g}") for radius in RADII}
    vanishes = [f"{r:g}" for r, run in runs.items() if run.exponential and run.factor.high < 1]
    explodes = [f"{r:g}" for r, run in runs.items() if run.exponential and run.factor.low > 1]
    return [
        Claim(
            "document 3, table of CNN, RNN and self-attention",
            "The longest path is O(n / k) for a CNN, O(n) for an RNN and O(1) for self-attention.",
            verdict(right, right),
            f"From the first of {LENGTHS[-1]} inputs to the last output it is "
            f"{last[CONVOLUTION.name]} layers of a convolution with k = {data['kernel']}, "
            f"{last[RNN.name]} steps of an RNN, {last[SELF_ATTENTION.name]} layer of "
            "self-attention. Exponents of n: "
            + "; ".join(f"{name} {law}" for name, law in laws.items())
            + f". Exponent of k: {kernel}. A layer with a centred kernel reaches (k - 1) / 2 "
            "positions to either side, so that small kernels need more layers than n / k.",
        ),
        Claim(
            "document 1, summary",
            "Attention to the past shortens the path from O(t) to O(1), which solves long-distance "
            "dependence.",
            verdict(short, attentive.ratio.high < EVEN),
            f"The shortest path at n = {LENGTHS[-1]}: "
            f"{', '.join(f'{name} {last[name]} steps' for name in attentives)}, against "
            f"{last[RNN.name]} steps of the plain RNN. {attentive} {plain} The gradient along the "
            f"short path falls as the distance to the power {attentive.power}: each step divides "
            "its attention among all steps before it.",
        ),
        Claim(
            "document 2, section 1.1; document 5, section 1",
            "Through the steps of an RNN, gradients shrink or grow exponentially.",
            verdict(vanishes, explodes),
            "A step multiplies the gradient by "
            + ", ".join(f"{run.factor} at radius {r:g}" for r, run in runs.items())
            + f"; by {plain.factor} with torch's initialisation. Radii at which it vanishes "
            f"exponentially: {', '.join(vanishes) or 'none'}; at which it explodes: "
            f"{', '.join(explodes) or 'none'}. Factors below the radius are due to tanh.",
        ),
    ]


def draw(data: Data) -> list[Plot]:
    """Draw gradients over distance, of recurrences, and the counted paths."""
    lines = {}
    for name in [name for name in data["gradients"] if name not in data["paths"]]:
        bands = geometric_means(data, name)
        near = next(band.mean for band in bands if band is not None)
        lines[name] = [
            MeanInterval(*(value / near for value in band)) if band and band.mean > ROUNDING * near
            else None
            for band in bands
        ]  # fmt: skip
    paths = {name: column(rows, "path") for name, rows in data["paths"].items()}
    return [
        curves(
            "vanishing",
            "The gradient of an output with respect to the first input, over the distance between "
            f"them, as a share of that at distance {data['distances'][0]}, before training; width "
            f"{data['width']}. A plain RNN by the spectral radius of its recurrent matrix, and an "
            "LSTM whose forget gate starts open. Bands are 95% intervals over seeds.",
            data["distances"],
            {"Gradients that vanish, stay or explode": lines},
            xlabel="distance in positions",
            ylabel="share of the gradient left",
            yscale="log",
        ),
        curves(
            "path-length",
            "The shortest path from the first input to the last output: stacked layers, or steps "
            "of a recurrence. Plain RNN, GRU and LSTM lie on one line; the convolution has kernels "
            f"of {data['kernel']}.",
            LENGTHS,
            {"From the first input to the last output": paths},
            xlabel="length n",
            ylabel="layers or steps on the path",
            xscale="log",
            yscale="log",
            xticks=LENGTHS,
        ),
    ]


def tabulate(data: Data) -> list[ReportTable]:
    """Tabulate the decay of gradients and the counted paths."""
    runs = [gradient_decay(data, name) for name in data["gradients"]]
    decays = [[run.name, str(run.factor), f"{run.far}", str(run.ratio)] for run in runs]
    paths = [
        [name, *map(str, column(rows, "path")), str(path_law(rows, "length"))]
        for name, rows in data["paths"].items()
    ]
    return [
        ReportTable(
            "How gradients change with distance, with 95% intervals over seeds.",
            ["family", "factor per step", "up to", "near / far"],
            decays,
        ),
        ReportTable(
            "The shortest path from the first input to the last output.",
            ["family", *(f"n = {n}" for n in LENGTHS), "exponent of n"],
            paths,
        ),
    ]
