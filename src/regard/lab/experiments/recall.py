"""What is still known of the first tokens at the end of a sequence that grows."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Generator

from regard.lab import families, learning
from regard.lab.bench import Bench
from regard.lab.bodies import (
    CausalConvolution,
    LooksBack,
    PositionedTransformer,
    looks_back_lstm,
)
from regard.lab.experiment import Claim, Data, Experiment, Plot, Table, Verdict
from regard.lab.families import GRU, LSTM, RNN, Family
from regard.lab.plots import COLOURS, legend, line_with_band, new_figure
from regard.lab.statistics import Interval, interval
from regard.lab.tasks import Batch, Copy, Recall

#: a model knows what it is asked if it is right this often
KNOWS: Final = 0.9
#: it forgets if its share of right answers falls by more than this from the nearest to the farthest
FALLS: Final = 0.1
#: a gradient has vanished if less than this share of it is left
VANISHED: Final = 0.01
#: examples that a number in the report is made of, per distance and seed
EXAMPLES: Final = 512
#: seed of the examples that choose a learning rate, which no number in the report is made of
VALIDATION: Final = 77

QUICK: Final[Data] = {
    "size": 2, "steps": 400, "batch": 64, "distances": [0, 1, 2, 4, 8, 16, 32],
}  # fmt: skip
FULL: Final[Data] = {
    "size": 4, "steps": 1500, "batch": 256, "distances": [0, 1, 2, 4, 8, 16, 32, 64, 128],
}  # fmt: skip

TASKS: Final[dict[str, Callable[[int], Recall | Copy]]] = {
    "recall": lambda size: Recall(size, 2 * size, 2 * size, 2 * size),
    "copy": lambda size: Copy(size, 2 * size, 2 * size),
}


SELF_ATTENTIVE: Final = Family("self-attentive RNN", LooksBack)
SELF_ATTENTIVE_LSTM: Final = Family("self-attentive LSTM", looks_back_lstm)
TRANSFORMER: Final = Family("Transformer", PositionedTransformer)
CONVOLUTION: Final = Family("convolution", CausalConvolution)
FAMILIES: Final = (
    RNN, GRU, LSTM, SELF_ATTENTIVE, SELF_ATTENTIVE_LSTM, TRANSFORMER, CONVOLUTION,
)  # fmt: skip


def model(told: dict[str, str], task: Recall | Copy, width: int) -> learning.TokenModel:
    """A family's layer between an embedding and a linear map."""
    return learning.TokenModel(task.vocab, task.classes, width, families.build(told, width))


def run(
    *,
    family: dict[str, str],
    task: str,
    size: int,
    width: int,
    rate: float,
    seed: int,
    steps: int,
    batch: int,
    distances: Sequence[int],
    farther: Sequence[int],
    device: torch.device,
) -> Data:
    """One training at random distances: right answers and gradients at each, seen and farther."""
    asks = TASKS[task](size)
    learner = learning.seeded(seed, model, family, asks, width).to(device)
    before = [gradient_left(learner, asks, distance, device) for distance in distances]

    def draw(chance: Generator) -> Batch:
        place = int(torch.randint(len(distances), (1,), generator=chance))
        return asks.draw(batch, distances[place], chance)

    learning.train(learner, draw, steps=steps, lr=rate, seed=seed, device=device)

    def right(distance: int, examples: int) -> float:
        def draw(chance: Generator) -> Batch:
            return asks.draw(EXAMPLES, distance, chance)

        return learning.accuracy(learner, draw, batches=1, seed=examples, device=device)

    return {
        "accuracy": [right(distance, seed) for distance in [*distances, *farther]],
        "validation": sum(right(d, VALIDATION) for d in distances) / len(distances),
        "before": before,
        "after": [gradient_left(learner, asks, distance, device) for distance in distances],
    }


def gradient_left(
    learner: learning.TokenModel, task: Recall | Copy, distance: int, device: torch.device
) -> float:
    """The gradient of the loss at the first token, as a share of that at the last one."""
    batch = task.draw(64, distance, Generator().manual_seed(VALIDATION)).to(device)
    learner.train()  # cuDNN has no gradient of an RNN otherwise; nothing here drops anything
    vectors = learner.embedding(batch.inputs[0]).detach().requires_grad_()
    loss = learning.masked_loss(learner.read(vectors)[:, -1:], batch.targets[:, -1:])
    (gradient,) = torch.autograd.grad(loss, vectors)
    first, last = (gradient[:, place].norm(dim=-1).mean() for place in (0, -1))
    return float(first / last.clamp(min=torch.finfo(last.dtype).tiny))


def measure(bench: Bench, compared: Sequence[Family] = FAMILIES) -> Data:
    """Every family on both tasks: the first seed chooses the learning rate, the others follow."""
    setting: Data = dict(bench.choose(QUICK, FULL))
    last = setting["distances"][-1]
    setting["farther"] = [2 * last, 4 * last]
    rates = bench.choose([0.003, 0.01], [0.001, 0.003, 0.01])
    width = bench.choose(32, 64)
    data: Data = {"setting": setting, "rates": rates, "sizes": [], "runs": []}
    data["families"] = [family.name for family in compared]
    for task in TASKS:
        asks = TASKS[task](setting["size"])
        count = learning.count_parameters(partial(model, TRANSFORMER.told(), asks), width)
        for family in compared:
            build = partial(model, family.told(), asks)
            matched = learning.match_width(build, count, name=family.name)
            data["sizes"].append({"family": family.name, "task": task, **matched._asdict()})
            once = partial(
                bench.once, f"{task}: {family.name}", run,
                family=family.told(), task=task, width=matched.width, **setting,
            )  # fmt: skip
            data["runs"] += _seeds(once, rates, bench.seeds, {"family": family.name, "task": task})
    return data


def _seeds(
    once: Callable[..., Data], rates: Sequence[float], seeds: Sequence[int], named: Data
) -> list[Data]:
    tried = {rate: once(rate=rate, seed=seeds[0]) for rate in rates}
    best = learning.best_rate(rates, lambda rate: tried[rate]["validation"])
    results = [tried[best], *(once(rate=best, seed=seed) for seed in seeds[1:])]
    return [
        {**named, "rate": best, "seed": seed, **result}
        for seed, result in zip(seeds, results, strict=True)
    ]


def judge(data: Data) -> list[Claim]:
    """What is said of forgetting, of looking back, and of why."""
    claims = []
    plain = [name for name in (RNN.name, LSTM.name) if name in data["families"]]
    if plain:
        claims += [_forgetting(data, plain), _vanishing(data, plain)]
    backward = [SELF_ATTENTIVE.name, SELF_ATTENTIVE_LSTM.name]
    for source, text, names in (
        (
            "document 1, section 1",
            "With self-attention an RNN can look at step 1 however long the sequence is.",
            backward,
        ),
        (
            "document 3, section 1; document 5, section 1",
            "Self-attention ties any two positions together and so solves long-range dependencies.",
            [TRANSFORMER.name],
        ),
    ):
        if present := [name for name in names if name in data["families"]]:
            claims.append(_looking(data, source, text, present))
    return claims


def _forgetting(data: Data, names: list[str]) -> Claim:
    falls = {name: _worst_fall(data, name) for name in names}
    forget = [name for name in names if falls[name] > FALLS]
    told = "; ".join(f"{name}: {_near_and_far(data, name)}" for name in names)
    evidence = f"Right answers at the shortest and the longest distance of training: {told}."
    if len(forget) < len(names):
        keep = " and ".join(name for name in names if name not in forget)
        evidence += (
            f" {keep} loses no more than {FALLS:.0%} on the way: a share that is low is low "
            "at every distance, which is not forgetting but not having learned."
        )
    return Claim(
        "document 1, section 1",
        "RNNs, plain and LSTM, lose early information as the sequence grows.",
        _verdict(len(forget), len(names)),
        evidence,
    )


def _vanishing(data: Data, names: list[str]) -> Claim:
    longest = data["setting"]["distances"][-1]
    fail = [name for name in names if _lowest(data, name, seen=True) < KNOWS]
    gone = [name for name in names if _left(data, name, "before").mean < VANISHED]
    told = "; ".join(
        f"{name}: {_left(data, name, 'before').mean:.1e} of the gradient is left before training "
        f"and {_left(data, name, 'after').mean:.1e} after it, and it is right in "
        f"{_lowest(data, name, seen=True):.0%}"
        for name in names
    )
    evidence = f"Over {longest} tokens of noise, on its worse task, {told}."
    unexplained = [name for name in gone if name not in fail]
    if unexplained:
        evidence += (
            f" The gradient of {' and '.join(unexplained)} vanishes at the start and training "
            "succeeds all the same: a small gradient slows learning, it does not forbid it."
        )
    return Claim(
        "document 2, section 1.1; document 5, section 1",
        "RNN and LSTM cannot hold long-range dependencies, because gradients vanish or explode.",
        _verdict(len([name for name in fail if name in gone]), len(names)),
        evidence,
    )


def _looking(data: Data, source: str, text: str, names: list[str]) -> Claim:
    seen = [_lowest(data, name, seen=True) for name in names]
    beyond = [_lowest(data, name, seen=False) for name in names]
    longest, farthest = data["setting"]["distances"][-1], data["setting"]["farther"][-1]
    told = "; ".join(
        f"{name}: at worst {near:.0%} right up to {longest} tokens of noise as in training, "
        f"{far:.0%} beyond, up to {farthest}"
        for name, near, far in zip(names, seen, beyond, strict=True)
    )
    evidence = f"{told[0].upper()}{told[1:]}."
    if min(seen) < KNOWS:
        return Claim(source, text, "does not hold", evidence)
    if min(beyond) < KNOWS:
        evidence += " What can be reached must also be found: farther than in training it is not."
        return Claim(source, text, "holds with limits", evidence)
    return Claim(source, text, "holds", evidence)


def _verdict(holding: int, of: int) -> Verdict:
    if holding == of:
        return "holds"
    return "holds with limits" if holding else "does not hold"


def _shares(data: Data, name: str, task: str) -> list[Interval]:
    """Right answers at each distance, over the seeds."""
    runs = [run["accuracy"] for run in _runs(data, name, task)]
    return [interval(values) for values in zip(*runs, strict=True)]


def _runs(data: Data, name: str, task: str) -> list[Data]:
    return [run for run in data["runs"] if (run["family"], run["task"]) == (name, task)]


def _lowest(data: Data, name: str, *, seen: bool) -> float:
    """The lowest mean share over both tasks, at distances of training or beyond them."""
    trained = len(data["setting"]["distances"])
    part = slice(None, trained) if seen else slice(trained, None)
    return min(share.mean for task in TASKS for share in _shares(data, name, task)[part])


def _worst_fall(data: Data, name: str) -> float:
    last = len(data["setting"]["distances"]) - 1
    shares = [_shares(data, name, task) for task in TASKS]
    return max(share[0].mean - share[last].mean for share in shares)


def _near_and_far(data: Data, name: str) -> str:
    last = len(data["setting"]["distances"]) - 1
    return ", ".join(
        f"{_shares(data, name, task)[0].mean:.0%} and {_shares(data, name, task)[last].mean:.0%} "
        f"({task})"
        for task in TASKS
    )


def _left(data: Data, name: str, when: str) -> Interval:
    """The share of the gradient at the longest distance, where it is smaller of both tasks."""
    return min(
        (
            interval(
                [r[when][-1] for r in data["runs"] if (r["family"], r["task"]) == (name, task)]
            )
            for task in TASKS
        ),
        key=lambda share: share.mean,
    )


def draw(data: Data) -> list[Plot]:
    """Right answers over the distance, for both tasks; the gradient over the distance."""
    return [_accuracy_plot(data), _gradient_plot(data)]


def _accuracy_plot(data: Data) -> Plot:
    setting = data["setting"]
    distances = [*setting["distances"], *setting["farther"]]
    figure, axes = new_figure(columns=2)
    for place, task in enumerate(TASKS):
        for name, colour in zip(data["families"], _colours(data), strict=True):
            shares = _shares(data, name, task)
            line_with_band(
                axes[place], distances, *_columns(shares), label=name, colour=colour
            )  # fmt: skip
        chance = 1 / TASKS[task](setting["size"]).classes
        axes[place].axhline(chance, color="#6b7280", linestyle=":")
        axes[place].axvline(setting["distances"][-1], color="#6b7280", linestyle="--")
        axes[place].set(
            title=f"{task} after noise", ylim=(0, 1.03), ylabel="share of right answers"
        )
        _log_distance(axes[place], distances)
    legend(axes[1])
    caption = (
        "Right answers over the number of noise tokens between what is shown and what is asked, "
        "with 95% intervals over seeds. Left of the dashed line are the distances of training; "
        "the dotted line is chance."
    )
    return Plot("recall", caption, figure)


def _gradient_plot(data: Data) -> Plot:
    distances = data["setting"]["distances"]
    figure, axes = new_figure(columns=2)
    for place, when in enumerate(("before", "after")):
        for name, colour in zip(data["families"], _colours(data), strict=True):
            runs = [run[when] for run in _runs(data, name, "recall")]
            means = [interval(values).mean for values in zip(*runs, strict=True)]
            shown = [mean if mean > 0 else None for mean in means]
            line_with_band(axes[place], distances, shown, shown, shown, label=name, colour=colour)
        axes[place].set(
            title=f"{when} training", yscale="log", ylabel="gradient at first / at last token"
        )
        _log_distance(axes[place], distances)
    legend(axes[1])
    caption = (
        "Recall: how much of the gradient of the answer's loss arrives at the first token, as a "
        "share of that at the last, before and after training. Where it is zero, nothing is drawn."
    )
    return Plot("recall-gradient", caption, figure)


def _log_distance(axes: Any, distances: list[int]) -> None:
    axes.set_xscale("symlog", base=2, linthresh=1)
    axes.set_xticks(
        distances[:1] + distances[1::2], [str(d) for d in distances[:1] + distances[1::2]]
    )
    axes.set_xlabel("distance [tokens of noise]")


def _columns(shares: Sequence[Interval]) -> tuple[list[float], list[float], list[float]]:
    """Means and ends, which cannot lie outside of a share's range."""
    low = [max(0.0, share.low) for share in shares]
    return [share.mean for share in shares], low, [min(1.0, share.high) for share in shares]


def _colours(data: Data) -> list[str]:
    return [COLOURS[place % len(COLOURS)] for place in range(len(data["families"]))]


def tabulate(data: Data) -> list[Table]:
    """How large each model was, and how far it reached."""
    setting, rows = data["setting"], []
    for size in data["sizes"]:
        name, task = size["family"], size["task"]
        shares = _shares(data, name, task)
        last = len(setting["distances"]) - 1
        rate = _runs(data, name, task)[0]["rate"]
        rows.append(
            [
                task, name, str(size["width"]), f"{size['parameters']:,}", f"{rate:g}",
                *(str(shares[place]) for place in (0, last, len(shares) - 1)),
            ]
        )  # fmt: skip
    distances = (setting["distances"][0], setting["distances"][-1], setting["farther"][-1])
    caption = (
        f"{setting['steps']} steps of {setting['batch']} examples each. The right answers at "
        f"{distances[2]} tokens are beyond all distances of training."
    )
    columns = [
        "task", "model", "width", "parameters", "rate", *(f"right at {d}" for d in distances),
    ]  # fmt: skip
    return [Table(caption, columns, rows)]


EXPERIMENT: Final = Experiment(
    name="recall",
    question="Does a model still know the first tokens after many others?",
    method=(
        "Two tasks: recall shows pairs of a key and a value, then noise, then asks for the value "
        "of one key; copy shows symbols, then noise, then asks for all of them in order. Each "
        "model is one layer between an embedding and a linear map (the convolution has three), "
        "with a width that gives all the same number of parameters within 5%. All train for the "
        "same number of steps on the same examples, at distances drawn anew for each batch; the "
        "learning rate is the better of a grid, the same for all, chosen on other examples with "
        "the first seed. Tested at each distance, and at two and four times the longest."
    ),
    measure=measure,
    judge=judge,
    draw=draw,
    tabulate=tabulate,
)
