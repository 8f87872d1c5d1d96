"""How far a signal goes from the first input to later outputs, and what is left of it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor, nn

from regard.lab import families as kinds
from regard.lab.bench import Bench
from regard.lab.experiment import Claim, Data, Experiment, Verdict
from regard.lab.experiments.path_figures import draw, tabulate
from regard.lab.fading import EVEN, Fading, fading, path_law
from regard.lab.families import Family, Recurrent
from regard.lab.paths import layers_needed, steps_between

#: the kernel of the stacked convolutions
KERNEL: Final = 9
#: kernels so large that (k - 1) / 2, how much nearer a layer comes, is nearly k / 2
KERNELS: Final = (9, 17, 33, 65, 129)
LONG: Final = 257
LENGTHS: Final = (8, 16, 32, 64, 128)
#: spectral radii of a plain RNN's recurrent matrix: below one, at it, above it
RADII: Final = (0.5, 1.0, 2.0, 4.0)
#: what is added to the bias of an LSTM's forget gate, so that it forgets little at first
FORGET: Final = 4.0
#: how many random directions of the output a gradient's size is the root mean square of
DIRECTIONS: Final = 16
#: counts are exact, but n - 1 and k - 1 stand in them where the table has n and k
NEAR: Final = 0.2
#: a way that gets no longer with n has an exponent of zero
FLAT: Final = 0.05
FAMILIES: Final = (
    kinds.RNN, kinds.GRU, kinds.LSTM, kinds.SELF_ATTENTIVE, kinds.SELF_ATTENTIVE_LSTM,
    kinds.SELF_ATTENTION, kinds.CONVOLUTION,
)  # fmt: skip
STEPWISE: Final = (
    kinds.RNN, kinds.GRU, kinds.LSTM, kinds.SELF_ATTENTIVE, kinds.SELF_ATTENTIVE_LSTM
)  # fmt: skip
OPEN_GATE: Final = "LSTM, forget gate open"


def gradients(
    *,
    family: dict[str, str],
    options: dict[str, Any],
    radius: float | None,
    forget: float,
    seed: int,
    width: int,
    length: int,
    distances: Sequence[int],
    device: torch.device,
) -> list[float]:
    """The size of d output / d first input at some distances, before any training.

    Args:
        family: As `Family.told` tells it.
        options: Of the layer.
        radius: The spectral radius that a plain RNN's recurrent matrix is scaled to, or None.
        forget: Added to the bias of an LSTM's forget gate.
        seed: Of weights, inputs and directions.
        width: Of the vectors.
        length: Of the sequences.
        distances: How many positions the output stands behind the first input.
        device: Where to run.
    """
    layer = kinds.seeded(family, width, seed, **options).double()
    if radius is not None:
        _set_radius(layer, radius)
    if forget:
        _open_gate(layer, forget)
    chance = torch.Generator().manual_seed(seed)
    shape = (DIRECTIONS, length, width)
    x = torch.randn(shape, generator=chance, dtype=torch.float64).to(device).requires_grad_()
    ways = torch.randn(DIRECTIONS, width, generator=chance, dtype=torch.float64).to(device)
    ways = ways / ways.norm(dim=-1, keepdim=True)
    output = layer.to(device)(x)
    return [_size(output[:, distance], ways, x) for distance in distances]


def _size(output: Tensor, ways: Tensor, x: Tensor) -> float:
    (gradient,) = torch.autograd.grad((output * ways).sum(), x, retain_graph=True)
    return float(gradient[:, 0].square().sum(-1).mean().sqrt())


def _set_radius(layer: nn.Module, radius: float) -> None:
    assert isinstance(layer, Recurrent)
    for cell in layer.stack.ahead:
        weight = cell.get_parameter("weight_hh_l0")
        with torch.no_grad():
            weight.mul_(radius / torch.linalg.eigvals(weight).abs().max())


def _open_gate(layer: nn.Module, forget: float) -> None:
    assert isinstance(layer, Recurrent)
    for cell in layer.stack.ahead:
        bias = cell.get_parameter("bias_ih_l0")
        with torch.no_grad():
            bias[len(bias) // 4 : len(bias) // 2] += forget


def layers_at(*, family: dict[str, str], length: int, kernel: int, device: torch.device) -> int:
    """How many layers the last output needs to see the first input."""
    del device  # a count needs no accelerator
    options = {"kernel_size": kernel} if kernel else {}
    return layers_needed(kinds.seeded(family, 4, 0, **options), length, 4)


def steps_at(*, family: dict[str, str], length: int, device: torch.device) -> int:
    """How many steps of a recurrence lie between the first input and the last output."""
    del device
    return steps_between(kinds.seeded(family, 4, 0), length, 4)


@dataclass(frozen=True)
class _Run:
    """A family as its gradients are measured."""

    name: str
    family: Family
    options: dict[str, int] = field(default_factory=dict)
    radius: float | None = None
    forget: float = 0.0


def measure(bench: Bench, families: Sequence[Family] = FAMILIES) -> Data:
    """Gradients of all families and seeds, and the ways counted; with a reader's own families."""
    length, width = bench.choose((64, 32), (256, 128))
    distances = sorted({round((length - 1) ** (i / 13)) for i in range(14)})
    layers = math.ceil((length - 1) / (KERNEL // 2))
    stack = {"kernel_size": KERNEL, "num_layers": layers}
    families = (*(f for f in families if f is not kinds.CONVOLUTION), kinds.CONVOLUTION)
    runs = [_Run(f.name, f, options=stack if f is kinds.CONVOLUTION else {}) for f in families]
    runs += [_Run(f"RNN, radius {radius:g}", kinds.RNN, radius=radius) for radius in RADII]
    runs.append(_Run(OPEN_GATE, kinds.LSTM, forget=FORGET))
    sizes = {
        run.name: [
            bench.once(
                f"{run.name}, seed {seed}",
                gradients,
                family=run.family.told(),
                options=run.options,
                radius=run.radius,
                forget=run.forget,
                seed=seed,
                width=width,
                length=length,
                distances=distances,
            )
            for seed in bench.seeds
        ]
        for run in runs
    }
    return {
        "length": length, "width": width, "layers": layers, "kernel": KERNEL,
        "distances": distances, "gradients": sizes, "families": [f.name for f in families],
        "paths": _paths(bench, families), "kernels": _kernels(bench),
    }  # fmt: skip


def _paths(bench: Bench, families: Sequence[Family]) -> Data:
    """Layers that are needed, times the steps within one; a family without steps has one."""
    found: Data = {}
    for family in families:
        told, rows = family.told(), []
        for n in LENGTHS:
            if family in STEPWISE:  # one layer is enough, and the way lies along its steps
                way = bench.once(f"{family.name}, steps", steps_at, family=told, length=n)
            else:
                kernel = KERNEL if family is kinds.CONVOLUTION else 0
                way = bench.once(
                    f"{family.name}, layers", layers_at, family=told, length=n, kernel=kernel
                )
            rows.append({"length": n, "path": way})
        found[family.name] = rows
    return found


def _kernels(bench: Bench) -> list[Data]:
    told = kinds.CONVOLUTION.told()
    return [
        {
            "kernel": kernel,
            "length": LONG,
            "path": bench.once(
                "convolution, layers", layers_at, family=told, length=LONG, kernel=kernel
            ),
        }
        for kernel in KERNELS
    ]


def judge(data: Data) -> list[Claim]:
    """What the documents say of ways and gradients."""
    return [
        _longest_path(data),
        _self_attentive_path(data),
        _vanish_or_explode(data),
        _gates(data),
        _bias_to_the_near(data),
    ]


def _longest_path(data: Data) -> Claim:
    claimed = {kinds.CONVOLUTION.name: 1, kinds.RNN.name: 1, kinds.SELF_ATTENTION.name: 0}
    laws = {name: path_law(data["paths"][name], "length") for name in claimed}
    kernel = path_law(data["kernels"], "kernel")
    right = all(laws[name].includes(claimed[name], within=NEAR) for name in claimed)
    right = right and kernel.includes(-1, within=NEAR)
    ends = {name: data["paths"][name][-1]["path"] for name in claimed}
    length = data["paths"][kinds.RNN.name][-1]["length"]
    return Claim(
        "document 3, table of CNN, RNN and self-attention",
        "The longest path is O(n / k) for a CNN, O(n) for an RNN and O(1) for self-attention.",
        "holds" if right else "does not hold",
        f"From the first of {length} inputs to the last output it is {ends['convolution']} layers "
        f"of a convolution with k = {data['kernel']}, {ends['RNN']} steps of an RNN, "
        f"{ends['self-attention']} layer of self-attention. Exponents of n: "
        + "; ".join(f"{name} {law}" for name, law in laws.items())
        + f". Exponent of k: {kernel}. A layer with a centred kernel comes (k - 1) / 2 positions "
        "nearer, so that small kernels need more layers than n / k.",
    )


def _self_attentive_path(data: Data) -> Claim:
    names = (kinds.SELF_ATTENTIVE.name, kinds.SELF_ATTENTIVE_LSTM.name)
    laws = [path_law(data["paths"][name], "length") for name in names]
    plain, looking = (fading(data, name) for name in (kinds.RNN.name, names[0]))
    short = all(law.includes(0, within=FLAT) for law in laws)
    verdict: Verdict = "does not hold"
    if short:
        verdict = "holds" if looking.ratio.high < EVEN else "holds with limits"
    ways = ", ".join(f"{n} {data['paths'][n][-1]['path']} steps" for n in names)
    return Claim(
        "document 1, summary",
        "Looking back shortens the way from O(t) to O(1), which solves long-distance dependence.",
        verdict,
        f"The shortest way at n = {LENGTHS[-1]}: {ways}, against "
        f"{data['paths'][kinds.RNN.name][-1]['path']} steps of the plain RNN. {_told(looking)} "
        f"{_told(plain)} What comes along the short way falls as the distance to the power "
        f"{looking.power}: each step shares its look among all steps before it.",
    )


def _vanish_or_explode(data: Data) -> Claim:
    runs = {radius: fading(data, f"RNN, radius {radius:g}") for radius in RADII}
    vanishes = [r for r, run in runs.items() if run.exponential and run.factor.high < 1]
    explodes = [r for r, run in runs.items() if run.exponential and run.factor.low > 1]
    verdict: Verdict = "does not hold"
    if vanishes:
        verdict = "holds" if explodes else "holds with limits"
    held = all(run.factor.high < radius for radius, run in runs.items())
    factors = ", ".join(f"{run.factor} at radius {r:g}" for r, run in runs.items())
    return Claim(
        "document 2, section 1.1; document 5, section 1",
        "Through the steps of an RNN, gradients shrink or grow exponentially.",
        verdict,
        f"A step multiplies the gradient by {factors}; by {fading(data, 'RNN').factor} as torch "
        f"initialises it. It vanishes exponentially at {_radii(vanishes)} and explodes at "
        f"{_radii(explodes)}."
        + (" The factor is below the radius: tanh holds explosion back." if held else ""),
    )


def _radii(radii: list[float]) -> str:
    return ", ".join(f"radius {radius:g}" for radius in radii) or "no radius"


def _gates(data: Data) -> Claim:
    runs = {name: fading(data, name) for name in (kinds.LSTM.name, kinds.GRU.name, OPEN_GATE)}
    lost = {name: run.factor.high < 1 and run.ratio.low > EVEN for name, run in runs.items()}
    verdict: Verdict = "does not hold"
    if lost[kinds.LSTM.name]:
        verdict = "holds" if all(lost.values()) else "holds with limits"
    return Claim(
        "document 1, section 1; document 5, section 1",
        "An LSTM loses early inputs over long sequences too.",
        verdict,
        " ".join(_told(run) for run in runs.values())
        + f" The open gate has {FORGET:g} added to its bias."
        + ("" if lost[OPEN_GATE] else " So its first bias decides how much it loses."),
    )


def _bias_to_the_near(data: Data) -> Claim:
    plain, every = fading(data, kinds.RNN.name), fading(data, kinds.SELF_ATTENTION.name)
    verdict: Verdict = "does not hold"
    if plain.ratio.low > EVEN:
        verdict = "holds" if every.ratio.high < EVEN else "holds with limits"
    return Claim(
        "document 2, section 1.1; document 3, summary",
        "The length of its ways makes an RNN favour what is near; self-attention does not.",
        verdict,
        f"{_told(plain)} {_told(every)}",
    )


def _told(run: Fading) -> str:
    return (
        f"{run.name}: the gradient over {run.near} position{'s' if run.near > 1 else ''} is "
        f"{run.ratio.mean:.3g} times that over {run.far} ({run.factor} per step)."
    )


EXPERIMENT: Final = Experiment(
    name="path",
    question="How far does a signal go from the first input to a later output, and how much of "
    "its gradient arrives?",
    method="One layer of each family, of equal width, before any training, in double precision, on "
    "random vectors; the convolution is a stack of as many layers as the length needs. The "
    f"gradient's size is the root mean square over {DIRECTIONS} random sequences and directions of "
    "the output; bands are 95% intervals over seeds, in logarithms. The factor per step is the "
    "slope of the logarithm over the distance. A plain RNN is measured as torch initialises it, "
    "and with its recurrent matrix scaled to spectral radii below, at and above one. Path lengths "
    "are counted: for layers, how many must lie on top of each other before the last output "
    "depends on the first input, read off gradients; for recurrences, the fewest steps that "
    "compute anything on a way through the autograd graph of the definition.",
    measure=measure,
    judge=judge,
    draw=draw,
    tabulate=tabulate,
)
