import json
from typing import Any

import pytest
import torch
from torch import Generator

from regard.lab.experiments import bottleneck
from regard.lab.experiments.bottleneck import (
    ADDITIVE,
    DOT,
    FIXED,
    LABELS,
    SELF,
    draw_batch,
    joined,
    slopes,
)
from regard.lab.synthetic_tasks import IGNORED
from regard.symbols import BOS, EOS

PAIRS = [([5], [6, 7]), ([8, 9], [4])]
STEEP, FLAT, LOW = [90.0, 60.0, 30.0], [92.0, 90.0, 88.0], [30.0, 28.0, 26.0]


def synthetic(**points: list[list[float]]) -> dict[str, Any]:
    runs = {
        preset: [
            {
                "parameters": 101,
                "width": 8,
                "shortest": [1, 11, 21],
                "longest": [9, 19, 29],
                "points": row,
                "all": sum(row) / 3,
            }
            for row in points[preset]
        ]
        for preset in LABELS
    }
    return {
        "set": "toys",
        "unit": "letters",
        "quality": "letters right (%)",
        "joined": "words",
        "parts": 3,
        "steps": 5,
        "batch": 7,
        "seeds": [0, 1],
        "runs": runs,
    }


def outcome(fixed: list[float], attention: list[float]) -> dict[str, Any]:
    near = [value + 0.5 for value in fixed]
    rows = {preset: [attention, attention] for preset in (ADDITIVE, DOT, SELF)}
    return synthetic(**rows, **{FIXED: [fixed, near]})


@pytest.mark.parametrize(
    ("fixed", "attention", "verdicts"),
    [
        (STEEP, FLAT, ["holds", "holds"]),
        # long sources are as much harder with attention
        (STEEP, [95.0, 65.0, 35.0], ["holds with limits", "holds with limits"]),
        # length costs nothing through one vector
        (FLAT[::-1], FLAT, ["does not hold", "does not hold"]),
        # attention is worse at every length
        (STEEP, LOW, ["holds", "does not hold"]),
    ],
)
def test_verdicts_follow_slopes_and_the_longest_sources(
    fixed: list[float], attention: list[float], verdicts: list[str]
) -> None:
    claims = bottleneck.judge(outcome(fixed, attention))
    assert [claim.verdict for claim in claims] == verdicts


def test_a_difference_that_the_seeds_do_not_agree_on_is_none() -> None:
    data = outcome(STEEP, FLAT)
    data["runs"][FIXED][1]["points"] = FLAT
    assert bottleneck.judge(data)[0].verdict == "does not hold"


def test_a_slope_is_told_per_ten_tokens() -> None:
    assert slopes(outcome(STEEP, FLAT), FIXED) == pytest.approx([-30, -30])
    assert "-30.0 (-30.0 to -30.0) points per 10 letters" in (
        bottleneck.judge(outcome(STEEP, FLAT))[0].evidence
    )


def test_joined_examples_keep_sources_with_their_targets() -> None:
    for source, target in joined(PAIRS, 3, 20, Generator().manual_seed(0)):
        expected, rest = [], list(source)
        while rest:
            words, said = PAIRS[0] if rest[0] == 5 else PAIRS[1]
            expected += said
            rest = rest[len(words) :]
        assert target == expected


def test_a_batch_has_bos_before_and_eos_after_the_target_and_asks_nothing_of_padding() -> None:
    (src, lengths, inputs), targets = draw_batch(PAIRS, 1, 40, Generator().manual_seed(1))
    row = int((src[:, 0] == 8).nonzero()[0])
    assert src[row].tolist() == [8, 9, EOS]
    assert int(lengths[row]) == 3
    assert inputs[row].tolist() == [BOS, 4, 0]
    assert targets[row].tolist() == [4, EOS, IGNORED]


def test_a_perfect_answer_has_100_points_and_an_empty_one_none() -> None:
    task = bottleneck.load("made up", None)
    examples = joined(task.test, 4, 10, Generator().manual_seed(0))
    right = bottleneck.scores_by_length(task, examples, [target for _, target in examples])
    assert right["all"] == 100
    assert bottleneck.scores_by_length(task, examples, [[] for _ in examples])["all"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("preset", LABELS)
def test_one_model_is_trained_at_equal_size_and_judged_by_length(preset: str) -> None:
    found = bottleneck.learn(
        name=preset, seed=0, task="made up", data=None, embed=8, hidden=48, dropout=0.0,
        parts=5, batch=6, steps=2, rate=1e-3, tests=20, device=torch.device("cpu"),
    )  # fmt: skip
    json.dumps(found, allow_nan=False)
    assert len(found["points"]) == 5
    assert sum(found["count"]) == 20
    assert found["parameters"] == pytest.approx(ADDITIVE_SIZE, rel=0.05)


# the additive model of width 48, counted by hand: two tables of 20 x 8; two GRUs of 8 -> 24, one of
# 8 + 48 -> 48; the bridge; W, U and v of the attention; the output
ADDITIVE_SIZE = (
    2 * 20 * 8
    + 2 * (3 * 24 * (8 + 24) + 6 * 24)
    + (3 * 48 * (8 + 48 + 48) + 6 * 48)
    + (48 * 48 + 48)
    + (2 * 48 * 48 + 48)
    + (96 * 20 + 20)
)
