"""Memory of the first tokens at the end of a growing sequence.

Question: Does a model still know the first tokens after many others?

Method: Two tasks: recall shows pairs of a key and a value, then noise, then asks for the value of
one key; copy shows symbols, then noise, then asks for all of them in order. Each model is one layer
between an embedding and a linear map (the convolution has three), with a width that gives all the
same number of parameters within 5%. All train for the same number of steps on the same examples, at
distances drawn anew for each batch; the learning rate is the best of a grid, the same for all,
chosen on other examples with the first seed. Tested at each distance, and at two and four times the
longest.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import Generator

from regard.lab import layers
from regard.lab.context import ExperimentContext, MeanInterval, intervals, percent
from regard.lab.experiment import Claim, Data, Plot, ReportTable, column, verdict
from regard.lab.layers import (
    GRU,
    LSTM,
    RNN,
    CausalConvolution,
    Family,
    PositionedTransformer,
    SelfAttentiveLayer,
)
from regard.lab.plots import CHANCE, SHARE, draw_lines, legend, new_figure
from regard.lab.small_models import (
    Copy,
    Recall,
    TaskBatch,
    TokenModel,
    accuracy,
    count_parameters,
    masked_loss,
    match_width,
    seeded,
    train,
)

#: test examples per distance and seed
EXAMPLES: Final = 256
#: seed of the examples that choose a learning rate, which no reported number uses
VALIDATION: Final = 77
#: a model solves a task at this accuracy
KNOWS: Final = 0.9
#: it forgets if its accuracy falls by more than this from the nearest to the farthest distance
FALLS: Final = 0.1
#: a gradient has vanished if less than this share of it is left
VANISHED: Final = 0.01
QUICK: Final[Data] = {
    "size": 2, "steps": 350, "batch": 64, "distances": [0, 1, 2, 4, 8, 16, 32],
}  # fmt: skip
FULL: Final[Data] = {
    "size": 4, "steps": 1500, "batch": 256, "distances": [0, 1, 2, 4, 8, 16, 32, 64, 128],
}  # fmt: skip

SELF_ATTENTIVE: Final = Family("self-attentive RNN", SelfAttentiveLayer, {"projected": True})
SELF_ATTENTIVE_LSTM: Final = Family(
    "self-attentive LSTM", SelfAttentiveLayer, {"cell": "lstm", "projected": True}
)
TRANSFORMER: Final = Family("Transformer", PositionedTransformer)
CONVOLUTION: Final = Family("convolution", CausalConvolution)
FAMILIES: Final = (
    RNN, GRU, LSTM, SELF_ATTENTIVE, SELF_ATTENTIVE_LSTM, TRANSFORMER, CONVOLUTION,
)  # fmt: skip
TASKS: Final[dict[str, Callable[[int], Recall | Copy]]] = {
    "recall": lambda size: Recall(size, 2 * size, 2 * size, 2 * size),
    "copy": lambda size: Copy(size, 2 * size, 2 * size),
}


def build(family: Family, task: Recall | Copy, width: int) -> TokenModel:
    """Build a family's layer between an embedding and a linear map."""
    return TokenModel(task.vocab, task.classes, width, layers.build(family, width))


def learn(
    *,
    family: Family,
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
    """Train at random distances; return accuracies and gradients at those and farther ones."""
    asked = TASKS[task](size)
    model = seeded(seed, build, family, asked, width).to(device)
    before = [gradient_left(model, asked, distance, device) for distance in distances]

    def draw(generator: Generator) -> TaskBatch:
        place = int(torch.randint(len(distances), (1,), generator=generator))
        return asked.draw(batch, distances[place], generator)

    def test(distance: int, examples: int) -> float:
        draw = partial(asked.draw, EXAMPLES, distance)
        return accuracy(model, draw, seed=examples, device=device)

    train(model, draw, steps=steps, lr=rate, seed=seed, device=device)
    return {
        "accuracy": [test(distance, seed) for distance in [*distances, *farther]],
        "validation": sum(test(d, VALIDATION) for d in distances) / len(distances),
        "before": before,
        "after": [gradient_left(model, asked, distance, device) for distance in distances],
    }


def gradient_left(
    model: TokenModel, task: Recall | Copy, distance: int, device: torch.device
) -> float:
    """Return the loss gradient at the first token, as a share of that at the last token."""
    batch = task.draw(64, distance, Generator().manual_seed(VALIDATION)).to(device)
    model.train()  # cuDNN has no gradient of an RNN in eval mode; the models have no dropout
    vectors = model.embedding(batch.inputs[0]).detach().requires_grad_()
    loss = masked_loss(model.from_vectors(vectors)[:, -1:], batch.targets[:, -1:])
    (gradient,) = torch.autograd.grad(loss, vectors)
    first, last = (gradient[:, place].norm(dim=-1).mean() for place in (0, -1))
    return float(first / last.clamp(min=torch.finfo(last.dtype).tiny))


def measure(context: ExperimentContext, families: Sequence[Family] = FAMILIES) -> Data:
    """Train every family on both tasks; the first seed chooses the learning rate of the others."""
    setting: Data = dict(context.choose(QUICK, FULL))
    last = setting["distances"][-1]
    setting["farther"] = [2 * last, 4 * last]
    rates = context.choose([0.003, 0.01], [0.001, 0.003, 0.01])
    width = context.choose(32, 64)
    data: Data = {"setting": setting, "rates": rates, "sizes": [], "runs": []}
    data["families"] = [family.name for family in families]
    cases: list[tuple[str, Data]] = []
    for task in TASKS:
        asked = TASKS[task](setting["size"])
        count = count_parameters(build, TRANSFORMER, asked, width)
        for family in families:
            matched = match_width(partial(build, family, asked), count, name=family.name)
            data["sizes"].append({"family": family.name, "task": task, **matched._asdict()})
            sized = {"family": family, "task": task, "width": matched.width}
            cases.append((f"{task}: {family.name}", sized | setting))
    tries = [
        (label, case | {"rate": rate, "seed": context.seeds[0]})
        for label, case in cases
        for rate in rates
    ]
    results = context.map(learn, tries)
    tried = [(case, result) for (_, case), result in zip(tries, results, strict=True)]
    runs = [  # of the first seed, at the best rate of each case
        max(tried[start : start + len(rates)], key=lambda one: float(one[1]["validation"]))
        for start in range(0, len(tried), len(rates))
    ]
    others = [
        (label, case | {"seed": seed})
        for (label, _), (case, _) in zip(cases, runs, strict=True)
        for seed in context.seeds[1:]
    ]
    rest = [case for _, case in others]
    runs += zip(rest, context.map(learn, others), strict=True)
    for case, result in runs:
        named = {"family": case["family"].name} | {k: case[k] for k in ("task", "rate", "seed")}
        data["runs"].append(named | result)
    return data


def judge(data: Data) -> list[Claim]:
    """Judge the claims about forgetting, its cause, and attention to the past."""
    claims = []
    plain = [name for name in (RNN.name, LSTM.name) if name in data["families"]]
    if plain:
        claims += [_forgetting(data, plain), _vanishing(data, plain)]
    for source, text, names in (
        (
            "document 1, section 1",
            "With self-attention an RNN can look at step 1 however long the sequence is.",
            [SELF_ATTENTIVE.name, SELF_ATTENTIVE_LSTM.name],
        ),
        (
            "document 3, section 1; document 5, section 1",
            "Self-attention connects any two positions and so solves long-range dependencies.",
            [TRANSFORMER.name],
        ),
    ):
        if present := [name for name in names if name in data["families"]]:
            claims.append(_attending(data, source, text, present))
    return claims


def _forgetting(data: Data, names: list[str]) -> Claim:
    last = len(data["setting"]["distances"]) - 1
    ends = {
        name: {task: [_shares(data, name, task)[i].mean for i in (0, last)] for task in TASKS}
        for name in names
    }
    falls = {name: max(near - far for near, far in ends[name].values()) for name in names}
    forget = [name for name in names if falls[name] > FALLS]
    listed = "; ".join(
        f"{name}: "
        + ", ".join(f"{near:.0%} and {far:.0%} ({task})" for task, (near, far) in by_task.items())
        for name, by_task in ends.items()
    )
    evidence = f"Accuracy at the shortest and the longest distance of training: {listed}."
    kept = [name for name in names if name not in forget]
    if know := [name for name in kept if _lowest(data, name, seen=True) >= KNOWS]:
        evidence += f" Solved at every distance, nothing forgotten: {' and '.join(know)}."
    if never := [name for name in kept if name not in know]:
        evidence += (
            f" As low near as far, which means not learned rather than forgotten: "
            f"{' and '.join(never)}."
        )
    return Claim(
        "document 1, section 1",
        "RNNs, plain and LSTM, lose early information as the sequence grows.",
        verdict(forget, len(forget) == len(names)),
        evidence,
    )


def _vanishing(data: Data, names: list[str]) -> Claim:
    longest = data["setting"]["distances"][-1]
    fail = [name for name in names if _lowest(data, name, seen=True) < KNOWS]
    gone = [name for name in names if _left(data, name, "before") < VANISHED]
    both = [name for name in fail if name in gone]
    listed = "; ".join(
        f"{name}: {_share(_left(data, name, 'before'))} of the gradient is left before training "
        f"and {_share(_left(data, name, 'after'))} after it, at an accuracy of "
        f"{_lowest(data, name, seen=True):.0%}"
        for name in names
    )
    evidence = f"Over {longest} tokens of noise, on its worse task, {listed}."
    if unexplained := [name for name in gone if name not in fail]:
        evidence += (
            f" The gradient of {' and '.join(unexplained)} vanishes at the start and training "
            "succeeds all the same: a small gradient slows learning, it does not prevent it."
        )
    return Claim(
        "document 2, section 1.1; document 5, section 1",
        "RNN and LSTM cannot hold long-range dependencies, because gradients vanish or explode.",
        verdict(both, len(both) == len(names)),
        evidence,
    )


def _attending(data: Data, source: str, text: str, names: list[str]) -> Claim:
    seen = [_lowest(data, name, seen=True) for name in names]
    beyond = [_lowest(data, name, seen=False) for name in names]
    longest, farthest = data["setting"]["distances"][-1], data["setting"]["farther"][-1]
    listed = "; ".join(
        f"{name}: lowest accuracy {near:.0%} up to {longest} tokens of noise as in training, "
        f"{far:.0%} beyond, up to {farthest}"
        for name, near, far in zip(names, seen, beyond, strict=True)
    )
    found = verdict(min(seen) >= KNOWS, min(beyond) >= KNOWS)
    evidence = f"{listed[0].upper()}{listed[1:]}."
    if found == "holds with limits":
        evidence += " What can be reached must also be found: beyond training distances it is not."
    return Claim(source, text, found, evidence)


def _shares(data: Data, name: str, task: str) -> list[MeanInterval]:
    """Return the accuracy at each distance, over seeds."""
    return intervals(column(data["runs"], "accuracy", family=name, task=task))


def _lowest(data: Data, name: str, *, seen: bool) -> float:
    """Return the lowest mean accuracy over both tasks, at training distances or beyond."""
    trained = len(data["setting"]["distances"])
    part = slice(None, trained) if seen else slice(trained, None)
    return min(share.mean for task in TASKS for share in _shares(data, name, task)[part])


def _left(data: Data, name: str, when: str) -> float:
    """Return the share of the gradient at the longest distance, the smaller of both tasks."""
    by_task = (column(data["runs"], when, family=name, task=task) for task in TASKS)
    return min(intervals(runs)[-1].mean for runs in by_task)


def _share(left: float) -> str:
    """Format a share that single precision may have rounded to zero."""
    return f"{left:.1e}" if left else "nothing that single precision can hold"


def draw(data: Data) -> list[Plot]:
    """Draw accuracies over the distance for both tasks, and gradients over the distance."""
    return [_accuracy_plot(data), _gradient_plot(data)]


def _accuracy_plot(data: Data) -> Plot:
    setting = data["setting"]
    distances = [*setting["distances"], *setting["farther"]]
    figure, axes = new_figure(columns=2)
    for panel, task in zip(axes, TASKS, strict=True):
        lines = {name: _shares(data, name, task) for name in data["families"]}
        title = f"{task} after noise"
        draw_lines(panel, distances, lines, bounds=SHARE, title=title, ylim=(0, 1.03))
        panel.axhline(1 / TASKS[task](setting["size"]).classes, **CHANCE)
        panel.axvline(setting["distances"][-1], color="#6b7280", linestyle="--")
        _log_distance(panel, distances)
    axes[0].set_ylabel("accuracy")
    legend(axes[1])
    caption = (
        "Accuracy over the number of noise tokens between what is shown and what is asked, with "
        "95% intervals over seeds. Left of the dashed line are the distances of training; the "
        "dotted line is chance."
    )
    return Plot("recall", caption, figure)


def _gradient_plot(data: Data) -> Plot:
    distances = data["setting"]["distances"]
    figure, axes = new_figure(columns=2)
    for panel, when in zip(axes, ("before", "after"), strict=True):
        lines = {}
        for name in data["families"]:
            found = intervals(column(data["runs"], when, family=name, task="recall"))
            lines[name] = [share.mean if share.mean > 0 else None for share in found]
        draw_lines(panel, distances, lines, title=f"{when} training", yscale="log")
        _log_distance(panel, distances)
    axes[0].set_ylabel("gradient at first / at last token")
    legend(axes[1])
    caption = (
        "Recall: the gradient of the answer's loss at the first token, as a share of that at the "
        "last, before and after training. Where it is zero, nothing is drawn."
    )
    return Plot("recall-gradient", caption, figure)


def _log_distance(axes: Any, distances: list[int]) -> None:
    ticks = distances[:1] + distances[1::2]
    axes.set_xscale("symlog", base=2, linthresh=1)
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.set_xlim(-0.3, 1.3 * distances[-1])
    axes.minorticks_off()
    axes.set_xlabel("distance [tokens of noise]")


def tabulate(data: Data) -> list[ReportTable]:
    """Tabulate the size of each model and its accuracy near and far."""
    setting, rows = data["setting"], []
    places = (0, len(setting["distances"]) - 1, -1)
    for size in data["sizes"]:
        name, task = size["family"], size["task"]
        shares = _shares(data, name, task)
        rate = column(data["runs"], "rate", family=name, task=task)[0]
        sizes = [str(size["width"]), f"{size['parameters']:,}", f"{rate:g}"]
        rows.append([task, name, *sizes, *(percent(shares[place]) for place in places)])
    distances = (setting["distances"][0], setting["distances"][-1], setting["farther"][-1])
    caption = (
        f"{setting['steps']} steps of {setting['batch']} examples each. The accuracy at "
        f"{distances[2]} tokens is beyond all distances of training."
    )
    columns = ["task", "model", "width", "parameters", "rate"]
    return [ReportTable(caption, [*columns, *(f"accuracy at {d}" for d in distances)], rows)]
