"""The CPU kernels of the attentive recurrence; test_attentive_rnn.py has the rule for all paths."""

import sys

import pytest
import torch

from ops import test_attentive_rnn as small
from ops.rule import accept
from regard.errors import BackendError
from regard.ops.backend import HAS_NUMBA, watch

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


def chosen_path(tensors):
    """The name of the path that `auto` takes."""
    names = []

    def watcher(op, run, *args, **options):
        names.extend(name for name, path in MODULE.PATHS.items() if path.run is run)
        return run(*args, **options)

    with watch(watcher):
        small.run("auto", "gru", "additive", tensors, small.mask_of("none"))
    return names[0]


def test_training_on_enough_takes_the_kernels_and_nothing_else_does(wide, monkeypatch):
    tensors = small.tensors_of("gru", "additive", 3, torch.float32)
    assert chosen_path(tensors) == "torch"  # too few elements
    monkeypatch.setattr(MODULE, "CPU_MIN_ELEMENTS", 1)
    assert chosen_path(tensors) == "cpu"
    with torch.no_grad():
        assert chosen_path(tensors) == "torch"
    with torch.autocast("cpu", torch.bfloat16):
        assert chosen_path(tensors) == "torch"


def test_autocast_is_refused_by_name():
    tensors, mask = small.tensors_of("gru", "dot", dtype=torch.float32), small.mask_of("none")
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(BackendError, match="autocast"):
        small.run("cpu", "gru", "dot", tensors, mask)
