"""Batches that are answered side by side."""

import threading

import pytest
import torch
from torch import nn

from regard.api.predictor import map_batches
from regard.models.protocol import evaluating

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def where(batch):
    """Who answers, and with how many threads."""
    return threading.get_ident(), torch.get_num_threads()


def test_two_batches_are_worked_on_at_once_with_a_thread_each():
    meet = threading.Barrier(2, timeout=240)

    def both(batch):
        meet.wait()  # nobody passes unless two are there
        return where(batch)

    found = map_batches(nn.Linear(1, 1), CPU, both, [0, 1])
    assert {threads for _, threads in found} == {1}
    assert torch.get_num_threads() == 2


def test_what_goes_wrong_in_a_thread_is_raised_and_the_threads_are_given_back():
    def fails(batch):
        raise ValueError(batch)

    with pytest.raises(ValueError, match="0"):
        map_batches(nn.Linear(1, 1), CPU, fails, [0, 1, 2])
    assert torch.get_num_threads() == 2


def test_the_model_is_in_evaluation_mode_until_the_last_batch_is_answered():
    model = nn.Sequential(nn.Linear(1, 1), nn.Dropout())
    model[0].eval()
    both_are_in = threading.Barrier(2, timeout=240)
    first_is_out, found = threading.Event(), []

    def work(batch):
        with evaluating(model):
            both_are_in.wait()
            if batch == 1:
                assert first_is_out.wait(timeout=240)
            found.append(model[1].training)
        if batch == 0:
            first_is_out.set()

    map_batches(model, CPU, work, [0, 1])
    assert found == [False, False]
    assert [module.training for module in model.modules()] == [True, False, True]
