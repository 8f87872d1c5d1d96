import subprocess
import sys
import threading

import pytest
import torch

from ops.messages import refuses
from regard import ops
from regard.errors import BackendError
from regard.ops import active_backend, additive_attention, use_backend
from regard.ops.additive_attention import PATHS as ADDITIVE_PATHS
from regard.ops.backend import OperatorPath, choose, unwatched, watch


def fast(x):
    return "fast"


def slow(x):
    return "slow"


def refuses_odd(x):
    return "an odd number was given" if x % 2 else None


PATHS = {"torch": OperatorPath(fast, refuses_odd), "reference": OperatorPath(slow)}


def test_auto_takes_the_first_path_that_accepts():
    assert choose("op", PATHS, 2) is fast
    assert choose("op", PATHS, 3) is slow


def test_a_name_takes_that_path():
    with use_backend("reference"):
        assert choose("op", PATHS, 2) is slow
    with use_backend("torch"):
        assert choose("op", PATHS, 2) is fast


@pytest.mark.parametrize(
    ("backend", "number", "said"),
    [
        ("torch", 3, r"'torch' path of op .*odd number.*reference, or 'auto'"),
        ("cpu", 2, r"op has no 'cpu' path.*torch, ref"),
    ],
)
def test_a_path_that_cannot_run_raises_and_nothing_else_runs(backend, number, said):
    with use_backend(backend), pytest.raises(BackendError, match=said):
        choose("op", PATHS, number)
    with pytest.raises(BackendError, match="no path of op"):
        choose("op", {"torch": OperatorPath(fast, refuses_odd)}, 3)


def test_the_backend_is_restored_after_an_exception():
    assert active_backend() == "auto"
    with use_backend("torch"):
        with pytest.raises(ZeroDivisionError), use_backend("reference"):
            _ = 1 / 0
        assert active_backend() == "torch"
    assert active_backend() == "auto"


def test_an_unknown_name_is_refused_and_changes_nothing():
    with refuses("backend", "one of auto, reference, torch", "'cuda'"), use_backend("cuda"):
        pass
    assert active_backend() == "auto"


def test_a_call_of_an_operator_never_falls_back(monkeypatch):
    def must_not_run(*args, **kwargs):
        raise AssertionError("ran, though it was not asked for")

    query, key, v, value = (
        torch.ones(2, 3, 7),
        torch.ones(2, 5, 7),
        torch.ones(7),
        torch.ones(2, 5, 1),
    )
    monkeypatch.setitem(ADDITIVE_PATHS, "reference", OperatorPath(must_not_run))
    monkeypatch.setitem(
        ADDITIVE_PATHS, "torch", OperatorPath(must_not_run, lambda *args: "it is Monday")
    )
    with use_backend("torch"), pytest.raises(BackendError, match="it is Monday"):
        additive_attention(query, key, v, value)


def test_watchers_see_calls_in_their_context_and_nothing_else():
    seen, args = [], (torch.ones(1, 2, 3), torch.ones(1, 5, 3), torch.ones(3), torch.ones(1, 5, 7))

    def watcher(op, run, *given, **options):
        seen.append(op)
        return run(*given, **options)

    with watch(watcher):
        ops.additive_attention(*args)
        with unwatched():
            ops.additive_attention(*args)
        thread = threading.Thread(target=ops.additive_attention, args=args)
        thread.start()
        thread.join()
    ops.additive_attention(*args)
    assert seen == ["additive_attention"]


EAGER = """
import sys
import torch
from regard.ops import DotScore, additive_attention, self_attentive_rnn
from regard.training.losses import cross_entropy

key, value = torch.zeros(2, 7, 5), torch.zeros(2, 7, 11)
additive_attention(torch.zeros(2, 3, 5), key, torch.zeros(5), value)
self_attentive_rnn(torch.zeros(2, 3, 5), torch.zeros(5, 5), DotScore())
cross_entropy(torch.zeros(2, 3), torch.zeros(2).long())
print(*(name for name in sys.modules if name.startswith("regard") and "triton" in name))
print("numba" in sys.modules)
"""


@pytest.mark.long
@pytest.mark.slow
def test_nothing_imports_triton_or_numba_before_it_is_needed():
    program = [sys.executable, "-c", EAGER]
    done = subprocess.run(program, capture_output=True, text=True, check=True)
    assert done.stdout == "\nFalse\n"
