import json
from typing import Any

import pytest
import torch

from regard.lab.experiments import vision
from regard.lab.experiments.vision import ATTENTION, EVEN, LINEAR, build

CPU = torch.device("cpu")


def synthetic(
    attention: list[float],
    even: list[float],
    linear: list[float],
    on_ink: tuple[float, float] = (0.8, 0.8),
) -> dict[str, Any]:
    looked = [
        {"on_ink": share, "ink_area": 0.5, "maps": [[0.1, 0.2, 0.3, 0.4]]} for share in on_ink
    ]
    runs = {
        ATTENTION: [
            {"accuracy": a, "parameters": 11, **one}
            for a, one in zip(attention, looked, strict=True)
        ],
        EVEN: [{"accuracy": a, "parameters": 12} for a in even],
        LINEAR: [{"accuracy": a, "parameters": 13} for a in linear],
    }
    return {
        "set": "toys",
        "patch": 2,
        "patches": 4,
        "train_images": 5,
        "test_images": 7,
        "steps": 3,
        "batch": 2,
        "seeds": [0, 1],
        "runs": runs,
        "shown": [[[0.0, 1.0, 0.0, 0.0]] * 4],
        "shown_labels": [1],
    }


@pytest.mark.parametrize(
    ("even", "linear", "verdict"),
    [
        ([0.5, 0.51], [0.4, 0.41], "holds"),
        ([0.5, 0.51], [0.95, 0.96], "holds with limits"),
        ([0.95, 0.96], [0.95, 0.96], "does not hold"),
        # the mean is lower, but the seeds disagree too much to tell
        ([0.2, 0.99], [0.2, 0.99], "does not hold"),
    ],
)
def test_attention_is_useful_if_it_beats_what_does_without(
    even: list[float], linear: list[float], verdict: str
) -> None:
    claim = vision.judge(synthetic([0.9, 0.91], even, linear))[0]
    assert claim.verdict == verdict
    assert "90.5%" in claim.evidence


@pytest.mark.parametrize(
    ("on_ink", "verdict"),
    [
        ((0.8, 0.8), "holds"),
        ((0.52, 0.52), "holds with limits"),
        ((0.5, 0.5), "does not hold"),
        ((0.4, 0.9), "does not hold"),
    ],
)
def test_attention_picks_the_ink_if_it_gets_more_than_its_area(
    on_ink: tuple[float, float], verdict: str
) -> None:
    data = synthetic([0.9, 0.9], [0.5, 0.5], [0.5, 0.5], on_ink)
    assert vision.judge(data)[1].verdict == verdict


def test_even_mixing_has_as_many_parameters_as_attention() -> None:
    counts = [
        sum(p.numel() for p in build(name, 16, 49, 48, 2).parameters())
        for name in (ATTENTION, EVEN)
    ]
    assert abs(counts[0] - counts[1]) < 0.01 * counts[0]


def test_even_mixing_does_not_care_where_a_vector_stands() -> None:
    mixing = vision.EvenMixing(5)
    x = torch.randn(2, 3, 5)
    mixed, weights = mixing(x, x, x, None, need_weights=True)
    turned, _ = mixing(x, x, x[:, [2, 0, 1]], None, need_weights=True)
    assert weights is None
    torch.testing.assert_close(mixed, turned)
    expected = mixing.output(mixing.value(x.mean(dim=1)))
    torch.testing.assert_close(mixed[:, 1], expected)


@pytest.mark.parametrize("name", vision.MODELS)
def test_one_model_is_trained_and_judged(name: str) -> None:
    found = vision.learn(
        name=name, seed=0, data=None, images=200, steps=2, dim=8, layers=1, device=CPU
    )
    json.dumps(found, allow_nan=False)
    assert 0 <= found["accuracy"] <= 1
    assert ("maps" in found) == (name == ATTENTION)
    if name == ATTENTION:
        assert len(found["maps"]) == vision.DRAWN
        assert sum(found["maps"][0]) == pytest.approx(1, abs=1e-3)
        assert 0 < found["on_ink"] < 1


def test_a_linear_model_learns_the_digits() -> None:
    found = vision.learn(
        name=LINEAR, seed=0, data=None, images=1200, steps=60, dim=8, layers=1, device=CPU
    )
    assert found["accuracy"] > 0.7
