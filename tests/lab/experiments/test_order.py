import json
from dataclasses import replace
from itertools import product

import pytest
import torch

from regard.lab import ExperimentContext
from regard.lab.experiment import Data
from regard.lab.experiments import order
from regard.lab.layers import ENCODINGS

CPU = torch.device("cpu")


def made_up(**changes: dict[str, object]) -> Data:
    """Without positions and mask nothing is known, otherwise everything; unless said otherwise.

    The name of a change is an encoding, with `_causal` behind it where the mask is meant.
    """
    runs = []
    for name, causal, seed in product(ENCODINGS, (False, True), (0, 1)):
        blind = name == "none" and not causal
        run: Data = {"name": name, "causal": causal, "seed": seed}
        run |= {"shuffled": 1e-15 if blind else 0.3, "reversed": 1e-15 if blind else 0.2}
        run["accuracy"] = [0.2, 0.2] if blind else [1.0, 1.0]
        runs.append(run | changes.get(f"{name}_causal" if causal else name, {}))
    setting = {"rate": 0.005, "steps": 3, "batch": 5}
    counts = dict.fromkeys(ENCODINGS, 1234)
    data = {"setting": setting, "lengths": [16, 64], "runs": runs, "counts": counts}
    return json.loads(json.dumps(data))


def verdicts(data: Data) -> list[str]:
    return [claim.verdict for claim in order.judge(data)]


def test_a_mask_that_knows_everything_makes_positions_dispensable():
    assert verdicts(made_up()) == ["holds", "holds", "does not hold", "holds"]


def test_a_mask_that_knows_something_is_a_limit_and_one_that_knows_nothing_is_none():
    some = made_up(none_causal={"accuracy": [0.4, 0.3]})
    assert verdicts(some)[2] == "holds with limits"
    assert "the accuracy is 40% instead of 20%" in order.judge(some)[2].evidence
    assert verdicts(made_up(none_causal={"accuracy": [0.25, 0.2]}))[2] == "holds"


def test_outputs_that_move_without_positions_refute_blindness():
    assert verdicts(made_up(none={"shuffled": 0.1}))[0] == "does not hold"


def test_an_encoding_that_is_the_same_in_a_mirror_is_named():
    claim = order.judge(made_up(ALiBi={"reversed": 1e-16}))[1]
    assert claim.verdict == "holds with limits"
    assert "Not so with ALiBi (largest difference 1.0e-16)" in claim.evidence
    nobody = {name: {"reversed": 0.0} for name in ENCODINGS}
    assert verdicts(made_up(**nobody))[1] == "does not hold"


def test_sines_that_end_with_the_trained_length_hold_with_limits():
    claim = order.judge(made_up(sinusoidal={"accuracy": [1.0, 0.3]}))[3]
    assert claim.verdict == "holds with limits"
    assert "100% at 16 tokens" in claim.evidence
    assert "30% at 64" in claim.evidence
    assert "of these learned, rotary, relative and ALiBi still solve it" in claim.evidence
    assert verdicts(made_up(sinusoidal={"accuracy": [0.3, 0.3]}))[3] == "does not hold"


def test_shuffling_inputs_shuffles_outputs_only_without_positions_and_mask():
    def moved(encoding: str, causal: bool) -> dict[str, float]:
        return order.permute(encoding=encoding, causal=causal, seed=1, length=7, device=CPU)

    assert max(moved("none", False).values()) < order.SAME
    assert min(moved("none", True).values()) > order.SAME
    for name in ("sinusoidal", "learned", "rotary", "relative"):
        assert min(moved(name, False).values()) > order.SAME


def test_alibi_without_a_mask_knows_distances_but_no_direction():
    moved = order.permute(encoding="ALiBi", causal=False, seed=1, length=7, device=CPU)
    assert moved["reversed"] < order.SAME < moved["shuffled"]


def test_a_run_gives_a_share_for_each_length():
    shares = order.learn(
        encoding="learned", causal=False, seed=1, rate=0.01, steps=2, batch=3, trained_to=5,
        lengths=[5, 11], device=CPU,
    )  # fmt: skip
    assert len(shares) == 2
    assert all(0 <= share <= 1 for share in shares)


@pytest.mark.long
def test_taking_positions_away_changes_the_verdict(monkeypatch):
    run, known = order.learn, {}

    def run_once(**case):
        """The same case is trained in the same way, whatever it is called."""
        key = repr(sorted(case.items()))
        known[key] = known.get(key) or run(**case)
        return known[key]

    monkeypatch.setattr(order, "learn", run_once)
    context = replace(ExperimentContext(CPU), seeds=(0,))
    names = {"none": "none", "sinusoidal": "sinusoidal"}
    with_them = order.judge(order.measure(context, names))
    assert with_them[1].verdict == "holds"
    assert with_them[3].verdict != "does not hold"
    without = order.judge(order.measure(context, names | {"sinusoidal": "none"}))
    assert [without[place].verdict for place in (1, 3)] == ["does not hold"] * 2
