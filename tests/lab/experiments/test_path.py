"""Verdicts on gradients that are made up, and gradients that can be told on paper."""

import json
import math

import pytest
import torch

from regard.lab import gradient_decay as gradient_decay_module
from regard.lab.context import ExperimentContext
from regard.lab.experiments import path
from regard.lab.gradient_decay import geometric_means, gradient_decay
from regard.lab.layers import CONVOLUTION, LSTM, RNN, SELF_ATTENTION, build_seeded

CPU = torch.device("cpu")
DISTANCES = [1, 2, 4, 8, 16, 32, 63]
LENGTHS = [8, 16, 32, 64, 128]
WOBBLE = (0.9, 1.0, 1.1)


def falling(factor):
    return [[wobble * factor**d for d in DISTANCES] for wobble in WOBBLE]


def shared(power):
    return [[wobble * d**-power for d in DISTANCES] for wobble in WOBBLE]


def made_up(**gradients):
    names = {
        "RNN": falling(0.5),
        "GRU": falling(0.6),
        "LSTM": falling(0.6),
        "self-attentive RNN": shared(0.3),
        "self-attentive LSTM": shared(0.3),
        "self-attention": shared(0.0),
        "convolution": falling(0.8),
        "RNN, radius 0.5": falling(0.4),
        "RNN, radius 1": falling(0.9),
        "RNN, radius 2": falling(1.2),
        "RNN, radius 4": falling(1.5),
        path.OPEN_GATE: falling(0.99),
    } | gradients
    ways = dict.fromkeys(("RNN", "GRU", "LSTM"), lambda n: n)
    ways |= dict.fromkeys(("self-attentive RNN", "self-attentive LSTM"), lambda n: 2)
    ways |= {"self-attention": lambda n: 1, "convolution": lambda n: n // 4}
    return {
        "length": 64, "width": 8, "layers": 16, "kernel": 9, "distances": DISTANCES,
        "gradients": names, "families": list(ways),
        "paths": {name: [{"length": n, "path": way(n)} for n in LENGTHS]
                  for name, way in ways.items()},
        "kernels": [{"kernel": k, "length": 257, "path": 512 // (k - 1)}
                    for k in (9, 17, 33, 65, 129)],
    }  # fmt: skip


CLAIMS = ("longest", "looking back", "vanishing", "gates", "near")


def verdicts(data):
    claims = path.judge(json.loads(json.dumps(data)))
    return {name: claim.verdict for name, claim in zip(CLAIMS, claims, strict=True)}


def test_verdicts_where_the_documents_are_right():
    assert verdicts(made_up()) == {
        "longest": "holds",
        "looking back": "holds",
        "vanishing": "holds",
        "gates": "holds with limits",  # an open gate loses nothing
        "near": "holds",
    }


@pytest.mark.slow
def test_what_a_gradient_does_changes_the_verdict():
    assert verdicts(made_up(**{"self-attentive RNN": shared(1.0)}))["looking back"] == (
        "holds with limits"
    )
    kept = {f"RNN, radius {radius:g}": falling(0.9) for radius in path.RADII}
    assert verdicts(made_up(**kept))["vanishing"] == "holds with limits"
    level = {name: shared(0.0) for name in kept}
    assert verdicts(made_up(**level))["vanishing"] == "does not hold"
    assert verdicts(made_up(LSTM=falling(0.99)))["gates"] == "does not hold"
    assert verdicts(made_up(**{path.OPEN_GATE: falling(0.5)}))["gates"] == "holds"
    assert verdicts(made_up(RNN=falling(0.99)))["near"] == "does not hold"
    assert verdicts(made_up(**{"self-attention": falling(0.5)}))["near"] == "holds with limits"


def test_a_power_is_no_exponential():
    data = made_up(**{f"RNN, radius {radius:g}": shared(3.0) for radius in path.RADII})
    assert verdicts(data)["vanishing"] == "does not hold"


@pytest.mark.parametrize("name", ["RNN", "self-attention", "convolution"])
def test_a_way_of_another_length_changes_the_verdict(name):
    data = made_up()
    data["paths"][name] = [{"length": n, "path": n * n} for n in LENGTHS]
    assert verdicts(data)["longest"] == "does not hold"


def test_a_kernel_that_helps_nothing_changes_the_verdict():
    data = made_up()
    for row in data["kernels"]:
        row["path"] = 32
    assert verdicts(data)["longest"] == "does not hold"


def test_a_long_way_back_changes_the_verdict():
    data = made_up()
    data["paths"]["self-attentive LSTM"] = data["paths"]["RNN"]
    assert verdicts(data)["looking back"] == "does not hold"


def test_fading_of_an_exact_exponential():
    found = gradient_decay(made_up(), "RNN")
    assert found.factor.mean == pytest.approx(0.5)
    assert found.ratio.mean == pytest.approx(2.0**62)
    assert (found.near, found.far, found.kind) == (1, 63, "exponentially")


def test_fading_of_an_exact_power():
    found = gradient_decay(made_up(RNN=shared(1.5)), "RNN")
    assert found.power.mean == pytest.approx(-1.5)
    assert found.kind == "as a power"


def test_what_does_not_arrive_is_left_out():
    short = [[0.5**d if d < 20 else 0.0 for d in DISTANCES] for _ in WOBBLE]
    data = made_up(RNN=short)
    assert gradient_decay(data, "RNN").far == 16
    assert geometric_means(data, "RNN")[-1] is None
    path.draw(data)


def test_bands_are_geometric():
    found = geometric_means(made_up(), "RNN")[0]
    assert found.mean == pytest.approx(0.5 * math.prod(WOBBLE) ** (1 / 3))
    assert found.low < found.mean < found.high


def gradients(family, distances, **changes):
    arguments = {"options": {}, "radius": None, "forget": 0.0, "seed": 0, "width": 6, "length": 9}
    arguments |= changes
    return path.gradient_sizes(family=family.spec(), distances=distances, device=CPU, **arguments)


def test_gradients_of_an_rnn_shrink_with_its_radius():
    small, large = (gradients(RNN, [1, 8], radius=radius) for radius in (0.1, 1.0))
    # each of seven more steps brings at most the matrix, which is ten times smaller
    assert small[1] / small[0] == pytest.approx(large[1] / large[0] * 1e-7, rel=10)
    assert small[1] < 1e-5 * large[1]


def test_the_radius_is_what_it_says():
    layer = build_seeded(RNN.spec(), 6, 0)
    gradient_decay_module._set_radius(layer, 3.0)
    weight = layer.stack.ahead[0].weight_hh_l0
    assert torch.linalg.eigvals(weight).abs().max().item() == pytest.approx(3.0, rel=1e-5)


def test_an_open_gate_keeps_more():
    shut, opened = (gradients(LSTM, [8], forget=forget)[0] for forget in (0.0, 4.0))
    assert opened > 10 * shut


def test_the_open_gate_is_the_forget_gate():
    layer = build_seeded(LSTM.spec(), 6, 0)
    before = layer.stack.ahead[0].bias_ih_l0.detach().clone()
    gradient_decay_module._open_forget_gate(layer, 2.0)
    change = layer.stack.ahead[0].bias_ih_l0.detach() - before
    torch.testing.assert_close(change, torch.tensor([0.0] * 6 + [2.0] * 6 + [0.0] * 12))


def test_one_convolution_reaches_no_further_than_its_kernel():
    near, far = gradients(CONVOLUTION, [2, 3], options={"kernel_size": 5})
    assert near > 0
    assert far == 0


def test_the_size_is_that_of_the_jacobian():
    # over many directions the mean square of J^T v is that of J divided by the width
    width, length = 5, 4
    found = gradients(SELF_ATTENTION, [3], width=width, length=length)[0]
    layer = build_seeded(SELF_ATTENTION.spec(), width, 0).double()
    chance = torch.Generator().manual_seed(0)
    shape = (path.DIRECTIONS, length, width)
    x = torch.randn(shape, generator=chance, dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(lambda x: layer(x)[:, 3].sum(0), x)
    expected = (jacobian[:, :, 0].square().sum((0, 2)) / width).mean().sqrt().item()
    assert found == pytest.approx(expected, rel=0.35)


def test_a_readers_family_stands_among_the_others():
    class Told(ExperimentContext):
        def cached(self, label, compute, **arguments):
            json.dumps(arguments)
            return [1.0] * 7 if compute is path.gradient_sizes else 3

    data = path.measure(Told(CPU, seeds=(0, 1)), families=(RNN, SELF_ATTENTION))
    assert list(data["paths"]) == ["RNN", "self-attention", "convolution"]
    assert len(data["gradients"]["self-attention"]) == 2


def test_ways_are_counted_at_tiny_sizes():
    assert path.count_steps(family=RNN.spec(), length=4, device=CPU) == 4
    assert path.count_layers(family=CONVOLUTION.spec(), length=7, kernel=5, device=CPU) == 3
