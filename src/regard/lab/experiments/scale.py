"""Why scores are divided by the root of their width: what the softmax makes of it."""

from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor

from regard import ops
from regard.lab.bench import Bench
from regard.lab.experiment import Claim, Data, Experiment, Plot, Table, Verdict
from regard.lab.plots import COLOURS, legend, line_with_band, new_figure
from regard.lab.statistics import Interval, interval, power_law

WIDTHS: Final = (4, 8, 16, 32, 64, 128, 256, 512, 1024)
#: the width of a head in most Transformers
USUAL: Final = 64
KEYS: Final = 64
#: queries that share their keys
GROUP: Final = 16
#: the greatest norm that the Jacobian of a softmax can have: two equal weights and no others
GREATEST: Final = 0.5
#: a gradient below this share of the greatest is as good as gone
GONE: Final = 0.01
#: sizes of the gradient that comes in
SIZES: Final = (0.01, 1.0, 100.0)
#: learning rates of Adam; each variant is judged by its best
RATES: Final = (0.001, 0.003, 0.01, 0.03)
TASKS: Final = ("find", "average")

#: the standard deviation of a sum of d products of unit variance grows as the root of d
ROOT: Final = 0.5
#: how far from it the fitted exponent may lie
NEAR: Final = 0.02
#: the scale keeps a gradient level if its extremes over all widths differ by less than this
LEVEL: Final = 1.5
#: a typical gradient is saturated if it falls below this share of the scaled one
SATURATED: Final = 0.1
#: gains that differ by less are the same
SAME: Final = 0.01


def spread(*, seed: int, width: int, scaled: bool, queries: int, device: torch.device) -> Data:
    """Weights of random queries over random keys, and the gradient that a softmax lets through."""
    draw = torch.Generator().manual_seed(seed)
    groups = queries // GROUP
    query = torch.randn(groups, 1, GROUP, width, generator=draw, dtype=torch.float64).to(device)
    key = torch.randn(groups, 1, KEYS, width, generator=draw, dtype=torch.float64).to(device)
    _, weights = ops.dot_product_attention(
        query, key, key, scale=_scale(width, scaled), need_weights=True
    )
    assert weights is not None
    norms = jacobian_norm(weights)
    scores = query @ key.mT * _scale(width, scaled)
    return {
        "deviation": scores.std().item(),
        "entropy": torch.special.entr(weights).sum(-1).mean().item(),
        "mean": norms.mean().item(),
        "median": norms.median().item(),
        "gone": (norms < GONE * GREATEST).double().mean().item(),
    }


def jacobian_norm(weights: Tensor) -> Tensor:
    """The Frobenius norm of `diag(p) - p pᵀ`, the softmax's Jacobian, for each row p of weights."""
    squares = weights.square().sum(-1)
    return (squares - 2 * weights.pow(3).sum(-1) + squares.square()).clamp(min=0).sqrt()


def gain(*, seed: int, deviation: float, size: float, queries: int, device: torch.device) -> float:
    """How much of a gradient of a given size a softmax lets through to scores of a given spread."""
    draw = torch.Generator().manual_seed(seed)
    shape = (queries, 1, 1, KEYS)
    scores = torch.randn(shape, generator=draw, dtype=torch.float64).mul(deviation).to(device)
    comes = torch.randn(shape, generator=draw, dtype=torch.float64).to(device)
    comes = comes * (size / comes.norm(dim=-1, keepdim=True))
    scores.requires_grad_()
    (through,) = torch.autograd.grad(ops.masked_softmax(scores, None), scores, comes)
    return float((through.norm(dim=-1) / size).mean())


def train(
    *,
    task: str,
    width: int,
    scaled: bool,
    rate: float,
    seed: int,
    steps: int,
    batch: int,
    device: torch.device,
) -> float:
    """The loss of one head after training, over the last tenth of its steps.

    Every position holds a random key and a random value. `find` wants the position's own value,
    and its query is its key, turned: weights must become sharp. `average` wants the mean of all
    values: weights must become even.
    """
    draw, length, inputs, outputs = torch.Generator().manual_seed(seed), 16, 32, 8

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw).to(device)

    turn = torch.linalg.qr(normal(inputs, inputs)).Q
    project = [(normal(inputs, width) * inputs**-0.5).requires_grad_() for _ in range(2)]
    optimiser = torch.optim.Adam(project, lr=rate)
    losses = []
    for _ in range(steps):
        key, value = normal(batch, 1, length, inputs), normal(batch, 1, length, outputs)
        context, _ = ops.dot_product_attention(
            key @ turn @ project[0], key @ project[1], value, scale=_scale(width, scaled)
        )
        wanted = value if task == "find" else value.mean(-2, keepdim=True)
        loss = (context - wanted).square().mean()
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        losses.append(loss.detach())
    return torch.stack(losses[-max(1, steps // 10) :]).mean().item()


def measure(bench: Bench) -> Data:
    """All widths, with and without the scale; then what the cause is; then training."""
    queries = bench.choose(2048, 8192)
    spreads = [
        case | bench.once(f"d_k {case['width']}", spread, **case, queries=queries)
        for case in _cases(width=WIDTHS, scaled=(True, False), seed=bench.seeds)
    ]
    gains = [
        case | {"gain": bench.once("gain", gain, **case, queries=queries)}
        for case in _cases(deviation=(1.0, 8.0, 32.0), size=SIZES, seed=bench.seeds)
    ]
    steps, batch = bench.choose((100, 16), (400, 256))
    cases = _cases(
        task=TASKS,
        width=bench.choose((256,), (16, 64, 256, 1024)),
        scaled=(True, False),
        rate=RATES,
        seed=bench.seeds,
    )
    pieces = [(f"train {c['task']}", c | {"steps": steps, "batch": batch}) for c in cases]
    losses = bench.each(train, pieces)
    trained = [case | {"loss": loss} for case, loss in zip(cases, losses, strict=True)]
    return {"queries": queries, "spreads": spreads, "gains": gains, "trained": trained}


def judge(data: Data) -> list[Claim]:
    """What documents 2 and 5 give as the reason, each as it is stated."""
    return [_judge_saturation(data), _judge_effect(data), _judge_cause(data)]


def draw(data: Data) -> list[Plot]:
    """Entropy and gradient over widths."""
    figure, axes = new_figure(columns=2)
    panels = (("entropy", "entropy of the weights (nats)"), ("median", "norm of the Jacobian"))
    for at, (what, name) in zip(axes, panels, strict=True):
        for scaled, colour in ((True, COLOURS[0]), (False, COLOURS[1])):
            found = [_over_seeds(data, what, width, scaled) for width in WIDTHS]
            columns = [[getattr(one, end) for one in found] for end in ("mean", "low", "high")]
            label = "with 1/√d_k" if scaled else "without"
            line_with_band(at, WIDTHS, *columns, label=label, colour=colour)
        at.set_xscale("log", base=2)
        at.set_xlabel("width d_k")
        at.set_ylabel(name)
    means = [_over_seeds(data, "mean", width, False).mean for width in WIDTHS]
    axes[1].plot(WIDTHS, means, ":", color=COLOURS[1], label="without, mean")
    axes[0].set_title("How even the weights are")
    axes[1].set_title("What the softmax lets through")
    legend(axes[1], below=True)
    caption = (
        f"Random queries over {KEYS} random keys, all entries of unit variance. Left: the entropy "
        "of the weights. Right: the norm of the softmax's Jacobian for the median query, and "
        "dotted its mean over queries. Bands: 95% over seeds."
    )
    return [Plot("widths", caption, figure)]


def tabulate(data: Data) -> list[Table]:
    """Widths, gains, and losses of trained heads."""
    return [_table_of_widths(data), _table_of_gains(data), _table_of_training(data)]


def _scale(width: int, scaled: bool) -> float:
    return width**-0.5 if scaled else 1.0


def _cases(**lists: Sequence[Any]) -> list[dict[str, Any]]:
    """Every combination."""
    cases: list[dict[str, Any]] = [{}]
    for name, values in lists.items():
        cases = [case | {name: value} for case in cases for value in values]
    return cases


def _over_seeds(data: Data, what: str, width: int, scaled: bool) -> Interval:
    rows = [row for row in data["spreads"] if (row["width"], row["scaled"]) == (width, scaled)]
    return interval([row[what] for row in rows])


def _judge_saturation(data: Data) -> Claim:
    """Document 2: large products saturate the gradient."""
    law = power_law(WIDTHS, [_over_seeds(data, "deviation", d, False).mean for d in WIDTHS])
    median = {s: {d: _over_seeds(data, "median", d, s).mean for d in WIDTHS} for s in (True, False)}
    level = max(median[True].values()) / min(median[True].values())
    last, first = WIDTHS[-1], _first_saturated(median)
    usual = [_over_seeds(data, "median", USUAL, scaled) for scaled in (False, True)]
    smaller = usual[0].high < usual[1].low
    verdict: Verdict = "does not hold"
    if law.includes(ROOT, within=NEAR) and first is not None and level < LEVEL:
        verdict = "holds" if smaller else "holds with limits"
    peak = max(WIDTHS, key=median[False].__getitem__)
    begins = "at no width" if first is None else f"from d_k = {first} on"
    return Claim(
        source="document 2, section 3.2",
        text="Without the scale products get too large and the gradient saturates; the scale "
        "prevents it.",
        verdict=verdict,
        evidence=(
            f"Unscaled scores spread as d_k to the power {law}. At d_k = {last} the softmax of the "
            f"median query lets through {median[False][last]:.2g} without the scale and "
            f"{median[True][last]:.2g} with it; with it the widths differ by a factor of "
            f"{level:.2f} at most. Without, it is greatest, {median[False][peak]:.2g}, at d_k = "
            f"{peak}, and saturated (below {SATURATED:.0%} of the scaled one) {begins}. At the "
            f"usual d_k = {USUAL} it is {usual[0]} without and {usual[1]} with. "
            f"{_said_of_training(data)}"
        ),
    )


def _first_saturated(median: dict[bool, dict[int, float]]) -> int | None:
    """The smallest width from which on all are saturated."""
    first = None
    for width in reversed(WIDTHS):
        if median[False][width] >= SATURATED * median[True][width]:
            break
        first = width
    return first


def _judge_effect(data: Data) -> Claim:
    """Document 5, the half that names the effect."""
    gone = {s: [_over_seeds(data, "gone", d, s).mean for d in WIDTHS] for s in (True, False)}
    verdict: Verdict = "does not hold"
    if gone[False][-1] > 0.5:
        verdict = "holds" if max(gone[True]) <= GONE else "holds with limits"
    usual = gone[False][WIDTHS.index(USUAL)]
    return Claim(
        source="document 5, section 3.2",
        text="The scale keeps the gradient of the softmax from becoming small.",
        verdict=verdict,
        evidence=(
            f"The gradient is as good as gone for {gone[False][-1]:.0%} of the queries at d_k = "
            f"{WIDTHS[-1]} without the scale, and for {usual:.0%} at d_k = {USUAL}; with it, for "
            f"{max(gone[True]):.1%} at most, over all widths."
        ),
    )


def _judge_cause(data: Data) -> Claim:
    """Document 5, the half that names the cause."""
    one = {d: [_gain(data, d, size).mean for size in SIZES] for d in _deviations(data)}
    changed = max(max(gains) / min(gains) - 1 for gains in one.values())
    low, high = min(one), max(one)
    same = changed < SAME
    right = " The document takes the effect for the cause; document 2 names the cause." * same
    return Claim(
        source="document 5, section 3.2",
        text="It is smaller gradients that make the gradient of the softmax smaller.",
        verdict="does not hold" if same else "holds",
        evidence=(
            f"Over gradients of size {SIZES[0]:g}, {SIZES[1]:g} and {SIZES[-1]:g} the share that "
            f"comes through changes by {changed:.1%}. Over scores that spread by {low:g} "
            f"and by {high:g} it goes from {one[low][0]:.2g} to {one[high][0]:.2g}.{right}"
        ),
    )


def _deviations(data: Data) -> list[float]:
    return sorted({row["deviation"] for row in data["gains"]})


def _gain(data: Data, deviation: float, size: float) -> Interval:
    rows = [r for r in data["gains"] if (r["deviation"], r["size"]) == (deviation, size)]
    return interval([row["gain"] for row in rows])


def _best(data: Data, task: str, width: int, scaled: bool) -> tuple[float, Interval]:
    """The learning rate with the least mean loss over seeds, and that loss."""

    def losses(rate: float) -> Interval:
        wanted = {"task": task, "width": width, "scaled": scaled, "rate": rate}
        rows = [row for row in data["trained"] if wanted.items() <= row.items()]
        return interval([row["loss"] for row in rows])

    rate = min(RATES, key=lambda rate: losses(rate).mean)
    return rate, losses(rate)


def _said_of_training(data: Data) -> str:
    width = max(row["width"] for row in data["trained"])
    told = []
    for task in TASKS:
        with_, without = (_best(data, task, width, scaled)[1].mean for scaled in (True, False))
        told.append(f"{without:.2g} without and {with_:.2g} with the scale if it is to {task}")
    return f"Trained for a moment, a head of d_k = {width} ends at a loss of {', of '.join(told)}."


def _table_of_widths(data: Data) -> Table:
    columns = ("d_k", "scale", "spread of scores", "entropy", "mean norm", "median norm", "gone")
    rows = [
        (
            str(width),
            "1/√d_k" if scaled else "none",
            *(f"{_over_seeds(data, what, width, scaled).mean:.3g}" for what in columns_of),
            f"{_over_seeds(data, 'gone', width, scaled).mean:.0%}",
        )
        for width in WIDTHS
        for scaled in (True, False)
        for columns_of in [("deviation", "entropy", "mean", "median")]
    ]
    caption = (
        f"Mean over seeds of {data['queries']} queries each, over {KEYS} keys; norms are of the "
        f"softmax's Jacobian, at most {GREATEST}; gone: queries below {GONE:.0%} of that"
    )
    return Table(caption, columns, rows)


def _table_of_gains(data: Data) -> Table:
    rows = [
        (f"{deviation:g}", *(str(_gain(data, deviation, size)) for size in SIZES))
        for deviation in _deviations(data)
    ]
    columns = ("spread of scores", *(f"gradient of size {size:g}" for size in SIZES))
    return Table("Share of an incoming gradient that the softmax lets through", columns, rows)


def _table_of_training(data: Data) -> Table:
    rows = []
    for width in sorted({row["width"] for row in data["trained"]}):
        for task, scaled in ((task, scaled) for task in TASKS for scaled in (True, False)):
            rate, loss = _best(data, task, width, scaled)
            rows.append((str(width), task, "1/√d_k" if scaled else "none", f"{rate:g}", str(loss)))
    caption = "Loss of one head after training, at the best of its learning rates, 95% over seeds"
    return Table(caption, ("d_k", "task", "scale", "learning rate", "loss"), rows)


EXPERIMENT: Final = Experiment(
    name="scale",
    question="Why are scores divided by the root of their width?",
    method=(
        f"Queries and keys with entries of mean 0 and variance 1, {KEYS} keys to a query, widths "
        f"{WIDTHS[0]} to {WIDTHS[-1]}, through `ops.dot_product_attention` in float64 with and "
        "without the scale. Measured are the spread of the scores, the entropy of the weights, and "
        "the Frobenius norm of the softmax's Jacobian: what it lets through of a gradient that "
        "comes from no direction in particular. Then gradients of three sizes are sent back "
        "through `ops.masked_softmax`. Last, one head of two projections is trained with Adam to "
        "find its own value among 16, which wants sharp weights, and to average all 16, which "
        "wants even ones; the head is the same with and without the scale, and each is judged by "
        f"the best of {len(RATES)} learning rates."
    ),
    measure=measure,
    judge=judge,
    draw=draw,
    tabulate=tabulate,
)
