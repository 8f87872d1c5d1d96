"""Effect of dividing scores by the root of their width on the softmax and its gradient.

Question: Why are scores divided by the root of their width?

Method: Queries and keys with entries of mean 0 and variance 1, {KEYS} keys to a query, widths
{WIDTHS[0]} to {WIDEST}, through `ops.dot_product_attention` in float64 with and without the
scale. Measured are the deviation of the scores, the entropy of the weights, and the Frobenius norm
of the softmax's Jacobian: the share of a gradient of random direction that passes it. Then
gradients of three sizes are sent back through `ops.masked_softmax`.
"""

import math
from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from regard import ops
from regard.lab.context import ExperimentContext
from regard.lab.estimates import MeanInterval, first, grouped_table, mean, power_law
from regard.lab.experiment import Claim, Data, Plot, ReportTable, Rows, verdict
from regard.lab.plots import curves

WIDTHS: Final = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
#: width of a head in most Transformers
USUAL: Final = 64
WIDEST: Final = WIDTHS[-1]
KEYS: Final = 64
#: queries that share their keys
GROUP: Final = 16
#: largest possible norm of a softmax Jacobian: two equal weights and no others
MAX_NORM: Final = 0.5
#: a gradient below this share of the largest counts as vanished
VANISHED: Final = 0.01
#: sizes of the incoming gradient, and deviations of the scores
SIZES: Final = (0.01, 1.0, 100.0)
DEVIATIONS: Final = (1.0, 8.0, 32.0)
#: whether scores are scaled, and its name in tables
SCALES: Final = {True: "1/√d_k", False: "none"}

#: the standard deviation of a sum of d products of unit variance grows as the root of d
ROOT: Final = 0.5
#: tolerance of the fitted exponent
TOLERANCE: Final = 0.02
#: a gradient is level if its extremes over all widths differ by less than this factor
LEVEL: Final = 1.5
#: a median gradient is saturated below this share of the scaled one
SATURATED: Final = 0.1
#: gains that differ by less are equal
SAME: Final = 0.01


def softmax_statistics(
    *, seed: int, width: int, scaled: bool, queries: int, device: torch.device
) -> Data:
    """Return statistics of the weights of random queries, and of the softmax's Jacobian."""
    generator = torch.Generator().manual_seed(seed)
    groups = queries // GROUP

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(device)

    query, key = normal(groups, 1, GROUP, width), normal(groups, 1, KEYS, width)
    scale = width**-0.5 if scaled else 1.0
    _, weights = ops.dot_product_attention(query, key, key, scale=scale, need_weights=True)
    assert weights is not None
    norms = jacobian_norm(weights)
    return {
        "deviation": (query @ key.mT * scale).std().item(),
        "entropy": torch.special.entr(weights).sum(-1).mean().item(),
        "mean": norms.mean().item(),
        "median": norms.median().item(),
        "gone": (norms < VANISHED * MAX_NORM).double().mean().item(),
    }


def jacobian_norm(weights: Tensor) -> Tensor:
    """Return the Frobenius norm of `diag(p) - p pᵀ`, the softmax's Jacobian, for each row p."""
    squares = weights.square().sum(-1)
    return (squares - 2 * weights.pow(3).sum(-1) + squares.square()).clamp(min=0).sqrt()


def gain(
    *, seed: int, deviation: float, size: float, queries: int, device: torch.device
) -> dict[str, float]:
    """Return the share of a gradient of a given size that reaches scores of a given deviation."""
    generator = torch.Generator().manual_seed(seed)
    shape = (queries, 1, 1, KEYS)
    scores = torch.randn(shape, generator=generator, dtype=torch.float64).mul(deviation).to(device)
    incoming = torch.randn(shape, generator=generator, dtype=torch.float64).to(device)
    incoming = incoming * (size / incoming.norm(dim=-1, keepdim=True))
    scores.requires_grad_()
    (through,) = torch.autograd.grad(ops.masked_softmax(scores, None), scores, incoming)
    return {"gain": float((through.norm(dim=-1) / size).mean())}


def measure(context: ExperimentContext) -> Data:
    """Measure all widths with and without the scale, then the cause."""
    queries, seeds = context.choose(2048, 8192), context.seeds
    widths = {"width": WIDTHS, "scaled": SCALES, "seed": seeds}
    sizes = {"deviation": DEVIATIONS, "size": SIZES, "seed": seeds}
    return {
        "queries": queries,
        "spreads": context.grid("d_k {width}", softmax_statistics, widths, queries=queries),
        "gains": context.grid("gain", gain, sizes, queries=queries),
    }


def judge(data: Data) -> list[Claim]:
    """Judge the reasons that documents 2 and 5 give, each as it is stated."""
    law = power_law(WIDTHS, [at.mean for at in over_widths(data, "deviation", False)])
    median = {
        s: {d: at.mean for d, at in zip(WIDTHS, over_widths(data, "median", s), strict=True)}
        for s in SCALES
    }
    level = max(median[True].values()) / min(median[True].values())
    usual = {s: mean(data["spreads"], "median", width=USUAL, scaled=s) for s in SCALES}
    # widths from the widest down to the first that is not saturated
    above = [d for d in WIDTHS if median[False][d] >= SATURATED * median[True][d]]
    later = [d for d in WIDTHS if d > max(above, default=0)]
    peak = max(WIDTHS, key=median[False].__getitem__)
    gone = {s: [at.mean for at in over_widths(data, "gone", s)] for s in SCALES}
    gains = {
        d: [mean(data["gains"], "gain", deviation=d, size=size).mean for size in SIZES]
        for d in DEVIATIONS
    }
    changed = max(max(found) / min(found) - 1 for found in gains.values())
    low, high = gains[DEVIATIONS[0]][0], gains[DEVIATIONS[-1]][0]
    return [
        Claim(
            "document 2, section 3.2",
            "Without the scale products get too large and the gradient saturates; the scale "
            "prevents it.",
            verdict(
                law.includes(ROOT, within=TOLERANCE) and later and level < LEVEL,
                usual[False].high < usual[True].low,
            ),
            f"The deviation of unscaled scores grows as d_k to the power {law}. At d_k = {WIDEST} "
            f"the median Jacobian norm is {median[False][WIDEST]:.2g} without the scale and "
            f"{median[True][WIDEST]:.2g} with it; with it the widths differ by a factor of "
            f"{level:.2f} at most. Without, it is largest, {median[False][peak]:.2g}, at d_k = "
            f"{peak}, and saturated (below {SATURATED:.0%} of the scaled one) from d_k = "
            f"{min(later, default=math.inf)} on. At the usual d_k = {USUAL} it is {usual[False]} "
            f"without and {usual[True]} with.",
        ),
        Claim(
            "document 5, section 3.2",
            "The scale keeps the gradient of the softmax from becoming small.",
            verdict(gone[False][-1] > 0.5, max(gone[True]) <= VANISHED),
            f"The gradient has vanished for {gone[False][-1]:.0%} of the queries at d_k = {WIDEST} "
            f"without the scale, and for {gone[False][WIDTHS.index(USUAL)]:.0%} at d_k = {USUAL}; "
            f"with it, for {max(gone[True]):.1%} at most, over all widths.",
        ),
        Claim(
            "document 5, section 3.2",
            "It is smaller gradients that make the gradient of the softmax smaller.",
            verdict(changed >= SAME, changed >= SAME),
            f"Over gradients of size {SIZES[0]:g}, {SIZES[1]:g} and {SIZES[-1]:g} the share that "
            f"passes the softmax changes by {changed:.1%}. Over scores of deviation "
            f"{DEVIATIONS[0]:g} and {DEVIATIONS[-1]:g} it goes from {low:.2g} to {high:.2g}. "
            "Document 2 names that cause.",
        ),
    ]


def over_widths(data: Data, what: str, scaled: bool) -> list[MeanInterval]:
    """Return a statistic at each width."""
    return [mean(data["spreads"], what, width=width, scaled=scaled) for width in WIDTHS]


def draw(data: Data) -> list[Plot]:
    """Draw entropy and gradient over widths."""
    labels = {True: "with 1/√d_k", False: "without"}

    def lines(what: str) -> dict[str, Any]:
        return {label: over_widths(data, what, scaled) for scaled, label in labels.items()}

    mean_norms = [at.mean for at in over_widths(data, "mean", False)]
    panels = {
        "How even the weights are": lines("entropy"),
        "Gradient of the softmax": lines("median") | {"without, mean": mean_norms},
    }
    caption = (
        f"Random queries over {KEYS} random keys, all entries of unit variance. Left: the entropy "
        "of the weights. Right: the norm of the softmax's Jacobian for the median query, and "
        "its mean over queries. Bands: 95% over seeds."
    )
    names = ("entropy of the weights (nats)", "norm of the Jacobian")
    axes: dict[str, Any] = {"xlabel": "width d_k", "xscale": "log"}
    return [curves("widths", caption, WIDTHS, panels, ylabel=names, below=True, **axes)]


def tabulate(data: Data) -> list[ReportTable]:
    """Tabulate what was measured at each width."""

    def shown(what: str, form: str) -> Callable[[Rows], str]:
        return lambda group: format(mean(group, what).mean, form)

    columns = {
        "d_k": first("width"),
        "scale": lambda group: SCALES[group[0]["scaled"]],
        "deviation of scores": shown("deviation", ".3g"),
        "entropy": shown("entropy", ".3g"),
        "mean norm": shown("mean", ".3g"),
        "median norm": shown("median", ".3g"),
        "vanished": shown("gone", ".0%"),
    }
    caption = (
        f"Mean over seeds of {data['queries']} queries each, over {KEYS} keys; norms are of "
        f"the softmax's Jacobian, at most {MAX_NORM}; vanished: queries below {VANISHED:.0%} "
        "of that"
    )
    return [grouped_table(caption, data["spreads"], ("width", "scaled"), columns)]
