import gc
import os
import random
import signal
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
import torch
from _pytest.runner import runtestprotocol
from _pytest.unraisableexception import gc_collect_iterations_key

import forks
import library_caches
import shapes
import thinning

# before anything of the package is imported
jaxtyping.jaxtyped = shapes.jaxtyped

from regard import messages  # noqa: E402

# Expectations are in English, whatever the locale.
os.environ["REGARD_LANG"] = "en"
# Tests run side by side, and their tensors are tiny: more threads would only fight over the cores.
torch.set_num_threads(1)
# A warning that torch gives once would be an error in whichever test comes first.
torch.set_warn_always(True)
library_caches.cache_commands()
library_caches.cache_entry_points()
# A test need not survive a power cut; a process that is killed loses nothing that it has written.
os.fsync = lambda file: None

#: packages whose tests are about files, commands and pages: shapes are checked in those below
WITHOUT_SHAPES = (
    *("api", "benchmarks", "cli", "evaluation", "examples", "export", "fuzz", "lab"),
    *("imported", "jobs", "pretrained", "recipes", "serve", "tasks"),
)
TESTS = Path(__file__).parent
#: passes of the collector are ten times as rare as by default: to trace a graph allocates millions
GC_THRESHOLDS = (7000, 10, 10)

#: settings of the whole process that a test or what it calls may change: how to read and write each
SETTINGS = (
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    (torch.backends.mha.get_fastpath_enabled, torch.backends.mha.set_fastpath_enabled),
    (torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled),
    (torch._C._get_cudnn_enabled, torch._C._set_cudnn_enabled),
    (lambda: messages._process, messages.set_language),
    (os.getcwd, os.chdir),
)


def marks_of_folder(path):
    """Names of the marks that all tests of a file or a folder have by their place."""
    top = path.relative_to(TESTS).parts[:1]
    plain = top and (top[0] in WITHOUT_SHAPES or top[0].startswith("test_"))
    return {"plain"} if plain else {"browser"} if top == ("browser",) else set()


def pytest_configure(config):
    config.stash[gc_collect_iterations_key] = 1  # of five, each of which takes a second
    gc.disable()  # nothing that is collected is garbage


def pytest_ignore_collect(collection_path, config):
    """Skip files and folders of which `-m` takes no test: to import some takes seconds."""
    wanted = config.option.markexpr
    if not wanted or not collection_path.is_relative_to(TESTS):
        return None
    always = marks_of_folder(collection_path)
    if collection_path.is_dir():
        return ("not plain" in wanted and "plain" in always) or None
    return (
        not thinning.may_take(wanted, collection_path.read_text(encoding="utf-8"), always) or None
    )


def pytest_collection_finish(session):
    # thousands of tests would be looked at by each pass of the collector, and by `gc.collect()`
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    gc.enable()


def pytest_unconfigure(config):
    gc.unfreeze()  # or libraries report leaks


def pytest_addoption(parser):
    parser.addoption("--few", action="store_true", help="one parameter set of what is quick")
    forks.add_option(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session):
    """Run tests in several processes if `-n` asks for them."""
    return forks.run_all(session)


@pytest.hookimpl(tryfirst=True)  # before `-m` selects
def pytest_collection_modifyitems(config, items):
    thinning.thin(items, few=config.getoption("few"))
    for item in items:
        for name in marks_of_folder(item.path):
            item.add_marker(name)
    if not torch.cuda.is_available():
        on_gpu = [item for item in items if item.get_closest_marker("gpu")]
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]
        config.hook.pytest_deselected(items=on_gpu)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item, nextitem):
    """Report one phase of a test that passes: six messages would take longer than most tests."""
    if item.config.option.forks < 2:
        return None
    for report in runtestprotocol(item, nextitem=nextitem, log=False):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


@pytest.fixture(autouse=True)
def alone():
    """Begin each test with the same seeds, and leave the process as it was found.

    So a test passes alone and in any order.
    """
    random.seed(0)
    np.random.seed(0)
    # without a GPU, torch.manual_seed writes down the stack for each kind of device that may come
    torch.default_generator.manual_seed(0)
    if torch.cuda.is_available():
        torch.cuda.manual_seed_all(0)
    environment = dict(os.environ)
    before = [read() for read, _ in SETTINGS]
    yield
    for (read, write), value in zip(SETTINGS, before, strict=True):
        if read() != value:
            write(value)
    environment["PYTEST_CURRENT_TEST"] = os.environ["PYTEST_CURRENT_TEST"]  # which says "teardown"
    if os.environ != environment:
        os.environ.clear()
        os.environ.update(environment)


@pytest.fixture
def default_signals():
    """Signals as in the foreground of a terminal: nohup and scripts start tests with some ignored.

    Only for tests that send them, so that `nohup make test` outlives its terminal.
    """
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.default_int_handler),
        signal.SIGTERM: signal.signal(signal.SIGTERM, signal.SIG_DFL),
        signal.SIGHUP: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture(scope="session")
def onnx_registry():
    """Graphs share torch's table of ONNX functions, which takes a second of CPU to build."""
    library_caches.cache_onnx_registry()


@pytest.fixture
def plain_steps(monkeypatch):
    """Searches on the CPU never run by compiled kernels, whose sums have another order."""

    def plain(self, *_, **__):
        return self.module

    monkeypatch.setattr("regard.api.predictor.Predictor._searched", plain)
