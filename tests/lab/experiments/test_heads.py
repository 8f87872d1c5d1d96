import json
from itertools import product

import pytest
import torch

from regard.lab.experiment import Data
from regard.lab.experiments import heads
from regard.lab.small_models import count_parameters

CPU = torch.device("cpu")


def made_up(several: dict[str, list[float]], single: list[float]) -> Data:
    """Right answers for 1, 2, 4, 8 heads: by encoding for four looks, one list for one look."""
    runs = []
    for encoding, looks, seed in product(heads.ENCODINGS, heads.LOOKS, (0, 1)):
        shares = single if looks == "one look" else several[encoding]
        runs += [
            {"encoding": encoding, "looks": looks, "heads": count, "seed": seed, "accuracy": share}
            for count, share in zip(heads.HEADS, shares, strict=True)
        ]
    counts = [
        {"looks": looks, "heads": count, "parameters": 1234}
        for looks, count in product(heads.LOOKS, heads.HEADS)
    ]
    setting = {"steps": 3, "batch": 5, "rate": 0.01}
    return json.loads(json.dumps({"setting": setting, "runs": runs, "counts": counts}))


RISING, LEVEL = [0.5, 0.7, 0.9, 0.9], [0.9, 0.9, 0.9, 0.9]


@pytest.mark.parametrize(
    ("rotary", "sinusoidal", "single", "verdict"),
    [
        (RISING, RISING, LEVEL, "holds"),
        (RISING, LEVEL, LEVEL, "holds with limits"),
        (RISING, RISING, [0.9, 0.9, 0.9, 0.5], "holds with limits"),
        (LEVEL, LEVEL, LEVEL, "does not hold"),
    ],
)
def test_the_verdict_follows_what_heads_gain(
    rotary: list[float], sinusoidal: list[float], single: list[float], verdict: str
):
    data = made_up({"rotary": rotary, "sinusoidal": sinusoidal}, single)
    (claim,) = heads.judge(data)
    assert claim.verdict == verdict


def test_the_evidence_has_the_numbers_and_names_a_loss():
    data = made_up({"rotary": RISING, "sinusoidal": LEVEL}, [0.9, 0.9, 0.9, 0.5])
    (claim,) = heads.judge(data)
    assert "50% with 1, 70% with 2, 90% with 4, 90% with 8 heads" in claim.evidence
    assert "gains +40% [+40%, +40%] over one head" in claim.evidence
    assert "8 heads are worse than one with rotary and sinusoidal positions" in claim.evidence


def test_a_gain_that_chance_may_have_made_is_none():
    data = made_up({"rotary": RISING, "sinusoidal": RISING}, LEVEL)
    for run in data["runs"]:
        if (run["looks"], run["heads"], run["seed"]) == ("four looks", 4, 1):
            run["accuracy"] = 0.45
    assert heads.judge(data)[0].verdict == "does not hold"


@pytest.mark.parametrize("looks", heads.LOOKS)
def test_the_number_of_heads_changes_no_count_of_parameters(looks: str):
    assert (
        len({count_parameters(heads.build, count, "rotary", looks) for count in heads.HEADS}) == 1
    )


def test_a_run_gives_a_share():
    share = heads.learn(
        heads=2, encoding="rotary", looks="four looks", rate=0.01, seed=1, steps=2, batch=3,
        device=CPU,
    )  # fmt: skip
    assert 0 <= share <= 1
