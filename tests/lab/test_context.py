import os
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

from regard.lab import ExperimentContext
from regard.lab.context import worker_pool

CPU = torch.device("cpu")


def with_pool(**options):
    return ExperimentContext(CPU, pool=ThreadPoolExecutor(2), **options)


@pytest.mark.parametrize("make", [lambda **options: ExperimentContext(CPU, **options), with_pool])
def test_a_grid_has_a_row_for_every_combination_in_their_order(make):
    told = []
    context = make(on_piece=told.append)
    rows = context.grid("{name}, seed {seed}", named, {"name": "ab", "seed": (3, 5)}, setting=7)
    assert sorted(told) == ["a, seed 3", "a, seed 5", "b, seed 3", "b, seed 5"]
    assert rows[1] == {"name": "a", "seed": 5, "said": "a 5 7"}
    assert [row["said"] for row in rows] == ["a 3 7", "a 5 7", "b 3 7", "b 5 7"]


def test_a_pool_works_on_two_pieces_at_once():
    assert with_pool().grid("", meet, {"piece": "ab"}) == [{"piece": "a"}, {"piece": "b"}]


def test_the_error_of_a_piece_is_raised():
    with pytest.raises(ZeroDivisionError):
        with_pool().grid("", inverse, {"x": (2, 0)})


def inverse(x, device):
    return {"y": 1 / x}


def named(name, seed, setting, device):
    return {"said": f"{name} {seed} {setting}"}


BOTH = Barrier(2, timeout=240)


def meet(piece, device):
    BOTH.wait()  # nobody passes unless two are there
    return {}


def where(piece, device):
    return {"process": os.getpid(), "threads": torch.get_num_threads()}


@pytest.mark.long
@pytest.mark.slow
def test_pieces_are_computed_in_other_processes_with_a_thread_each():
    with worker_pool(CPU, 2) as pool:
        rows = ExperimentContext(CPU, pool=pool).grid("", where, {"piece": range(4)})
    assert [row["piece"] for row in rows] == [0, 1, 2, 3]
    assert os.getpid() not in {row["process"] for row in rows}
    assert {row["threads"] for row in rows} == {1}
