"""The CPU kernels of the attentive recurrence; test_attentive_rnn.py has the rule for all paths."""

import sys

import pytest
import torch

from ops import test_attentive_rnn as small
from ops.rule import accept
from regard.ops import use_backend
from regard.ops.backend import HAS_NUMBA

pytestmark = pytest.mark.skipif(not HAS_NUMBA, reason="needs numba")

MODULE = sys.modules["regard.ops.attentive_rnn"]  # the name stands for the function
# no multiples of four or of a vector, and more features than one vector
SIZES = {"BATCH": 11, "LENGTH": 3, "KEYS": 13, "HIDDEN": 19, "SCORE_DIM": 37, "VALUE": 17}


@pytest.fixture
def wide(monkeypatch):
    """Gives the tensors of test_attentive_rnn.py other sizes."""
    for name, size in SIZES.items():
        monkeypatch.setattr(small, name, size)


@pytest.fixture
def threads(monkeypatch):
    """Sets the number of threads, each worth its while for the least work."""
    from regard.ops.attentive_rnn import cpu_path

    monkeypatch.setattr(cpu_path, "ELEMENTS_PER_THREAD", 1)
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def keep_the_rule(cell, score, tensors):
    mask = small.mask_of("blind row")
    both = (small.by(backend, cell, score, mask) for backend in ("cpu", "reference"))
    accept(*both, tensors)


@pytest.mark.pairwise
@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("score", ["scaled", "additive"])
@pytest.mark.parametrize("cell", small.CELLS)
def test_threads_and_wide_rows_keep_the_rule(cell, score, count, wide, threads):
    threads(count)
    keep_the_rule(cell, score, small.tensors_of(cell, score, 3, torch.float32))


def test_keys_and_queries_that_are_both_large_keep_the_rule(wide):
    tensors = small.tensors_of("gru", "additive", 3, torch.float32)
    tensors["key"] *= 60.0
    tensors["query_weight"] *= 60.0
    keep_the_rule("gru", "additive", tensors)


def test_the_callers_inputs_stay_as_they_are():
    tensors = small.tensors_of("lstm", "additive", 1, torch.float32)  # (3, 1, gates)
    before = tensors["inputs"].clone()
    small.run("cpu", "lstm", "additive", tensors, small.mask_of("none"))
    assert torch.equal(tensors["inputs"], before)


def test_training_on_enough_takes_the_kernels_and_nothing_else_does(wide, monkeypatch):
    tensors = small.tensors_of("gru", "additive", 3, torch.float32)
    arguments = small.mask_of("none")

    def path():
        found = []
        monkeypatch.setattr(
            MODULE, "choose", lambda op, paths, *a, **k: found.append(pick(paths, a, k)) or found[-1]
        )
        small.run("auto", "gru", "additive", tensors, arguments)
        return found[0]

    def pick(paths, args, options):
        names = (n for n, p in paths.items() if p.refuses(*args, **options) is None)
        return paths[next(names)].run

    assert path() is not MODULE.PATHS["cpu"].run  # too few elements
    monkeypatch.setattr(MODULE, "CPU_MIN_ELEMENTS", 1)
    assert path() is MODULE.PATHS["cpu"].run
    with torch.no_grad():
        assert path() is not MODULE.PATHS["cpu"].run
    with torch.autocast("cpu", torch.bfloat16):
        assert path() is not MODULE.PATHS["cpu"].run


def test_autocast_is_refused_by_name():
    tensors, mask = small.tensors_of("gru", "dot", dtype=torch.float32), small.mask_of("none")
    with torch.autocast("cpu", torch.bfloat16), use_backend("auto"):
        with pytest.raises(small.BackendError, match="autocast"):
            small.run("cpu", "gru", "dot", tensors, mask)
