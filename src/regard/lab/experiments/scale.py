"""Effect of dividing scores by the root of their width on the softmax and its gradient.

Question: Why are scores divided by the root of their width?

Method: Queries and keys with entries of mean 0 and variance 1, {KEYS} keys to a query, widths
{WIDTHS[0]} to {WIDEST}, through `ops.dot_product_attention` in float64 with and without the
scale. Measured are the deviation of the scores, the entropy of the weights, and the Frobenius norm
of the softmax's Jacobian: the share of a gradient of random direction that passes it. Then
gradients of three sizes are sent back through `ops.masked_softmax`. Last, one head of two
projections is trained with Adam to find its own value among 16, which needs sharp weights, and to
average all 16, which needs even ones; the head is the same with and without the scale, and each is
judged by the best of 4 learning rates.
"""

from collections.abc import Sequence
from itertools import product
from typing import Any, Final

import torch
from torch import Tensor

from regard import ops
from regard.lab.context import ExperimentContext, MeanInterval, interval, power_law
from regard.lab.experiment import Claim, Data, Plot, ReportTable, column, verdict
from regard.lab.plots import COLOURS, draw_lines, legend, new_figure

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
#: sizes of the incoming gradient
SIZES: Final = (0.01, 1.0, 100.0)
#: learning rates of Adam; each variant is judged by its best
RATES: Final = (0.001, 0.003, 0.01, 0.03)
TASKS: Final = ("find", "average")
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
    scale = _scale(width, scaled)
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


def train_head(
    *,
    task: str,
    width: int,
    scaled: bool,
    rate: float,
    seed: int,
    steps: int,
    batch: int,
    device: torch.device,
) -> dict[str, float]:
    """Train one head and return its loss over the last tenth of the steps.

    Every position holds a random key and a random value. In `find` the target is the position's own
    value, and its query is its key, rotated: weights must become sharp. In `average` the target is
    the mean of all values: weights must become even.
    """
    generator, length, inputs, outputs = torch.Generator().manual_seed(seed), 16, 32, 8

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(device)

    turn = torch.linalg.qr(normal(inputs, inputs)).Q
    project = [(normal(inputs, width) * inputs**-0.5).requires_grad_() for _ in range(2)]
    optimizer = torch.optim.Adam(project, lr=rate)
    losses = []
    for _ in range(steps):
        key, value = normal(batch, 1, length, inputs), normal(batch, 1, length, outputs)
        context, _ = ops.dot_product_attention(
            key @ turn @ project[0], key @ project[1], value, scale=_scale(width, scaled)
        )
        target = value if task == "find" else value.mean(-2, keepdim=True)
        loss = (context - target).square().mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.detach())
    return {"loss": torch.stack(losses[-max(1, steps // 10) :]).mean().item()}


def _scale(width: int, scaled: bool) -> float:
    return width**-0.5 if scaled else 1.0


def measure(context: ExperimentContext) -> Data:
    """Measure all widths with and without the scale, then the cause, then training."""
    queries = context.choose(2048, 8192)
    seeds = {"seed": context.seeds}
    axes: dict[str, Sequence[Any]] = {"width": WIDTHS, "scaled": list(SCALES), **seeds}
    spreads = context.grid("d_k {width}", softmax_statistics, axes, queries=queries)
    axes = {"deviation": (1.0, 8.0, 32.0), "size": SIZES, **seeds}
    gains = context.grid("gain", gain, axes, queries=queries)
    widths = context.choose((256,), (16, 64, 256, 1024))
    axes = {"task": TASKS, "width": widths, "scaled": list(SCALES), "rate": RATES, **seeds}
    steps, batch = context.choose((100, 16), (400, 256))
    trained = context.grid("train {task}", train_head, axes, steps=steps, batch=batch)
    return {"queries": queries, "spreads": spreads, "gains": gains, "trained": trained}


def judge(data: Data) -> list[Claim]:
    """Judge the reasons that documents 2 and 5 give, each as it is stated."""
    return [_judge_saturation(data), _judge_effect(data), _judge_cause(data)]


def _over_seeds(data: Data, what: str, width: int, scaled: bool) -> MeanInterval:
    return interval(column(data["spreads"], what, width=width, scaled=scaled))


def _judge_saturation(data: Data) -> Claim:
    """Document 2: large products saturate the gradient."""
    law = power_law(WIDTHS, [_over_seeds(data, "deviation", d, False).mean for d in WIDTHS])
    median = {s: {d: _over_seeds(data, "median", d, s).mean for d in WIDTHS} for s in SCALES}
    level = max(median[True].values()) / min(median[True].values())
    last, first = WIDTHS[-1], _first_saturated(median)
    usual = [_over_seeds(data, "median", USUAL, scaled) for scaled in (False, True)]
    saturates = law.includes(ROOT, within=TOLERANCE) and first is not None and level < LEVEL
    peak = max(WIDTHS, key=median[False].__getitem__)
    begins = "at no width" if first is None else f"from d_k = {first} on"
    return Claim(
        source="document 2, section 3.2",
        text="Without the scale products get too large and the gradient saturates; the scale "
        "prevents it.",
        verdict=verdict(saturates, usual[0].high < usual[1].low),
        evidence=(
            f"The deviation of unscaled scores grows as d_k to the power {law}. At d_k = {last} "
            f"the median Jacobian norm is {median[False][last]:.2g} without the scale and "
            f"{median[True][last]:.2g} with it; with it the widths differ by a factor of "
            f"{level:.2f} at most. Without, it is largest, {median[False][peak]:.2g}, at d_k = "
            f"{peak}, and saturated (below {SATURATED:.0%} of the scaled one) {begins}. At the "
            f"usual d_k = {USUAL} it is {usual[0]} without and {usual[1]} with. "
            f"{_training_sentence(data)}"
        ),
    )


def _first_saturated(median: dict[bool, dict[int, float]]) -> int | None:
    """Return the smallest width from which all are saturated."""
    first = None
    for width in reversed(WIDTHS):
        if median[False][width] >= SATURATED * median[True][width]:
            break
        first = width
    return first


def _judge_effect(data: Data) -> Claim:
    """Document 5, the half that names the effect."""
    gone = {s: [_over_seeds(data, "gone", d, s).mean for d in WIDTHS] for s in SCALES}
    usual = gone[False][WIDTHS.index(USUAL)]
    return Claim(
        source="document 5, section 3.2",
        text="The scale keeps the gradient of the softmax from becoming small.",
        verdict=verdict(gone[False][-1] > 0.5, max(gone[True]) <= VANISHED),
        evidence=(
            f"The gradient has vanished for {gone[False][-1]:.0%} of the queries at d_k = "
            f"{WIDTHS[-1]} without the scale, and for {usual:.0%} at d_k = {USUAL}; with it, for "
            f"{max(gone[True]):.1%} at most, over all widths."
        ),
    )


def _judge_cause(data: Data) -> Claim:
    """Document 5, the half that names the cause."""
    means = {d: [_gain(data, d, size).mean for size in SIZES] for d in _deviations(data)}
    changed = max(max(gains) / min(gains) - 1 for gains in means.values())
    low, high = min(means), max(means)
    same = changed < SAME
    right = " The document takes the effect for the cause; document 2 names the cause." * same
    return Claim(
        source="document 5, section 3.2",
        text="It is smaller gradients that make the gradient of the softmax smaller.",
        verdict=verdict(not same, not same),
        evidence=(
            f"Over gradients of size {SIZES[0]:g}, {SIZES[1]:g} and {SIZES[-1]:g} the share that "
            f"passes the softmax changes by {changed:.1%}. Over scores of deviation {low:g} "
            f"and {high:g} it goes from {means[low][0]:.2g} to {means[high][0]:.2g}.{right}"
        ),
    )


def _deviations(data: Data) -> list[float]:
    return sorted({row["deviation"] for row in data["gains"]})


def _gain(data: Data, deviation: float, size: float) -> MeanInterval:
    return interval(column(data["gains"], "gain", deviation=deviation, size=size))


def _best(data: Data, task: str, width: int, scaled: bool) -> tuple[float, MeanInterval]:
    """Return the learning rate with the lowest mean loss over seeds, and that loss."""

    def losses(rate: float) -> MeanInterval:
        where = {"task": task, "width": width, "scaled": scaled, "rate": rate}
        return interval(column(data["trained"], "loss", **where))

    rate = min(RATES, key=lambda rate: losses(rate).mean)
    return rate, losses(rate)


def _training_sentence(data: Data) -> str:
    width = max(row["width"] for row in data["trained"])
    parts = []
    for task in TASKS:
        with_, without = (_best(data, task, width, scaled)[1].mean for scaled in (True, False))
        parts.append(f"{without:.2g} without and {with_:.2g} with the scale in the task {task}")
    return f"After a short training, a head of d_k = {width} has a loss of {', of '.join(parts)}."


def draw(data: Data) -> list[Plot]:
    """Draw entropy and gradient over widths."""
    figure, axes = new_figure(columns=2)
    panels = (("entropy", "entropy of the weights (nats)"), ("median", "norm of the Jacobian"))
    for panel, (what, name) in zip(axes, panels, strict=True):
        lines = {
            label: [_over_seeds(data, what, width, scaled) for width in WIDTHS]
            for scaled, label in ((True, "with 1/√d_k"), (False, "without"))
        }
        draw_lines(panel, WIDTHS, lines, base=2, xlabel="width d_k", ylabel=name)
    means = [_over_seeds(data, "mean", width, False).mean for width in WIDTHS]
    axes[1].plot(WIDTHS, means, ":", color=COLOURS[1], label="without, mean")
    axes[0].set_title("How even the weights are")
    axes[1].set_title("Gradient of the softmax")
    legend(axes[1], below=True)
    caption = (
        f"Random queries over {KEYS} random keys, all entries of unit variance. Left: the entropy "
        "of the weights. Right: the norm of the softmax's Jacobian for the median query, and "
        "dotted its mean over queries. Bands: 95% over seeds."
    )
    return [Plot("widths", caption, figure)]


def tabulate(data: Data) -> list[ReportTable]:
    """Tabulate widths, gains, and losses of trained heads."""
    widths = [
        (
            str(width),
            SCALES[scaled],
            *(
                f"{_over_seeds(data, what, width, scaled).mean:.3g}"
                for what in ("deviation", "entropy", "mean", "median")
            ),
            f"{_over_seeds(data, 'gone', width, scaled).mean:.0%}",
        )
        for width, scaled in product(WIDTHS, SCALES)
    ]
    gains = [
        (f"{deviation:g}", *(str(_gain(data, deviation, size)) for size in SIZES))
        for deviation in _deviations(data)
    ]
    losses = []
    trained = sorted({row["width"] for row in data["trained"]})
    for width, task, scaled in product(trained, TASKS, SCALES):
        rate, loss = _best(data, task, width, scaled)
        losses.append((str(width), task, SCALES[scaled], f"{rate:g}", str(loss)))
    return [
        ReportTable(
            f"Mean over seeds of {data['queries']} queries each, over {KEYS} keys; norms are of "
            f"the softmax's Jacobian, at most {MAX_NORM}; vanished: queries below {VANISHED:.0%} "
            "of that",
            ("d_k", "scale", "deviation of scores", "entropy", "mean norm", "median norm",
             "vanished"),
            widths,
        ),
        ReportTable(
            "Share of an incoming gradient that passes the softmax",
            ("deviation of scores", *(f"gradient of size {size:g}" for size in SIZES)),
            gains,
        ),
        ReportTable(
            "Loss of one head after training, at the best of its learning rates, 95% over seeds",
            ("d_k", "task", "scale", "learning rate", "loss"),
            losses,
        ),
    ]  # fmt: skip
