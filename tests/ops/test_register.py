import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from regard.ops.register import is_traced

PLAIN = torch.zeros(2, 3)


class Wrapped(torch.Tensor):
    """A tensor of another class, as those that distribute or quantise."""


def test_plain_tensors_and_parameters_are_not_traced():
    assert not is_traced(PLAIN, torch.nn.Parameter(PLAIN))


def test_tensors_of_other_classes_are_left_to_the_dispatcher():
    assert is_traced(PLAIN, PLAIN.as_subclass(Wrapped))


def test_modes_see_the_operator():
    with FlopCounterMode(display=False):
        assert is_traced(PLAIN)
    assert not is_traced(PLAIN)


def test_transforms_see_the_operator():
    found = []
    torch.vmap(lambda x: found.append(is_traced(x)) or x)(PLAIN)
    assert found == [True]


@pytest.mark.filterwarnings("ignore")
def test_a_tracer_sees_the_operator():
    found = []

    def run(x):
        found.append(is_traced(x))
        return x + 1

    torch.jit.trace(run, PLAIN, check_trace=False)
    assert found == [True]


def test_a_compiler_sees_the_operator(monkeypatch):
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: True)
    assert is_traced(PLAIN)
