import pytest
import torch

from ops.messages import refuses
from regard import masks


def rows(mask):
    """The map of one head as text: x where a query may attend."""
    return ["".join("x" if allowed else "." for allowed in row) for row in mask.tolist()]


def test_padding_shows_the_first_tokens_of_each_row():
    mask = masks.padding(torch.tensor([2, 0, 5]), 5)
    assert mask.shape == (3, 1, 1, 5)
    assert rows(mask[:, 0, 0]) == ["xx...", ".....", "xxxxx"]


@pytest.mark.parametrize("lengths", [[4, 9], [6]])
def test_padding_is_for_rows_that_hold_all_of_their_tokens(lengths):
    with refuses("lengths", "be at most max_len = 5", str(max(lengths))):
        masks.padding(torch.tensor(lengths), 5)
    assert masks.padding(torch.tensor([5, 0]), 5).sum() == 5
    assert masks.padding(torch.zeros(0, dtype=torch.long), 5).shape == (0, 1, 1, 5)


def test_padding_looks_at_no_length_that_it_would_have_to_wait_for():
    elsewhere = torch.tensor([4, 9], device="meta")
    assert masks.padding(elsewhere, 5).shape == (2, 1, 1, 5)


def test_causal_is_aligned_at_the_bottom_right():
    assert rows(masks.causal(2, 5)[0, 0]) == ["xxxx.", "xxxxx"]
    assert rows(masks.causal(1, 5)[0, 0]) == ["xxxxx"]
    # the two oldest queries stand before the first key
    assert rows(masks.causal(5, 3)[0, 0]) == ["...", "...", "x..", "xx.", "xxx"]


def test_window_reaches_to_both_sides():
    assert rows(masks.window(5, size=2)[0, 0]) == ["xx...", "xxx..", ".xxx.", "..xxx", "...xx"]
    assert rows(masks.window(2, 5, size=2)[0, 0]) == ["..xxx", "...xx"]
    assert rows(masks.window(3, size=1)[0, 0]) == ["x..", ".x.", "..x"]


@pytest.mark.plain
def test_errors_name_the_argument_the_rule_and_the_value():
    with refuses("lengths", "1-D integer", "(2, 1)"):
        masks.padding(torch.ones(2, 1, dtype=torch.long), 3)
    with refuses("lengths", "1-D integer", "torch.float32"):
        masks.padding(torch.ones(2), 3)
    with refuses("lengths", "1-D integer", "torch.bool"):
        masks.padding(torch.ones(2, dtype=torch.bool), 3)
    with refuses("max_len", "at least 1", "0"):
        masks.padding(torch.tensor([0]), 0)
    with refuses("q_len", "at least 1", "0"):
        masks.causal(0, 3)
    with refuses("kv_len", "at least 1", "-1"):
        masks.causal(3, -1)
    with refuses("size", "at least 1", "0"):
        masks.window(3, size=0)


@pytest.mark.plain
@pytest.mark.parametrize("shape", [(5, 7), (2, 3, 7, 5), (3, 3, 5, 7), (2, 2, 5, 7)])
def test_check_names_the_shape_that_was_wanted(shape):
    with refuses("mask", "(batch, heads, q_len, kv_len) = (2, 3, 5, 7)", str(shape)):
        masks.check(torch.ones(shape, dtype=torch.bool), 2, 3, 5, 7)


@pytest.mark.plain
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_check_takes_no_numbers(dtype):
    with refuses("mask", "be boolean", str(dtype)):
        masks.check(torch.ones(2, 3, 5, 7, dtype=dtype), 2, 3, 5, 7)
