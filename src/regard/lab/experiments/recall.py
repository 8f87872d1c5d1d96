"""What is still known of the first tokens at the end of a sequence that grows."""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from regard.lab import learning
from regard.lab.bench import Bench
from regard.lab.bodies import (
    CausalConvolution,
    LooksBack,
    PositionedTransformer,
    looks_back_lstm,
)
from regard.lab.experiment import Claim, Data, Experiment, Plot, Table, Verdict
from regard.lab.experiments.recall_runs import TASKS, model, run
from regard.lab.families import GRU, LSTM, RNN, Family
from regard.lab.plots import COLOURS, legend, line_with_band, new_figure
from regard.lab.statistics import Interval, interval

#: a model knows what it is asked if it is right this often
KNOWS: Final = 0.9
#: it forgets if its share of right answers falls by more than this from the nearest to the farthest
FALLS: Final = 0.1
#: a gradient has vanished if less than this share of it is left
VANISHED: Final = 0.01
QUICK: Final[Data] = {
    "size": 2, "steps": 350, "batch": 64, "distances": [0, 1, 2, 4, 8, 16, 32],
}  # fmt: skip
FULL: Final[Data] = {
    "size": 4, "steps": 1500, "batch": 256, "distances": [0, 1, 2, 4, 8, 16, 32, 64, 128],
}  # fmt: skip

SELF_ATTENTIVE: Final = Family("self-attentive RNN", LooksBack)
SELF_ATTENTIVE_LSTM: Final = Family("self-attentive LSTM", looks_back_lstm)
TRANSFORMER: Final = Family("Transformer", PositionedTransformer)
CONVOLUTION: Final = Family("convolution", CausalConvolution)
FAMILIES: Final = (
    RNN, GRU, LSTM, SELF_ATTENTIVE, SELF_ATTENTIVE_LSTM, TRANSFORMER, CONVOLUTION,
)  # fmt: skip


def measure(bench: Bench, families: Sequence[Family] = FAMILIES) -> Data:
    """Every family on both tasks: the first seed chooses the learning rate, the others follow."""
    setting: Data = dict(bench.choose(QUICK, FULL))
    last = setting["distances"][-1]
    setting["farther"] = [2 * last, 4 * last]
    rates = bench.choose([0.003, 0.01], [0.001, 0.003, 0.01])
    width = bench.choose(32, 64)
    data: Data = {"setting": setting, "rates": rates, "sizes": [], "runs": []}
    data["families"] = [family.name for family in families]
    cases: list[tuple[str, Data]] = []
    for task in TASKS:
        asks = TASKS[task](setting["size"])
        count = learning.count_parameters(partial(model, TRANSFORMER.told(), asks), width)
        for family in families:
            build = partial(model, family.told(), asks)
            matched = learning.match_width(build, count, name=family.name)
            data["sizes"].append({"family": family.name, "task": task, **matched._asdict()})
            told = {"family": family.told(), "task": task, "width": matched.width}
            cases.append((f"{task}: {family.name}", told | setting))
    chosen = _chosen(bench, cases, rates)
    others = [
        (label, case | {"rate": rate, "seed": seed})
        for (label, case), (rate, _) in zip(cases, chosen, strict=True)
        for seed in bench.seeds[1:]
    ]
    first = [
        (case | {"rate": rate, "seed": bench.seeds[0]}, result)
        for (_, case), (rate, result) in zip(cases, chosen, strict=True)
    ]
    rest = zip([case for _, case in others], bench.each(run, others), strict=True)
    for case, result in [*first, *rest]:
        named = {"family": case["family"]["name"]} | {k: case[k] for k in ("task", "rate", "seed")}
        data["runs"].append(named | result)
    return data


def _chosen(
    bench: Bench, cases: Sequence[tuple[str, Data]], rates: Sequence[float]
) -> list[tuple[float, Data]]:
    """For each case the learning rate with which the first seed learns best, and its result."""
    tries = [
        (label, case | {"rate": rate, "seed": bench.seeds[0]})
        for label, case in cases
        for rate in rates
    ]
    results = bench.each(run, tries)
    found = []
    for start in range(0, len(results), len(rates)):
        tried = dict(zip(rates, results[start : start + len(rates)], strict=True))
        best = learning.best_rate({rate: one["validation"] for rate, one in tried.items()})
        found.append((best, tried[best]))
    return found


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
    kept = [name for name in names if name not in forget]
    if know := [name for name in kept if _lowest(data, name, seen=True) >= KNOWS]:
        evidence += f" Known at every distance, not lost on the way: {' and '.join(know)}."
    if never := [name for name in kept if name not in know]:
        evidence += (
            f" As low near as far, which is not forgetting but not having learned: "
            f"{' and '.join(never)}."
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
        f"{name}: {_share(_left(data, name, 'before'))} of the gradient is left before training "
        f"and {_share(_left(data, name, 'after'))} after it, and it is right in "
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


def _share(left: Interval) -> str:
    """A share that single precision may have rounded to nothing."""
    return f"{left.mean:.1e}" if left.mean else "nothing that single precision can hold"


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
        axes[place].set(title=f"{task} after noise", ylim=(0, 1.03))
        _log_distance(axes[place], distances)
    axes[0].set_ylabel("share of right answers")
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
        axes[place].set(title=f"{when} training", yscale="log")
        _log_distance(axes[place], distances)
    axes[0].set_ylabel("gradient at first / at last token")
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
    axes.set_xlim(-0.3, 1.3 * distances[-1])
    axes.minorticks_off()
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
                *(learning.percent(shares[place]) for place in (0, last, len(shares) - 1)),
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
