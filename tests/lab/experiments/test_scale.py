import math

import pytest
import torch

from regard.lab.context import combinations
from regard.lab.experiments import scale
from regard.lab.experiments.scale import RATES, SIZES, TASKS, WIDTHS

CPU = torch.device("cpu")


def test_the_norm_of_the_jacobian_is_that_of_torch():
    scores = torch.randn(5, 7, dtype=torch.float64) * 2
    one = torch.stack(
        [torch.autograd.functional.jacobian(lambda s: s.softmax(0), row) for row in scores]
    )
    torch.testing.assert_close(scale.jacobian_norm(scores.softmax(-1)), one.flatten(1).norm(dim=-1))


@pytest.mark.parametrize(
    ("weights", "norm"), [([1.0, 0.0], 0.0), ([0.5, 0.5], 0.5), ([0.25] * 4, math.sqrt(3) / 4)]
)
def test_the_norm_of_the_jacobian_by_hand(weights, norm):
    found = scale.jacobian_norm(torch.tensor(weights, dtype=torch.float64))
    assert found.item() == pytest.approx(norm, abs=1e-12)


def test_scores_spread_as_the_root_of_the_width_or_not_at_all():
    found = {
        scaled: scale.softmax_statistics(seed=0, width=100, scaled=scaled, queries=1600, device=CPU)
        for scaled in (True, False)
    }
    assert found[True]["deviation"] == pytest.approx(1, rel=0.03)
    assert found[False]["deviation"] == pytest.approx(10, rel=0.03)
    assert found[False]["entropy"] < 1 < found[True]["entropy"] < math.log(scale.KEYS)
    assert found[True]["gone"] == 0 < found[False]["gone"]


def test_a_gradient_s_size_changes_nothing_of_its_share():
    shares = [
        scale.gain(seed=0, deviation=2.0, size=size, queries=11, device=CPU) for size in SIZES
    ]
    assert shares == pytest.approx([shares[0]] * 3, rel=1e-9)
    # even weights over 64 keys: what is left of a gradient without its mean, divided by 64
    even = scale.gain(seed=0, deviation=1e-9, size=1.0, queries=501, device=CPU)
    assert even == pytest.approx(math.sqrt(63 / 64) / 64, rel=0.01)


@pytest.mark.parametrize("task", TASKS)
def test_a_head_learns(task):
    settings = {"task": task, "width": 32, "scaled": True, "rate": 0.01, "seed": 0, "batch": 8}
    first = scale.train_head(**settings, steps=1, device=CPU)
    assert scale.train_head(**settings, steps=40, device=CPU) < first / 2


def made(*, plain_median=lambda width: 10 / width**2, exponent=0.5, gone=0.7, gains=lambda size: 1):
    """Data of two seeds; by default such that unscaled gradients fall with the width."""
    spreads = []
    for case in combinations(width=WIDTHS, scaled=(True, False), seed=(0, 1)):
        width, jitter = case["width"], 1 + 0.001 * case["seed"]
        flat = {"deviation": 1.0, "entropy": 3.7, "mean": 0.18, "median": 0.18, "gone": 0.0}
        steep = {
            "deviation": width**exponent,
            "entropy": 1 / width,
            "mean": 0.1,
            "median": plain_median(width),
            "gone": gone,
        }
        found = flat if case["scaled"] else steep
        spreads.append(case | {name: value * jitter for name, value in found.items()})
    gained = [
        case | {"gain": gains(case["size"]) / case["deviation"]}
        for case in combinations(deviation=(1.0, 32.0), size=SIZES, seed=(0, 1))
    ]
    cases = combinations(task=TASKS, width=(256,), scaled=(True, False), rate=RATES, seed=(0, 1))
    trained = [case | {"loss": 0.25 if case["rate"] == RATES[1] else 0.5} for case in cases]
    return {"queries": 100, "spreads": spreads, "gains": gained, "trained": trained}


def verdicts(**changes):
    return [claim.verdict for claim in scale.judge(made(**changes))]


def test_a_gradient_that_falls_with_the_width_bears_document_2_out():
    assert verdicts() == ["holds", "holds", "does not hold"]


def test_one_that_is_no_smaller_at_the_usual_width_is_a_limit():
    assert verdicts(plain_median=lambda w: 0.3 if w <= 64 else 1e-4)[0] == "holds with limits"


@pytest.mark.parametrize("changes", [{"plain_median": lambda w: 0.1}, {"exponent": 0.3}])
def test_without_saturation_or_growth_document_2_does_not_hold(changes):
    assert verdicts(**changes)[0] == "does not hold"


def test_where_no_gradient_goes_the_effect_does_not_hold():
    assert verdicts(gone=0.1)[1] == "does not hold"


def test_a_share_that_grows_with_the_gradient_would_bear_document_5_out():
    assert verdicts(gains=lambda size: size)[2] == "holds"


def test_evidence_has_the_numbers():
    saturation, effect, _ = scale.judge(made())
    assert "power 0.50" in saturation.evidence
    assert "from d_k = 32 on" in saturation.evidence  # 10 / 32**2 is 5% of 0.18
    assert "0.25 without and 0.25 with the scale in the task find" in saturation.evidence
    assert "for 70% of the queries" in effect.evidence
