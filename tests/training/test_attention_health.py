"""What is said of maps that were made by hand."""

import pytest
import torch

from regard.training.evaluator import attention_health, describe_attention, describe_outputs

SRC, TGT = 5, 7


def health(row, *, src=SRC, tgt=TGT, batch=3, heads=2):
    """Of maps of which `row` says where each output looks, padded by junk."""
    maps = torch.full((batch, heads, tgt + 2, src + 3), 9.0)
    for t in range(tgt):
        maps[:, :, t, :src] = row(t)
    lengths = torch.full((batch,), src), torch.full((batch,), tgt)
    return attention_health(maps, *lengths)


def one_hot(place):
    return torch.nn.functional.one_hot(torch.tensor(place), SRC).float()


DIAGONAL = health(lambda t: one_hot(t % SRC))
COLUMN = health(lambda t: one_hot(1))
LAST = health(lambda t: one_hot(SRC - 1))
EVEN = health(lambda t: torch.full((SRC,), 1 / SRC))


def test_numbers_by_hand():
    assert pytest.approx((1, 2 / 7, 1 / 7, 1 / 5)) == DIAGONAL
    assert pytest.approx((1, 1, 0, 1 / 5)) == COLUMN
    assert pytest.approx((1, 1, 1, 1 / 5)) == LAST
    assert pytest.approx((1 / 5, 1 / 5, 1 / 5, 1 / 5)) == EVEN


def test_formed():
    said = describe_attention(DIAGONAL, None)
    assert said.startswith("attention has formed")
    assert "1.00" in said
    assert "0.20" in said


def test_collapsed_to_one_column():
    assert describe_attention(COLUMN, None).startswith("attention has collapsed to one column")
    assert "100%" in describe_attention(COLUMN, None)


def test_collapsed_to_the_end():
    assert describe_attention(LAST, None).startswith("attention has collapsed to </s>")


def test_nothing_is_said_of_even_attention():
    assert describe_attention(EVEN, None) is None


@pytest.mark.parametrize("state", [DIAGONAL, COLUMN, LAST, EVEN])
def test_nothing_is_said_twice(state):
    assert describe_attention(state, state) is None


def test_a_change_is_told():
    assert "formed" in describe_attention(DIAGONAL, EVEN)
    assert "one column" in describe_attention(COLUMN, DIAGONAL)
    assert "formed" in describe_attention(DIAGONAL, LAST)


def test_heads_are_averaged():
    """One head on the diagonal and one that looks everywhere are not sharp together."""
    maps = torch.zeros(1, 2, TGT, SRC)
    for t in range(TGT):
        maps[0, 0, t], maps[0, 1, t] = one_hot(t % SRC), 1 / SRC
    found = attention_health(maps, torch.tensor([SRC]), torch.tensor([TGT]))
    assert found.sharpness == pytest.approx(0.5 * (1 + 1 / SRC))


def test_what_is_too_short_tells_nothing():
    assert health(lambda t: torch.ones(2) / 2, src=2) == (0, 0, 0, 0)
    assert describe_attention(health(lambda t: torch.ones(2) / 2, src=2), None) is None


SOURCES = [f"source {i}" for i in range(20)]
REFERENCES = [[f"target {i}"] for i in range(20)]


def test_outputs_that_are_all_the_same():
    said = describe_outputs(["same"] * 20, SOURCES, REFERENCES)
    assert "hardly depend on the inputs: 20 of 20 are 'same'" in said


def test_half_of_them_is_enough():
    outputs = ["same"] * 10 + [f"other {i}" for i in range(10)]
    assert "10 of 20" in describe_outputs(outputs, SOURCES, REFERENCES)
    assert describe_outputs(outputs[1:], SOURCES[1:], REFERENCES[1:]) is None


def test_outputs_that_differ():
    assert describe_outputs(SOURCES, SOURCES, REFERENCES) is None


def labels(**counts):
    return [label for label, count in counts.items() for _ in range(count)]


def test_a_classifier_that_is_right_is_no_cause_for_alarm():
    """15 of 22 labels are the same because 15 of 22 references are."""
    right = labels(pos=15, neg=7)
    sources = [f"source {i}" for i in range(22)]
    assert describe_outputs(right, sources, [[label] for label in right]) is None


def test_references_that_are_as_uniform_are_no_cause_for_alarm():
    sources = [f"source {i}" for i in range(22)]
    references = [[label] for label in labels(neg=16, pos=6)]
    assert describe_outputs(labels(pos=13, neg=9), sources, references) is None


def test_a_classifier_that_knows_one_label_is_told():
    sources = [f"source {i}" for i in range(22)]
    references = [[label] for label in labels(pos=13, neg=9)]
    assert "22 of 22 are 'pos'" in describe_outputs(["pos"] * 22, sources, references)


def test_any_of_several_references_is_right():
    references = [["same", f"target {i}"] for i in range(20)]
    assert describe_outputs(["same"] * 20, SOURCES, references) is None


def test_few_sources_tell_nothing():
    assert describe_outputs(["same"] * 9, SOURCES[:9], REFERENCES[:9]) is None
    assert describe_outputs(["same"] * 20, ["one source"] * 20, REFERENCES) is None
    assert describe_outputs([], [], []) is None


def test_a_long_output_is_cut():
    said = describe_outputs(["x" * 100] * 20, SOURCES, REFERENCES)
    assert "x" * 37 + "..." in said
    assert "x" * 38 not in said
