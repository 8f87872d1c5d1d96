import importlib
import math
import pickle
import sys
import threading
import time

import numpy as np
import pytest
import torch

from interpreter import run_script
from ops.rule import accept
from regard.errors import BackendError
from regard.ops import additive_attention as operator
from regard.ops import backend, use_backend
from regard.ops.additive_attention import PATHS
from regard.ops.backend import HAS_NUMBA

needs_numba = pytest.mark.skipif(not HAS_NUMBA, reason="needs numba")
MODULE = sys.modules["regard.ops.additive_attention"]  # the name stands for the function
CALL = (torch.zeros(2, 3, 5), torch.zeros(2, 7, 5), torch.zeros(5), torch.zeros(2, 7, 11))


def by(backend, mask=None):
    def op(query, key, v, value):
        with use_backend(backend):
            return [operator(query, key, v, value, mask).context]

    return op


def inputs(batch=3, q_len=5, kv_len=7, hidden=11):
    shapes = {
        "query": (batch, q_len, hidden),
        "key": (batch, kv_len, hidden),
        "v": (hidden,),
        "value": (batch, kv_len, 13),
    }
    return {name: torch.randn(shape) for name, shape in shapes.items()}


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@needs_numba
def test_the_exponential_is_right_to_the_last_bits():
    from regard.ops.cpu_math import exponential

    for x in np.linspace(-86.9, 87.9, 997, dtype=np.float32):
        found = exponential(x)
        assert isinstance(found, np.float32 | float)
        assert found == pytest.approx(math.exp(x), rel=2e-7)


@needs_numba
@pytest.mark.parametrize(("large", "small"), [("query", "key"), ("key", "query")])
@pytest.mark.parametrize("size", [30.0, 50.0, 1e4])
def test_rule_where_one_side_is_large(large, small, size):
    tensors = inputs()
    tensors[large] *= size
    tensors[small] *= 10.0
    accept(by("cpu"), by("reference"), tensors)


@needs_numba
def test_a_tile_may_be_cut_off_beside_one_that_may_not():
    tensors = inputs(kv_len=131)
    tensors["query"] *= 60.0
    tensors["key"][:, 64:128] *= 60.0  # the second of three tiles of keys takes the direct route
    accept(by("cpu"), by("reference"), tensors)


@needs_numba
def test_nan_is_not_lost():
    tensors = inputs()
    tensors["query"][1, 2, 3] = torch.nan
    (context,) = by("cpu")(**tensors)
    assert context[1, 2].isnan().all()
    assert context.isnan().sum() == 13


@needs_numba
def test_infinite_inputs_are_the_limits_of_tanh():
    tensors = inputs()
    tensors["query"][1, 2, 3] = torch.inf
    torch.testing.assert_close(by("cpu")(**tensors), by("reference")(**tensors))


@needs_numba
@pytest.mark.parametrize("batch", [1, 5])
def test_rule_with_several_threads(threads, batch):
    threads(3)
    tensors = inputs(batch, 131, 137, 67)
    accept(by("cpu"), by("reference"), tensors)


@needs_numba
def test_results_do_not_depend_on_the_threads(threads):
    tensors, found = inputs(5, 131, 137, 67), []
    for count in (1, 2, 3):
        threads(count)
        found.append(by("cpu")(**tensors)[0])
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


@needs_numba
def test_callers_in_several_threads_do_not_meet(threads):
    threads(2)
    given = [inputs(3, 67, 71, 61) for _ in range(4)]
    expected = [by("cpu")(**tensors)[0] for tensors in given]
    found = [[] for _ in given]

    def call(i):
        for _ in range(5):
            with torch.no_grad():
                found[i].append(operator(**given[i]).context)

    with use_backend("cpu"):
        callers = [threading.Thread(target=call, args=(i,)) for i in range(len(given))]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    for mine, right in zip(found, expected, strict=True):
        assert len(mine) == 5
        assert all(torch.equal(x, right) for x in mine)


@needs_numba
@pytest.mark.slow
def test_a_forked_process_can_go_on(tmp_path):
    script = tmp_path / "fork.py"
    script.write_text(
        "import os, signal, torch; torch.set_num_threads(2); torch.manual_seed(0)\n"
        "from regard.ops import additive_attention as op, use_backend\n"
        "from regard.ops.additive_attention import cpu_path\n"
        "args = [torch.randn(s) for s in ((3, 67, 61), (3, 71, 61), (61,), (3, 71, 1))]\n"
        "run = lambda: cpu_path._gradients(*args[:3], torch.ones(3, 67, 71))[0]\n"
        "first = run(); child = os.fork()\n"
        "if child == 0: signal.alarm(60); os._exit(7 if torch.equal(run(), first) else 1)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))"
    )
    _, printed = run_script(script)
    assert printed.splitlines()[-1] == "7", printed


@needs_numba
def test_gradients_have_gradients():
    tensors = {name: x.requires_grad_() for name, x in inputs().items()}
    found = []
    for name in ("cpu", "reference"):
        (context,) = by(name)(**tensors)
        (d_query,) = torch.autograd.grad(
            context.square().sum(), tensors["query"], create_graph=True
        )
        found.append(torch.autograd.grad(d_query.square().sum(), list(tensors.values())))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-5)


@needs_numba
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float64])
def test_the_default_type_of_torch_is_not_that_of_the_kernels(kind):
    tensors = inputs()
    before = torch.get_default_dtype()
    torch.set_default_dtype(kind)
    try:
        (found,) = by("cpu")(**tensors)
    finally:
        torch.set_default_dtype(before)
    assert torch.equal(found, by("cpu")(**tensors)[0])


@needs_numba
@pytest.mark.compile
def test_torch_finds_nothing_wrong_with_the_registration():
    from regard.ops.additive_attention import cpu_path

    args = [x.requires_grad_() for x in inputs().values()]
    mask = torch.rand(3, 1, 5, 7) < 0.6
    assert cpu_path.LIBRARY is not None
    torch.library.opcheck(torch.ops.regard.additive_attention_cpu.default, (*args, mask))


def test_without_numba_another_path_is_taken(monkeypatch):
    monkeypatch.setattr(backend, "HAS_NUMBA", False)
    assert "not installed" in PATHS["cpu"].refuses(*CALL, None, False)
    assert operator(*CALL).context.shape == (2, 3, 11)
    with use_backend("cpu"), pytest.raises(BackendError, match="numba is not installed"):
        operator(*CALL)


@needs_numba
@pytest.mark.slow
def test_kernels_compile_where_no_folder_is_writable(tmp_path):
    script = tmp_path / "compile.py"
    script.write_text(
        "import os, sys, tempfile; print('numba' in sys.modules)\n"  # it reads variables once
        "os.environ['NUMBA_CACHE_DIR'] = '/proc/nowhere'\n"
        "def refuse(*args, **more): raise OSError(30, 'Read-only file system')\n"
        "tempfile.TemporaryFile = refuse\n"  # by which numba tries the other folders that it knows
        "from regard.ops.cpu_runtime import kernel, row\n"
        "@kernel(row)\n"
        "def double(values): values *= 2\n"
        "import numpy; ones = numpy.ones(3, 'float32'); double(ones); print(ones.tolist())"
    )
    code, printed = run_script(script)
    assert code == 0, printed
    lines = printed.splitlines()
    assert (lines[0], lines[-1]) == ("False", "[2.0, 2.0, 2.0]")


@needs_numba
@pytest.mark.parametrize(
    ("kind", "seconds", "said"),
    [("numba:compile", 0.3, 1), ("numba:compile", 0.0, 0), ("numba:compiler_lock", 0.3, 0)],
)
def test_who_waits_for_the_compiler_is_told_why_once(monkeypatch, capsys, kind, seconds, said):
    """A cache that is read slowly, as on a busy machine, is no compiler."""
    from numba.core import event

    from regard.ops import cpu_runtime

    monkeypatch.setattr(cpu_runtime, "PATIENCE", 0.1)
    cpu_runtime._announce_once.cache_clear()
    for _ in range(2):
        with cpu_runtime._announced(), event.trigger_event(kind):
            time.sleep(seconds)
    assert capsys.readouterr().err.count("compiling kernels") == said


@needs_numba
def test_gradients_come_back_wide_from_under_autocast():
    tensors = [torch.randn(s, requires_grad=True) for s in ((2, 9, 5), (2, 7, 5), (5,), (2, 7, 3))]
    with torch.autocast("cpu", torch.bfloat16), use_backend("cpu"):
        context = operator(*tensors).context
    assert context.dtype == torch.bfloat16
    found = torch.autograd.grad(context.float().sum(), tensors)
    with use_backend("reference"):
        expected = torch.autograd.grad(operator(*tensors).context.sum(), tensors)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=0.05, rtol=0.05)


@needs_numba
def test_a_cache_of_another_version_is_compiled_anew(tmp_path, monkeypatch):
    numba = importlib.import_module("numba")
    (tmp_path / "tiny_kernel.py").write_text(
        "from numba import int64\n"
        "from regard.ops.cpu_runtime import kernel\n\n"
        "@kernel(int64[::1])\n"
        "def fill(numbers):\n"
        "    numbers[:] = 7\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))

    def filled():
        monkeypatch.delitem(sys.modules, "tiny_kernel", raising=False)
        numbers = np.zeros(3, np.int64)
        importlib.import_module("tiny_kernel").fill(numbers)
        return numbers.tolist()

    assert filled() == [7, 7, 7]
    (index,) = tmp_path.rglob("*.nbi")
    stale = pickle.dumps(numba.__version__) + b"cnot_there\nGone\n."
    index.write_bytes(stale)
    assert filled() == [7, 7, 7]
    assert index.read_bytes() != stale  # and is taken from the cache the next time
