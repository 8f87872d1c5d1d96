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
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from regard import ops
from regard.errors import ArgumentError
from regard.lab.context import (
    ExperimentContext,
    MeanInterval,
    Numbers,
    PowerLaw,
    interval,
    power_law,
    slope,
)
from regard.lab.experiment import Claim, Data, Plot, ReportTable, column, verdict
from regard.lab.layers import (
    CONVOLUTION,
    GRU,
    LSTM,
    RNN,
    SELF_ATTENTION,
    SELF_ATTENTIVE,
    SELF_ATTENTIVE_LSTM,
    Family,
    RecurrentLayer,
    SelfAttentiveLayer,
    build,
)
from regard.lab.plots import draw_lines, legend, new_figure
from regard.lab.small_models import seeded
from regard.seeing.draw.shapes import TEXT
from regard.state import State, map_leaves

#: gradients whose sizes near and far differ by less than this factor count as equally large
EVEN: Final = 10.0
#: random output directions whose root mean square is the size of a gradient
DIRECTIONS: Final = 16


def gradient_sizes(
    *,
    family: Family,
    radius: float | None,
    forget: float,
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
def _set_radius(layer: nn.Module, radius: float) -> None:
    assert isinstance(layer, RecurrentLayer)
    for cell in layer.stack.ahead:
        weight = cell.get_parameter("weight_hh_l0")
        weight.mul_(radius / torch.linalg.eigvals(weight).abs().max())


@torch.no_grad()
def _open_forget_gate(layer: nn.Module, forget: float) -> None:
    assert isinstance(layer, RecurrentLayer)
    for cell in layer.stack.ahead:
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

    @property
    def kind(self) -> str:
        """The kind of change with distance, in words."""
        if 1 / EVEN < self.ratio.mean < EVEN:
            return "little"
        return "exponentially" if self.exponential else "as a power"


def gradient_decay(data: Data, name: str) -> GradientDecay:
    """Return the summary of a family's gradients."""
    distances: list[int] = data["distances"]
    runs: list[list[float]] = data["gradients"][name]
    arrives = [i for i in range(len(distances)) if all(run[i] > 0 for run in runs)]
    x = [distances[i] for i in arrives]
    log_x = [math.log(distance) for distance in x]
    logs = [[math.log(run[i]) for i in arrives] for run in runs]
    return GradientDecay(
        name,
        factor=_exp(interval([slope(x, log).mean for log in logs])),
        power=interval([slope(log_x, log).mean for log in logs]),
        ratio=_exp(interval([log[0] - log[-1] for log in logs])),
        near=x[0],
        far=x[-1],
        exponential=_residual(x, logs) < _residual(log_x, logs),
    )


def geometric_means(data: Data, name: str) -> list[MeanInterval | None]:
    """Return the geometric mean over seeds at each distance; None if it is zero."""
    columns = list(zip(*data["gradients"][name], strict=True))
    return [
        _exp(interval([math.log(size) for size in sizes])) if min(sizes) > 0 else None
        for sizes in columns
    ]


def _exp(logs: MeanInterval) -> MeanInterval:
    """Return the exponential of an interval; infinite instead of an overflow."""
    low, mean, high = (
        math.exp(value) if value < 700 else math.inf for value in (logs.low, logs.mean, logs.high)
    )
    return MeanInterval(mean, low, high)


def _residual(x: Numbers, logs: Sequence[Numbers]) -> float:
    """Return the squared residual of a line through the mean over seeds."""
    mean = np.mean(np.asarray(logs), axis=0)
    return float(np.square(mean - np.polyval(np.polyfit(x, mean, 1), x)).sum())


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
RECURRENT: Final = (RNN, GRU, LSTM, SELF_ATTENTIVE, SELF_ATTENTIVE_LSTM)
FAMILIES: Final = (*RECURRENT, SELF_ATTENTION, CONVOLUTION)
OPEN_GATE: Final = "LSTM, forget gate open"


def count_path(*, family: Family, length: int, recurrent: bool, device: torch.device) -> int:
    """Return the length of the path from the first of `length` inputs to the last output.

    It is counted in layers, or in steps of a recurrence, whose path lies within one layer.
    """
    del device  # counting needs no accelerator
    count = steps_between if recurrent else layers_needed
    return count(seeded(0, build, family, 4), length, 4)


def measure(context: ExperimentContext, families: Sequence[Family] = FAMILIES) -> Data:
    """Measure gradients and count path lengths of all families, which may include your own."""
    length, width = context.choose((64, 32), (256, 128))
    distances = sorted({round((length - 1) ** (i / 13)) for i in range(14)})
    layers = math.ceil((length - 1) / (KERNEL // 2))
    names = [f.name for f in families if f is not CONVOLUTION] + [CONVOLUTION.name]
    specs = {f.name: f for f in families}
    plain: dict[str, Any] = {"radius": None, "forget": 0.0}
    runs = {name: plain | {"family": specs.get(name)} for name in names}
    stack = CONVOLUTION.with_options(kernel_size=KERNEL, num_layers=layers)
    runs[CONVOLUTION.name] = plain | {"family": stack}
    runs |= {f"RNN, radius {r:g}": {"family": RNN, "radius": r, "forget": 0.0} for r in RADII}
    runs[OPEN_GATE] = {"family": LSTM, "radius": None, "forget": FORGET}
    sizes = {"width": width, "length": length, "distances": distances}
    gradients = {
        name: [
            context.call(f"{name}, seed {seed}", gradient_sizes, seed=seed, **run, **sizes)
            for seed in context.seeds
        ]
        for name, run in runs.items()
    }
    recurrent = [family.name for family in RECURRENT]

    def path(name: str, length: int, kernel: int = KERNEL) -> int:
        wide = CONVOLUTION.with_options(kernel_size=kernel)
        told = {
            "family": wide if name == CONVOLUTION.name else specs[name],
            "length": length,
            "recurrent": name in recurrent,
        }
        counted: int = context.call(f"{name}, path", count_path, **told)
        return counted

    far = KERNEL_SWEEP_LENGTH
    return {
        "length": length, "width": width, "layers": layers, "kernel": KERNEL,
        "distances": distances, "gradients": gradients, "families": names,
        "paths": {name: [{"length": n, "path": path(name, n)} for n in LENGTHS] for name in names},
        "kernels": [
            {"kernel": k, "length": far, "path": path(CONVOLUTION.name, far, k)} for k in KERNELS
        ],
    }  # fmt: skip


def path_law(rows: Sequence[dict[str, Any]], size: str) -> PowerLaw:
    """Fit the growth of counted paths with a size."""
    return power_law(column(rows, size), column(rows, "path"))


def judge(data: Data) -> list[Claim]:
    """Judge the documents' claims about paths and gradients."""
    return [
        _longest_path(data),
        _self_attentive_path(data),
        _vanish_or_explode(data),
        _gates(data),
        _bias_to_the_near(data),
    ]


def _longest_path(data: Data) -> Claim:
    claimed = {CONVOLUTION.name: 1, RNN.name: 1, SELF_ATTENTION.name: 0}
    laws = {name: path_law(data["paths"][name], "length") for name in claimed}
    kernel = path_law(data["kernels"], "kernel")
    right = all(laws[name].includes(claimed[name], within=TOLERANCE) for name in claimed)
    right = right and kernel.includes(-1, within=TOLERANCE)
    ends = {name: data["paths"][name][-1]["path"] for name in claimed}
    length = data["paths"][RNN.name][-1]["length"]
    return Claim(
        "document 3, table of CNN, RNN and self-attention",
        "The longest path is O(n / k) for a CNN, O(n) for an RNN and O(1) for self-attention.",
        verdict(right, right),
        f"From the first of {length} inputs to the last output it is {ends['convolution']} layers "
        f"of a convolution with k = {data['kernel']}, {ends['RNN']} steps of an RNN, "
        f"{ends['self-attention']} layer of self-attention. Exponents of n: "
        + "; ".join(f"{name} {law}" for name, law in laws.items())
        + f". Exponent of k: {kernel}. A layer with a centred kernel reaches (k - 1) / 2 positions "
        "to either side, so that small kernels need more layers than n / k.",
    )


def _self_attentive_path(data: Data) -> Claim:
    names = (SELF_ATTENTIVE.name, SELF_ATTENTIVE_LSTM.name)
    laws = [path_law(data["paths"][name], "length") for name in names]
    plain, attentive = (gradient_decay(data, name) for name in (RNN.name, names[0]))
    short = all(law.includes(0, within=FLAT) for law in laws)
    ways = ", ".join(f"{n} {data['paths'][n][-1]['path']} steps" for n in names)
    return Claim(
        "document 1, summary",
        "Attention to the past shortens the path from O(t) to O(1), which solves long-distance "
        "dependence.",
        verdict(short, attentive.ratio.high < EVEN),
        f"The shortest path at n = {LENGTHS[-1]}: {ways}, against "
        f"{data['paths'][RNN.name][-1]['path']} steps of the plain RNN. {_sentence(attentive)} "
        f"{_sentence(plain)} The gradient along the short path falls as the distance to the power "
        f"{attentive.power}: each step divides its attention among all steps before it.",
    )


def _vanish_or_explode(data: Data) -> Claim:
    runs = {radius: gradient_decay(data, f"RNN, radius {radius:g}") for radius in RADII}
    vanishes = [r for r, run in runs.items() if run.exponential and run.factor.high < 1]
    explodes = [r for r, run in runs.items() if run.exponential and run.factor.low > 1]
    bounded = all(run.factor.high < radius for radius, run in runs.items())
    factors = ", ".join(f"{run.factor} at radius {r:g}" for r, run in runs.items())
    return Claim(
        "document 2, section 1.1; document 5, section 1",
        "Through the steps of an RNN, gradients shrink or grow exponentially.",
        verdict(vanishes, explodes),
        f"A step multiplies the gradient by {factors}; by {gradient_decay(data, 'RNN').factor} "
        f"with torch's initialisation. It vanishes exponentially at {_radii(vanishes)} and "
        f"explodes at {_radii(explodes)}."
        + (" The factor is below the radius: tanh limits the growth." if bounded else ""),
    )


def _radii(radii: list[float]) -> str:
    return ", ".join(f"radius {radius:g}" for radius in radii) or "no radius"


def _gates(data: Data) -> Claim:
    runs = {name: gradient_decay(data, name) for name in (LSTM.name, GRU.name, OPEN_GATE)}
    lost = {name: run.factor.high < 1 and run.ratio.low > EVEN for name, run in runs.items()}
    return Claim(
        "document 1, section 1; document 5, section 1",
        "An LSTM loses early inputs over long sequences too.",
        verdict(lost[LSTM.name], all(lost.values())),
        " ".join(_sentence(run) for run in runs.values())
        + f" The open gate has {FORGET:g} added to its bias."
        + ("" if lost[OPEN_GATE] else " So its initial bias decides how much it loses."),
    )


def _bias_to_the_near(data: Data) -> Claim:
    plain, every = (gradient_decay(data, family.name) for family in (RNN, SELF_ATTENTION))
    return Claim(
        "document 2, section 1.1; document 3, summary",
        "The length of its paths makes an RNN favour what is near; self-attention does not.",
        verdict(plain.ratio.low > EVEN, every.ratio.high < EVEN),
        f"{_sentence(plain)} {_sentence(every)}",
    )


def _sentence(run: GradientDecay) -> str:
    return (
        f"{run.name}: the gradient over {run.near} position{'s' if run.near > 1 else ''} is "
        f"{run.ratio.mean:.3g} times that over {run.far} ({run.factor} per step)."
    )


def draw(data: Data) -> list[Plot]:
    """Draw gradients over distance, of families and of recurrences, and the counted paths."""
    families = list(data["paths"])
    recurrences = [name for name in data["gradients"] if name not in families]
    return [
        Plot(
            "gradients",
            "The gradient of an output with respect to the first input, over the distance between "
            f"them, as a share of that at distance {data['distances'][0]}, before training; width "
            f"{data['width']}. The convolution is a stack of {data['layers']} layers with kernels "
            f"of {data['kernel']}. Bands are 95% intervals over seeds.",
            _gradient_figure(data, families, "What is left of the first input's gradient"),
        ),
        Plot(
            "vanishing",
            "The same for recurrences: a plain RNN by the spectral radius of its recurrent matrix, "
            "and an LSTM whose forget gate starts open.",
            _gradient_figure(data, recurrences, "Gradients that vanish, stay or explode"),
        ),
        Plot(
            "path-length",
            "The shortest path from the first input to the last output: stacked layers, or steps "
            "of a recurrence. Plain RNN, GRU and LSTM lie on one line; the convolution has kernels "
            f"of {data['kernel']}.",
            _path_figure(data),
        ),
    ]


def _gradient_figure(data: Data, names: Iterable[str], title: str) -> Figure:
    figure, (axes,) = new_figure()
    lines = {}
    for name in names:
        bands = geometric_means(data, name)
        # a deep stack scales all its gradients alike: shares are comparable between families
        near = next(band.mean for band in bands if band is not None)
        lines[name] = [
            None if band is None else MeanInterval(*(value / near for value in band))
            for band in bands
        ]
    draw_lines(axes, data["distances"], lines, yscale="log", xlabel="distance in positions")
    axes.set_ylabel("share of the gradient left")
    axes.set_title(title, color=TEXT)
    bottom, top = axes.get_ylim()
    axes.set_ylim(max(bottom, ROUNDING), top)
    legend(axes)
    return figure


def _path_figure(data: Data) -> Figure:
    figure, (axes,) = new_figure()
    lines = {name: column(rows, "path") for name, rows in data["paths"].items()}
    draw_lines(axes, column(data["paths"][RNN.name], "length"), lines, base=2, xlabel="length n")
    axes.set_ylabel("layers or steps on the path")
    axes.set_yscale("log", base=2)
    axes.set_title("From the first input to the last output", color=TEXT)
    legend(axes)
    return figure


def tabulate(data: Data) -> list[ReportTable]:
    """Tabulate the decay of gradients and the counted paths."""
    runs = [gradient_decay(data, name) for name in data["gradients"]]
    decays = [[r.name, str(r.factor), f"{r.far}", str(r.ratio), r.kind] for r in runs]
    paths = [
        [name, *map(str, column(rows, "path")), str(path_law(rows, "length"))]
        for name, rows in data["paths"].items()
    ]
    kernels = data["kernels"]
    lengths = [f"n = {n}" for n in column(next(iter(data["paths"].values())), "length")]
    return [
        ReportTable(
            "How gradients change with distance, with 95% intervals over seeds.",
            ["family", "factor per step", "up to", "near / far", "changes"],
            decays,
        ),
        ReportTable(
            "The shortest path from the first input to the last output.",
            ["family", *lengths, "exponent of n"],
            paths,
        ),
        ReportTable(
            f"Layers of convolution across {kernels[0]['length']} positions, by kernel size.",
            [*(f"k = {k}" for k in column(kernels, "kernel")), "exponent of k"],
            [[*map(str, column(kernels, "path")), str(path_law(kernels, "kernel"))]],
        ),
    ]
