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


def pieces(count):
    return [(f"piece {i}", {"x": i}) for i in range(count)]


@pytest.mark.parametrize("make", [lambda **options: ExperimentContext(CPU, **options), with_pool])
def test_pieces_come_in_their_order(make):
    told = []
    context = make(on_piece=told.append)
    assert context.map(square, pieces(7)) == [i * i for i in range(7)]
    assert sorted(told) == [f"piece {i}" for i in range(7)]


def test_a_pool_works_on_two_pieces_at_once():
    assert with_pool().map(meet, [("a", {}), ("b", {})]) == [True, True]


def test_the_error_of_a_piece_is_raised():
    with pytest.raises(ZeroDivisionError):
        with_pool().map(inverse, [("good", {"x": 2}), ("bad", {"x": 0})])


def test_a_grid_has_a_row_for_every_combination():
    told = []
    context = ExperimentContext(CPU, on_piece=told.append)
    rows = context.grid("{name}, seed {seed}", named, {"name": "ab", "seed": (3, 5)}, setting=7)
    assert told == ["a, seed 3", "a, seed 5", "b, seed 3", "b, seed 5"]
    assert rows[1] == {"name": "a", "seed": 5, "said": "a 5 7"}
    assert [row["said"] for row in rows] == ["a 3 7", "a 5 7", "b 3 7", "b 5 7"]


def square(x, device):
    return x * x


def inverse(x, device):
    return 1 / x


def named(name, seed, setting, device):
    return {"said": f"{name} {seed} {setting}"}


BOTH = Barrier(2, timeout=240)


def meet(device):
    BOTH.wait()  # nobody passes unless two are there
    return True


def where(piece, device):
    return [piece, os.getpid(), torch.get_num_threads()]


@pytest.mark.long
@pytest.mark.slow
def test_pieces_are_computed_in_other_processes_with_a_thread_each():
    with worker_pool(CPU, 2) as pool:
        found = ExperimentContext(CPU, pool=pool).map(where, [("", {"piece": i}) for i in range(4)])
    assert [piece for piece, _, _ in found] == [0, 1, 2, 3]
    assert os.getpid() not in {process for _, process, _ in found}
    assert {threads for _, _, threads in found} == {1}
