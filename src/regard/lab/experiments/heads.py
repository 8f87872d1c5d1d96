"""What many heads buy, at the same width and the same number of parameters."""

from functools import partial
from itertools import product
from typing import Final

import torch
from torch import Generator

from regard.lab import learning
from regard.lab.bench import Bench
from regard.lab.bodies import PositionedTransformer
from regard.lab.experiment import Claim, Data, Experiment, Plot, Table, Verdict
from regard.lab.plots import COLOURS, legend, line_with_band, new_figure
from regard.lab.statistics import Interval, interval
from regard.lab.tasks import Batch, Offsets

HEADS: Final = (1, 2, 4, 8)
#: rotary positions are told to every head and have no parameters; sinusoidal ones are the paper's
ENCODINGS: Final = ("rotary", "sinusoidal")
LOOKS: Final[dict[str, tuple[int, ...]]] = {"one look": (2,), "four looks": (1, 2, 3, 4)}
WIDTH: Final = 32
LENGTH: Final = 16
#: a difference of right answers that is worth a sentence; its interval must also exclude zero
GAIN: Final = 0.05
EXAMPLES: Final = 512


def model(heads: int, encoding: str, looks: str) -> learning.TokenModel:
    """One layer: what one look at once cannot do, a second layer would hide."""
    task = Offsets(LOOKS[looks])
    body = PositionedTransformer(WIDTH, heads=heads, encoding=encoding)
    return learning.TokenModel(task.vocab, task.classes, WIDTH, body, answers=len(LOOKS[looks]))


def run(
    *,
    heads: int,
    encoding: str,
    looks: str,
    rate: float,
    seed: int,
    steps: int,
    batch: int,
    device: torch.device,
) -> float:
    """The share of right answers after one training."""
    task = Offsets(LOOKS[looks])
    learner = learning.seeded(seed, model, heads, encoding, looks)

    def draw(chance: Generator, count: int = batch) -> Batch:
        return task.draw(count, LENGTH, chance)

    learning.train(learner, draw, steps=steps, lr=rate, seed=seed, device=device)
    test = partial(draw, count=EXAMPLES)
    return learning.accuracy(learner, test, batches=1, seed=seed, device=device)


def measure(bench: Bench) -> Data:
    """Every number of heads, on both tasks, with both kinds of positions."""
    setting = bench.choose(
        {"steps": 250, "batch": 32, "rate": 0.005}, {"steps": 2000, "batch": 256, "rate": 0.005}
    )
    cases: list[Data] = [
        {"encoding": encoding, "looks": looks, "heads": heads, "seed": seed}
        for encoding, looks, heads, seed in product(ENCODINGS, LOOKS, HEADS, bench.seeds)
    ]
    right = bench.each(
        run, [(f"{case['looks']}, {case['heads']} heads", case | setting) for case in cases]
    )
    runs = [case | {"accuracy": share} for case, share in zip(cases, right, strict=True)]
    counts = [
        {"looks": looks, "heads": heads, "parameters": _parameters(heads, looks)}
        for looks, heads in product(LOOKS, HEADS)
    ]
    return {"setting": setting, "runs": runs, "counts": counts}


def _parameters(heads: int, looks: str) -> int:
    return sum(weights.numel() for weights in model(heads, ENCODINGS[0], looks).parameters())


def judge(data: Data) -> list[Claim]:
    """Whether heads help where several places matter at once, and only there."""
    several = {encoding: _gain(data, encoding, "four looks") for encoding in ENCODINGS}
    single = {encoding: _gain(data, encoding, "one look") for encoding in ENCODINGS}
    helped = [encoding for encoding in ENCODINGS if _clear(several[encoding])]
    told = " ".join(_sentence(data, encoding, several[encoding]) for encoding in ENCODINGS)
    hurt = [encoding for encoding in ENCODINGS if single[encoding].high < -GAIN]
    if hurt:
        told += (
            f" Where one look is enough, {HEADS[-1]} heads are worse than one with "
            f"{' and '.join(hurt)} positions: each head is {HEADS[-1]} times narrower."
        )
    verdict: Verdict = "holds with limits" if helped else "does not hold"
    if len(helped) == len(ENCODINGS) and not hurt:
        verdict = "holds"
    return [
        Claim(
            "document 2, section 2.2",
            "Many heads let a model look at several positions and subspaces at once.",
            verdict,
            told,
        )
    ]


def _sentence(data: Data, encoding: str, gain: Interval) -> str:
    shares = [
        f"{_share(data, encoding, 'four looks', heads).mean:.0%} with {heads}" for heads in HEADS
    ]
    return (
        f"With {encoding} positions, of four tokens asked at once those right are "
        f"{', '.join(shares)} heads; a head for each look gains {gain.mean:+.0%} "
        f"[{gain.low:+.0%}, {gain.high:+.0%}] over one head."
    )


def _clear(gain: Interval) -> bool:
    return gain.mean > GAIN and gain.low > 0


def _gain(data: Data, encoding: str, looks: str) -> Interval:
    """What more heads gain over one, seed by seed: a head for each look, or as many as there are.

    Where one look is enough it is the largest number of heads that would lose most.
    """
    many = len(LOOKS[looks]) if len(LOOKS[looks]) > 1 else HEADS[-1]
    one, others = (_values(data, encoding, looks, heads) for heads in (HEADS[0], many))
    return interval([b - a for a, b in zip(one, others, strict=True)])


def _values(data: Data, encoding: str, looks: str, heads: int) -> list[float]:
    wanted = (encoding, looks, heads)
    return [
        run["accuracy"]
        for run in data["runs"]
        if (run["encoding"], run["looks"], run["heads"]) == wanted
    ]


def _share(data: Data, encoding: str, looks: str, heads: int) -> Interval:
    return interval(_values(data, encoding, looks, heads))


def draw(data: Data) -> list[Plot]:
    """Right answers over the number of heads."""
    figure, axes = new_figure(columns=2)
    for place, looks in enumerate(LOOKS):
        for encoding, colour in zip(ENCODINGS, COLOURS, strict=False):
            shares = [_share(data, encoding, looks, heads) for heads in HEADS]
            low, high = [max(0.0, s.low) for s in shares], [min(1.0, s.high) for s in shares]
            means = [share.mean for share in shares]
            line_with_band(axes[place], HEADS, means, low, high, label=encoding, colour=colour)
        axes[place].set(title=f"{looks} at once", ylim=(0, 1.03), xlabel="heads")
        axes[place].set_xscale("log", base=2)
        axes[place].set_xticks(HEADS, [str(heads) for heads in HEADS])
    axes[0].set_ylabel("share of right answers")
    legend(axes[1])
    caption = (
        f"Right answers of one layer of width {WIDTH}, cut into more and more heads, where every "
        "position asks for one earlier token (left) and for four of them (right), with 95% "
        "intervals over seeds."
    )
    return [Plot("heads", caption, figure)]


def tabulate(data: Data) -> list[Table]:
    """Real counts of parameters, and right answers."""
    setting = data["setting"]
    rows = [
        [
            count["looks"], str(count["heads"]), str(WIDTH // count["heads"]),
            f"{count['parameters']:,}",
            *(
                learning.percent(_share(data, kind, count["looks"], count["heads"]))
                for kind in ENCODINGS
            ),
        ]
        for count in data["counts"]
    ]  # fmt: skip
    caption = (
        f"{setting['steps']} steps of {setting['batch']} sequences of {LENGTH} tokens, learning "
        f"rate {setting['rate']:g}; the same parameters whatever the number of heads."
    )
    columns = [
        "task", "heads", "width of a head", "parameters",
        *(f"right, {kind} positions" for kind in ENCODINGS),
    ]  # fmt: skip
    return [Table(caption, columns, rows)]


EXPERIMENT: Final = Experiment(
    name="heads",
    question="What do many heads buy at the same number of parameters?",
    method=(
        f"One causal Transformer layer of width {WIDTH} with 1, 2, 4 or 8 heads, which have the "
        "same number of parameters. Every position is asked for the token two places before it "
        "(one look), or for the four tokens before it, in order (four looks). Rotary positions "
        "and sinusoidal ones; the same steps, examples and learning rate for all; several seeds."
    ),
    measure=measure,
    judge=judge,
    draw=draw,
    tabulate=tabulate,
)
