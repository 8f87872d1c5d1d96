"""Processes that compute pieces side by side."""

import os

import pytest
import torch

from regard.lab import ExperimentContext
from regard.lab.context import worker_pool

CPU = torch.device("cpu")


def where(piece, device):
    return [piece, os.getpid(), torch.get_num_threads()]


def test_one_process_would_be_alone():
    with worker_pool(CPU, 1) as pool:
        assert pool is None


@pytest.mark.slow
def test_pieces_are_computed_in_other_processes_with_a_thread_each():
    with worker_pool(CPU, 2) as pool:
        found = ExperimentContext(CPU, pool=pool).map(where, [("", {"piece": i}) for i in range(4)])
    assert [piece for piece, _, _ in found] == [0, 1, 2, 3]
    assert os.getpid() not in {process for _, process, _ in found}
    assert {threads for _, _, threads in found} == {1}
