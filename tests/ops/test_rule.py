"""The rule itself, on paths that are wrong in ways that kernels are wrong."""

import pytest
import torch

from ops.rule import accept, breaches

INPUTS = {"x": torch.linspace(-2, 2, 37), "y": torch.linspace(1, 3, 37)}


def definition(x, y):
    return [torch.tanh(x) * y]


def truncated(x, y):
    return [torch.tanh(x.bfloat16()).float() * y]


def without_a_gradient(x, y):
    return [torch.tanh(x) * y.detach()]


def with_a_gap(x, y):
    out = torch.empty(37)
    return [torch.cat([definition(x, y)[0][:36], out[36:]])]


def of_another_type(x, y):
    return [definition(x, y)[0].double()]


def another_order(x, y):
    return [1 * y - 2 * y / (1 + torch.exp(2 * x))]


def test_the_definition_keeps_its_own_rule():
    accept(definition, definition, INPUTS)


def test_rounding_otherwise_is_no_breach():
    accept(another_order, definition, INPUTS)


@pytest.mark.parametrize(
    ("path", "what"),
    [
        (truncated, "output 0 is"),
        (without_a_gradient, "gradient of y is"),
        (with_a_gap, "output 0 is nan off"),
        (of_another_type, "output 0 is torch.float64"),
    ],
)
def test_a_wrong_path_breaks_the_rule(path, what):
    assert any(breach.startswith(what) for breach in breaches(path, definition, INPUTS))
    with pytest.raises(AssertionError, match=what):
        accept(path, definition, INPUTS)


def test_allocated_memory_is_poisoned():
    like = torch.zeros(3)
    for memory in (torch.empty(3), torch.empty_like(like), like.new_empty(3)):
        assert memory.isnan().all()
    assert torch.empty(3, dtype=torch.bool).all()
    assert torch.empty(3, dtype=torch.int8).tolist() == [127] * 3
