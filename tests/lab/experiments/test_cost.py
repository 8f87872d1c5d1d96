"""Verdicts of curves that are made up, so that what they must be is known."""

import copy
import json

import pytest

from regard.lab.context import ExperimentContext
from regard.lab.experiments import cost
from regard.lab.layers import FAMILIES

D, N, BATCH = 64, 128, 4
LENGTHS = [2**i for i in range(7, 13)]
WIDTHS = [2**i for i in range(6, 11)]
KERNELS = [1, 3, 5, 9, 17, 33]

OPERATIONS = {
    "convolution": lambda n, d, k: 2 * k * n * d * d,
    "RNN": lambda n, d, k: 2 * n * d * d,
    "self-attentive RNN": lambda n, d, k: 4 * n * d * d + d * d + d * n * (n + 1),
    "self-attention": lambda n, d, k: 4 * n * d * d + 2 * n * n * d,
    "self-attention, no matrices": lambda n, d, k: 2 * n * n * d,
}
CHAINS = {
    "convolution": lambda n: 1,
    "RNN": lambda n: n,
    "self-attentive RNN": lambda n: 4 * n - 3,
    "self-attention": lambda n: 4,
    "self-attention, no matrices": lambda n: 2,
}


def row(name, path, n, d, k):
    """A machine whose clock counts operations, and whose RNN is a hundred times slower."""
    seconds = OPERATIONS[name](n, d, k) * (1e-7 if "RNN" in name else 1e-9)
    pairs = n * n if name.startswith("self-attention") and path == "reference" else 0
    run = {"seconds": seconds, "low": seconds, "high": seconds, "runs": 3}
    run["bytes"] = 4 * BATCH * (3 * pairs + n * d)
    return {"forward": run, "training": run}


def made_up():
    counts, runs = {}, {name: {"fast": {}, "reference": {}} for name in OPERATIONS}
    for name, formula in OPERATIONS.items():
        points = {"length": [(n, D, 3) for n in LENGTHS], "width": [(N, d, 3) for d in WIDTHS]}
        if name == "convolution":
            points["kernel_size"] = [(N, D, k) for k in KERNELS]
        counts[name] = {}
        for sweep, sizes in points.items():
            told = [{"length": n, "width": d, "kernel_size": k} for n, d, k in sizes]
            counts[name][sweep] = [
                {**t, "operations": formula(*size), "chain": CHAINS[name](size[0]), "parameters": 7}
                for t, size in zip(told, sizes, strict=True)
            ]
            for path in ("fast", "reference"):
                runs[name][path][sweep] = [
                    {**t, **row(name, path, *size)} for t, size in zip(told, sizes, strict=True)
                ]
    return {
        "machine": "paper", "length": N, "width": D, "batch": BATCH, "kernel": 3,
        "counts": counts, "runs": runs,
    }  # fmt: skip


CLAIMS = ("convolution", "rnn", "attention", "looking back", "parallel", "memory", "long")


def verdicts(data):
    claims = cost.judge(json.loads(json.dumps(data)))
    return {name: claim.verdict for name, claim in zip(CLAIMS, claims, strict=True)}


def test_verdicts_on_a_machine_whose_clock_counts_operations():
    assert verdicts(made_up()) == {
        "convolution": "holds",
        "rnn": "holds",
        # the matrices' n d² is in the counts, and the table does not have it
        "attention": "holds with limits",
        "looking back": "holds with limits",
        "parallel": "holds",
        "memory": "holds with limits",
        # 2 n d (2 d + n) against 200 n d²: past n = 98 d, which no length here is; past 3 d of
        # the convolution, 6 n d² , at n = d
        "long": "holds with limits",
    }


def evidence(data, claim):
    return cost.judge(data)[CLAIMS.index(claim)].evidence


def test_evidence_names_exponents_and_where_curves_meet():
    data = made_up()
    assert "k: 1.00 [1.00, 1.00], n: 1.00 [1.00, 1.00], d: 2.00 [2.00, 2.00]" in evidence(
        data, "convolution"
    )
    # 2 n² d overtakes 4 n d² at n = 2 d, the first length
    assert "only from n = 128" in evidence(data, "attention")
    assert "n: 2.00 [2.00, 2.00], d: 1.00 [1.00, 1.00]" in evidence(data, "attention")
    assert "none: its slope goes" in evidence(data, "attention")
    assert "3.0 numbers for each pair" in evidence(data, "memory")
    assert "than the RNN not up to 4,096; than the convolution 130" in evidence(data, "long")


def changed(data, family, path, sweep, change):
    """The same data with a change to every run of a curve."""
    other = copy.deepcopy(data)
    for entry in other["runs"][family][path][sweep]:
        change(entry)
    return other


def flat(entry):
    entry["training"] = dict(entry["training"], seconds=1.0)


def test_a_clock_that_does_not_follow_limits_a_claim():
    data = changed(made_up(), "RNN", "fast", "width", flat)
    assert verdicts(data)["rnn"] == "holds with limits"
    assert "only in part" in evidence(data, "rnn")


def test_a_count_of_another_order_refutes_a_claim():
    data = made_up()
    for entry in data["counts"]["RNN"]["length"]:
        entry["operations"] = entry["length"] ** 2
    found = verdicts(data)
    assert found["rnn"] == "does not hold"
    assert found["looking back"] == "does not hold"
    assert found["convolution"] == "holds"


def test_attention_whose_every_count_is_n_squared_d_holds():
    data = made_up()
    for part in ("counts", "runs"):
        data[part]["self-attention"] = data[part]["self-attention, no matrices"]
    assert verdicts(data)["attention"] == "holds"


def test_attention_that_waits_for_each_position_is_not_parallel():
    data = made_up()
    for entry in data["counts"]["self-attention"]["length"]:
        entry["chain"] = entry["length"]
    assert verdicts(data)["parallel"] == "does not hold"


def cubic(entry):
    held = 4 * BATCH * entry["length"] ** 2 * D
    entry["training"] = dict(entry["training"], bytes=held)


def linear(entry):
    entry["training"] = dict(entry["training"], bytes=4 * BATCH * entry["length"] * D)


def test_memory_of_n_squared_d_holds_and_of_n_d_does_not():
    bare = "self-attention, no matrices"
    data = changed(made_up(), bare, "reference", "length", cubic)
    assert verdicts(changed(data, bare, "fast", "length", cubic))["memory"] == "holds"
    data = changed(made_up(), bare, "reference", "length", linear)
    assert verdicts(data)["memory"] == "does not hold"


def test_attention_that_is_always_faster_has_no_bottleneck():
    def instant(entry):
        entry["training"] = dict(entry["training"], seconds=1e-9)

    data = changed(made_up(), "self-attention", "fast", "length", instant)
    assert verdicts(data)["long"] == "does not hold"


def test_a_curve_of_too_few_sizes_has_no_exponent():
    data = made_up()
    data["runs"]["RNN"]["fast"]["width"] = data["runs"]["RNN"]["fast"]["width"][:3]
    assert "none: too few sizes" in evidence(data, "rnn")
    assert verdicts(data)["rnn"] == "holds with limits"


def test_a_readers_family_is_measured_beside_the_others(monkeypatch):
    labels = []
    monkeypatch.setattr(cost, "count_sizes", lambda **kwargs: [])
    monkeypatch.setattr(cost, "time_sizes", lambda **kwargs: [])

    class Told(ExperimentContext):
        def cached(self, label, compute, **arguments):
            labels.append(label)
            json.dumps(arguments)
            return [arguments["family"]["name"], len(arguments["sizes"])]

    import torch

    data = cost.measure(Told(torch.device("cpu")), families=FAMILIES[-2:])
    assert list(data["counts"]) == [family.name for family in FAMILIES[-2:]]
    assert data["runs"]["self-attention"]["fast"]["length"] == ["self-attention", 7]
    assert "self-attention, fast, width" in labels


@pytest.mark.parametrize("quick", [True, False])
def test_there_are_sizes_enough_for_a_fit(quick, monkeypatch):
    import torch

    class Told(ExperimentContext):
        def cached(self, label, compute, **arguments):
            assert len(arguments["sizes"]) >= 5
            return []

    cost.measure(Told(torch.device("cpu"), quick=quick))
