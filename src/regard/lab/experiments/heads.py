"""Effect of the number of heads at equal width and parameter count.

Question: What do many heads gain at the same number of parameters?

Method: One causal Transformer layer of width {WIDTH} with 1, 2, 4 or 8 heads, which have the same
number of parameters. Every position is asked for the token two places before it (one look), or for
the four tokens before it, in order (four looks). Rotary positions and sinusoidal ones; the same
steps, examples and learning rate for all; several seeds.
"""

from functools import partial
from itertools import product
from typing import Final

import torch

from regard.lab.context import ExperimentContext, MeanInterval, difference, interval, percent
from regard.lab.experiment import Claim, Data, Plot, ReportTable, column, verdict
from regard.lab.layers import PositionedTransformer
from regard.lab.plots import SHARE, draw_lines, legend, new_figure
from regard.lab.small_models import Offsets, TokenModel, accuracy, count_parameters, seeded, train

HEADS: Final = (1, 2, 4, 8)
#: rotary positions reach every head and have no parameters; sinusoidal ones are the paper's
ENCODINGS: Final = ("rotary", "sinusoidal")
#: offsets that every position has to attend to
LOOKS: Final[dict[str, tuple[int, ...]]] = {"one look": (2,), "four looks": (1, 2, 3, 4)}
WIDTH: Final = 32
LENGTH: Final = 16
#: smallest difference of accuracy worth reporting; its interval must also exclude zero
GAIN: Final = 0.05
EXAMPLES: Final = 512


def build(heads: int, encoding: str, looks: str) -> TokenModel:
    """Build a model of one layer, since a second could make up for a missing head."""
    task = Offsets(LOOKS[looks])
    body = PositionedTransformer(WIDTH, heads=heads, encoding=encoding)
    return TokenModel(task.vocab, task.classes, WIDTH, body, answers=len(LOOKS[looks]))


def learn(
    *,
    heads: int,
    encoding: str,
    looks: str,
    rate: float,
    seed: int,
    steps: int,
    batch: int,
    device: torch.device,
) -> dict[str, float]:
    """Train one model and return its accuracy."""
    task = Offsets(LOOKS[looks])
    model = seeded(seed, build, heads, encoding, looks)
    train(model, partial(task.draw, batch, LENGTH), steps=steps, lr=rate, seed=seed, device=device)
    test = partial(task.draw, EXAMPLES, LENGTH)
    return {"accuracy": accuracy(model, test, seed=seed, device=device)}


def measure(context: ExperimentContext) -> Data:
    """Train every number of heads on both tasks with both position encodings."""
    setting = context.choose(
        {"steps": 250, "batch": 32, "rate": 0.005}, {"steps": 2000, "batch": 256, "rate": 0.005}
    )
    axes = {"encoding": ENCODINGS, "looks": LOOKS, "heads": HEADS, "seed": context.seeds}
    runs = context.grid("{looks}, {heads} heads", learn, axes, **setting)
    counts = [
        {"looks": looks, "heads": h, "parameters": count_parameters(build, h, ENCODINGS[0], looks)}
        for looks, h in product(LOOKS, HEADS)
    ]
    return {"setting": setting, "runs": runs, "counts": counts}


def judge(data: Data) -> list[Claim]:
    """Judge whether heads help if several positions matter at once, and only then."""
    several, single = (
        {encoding: _gain(data, encoding, looks) for encoding in ENCODINGS}
        for looks in ("four looks", "one look")
    )
    helped = [e for e in ENCODINGS if several[e].mean > GAIN and several[e].low > 0]
    hurt = [e for e in ENCODINGS if single[e].high < -GAIN]
    evidence = " ".join(_sentence(data, encoding, several[encoding]) for encoding in ENCODINGS)
    if hurt:
        evidence += (
            f" Where one look is enough, {HEADS[-1]} heads are worse than one with "
            f"{' and '.join(hurt)} positions: each head is {HEADS[-1]} times narrower."
        )
    return [
        Claim(
            "document 2, section 2.2",
            "Many heads let a model look at several positions and subspaces at once.",
            verdict(helped, len(helped) == len(ENCODINGS) and not hurt),
            evidence,
        )
    ]


def _sentence(data: Data, encoding: str, gain: MeanInterval) -> str:
    shares = [
        f"{interval(_values(data, encoding, 'four looks', heads)).mean:.0%} with {heads}"
        for heads in HEADS
    ]
    return (
        f"With {encoding} positions, the accuracy on four tokens asked at once is "
        f"{', '.join(shares)} heads; one head per look gains {gain.mean:+.0%} "
        f"[{gain.low:+.0%}, {gain.high:+.0%}] over one head."
    )


def _gain(data: Data, encoding: str, looks: str) -> MeanInterval:
    """Return the gain of one head per look over a single head, by seed.

    If one look is enough, the largest number of heads is compared, which would lose most.
    """
    many = len(LOOKS[looks]) if len(LOOKS[looks]) > 1 else HEADS[-1]
    one, others = (_values(data, encoding, looks, heads) for heads in (HEADS[0], many))
    return difference(others, one)


def _values(data: Data, encoding: str, looks: str, heads: int) -> list[float]:
    return column(data["runs"], "accuracy", encoding=encoding, looks=looks, heads=heads)


def draw(data: Data) -> list[Plot]:
    """Draw the accuracy over the number of heads."""
    figure, axes = new_figure(columns=2)
    for panel, looks in zip(axes, LOOKS, strict=True):
        lines = {
            encoding: [interval(_values(data, encoding, looks, heads)) for heads in HEADS]
            for encoding in ENCODINGS
        }
        labels = {"title": f"{looks} at once", "xlabel": "heads"}
        draw_lines(panel, HEADS, lines, bounds=SHARE, base=2, ylim=(0, 1.03), **labels)
        panel.set_xticks(HEADS, [str(heads) for heads in HEADS])
    axes[0].set_ylabel("accuracy")
    legend(axes[1])
    caption = (
        f"Accuracy of one layer of width {WIDTH}, divided into more and more heads, if every "
        "position asks for one earlier token (left) and for four of them (right), with 95% "
        "intervals over seeds."
    )
    return [Plot("heads", caption, figure)]


def tabulate(data: Data) -> list[ReportTable]:
    """Tabulate parameter counts and accuracies."""
    setting, rows = data["setting"], []
    for count in data["counts"]:
        looks, heads = count["looks"], count["heads"]
        shares = [percent(interval(_values(data, kind, looks, heads))) for kind in ENCODINGS]
        rows.append([looks, f"{heads}", f"{WIDTH // heads}", f"{count['parameters']:,}", *shares])
    caption = (
        f"{setting['steps']} steps of {setting['batch']} sequences of {LENGTH} tokens, learning "
        f"rate {setting['rate']:g}; the same parameters for every number of heads."
    )
    columns = ["task", "heads", "width of a head", "parameters"]
    columns += [f"accuracy, {kind} positions" for kind in ENCODINGS]
    return [ReportTable(caption, columns, rows)]
