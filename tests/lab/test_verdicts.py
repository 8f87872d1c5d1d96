"""Verdicts on the saved results of a full run, and on the same with other outcomes.

What the results give as they are stands in docs/results/lab-report, which a test of it holds.
"""

import json

import pytest

from benchmarks.harness import RESULTS
from regard.lab import EXPERIMENTS
from regard.lab.experiments import (
    bottleneck,
    cost,
    heads,
    order,
    path,
    reading,
    recall,
    scale,
    vision,
    word_by_word,
)
from regard.lab.runner import find

HOLDS, LIMITS, FAILS = "holds", "holds with limits", "does not hold"
BARE, ATTENTION = "self-attention, no matrices", "self-attention"


def saved(name):
    return json.loads((RESULTS / "lab" / f"{name}.json").read_text())["data"]


def edit(rows, change=None, /, *, where=None, **values):
    """Set values of the rows that have others, or change these rows with a function."""
    found = [row for row in rows if (where or {}).items() <= row.items()]
    assert found
    for row in found:
        row.update(values)
        if change is not None:
            change(row)


def counts(data, family, sweep="length", **formulas):
    for row in data["counts"][family][sweep]:
        row.update({name: formula(row["length"]) for name, formula in formulas.items()})


def training(data, family, paths, what, formula, sweep="length"):
    for name in paths:
        for row in data["runs"][family][name][sweep]:
            row["training"][what] = formula(row[sweep])


def by_operations(data, family, sweeps, source=None):
    """A machine whose clock counts operations."""
    for sweep in sweeps:
        counted = data["counts"][source or family][sweep]
        runs = data["runs"][family]["fast"]
        runs[sweep] = [
            row | {"training": row["training"] | {"seconds": 1e-9 * count["operations"]}}
            for row, count in zip(runs[sweep], counted, strict=False)
        ]


def like_the_pairs(data):
    data["counts"][ATTENTION] = data["counts"][BARE]
    by_operations(data, ATTENTION, ("length", "width"))


def decay(factor=1.0, power=0.0):
    def change(*names):
        def apply(data):
            for name in names:
                data["gradients"][name] = [
                    [w * factor**d * d**-power for d in data["distances"]] for w in (0.9, 1.0, 1.1)
                ]

        return apply

    return change


RADII = [f"RNN, radius {radius:g}" for radius in path.RADII]


def long_way(name):
    def apply(data):
        edit(data["paths"][name], lambda row: row.update(path=row["length"] ** 2))

    return apply


def points(presets, values):
    def apply(data):
        for preset in presets:
            edit(data["runs"], where={"name": preset}, points=values)

    return apply


def disagreeing(data):
    points([bottleneck.FIXED], [90.0, 60, 50, 40, 30])(data)
    edit(data["runs"], where={"name": bottleneck.FIXED, "seed": 0}, points=[90.0] * 5)


def accuracy(experiment, **where):
    def to(values):
        return lambda data: edit(data["runs"], where=where, accuracy=values)

    return to


def recalled(family, *, far=1.0, beyond=1.0):
    """Accuracies of a family that is right near, and less so at the longest distance and beyond."""

    def apply(data):
        trained = len(data["setting"]["distances"]) - 1
        shares = [1.0] * trained + [far, beyond, beyond]
        edit(data["runs"], where={"family": family}, accuracy=shares)

    return apply


def rising(encodings, shares, looks="four looks"):
    def apply(data):
        for encoding in encodings:
            for count, share in zip(heads.HEADS, shares, strict=True):
                where = {"encoding": encoding, "looks": looks, "heads": count}
                edit(data["runs"], where=where, accuracy=share)

    return apply


def sentences(preset, orders, share):
    def apply(data):
        for name in orders:
            edit(data["runs"], where={"preset": preset, "order": name}, sentences=share)

    return apply


def looks_at_the_subject(times, *, unknown=(), frames=None):
    def apply(data):
        data["unknown"] = list(unknown)
        for row in data["runs"]:
            if "lecture" in row:
                row["lecture"][reading.VERB][reading.SUBJECT] = times / reading.CHOICES[row["name"]]
                if frames is not None:
                    row["verb_row"][reading.SUBJECT] = frames / reading.CHOICES[row["name"]]

    return apply


def nats(**by_name):
    def apply(data):
        for name, value in by_name.items():
            spelled = name.replace("_", " ").replace("self ", "self-")
            edit(data["runs"], where={"name": spelled}, nats=value)

    return apply


def on_ink(times):
    def change(row):
        row["on_ink"] = times[row["seed"]] * row["ink_area"]

    return lambda data: edit(data["runs"], change, where={"name": vision.ATTENTION})


def number(stage, **fields):
    def apply(data):
        for line in data["lines"]:
            for place, field in enumerate(("printed", "follows", "right"), start=2):
                if line[0] == stage and field in fields:
                    line[place] = fields[field]

    return apply


ENCODINGS = ("sinusoidal", "learned", "rotary", "relative", "ALiBi")


def mirrored(names):
    def apply(data):
        for name in names:
            edit(data["runs"], where={"encoding": name, "causal": False}, reversed=0.0)

    return apply


UNSCALED = {"scaled": False}
#: an experiment, a change of its data, and the verdict on one of its claims, by its place
CASES = [
    ("cost",
     lambda d: by_operations(d, "convolution", ("kernel_size", "length", "width")), 0, HOLDS),
    ("cost", lambda d: counts(d, "RNN", operations=lambda n: n**2), 1, FAILS),
    ("cost", lambda d: by_operations(d, "RNN", ("length", "width")), 1, HOLDS),
    ("cost", like_the_pairs, 2, HOLDS),
    ("cost", lambda d: counts(d, BARE, operations=lambda n: n), 2, FAILS),
    ("cost", lambda d: counts(d, "RNN", operations=lambda n: n**2), 3, FAILS),
    ("cost", lambda d: counts(d, ATTENTION, chain=lambda n: n), 4, FAILS),
    ("cost", lambda d: training(d, BARE, ["reference"], "bytes", lambda n: 99 * n), 5, FAILS),
    ("cost",
     lambda d: training(d, BARE, ["reference", "fast"], "bytes", lambda n: 8192 * n * n), 5, HOLDS),
    ("cost", lambda d: training(d, ATTENTION, ["fast"], "seconds", lambda n: 1e-9), 6, FAILS),
    ("path", long_way("RNN"), 0, FAILS),
    ("path", long_way(ATTENTION), 0, FAILS),
    ("path", long_way("convolution"), 0, FAILS),
    ("path", lambda d: edit(d["kernels"], path=32), 0, FAILS),
    ("path", decay(power=0.3)("self-attentive RNN"), 1, HOLDS),
    ("path", long_way("self-attentive LSTM"), 1, FAILS),
    ("path", decay(0.9)(*RADII), 2, LIMITS),
    ("path", decay()(*RADII), 2, FAILS),
    ("path", decay(power=3.0)(*RADII), 2, FAILS),
    ("scale", lambda d: edit(d["spreads"], where=UNSCALED, median=0.1), 0, FAILS),
    ("scale",
     lambda d: edit(d["spreads"], lambda r: r.update(deviation=r["width"] ** 0.3), where=UNSCALED),
     0, FAILS),
    ("scale",
     lambda d: edit(d["spreads"], where={**UNSCALED, "width": scale.USUAL}, median=0.1), 0, HOLDS),
    ("scale", lambda d: edit(d["spreads"], where=UNSCALED, gone=0.1), 1, FAILS),
    ("scale", lambda d: edit(d["spreads"], where={"scaled": True}, gone=0.1), 1, LIMITS),
    ("scale", lambda d: edit(d["gains"], lambda r: r.update(gain=r["gain"] * r["size"])), 2, HOLDS),
    ("bottleneck", points([bottleneck.FIXED], [30.0, 40, 50, 60, 70]), 0, FAILS),
    ("bottleneck", disagreeing, 0, FAILS),
    ("bottleneck", points(bottleneck.LABELS, [90.0, 80, 70, 60, 50]), 0, LIMITS),
    ("bottleneck", points(bottleneck.LABELS, [90.0, 80, 70, 60, 50]), 1, FAILS),
    ("bottleneck", points(bottleneck.WITH_ATTENTION, [90.0, 80, 70, 60, 50]), 1, LIMITS),
    ("recall", recalled("LSTM", far=0.5), 0, HOLDS),
    ("recall", recalled("RNN"), 0, FAILS),
    ("recall", recalled("LSTM", far=0.5), 1, HOLDS),
    ("recall", lambda d: edit(d["runs"], before=[1.0] * 9), 1, FAILS),
    ("recall", recalled("self-attentive LSTM", beyond=0.5), 2, LIMITS),
    ("recall", recalled("self-attentive RNN", far=0.5), 2, FAILS),
    ("recall", recalled("Transformer"), 3, HOLDS),
    ("order", lambda d: edit(d["runs"], where={"encoding": "none"}, shuffled=0.1), 0, FAILS),
    ("order", mirrored(ENCODINGS), 1, FAILS),
    ("order", lambda d: edit(d["runs"], where={"encoding": "ALiBi"}, reversed=0.1), 1, HOLDS),
    ("order", accuracy(order, encoding="none", causal=True)([0.25] * 5), 2, HOLDS),
    ("order", accuracy(order, encoding="none", causal=True)([1.0] * 5), 2, FAILS),
    ("order", accuracy(order, encoding="sinusoidal", causal=False)([1.0] * 5), 3, HOLDS),
    ("order", accuracy(order, encoding="sinusoidal", causal=False)([0.3] * 5), 3, FAILS),
    ("heads", rising(heads.ENCODINGS, [0.5, 0.7, 0.9, 0.9]), 0, HOLDS),
    ("heads", rising(heads.ENCODINGS, [0.9, 0.7, 0.9, 0.9]), 0, FAILS),
    ("word-by-word", sentences("rnn", word_by_word.REORDERING[:1], 0.9), 0, LIMITS),
    ("word-by-word", sentences("rnn", word_by_word.REORDERING, 0.9), 0, FAILS),
    ("word-by-word", sentences("rnn", word_by_word.MONOTONE[:1], 0.95), 1, LIMITS),
    ("word-by-word", sentences("rnn", word_by_word.MONOTONE, 0.95), 1, FAILS),
    ("reading", looks_at_the_subject(2.0), 0, HOLDS),
    ("reading", looks_at_the_subject(2.0, unknown=["fbi"], frames=1.0), 0, FAILS),
    ("reading", looks_at_the_subject(0.1, unknown=["fbi"], frames=2.0), 0, HOLDS),
    ("reading", nats(self_attentive_RNN=1.0), 1, LIMITS),
    ("reading", nats(self_attentive_RNN=1.0, self_attentive_LSTM=1.0), 1, HOLDS),
    ("vision", lambda d: edit(d["runs"], where={"name": vision.EVEN}, accuracy=0.99), 0, LIMITS),
    ("vision", lambda d: edit(d["runs"], accuracy=0.9), 0, FAILS),
    ("vision", on_ink([1.19, 1.2, 1.21]), 1, HOLDS),
    ("vision", on_ink([1.04, 1.05, 1.06]), 1, LIMITS),
    ("worked-example", number("score", printed=0.5, follows=0.5, right=0.5), 0, HOLDS),
    ("worked-example", number("score", printed=0.5, follows=0.5, right=0.6), 0, LIMITS),
    ("worked-example", number("weight", right=0.001), -1, FAILS),
]  # fmt: skip


@pytest.mark.sample(10)
@pytest.mark.parametrize(("name", "change", "claim", "verdict"), CASES)
def test_another_outcome_changes_the_verdict(name, change, claim, verdict):
    data = saved(name)
    change(data)
    experiment = find(name)
    assert experiment.judge(json.loads(json.dumps(data)))[claim].verdict == verdict
    experiment.tabulate(data)


def test_each_claim_has_another_outcome():
    counts = {name: len(find(name).judge(saved(name))) for name in EXPERIMENTS}
    tried = {(name, claim % counts[name]) for name, _, claim, _ in CASES}
    claims = {(name, i) for name, count in counts.items() for i in range(count)}
    assert claims - tried == {("worked-example", 1), ("worked-example", 2), ("worked-example", 3)}


def test_a_curve_of_too_few_sizes_has_no_exponent():
    data = saved("cost")
    del data["runs"]["RNN"]["fast"]["width"][3:]
    assert "d: none: too few sizes" in cost.judge(data)[1].evidence


def test_a_model_that_never_learned_has_not_forgotten():
    data = saved("recall")
    edit(data["runs"], where={"family": "RNN"}, accuracy=[0.3] * len(data["runs"][0]["accuracy"]))
    assert "not learned rather than forgotten: RNN." in recall.judge(data)[0].evidence


def test_words_that_the_text_lacks_are_drawn_with_a_question_mark():
    (plot,) = reading.draw(saved("reading") | {"unknown": ["fbi"]})
    written = {text.get_text() for text in plot.figure.axes[0].texts}
    assert any(text.startswith("fbi? ") for text in written)
