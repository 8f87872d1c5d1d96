"""Preemption points, and hooks."""

import pytest
from torch import nn

from regard.preemption import (
    has_hooks,
    is_preemptible,
    preemptible,
    preemption_point,
    submodules,
    undisturbed,
)


def test_a_hooked_call_is_known():
    model = nn.Sequential(nn.Linear(2, 2))
    assert not has_hooks(model)
    model[0].register_forward_hook(lambda *args: None)
    assert has_hooks(model)


def test_submodules_are_those_of_torch():
    shared = nn.Linear(2, 2)
    model = nn.Sequential(shared, nn.Sequential(shared, nn.ReLU()))
    model.register_module("nothing", None)
    assert set(submodules(model)) == set(model.modules())
    assert len(submodules(model)) == 4


def test_undisturbed_work_has_no_preemption_points():
    def stop():
        raise KeyboardInterrupt

    with preemptible(stop):
        with undisturbed():
            preemption_point()
            assert not is_preemptible()
        with pytest.raises(KeyboardInterrupt):
            preemption_point()
    assert not is_preemptible()
