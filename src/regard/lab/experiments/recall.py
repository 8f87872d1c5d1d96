"""Memory of the first tokens at the end of a growing sequence.

Question: Does a model still know the first tokens after many others?

Method: The task shows symbols, then noise, then asks for all symbols in order. Each model is one
layer between an embedding and a linear map, with a width that gives all the same number of
parameters within 5%. All train for the same number of steps on the same examples, at
distances drawn anew for each batch; the learning rate is the best of a grid, the same for all,
chosen on other examples with the first seed. Tested at each distance, and at two and four times the
longest.
"""

from collections.abc import Sequence
from functools import partial
from statistics import fmean
from typing import Any, Final

import torch
from torch import Generator

from regard.lab import layers
from regard.lab.context import ExperimentContext
from regard.lab.estimates import MeanInterval, at, column, first, grouped_table, listed, means
from regard.lab.experiment import Claim, Data, ReportTable, Rows, verdict
from regard.lab.layers import LSTM, RNN, Family
from regard.lab.small_models import (
    Copy,
    TokenModel,
    accuracy,
    count_parameters,
    masked_loss,
    match_width,
    seeded,
    train_on_sizes,
)

#: seed of the examples that choose a learning rate, which no reported number uses
VALIDATION: Final = 77
#: a model solves a task at this accuracy
KNOWS: Final = 0.9
#: it forgets if its accuracy falls by more than this from the nearest to the farthest distance
FALLS: Final = 0.1
#: a gradient has vanished if less than this share of it is left
VANISHED: Final = 0.01
#: number of symbols shown, width of the Transformer, distances of training, learning rates
QUICK: Final[Data] = {
    "size": 2, "width": 32, "distances": [0, 1, 2, 4, 8, 16, 32], "rates": [0.003, 0.01],
    "steps": 350, "batch": 64,
}  # fmt: skip
FULL: Final[Data] = {
    "size": 4, "width": 64, "distances": [0, 1, 2, 4, 8, 16, 32, 64, 128],
    "rates": [0.001, 0.003, 0.01], "steps": 1500, "batch": 256,
}  # fmt: skip

SELF_ATTENTIVE: Final = layers.SELF_ATTENTIVE.with_options(projected=True)
SELF_ATTENTIVE_LSTM: Final = layers.SELF_ATTENTIVE_LSTM.with_options(projected=True)
TRANSFORMER: Final = Family("Transformer", layers.transformer)
FAMILIES: Final = (RNN, LSTM, SELF_ATTENTIVE, SELF_ATTENTIVE_LSTM, TRANSFORMER)
#: name of the task in the rows of a result
TASK: Final = "copy"


def build(family: Family, task: Copy, width: int) -> TokenModel:
    """Build a family's layer between an embedding and a linear map."""
    return TokenModel(task.vocab, task.classes, width, layers.build(family, width))


def learn(
    *,
    family: Family,
    size: int,
    width: int,
    seed: int,
    distances: Sequence[int],
    farther: Sequence[int],
    device: torch.device,
    **budget: Any,
) -> Data:
    """Train at random distances; return accuracies and gradients at those and farther ones."""
    asked = Copy(size)
    model = seeded(seed, build, family, asked, width).to(device)
    before = [gradient_left(model, asked, distance, device) for distance in distances]
    train_on_sizes(model, asked, distances, seed=seed, device=device, **budget)
    right = partial(accuracy, model, asked, device=device)
    return {
        "accuracy": [right(distance, seed=seed) for distance in [*distances, *farther]],
        "validation": fmean(right(distance, seed=VALIDATION) for distance in distances),
        "before": before,
        "after": [gradient_left(model, asked, distance, device) for distance in distances],
    }


def gradient_left(model: TokenModel, task: Copy, distance: int, device: torch.device) -> float:
    """Return the loss gradient at the first token, as a share of that at the last token."""
    batch = task.draw(64, distance, Generator().manual_seed(VALIDATION)).to(device)
    model.train()  # cuDNN has no gradient of an RNN in eval mode; the models have no dropout
    vectors = model.embedding(batch.inputs[0]).detach().requires_grad_()
    loss = masked_loss(model.from_vectors(vectors)[:, -1:], batch.targets[:, -1:])
    (gradient,) = torch.autograd.grad(loss, vectors)
    first, last = (gradient[:, place].norm(dim=-1).mean() for place in (0, -1))
    return float(first / last.clamp(min=torch.finfo(last.dtype).tiny))


def measure(context: ExperimentContext, families: Sequence[Family] = FAMILIES) -> Data:
    """Train every family; the first seed chooses the learning rate of the others."""
    setting = dict(context.choose(QUICK, FULL))
    width, rates, last = setting.pop("width"), setting.pop("rates"), setting["distances"][-1]
    setting["farther"] = [2 * last, 4 * last]
    data: Data = {"setting": setting, "rates": rates, "sizes": [], "runs": []}
    data["families"] = [family.name for family in families]
    asked = Copy(setting["size"])
    count = count_parameters(build, TRANSFORMER, asked, width)
    for family in families:
        named = {"family": family.name, "task": TASK}
        matched = match_width(partial(build, family, asked), count, name=family.name)
        data["sizes"].append({**named, **matched._asdict()})
        case = {"family": family, "width": matched.width, **setting}
        run = partial(context.grid, family.name, learn, **case)
        tried = run(axes={"rate": rates, "seed": context.seeds[:1]})
        best = max(tried, key=lambda row: float(row["validation"]))
        rows = [best, *run(axes={"rate": [best["rate"]], "seed": context.seeds[1:]})]
        data["runs"] += [{**named, **row} for row in rows]
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
    shares = {name: _shares(data, name) for name in names}
    falls = [name for name in names if shares[name][0].mean - shares[name][last].mean > FALLS]
    ends = "; ".join(
        f"{name} {found[0].mean:.0%} and {found[last].mean:.0%}" for name, found in shares.items()
    )
    learned = [name for name in names if _lowest(data, name) >= KNOWS]
    never = [name for name in names if name not in falls + learned]
    return Claim(
        "document 1, section 1",
        "RNNs, plain and LSTM, lose early information as the sequence grows.",
        verdict(falls, len(falls) == len(names)),
        f"Accuracy at the shortest and the longest distance of training: {ends}. Forgotten: "
        f"{listed(falls)}. Solved at every distance: {listed(learned)}. As low near as far, which "
        f"means not learned rather than forgotten: {listed(never)}.",
    )


def _vanishing(data: Data, names: list[str]) -> Claim:
    def left(name: str, when: str) -> float:
        """Return the share of the gradient at the longest distance."""
        return fmean(run[-1] for run in column(_runs(data), when, family=name))

    fail = [name for name in names if _lowest(data, name) < KNOWS]
    gone = [name for name in names if left(name, "before") < VANISHED]
    both = [name for name in fail if name in gone]
    each = "; ".join(
        f"{name}: {left(name, 'before'):.1e} of the gradient is left before training and "
        f"{left(name, 'after'):.1e} after it, at an accuracy of {_lowest(data, name):.0%}"
        for name in names
    )
    return Claim(
        "document 2, section 1.1; document 5, section 1",
        "RNN and LSTM cannot hold long-range dependencies, because gradients vanish or explode.",
        verdict(both, len(both) == len(names)),
        f"Over {data['setting']['distances'][-1]} tokens of noise, {each}. Vanished, and learned "
        f"all the same: {listed([name for name in gone if name not in fail])}.",
    )


def _attending(data: Data, source: str, text: str, names: list[str]) -> Claim:
    seen = [_lowest(data, name) for name in names]
    beyond = [_lowest(data, name, beyond=True) for name in names]
    longest, farthest = data["setting"]["distances"][-1], data["setting"]["farther"][-1]
    evidence = "; ".join(
        f"{name}: lowest accuracy {near:.0%} up to {longest} tokens of noise as in training, "
        f"{far:.0%} beyond, up to {farthest}"
        for name, near, far in zip(names, seen, beyond, strict=True)
    )
    return Claim(source, text, verdict(min(seen) >= KNOWS, min(beyond) >= KNOWS), f"{evidence}.")


def _runs(data: Data) -> Rows:
    """Return the runs of the task: results of earlier versions also have those of another."""
    return [run for run in data["runs"] if run["task"] == TASK]


def _shares(data: Data, name: str) -> list[MeanInterval]:
    """Return the accuracy at each distance, over seeds."""
    return means(_runs(data), "accuracy", family=name)


def _lowest(data: Data, name: str, *, beyond: bool = False) -> float:
    """Return the lowest mean accuracy, at training distances or beyond."""
    trained = len(data["setting"]["distances"])
    part = slice(trained, None) if beyond else slice(trained)
    return min(share.mean for share in _shares(data, name)[part])


def tabulate(data: Data) -> list[ReportTable]:
    """Tabulate the size of each model and its accuracy near and far."""
    setting = data["setting"]
    trained, farther = setting["distances"], setting["farther"]
    sizes = {size["family"]: size for size in data["sizes"] if size["task"] == TASK}
    columns = {
        "model": first("family"),
        "width": lambda group: str(sizes[group[0]["family"]]["width"]),
        "parameters": lambda group: f"{sizes[group[0]['family']]['parameters']:,}",
        "rate": first("rate", "g"),
    }
    for place, distance in ((0, trained[0]), (len(trained) - 1, trained[-1]), (-1, farther[-1])):
        columns[f"accuracy at {distance}"] = at("accuracy", place)
    caption = (
        f"{setting['steps']} steps of {setting['batch']} examples each. The accuracy at "
        f"{farther[-1]} tokens is beyond all distances of training."
    )
    return [grouped_table(caption, _runs(data), ("family",), columns)]
