import json
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import pytest
import torch

from regard.lab import ExperimentContext

CPU = torch.device("cpu")
calls = []


@pytest.fixture(autouse=True)
def forget():
    calls.clear()


def double(*, number, device):
    calls.append(number)
    return {"twice": 2 * number, "on": device.type}


def odd(*, device):
    return {"pair": (1, 2), 3: float("nan"), "far": [float("inf"), -float("inf")]}


def broken(*, device):
    raise ValueError("no result")


def test_a_piece_is_computed_on_the_bench_s_device():
    assert ExperimentContext(CPU).cached("a", double, number=3) == {"twice": 6, "on": "cpu"}


def test_a_kept_piece_is_not_computed_again(tmp_path):
    heard = []
    context = ExperimentContext(CPU, cache_dir=tmp_path, on_piece=lambda *told: heard.append(told))
    first = context.cached("a", double, number=3)
    assert context.cached("b", double, number=3) == first
    assert calls == [3]
    assert heard == [("a", False), ("b", True)]


def test_other_arguments_are_another_piece(tmp_path):
    context = ExperimentContext(CPU, cache_dir=tmp_path)
    assert context.cached("a", double, number=3)["twice"] == 6
    assert context.cached("a", double, number=5)["twice"] == 10
    assert calls == [3, 5]


def test_nothing_is_kept_without_a_memory():
    context = ExperimentContext(CPU)
    context.cached("a", double, number=3)
    context.cached("a", double, number=3)
    assert calls == [3, 3]


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


@pytest.mark.parametrize("content", [b"", b'{"twice": 6, "o', b"\xff\xfe\x00"])
def test_a_broken_piece_is_computed_again_and_mended(tmp_path, content):
    context = ExperimentContext(CPU, cache_dir=tmp_path)
    context.cached("a", double, number=3)
    (kept,) = tmp_path.iterdir()
    kept.write_bytes(content)
    assert context.cached("a", double, number=3)["twice"] == 6
    assert json.loads(kept.read_text())["twice"] == 6
    assert context.cached("a", double, number=3)["twice"] == 6
    assert calls == [3, 3]


def test_new_and_kept_results_are_the_same_plain_data(tmp_path):
    context = ExperimentContext(CPU, cache_dir=tmp_path)
    plain = {"pair": [1, 2], "3": None, "far": [None, None]}
    assert context.cached("a", odd) == plain
    assert context.cached("a", odd) == plain


def test_a_piece_that_fails_leaves_nothing_behind(tmp_path):
    with pytest.raises(ValueError, match="no result"):
        ExperimentContext(CPU, cache_dir=tmp_path).cached("a", broken)
    assert not list(tmp_path.iterdir())


def test_choose():
    assert ExperimentContext(CPU).choose("few", "many") == "few"
    assert ExperimentContext(CPU, quick=False).choose("few", "many") == "many"


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


class Done(Executor):
    """Is ready with all pieces before anybody asks."""

    def submit(self, compute, /, *args, **kwargs):
        future = Future()
        try:
            future.set_result(compute(*args, **kwargs))
        except ZeroDivisionError as error:
            future.set_exception(error)
        return future


def test_what_is_finished_at_the_moment_when_one_fails_is_kept(tmp_path):
    context = ExperimentContext(CPU, cache_dir=tmp_path, pool=Done())
    numbers = [*range(1, 20), 0, *range(20, 40)]
    with pytest.raises(ZeroDivisionError):
        context.map(inverse, [(str(x), {"x": x}) for x in numbers])
    assert len(list(tmp_path.iterdir())) == len(numbers) - 1


def test_every_name_is_run_with_every_seed():
    context = ExperimentContext(CPU, seeds=(3, 5))
    found = context.by_seed(named, ["a", "b"], {"setting": 7})
    assert found == {"a": ["a 3 7", "a 5 7"], "b": ["b 3 7", "b 5 7"]}


def square(x, device):
    return x * x


def inverse(x, device):
    return 1 / x


def named(name, seed, setting, device):
    return f"{name} {seed} {setting}"


BOTH = Barrier(2, timeout=240)


def meet(device):
    BOTH.wait()  # nobody passes unless two are there
    return True
