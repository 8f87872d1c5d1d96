import json
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import pytest
import torch

from regard.lab import ExperimentContext
from regard.lab import context as module
from regard.lab.context import fingerprint, worker_pool

CPU = torch.device("cpu")
calls = []


@pytest.fixture(autouse=True)
def forget():
    calls.clear()


def double(*, number, device):
    calls.append(number)
    return {"twice": 2 * number, "on": device.type}


def broken(*, device):
    raise ValueError("no result")


def test_a_kept_piece_is_not_computed_again(tmp_path):
    heard = []
    context = ExperimentContext(CPU, cache_dir=tmp_path, on_piece=lambda *told: heard.append(told))
    first = context.cached("a", double, number=3)
    assert context.cached("b", double, number=3) == first
    assert calls == [3]
    assert heard == [("a", False), ("b", True)]


def test_a_fresh_bench_computes_again_and_keeps_the_new_result(tmp_path):
    ExperimentContext(CPU, cache_dir=tmp_path).cached("a", double, number=3)
    (kept,) = tmp_path.iterdir()
    kept.write_text('{"twice": "old"}')
    assert (
        ExperimentContext(CPU, cache_dir=tmp_path, fresh=True).cached("a", double, number=3)[
            "twice"
        ]
        == 6
    )
    assert calls == [3, 3]
    assert json.loads(kept.read_text())["twice"] == 6


def test_a_piece_that_fails_leaves_nothing_behind(tmp_path):
    with pytest.raises(ValueError, match="no result"):
        ExperimentContext(CPU, cache_dir=tmp_path).cached("a", broken)
    assert not list(tmp_path.iterdir())


def with_pool(**options):
    return ExperimentContext(CPU, pool=ThreadPoolExecutor(2), **options)


def pieces(count):
    return [(f"piece {i}", {"x": i}) for i in range(count)]


@pytest.mark.parametrize("make", [lambda **options: ExperimentContext(CPU, **options), with_pool])
def test_pieces_come_in_their_order_and_are_kept(tmp_path, make):
    told = []
    context = make(cache_dir=tmp_path, on_piece=lambda label, kept: told.append((label, kept)))
    assert context.map(square, pieces(7)) == [i * i for i in range(7)]
    assert sorted(told) == [(f"piece {i}", False) for i in range(7)]
    told.clear()
    assert context.map(square, pieces(8)) == [i * i for i in range(8)]
    assert sorted(told) == [(f"piece {i}", i < 7) for i in range(8)]


def test_a_pool_works_on_two_pieces_at_once():
    assert with_pool().map(meet, [("a", {}), ("b", {})]) == [True, True]


def test_what_was_finished_before_one_failed_is_kept(tmp_path):
    context = ExperimentContext(CPU, cache_dir=tmp_path, pool=ThreadPoolExecutor(1))
    with pytest.raises(ZeroDivisionError):
        context.map(inverse, [("good", {"x": 2}), ("bad", {"x": 0})])
    told = []
    again = replace(context, on_piece=lambda label, kept: told.append((label, kept)))
    assert again.cached("good", inverse, x=2) == 0.5
    assert told == [("good", True)]


def test_a_grid_has_a_row_for_every_combination():
    told = []
    context = ExperimentContext(CPU, on_piece=lambda label, kept: told.append(label))
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


def test_one_process_would_be_alone():
    with worker_pool(CPU, 1) as pool:
        assert pool is None


@pytest.mark.long
@pytest.mark.slow
def test_pieces_are_computed_in_other_processes_with_a_thread_each():
    with worker_pool(CPU, 2) as pool:
        found = ExperimentContext(CPU, pool=pool).map(where, [("", {"piece": i}) for i in range(4)])
    assert [piece for piece, _, _ in found] == [0, 1, 2, 3]
    assert os.getpid() not in {process for _, process, _ in found}
    assert {threads for _, _, threads in found} == {1}


def compute(*, device):
    return 0


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A folder in the place of regard's sources."""
    (tmp_path / "top.py").write_text("ANSWER = 42\n")
    monkeypatch.setattr(module, "PACKAGE", tmp_path)
    module._package_digest.cache_clear()
    yield tmp_path
    module._package_digest.cache_clear()


def test_a_change_of_the_package_changes_it(package):
    before = fingerprint(compute, {}, CPU)
    (package / "top.py").write_text("ANSWER = 43\n")
    assert fingerprint(compute, {}, CPU) == before  # a run has the code that it began with
    module._package_digest.cache_clear()
    assert fingerprint(compute, {}, CPU) != before
