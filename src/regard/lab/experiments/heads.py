"""Effect of the number of heads at equal width and parameter count.

Question: What do many heads gain at the same number of parameters?

Method: One causal Transformer layer of width {WIDTH} with 1, 2, 4 or 8 heads, which have the same
number of parameters. Every position is asked for the token two places before it (one look), or for
the four tokens before it, in order (four looks). Rotary positions and sinusoidal ones; the same
steps, examples and learning rate for all; several seeds.
"""

from functools import partial
from itertools import product
from statistics import fmean
from typing import Any, Final

import torch

from regard.lab.context import ExperimentContext
from regard.lab.estimates import column, difference, first, grouped_table, mean, percent
from regard.lab.experiment import Claim, Data, Plot, ReportTable, Rows, verdict
from regard.lab.layers import transformer
from regard.lab.plots import SHARE, curves
from regard.lab.small_models import (
    Offsets,
    TokenModel,
    accuracy,
    count_parameters,
    seeded,
    train_on_sizes,
)

HEADS: Final = (1, 2, 4, 8)
#: rotary positions reach every head and have no parameters; sinusoidal ones are the paper's
ENCODINGS: Final = ("rotary", "sinusoidal")
#: offsets that every position has to attend to
LOOKS: Final[dict[str, tuple[int, ...]]] = {"one look": (2,), "four looks": (1, 2, 3, 4)}
WIDTH: Final = 32
LENGTH: Final = 16
#: smallest difference of accuracy worth reporting; its interval must also exclude zero
GAIN: Final = 0.05


def build(heads: int, encoding: str, looks: str) -> TokenModel:
    """Build a model of one layer, since a second could make up for a missing head."""
    task = Offsets(LOOKS[looks])
    body = transformer(WIDTH, heads=heads, encoding=encoding)
    return TokenModel(task.vocab, task.vocab, WIDTH, body, answers=len(LOOKS[looks]))


def learn(
    *, heads: int, encoding: str, looks: str, seed: int, device: torch.device, **budget: Any
) -> Data:
    """Train one model and return its accuracy."""
    task, model = Offsets(LOOKS[looks]), seeded(seed, build, heads, encoding, looks)
    train_on_sizes(model, task, [LENGTH], seed=seed, device=device, **budget)
    return {"accuracy": accuracy(model, task, LENGTH, seed=seed, device=device)}


def measure(context: ExperimentContext) -> Data:
    """Train every number of heads on both tasks with both position encodings."""
    setting = context.budget((250, 32, 0.005), (2000, 256, 0.005))
    axes = {"encoding": ENCODINGS, "looks": LOOKS, "heads": HEADS, "seed": context.seeds}
    runs = context.grid("{looks}, {heads} heads", learn, axes, **setting)
    counts = [
        {"looks": looks, "heads": h, "parameters": count_parameters(build, h, ENCODINGS[0], looks)}
        for looks, h in product(LOOKS, HEADS)
    ]
    return {"setting": setting, "runs": runs, "counts": counts}


def judge(data: Data) -> list[Claim]:
    """Judge whether heads help if several positions matter at once, and only then."""
    helped, hurt, evidence = [], [], []
    for encoding in ENCODINGS:
        shares = {
            (looks, heads): column(
                data["runs"], "accuracy", encoding=encoding, looks=looks, heads=heads
            )
            for looks, heads in product(LOOKS, HEADS)
        }
        gain = difference(shares["four looks", 4], shares["four looks", 1])
        helped.append(gain.mean > GAIN and gain.low > 0)
        # where one look is enough, the largest number of heads would lose most
        loss = difference(shares["one look", HEADS[-1]], shares["one look", 1])
        hurt.append(loss.high < -GAIN)
        each = [f"{fmean(shares['four looks', heads]):.0%} with {heads}" for heads in HEADS]
        evidence.append(
            f"With {encoding} positions, the accuracy on four tokens asked at once is "
            f"{', '.join(each)} heads; one head per look gains {gain.mean:+.0%} "
            f"[{gain.low:+.0%}, {gain.high:+.0%}] over one head, and {HEADS[-1]} heads "
            f"{loss.mean:+.0%} where one look is enough."
        )
    return [
        Claim(
            "document 2, section 2.2",
            "Many heads let a model look at several positions and subspaces at once.",
            verdict(any(helped), all(helped) and not any(hurt)),
            " ".join(evidence),
        )
    ]


def draw(data: Data) -> list[Plot]:
    """Draw the accuracy over the number of heads."""
    panels = {
        f"{looks} at once": {
            kind: [
                mean(data["runs"], "accuracy", encoding=kind, looks=looks, heads=h) for h in HEADS
            ]
            for kind in ENCODINGS
        }
        for looks in LOOKS
    }
    caption = (
        f"Accuracy of one layer of width {WIDTH}, divided into more and more heads, if every "
        "position asks for one earlier token (left) and for four of them (right), with 95% "
        "intervals over seeds."
    )
    axes: dict[str, Any] = {
        "xlabel": "heads",
        "ylabel": "accuracy",
        "xscale": "log",
        "xticks": HEADS,
    }
    return [curves("heads", caption, HEADS, panels, bounds=SHARE, **axes)]


def tabulate(data: Data) -> list[ReportTable]:
    """Tabulate parameter counts and accuracies."""

    def share(encoding: str, group: Rows) -> str:
        (case,) = group
        where = {"encoding": encoding, "looks": case["looks"], "heads": case["heads"]}
        return percent(mean(data["runs"], "accuracy", **where))

    setting = data["setting"]
    caption = (
        f"{setting['steps']} steps of {setting['batch']} sequences of {LENGTH} tokens, learning "
        f"rate {setting['rate']:g}; the same parameters for every number of heads."
    )
    columns = {
        "task": first("looks"),
        "heads": first("heads"),
        "parameters": first("parameters", ","),
    }
    columns |= {f"accuracy, {kind} positions": partial(share, kind) for kind in ENCODINGS}
    return [grouped_table(caption, data["counts"], ("looks", "heads"), columns)]
