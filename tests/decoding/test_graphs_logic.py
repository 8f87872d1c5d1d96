"""The logic around CUDA graphs, with a graph that only counts: which calls are recorded, and where
their tensors lie. And the CPU kernel of a step in the interpreter, which checks bounds."""

import gc
import inspect
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import shapes
from regard.decoding import graphs
from regard.decoding.graphs import (
    DecodingGraphs,
    _is_observed,
    _is_same,
)
from regard.ops.backend import watch


class CountingGraph:
    """Stands for a CUDA graph: its function runs while it is recorded, and is not replayed."""

    replays, fails = 0, False

    def capture_begin(self, pool, capture_error_mode):
        if CountingGraph.fails:
            raise RuntimeError("no memory\nand more")
        assert capture_error_mode == "thread_local"
        assert not gc.isenabled()

    def capture_end(self):
        pass

    def replay(self):
        self.replays += 1


@pytest.fixture
def gpu(monkeypatch):
    """The calls of torch.cuda that recording makes; returns the bytes that are free and taken."""
    memory = SimpleNamespace(free=100, total=1000, reserved=0, allocated=0)
    stream = SimpleNamespace(wait_stream=lambda other: None)
    fakes = {
        "CUDAGraph": CountingGraph,
        "graph_pool_handle": lambda: 7,
        "current_stream": lambda: stream,
        "stream": lambda stream: nullcontext(),
        "mem_get_info": lambda: (memory.free, memory.total),
        "memory_reserved": lambda: memory.reserved,
        "memory_allocated": lambda: memory.allocated,
        "synchronize": lambda: None,
        "empty_cache": lambda: None,
    }
    for name, value in fakes.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(graphs, "reset_cuda_generator", lambda: None)
    monkeypatch.setattr(CountingGraph, "fails", False)
    with shapes.unchecked():  # a recording holds a graph of CUDA
        yield memory


@pytest.fixture
def recorder(gpu):
    found = DecodingGraphs(nn.Linear(2, 3))
    found._stream = SimpleNamespace(wait_stream=lambda other: None)
    return found


def double(state, inputs):
    return {"x": state["x"] * 2}, {"sum": state["x"].sum() + inputs[0], "n": 5}


def call(recorder, x, more=1.0, key="double", function=double):
    return recorder(key, function, {"x": x}, (torch.tensor(more),))


def test_the_second_call_of_a_shape_is_recorded(recorder):
    x = torch.arange(3.0)
    assert repr(recorder) == "DecodingGraphs(0 recorded)"
    for recorded in (0, 1):
        state, results = call(recorder, x)
        assert len(recorder._recordings) == recorded
        assert state["x"].tolist() == [0.0, 2.0, 4.0]
        assert (results["sum"].item(), results["n"]) == (4.0, 5)
    call(recorder, x)
    (recording,) = recorder._recordings.values()
    assert recording.graph.replays == 2
    assert recorder._pool == 7
    assert repr(recorder) == "DecodingGraphs(1 recorded)"
    call(recorder, torch.arange(4.0))
    call(recorder, x, key="other")
    assert len(recorder._recordings) == 1, "another shape, and another key"
    assert list(recorder._seen.values()) == [2, 1, 1]


def test_inputs_and_states_are_copied_to_their_slots(recorder):
    for _ in range(2):
        call(recorder, torch.arange(3.0))
    (recording,) = recorder._recordings.values()
    call(recorder, torch.tensor([5.0, 6.0, 7.0]), more=9.0)
    assert recording.inputs["0"].item() == 9.0
    assert recording.slots["x"].tolist() == [5.0, 6.0, 7.0]


def test_the_state_of_the_last_call_is_not_walked_through(recorder, monkeypatch):
    for _ in range(3):
        state, _ = call(recorder, torch.arange(3.0))
        recorder("double", double, state, (torch.tensor(1.0),))
    first = recorder._last
    assert first.following, "the state of one call was that of another"
    state, _ = call(recorder, torch.arange(3.0))
    monkeypatch.setattr(recorder, "_find", None)
    recorder("double", double, state, (torch.tensor(1.0),))


def test_graphs_need_memory(recorder, gpu):
    gpu.free = 99
    for _ in range(3):
        call(recorder, torch.arange(3.0))
    assert not recorder._recordings
    gpu.reserved, gpu.allocated = 30, 29  # one byte is reserved and not used
    call(recorder, torch.arange(3.0))
    assert len(recorder._recordings) == 1


def test_a_failure_ends_recording(recorder):
    CountingGraph.fails = True
    call(recorder, torch.ones(2))
    with pytest.warns(UserWarning, match="is not replayed from CUDA graphs: no memory$"):
        state, _ = call(recorder, torch.ones(2))
    assert state["x"].tolist() == [2.0, 2.0]
    assert not recorder.records
    CountingGraph.fails = False
    for _ in range(3):
        call(recorder, torch.ones(2))
    assert not recorder._recordings
    assert gc.isenabled()


def test_slots_grow_by_powers_of_two(recorder):
    small = recorder._slot("a", torch.zeros(3))
    assert small.shape == (3,)
    again = recorder._slot("a", torch.zeros(128))
    assert again.data_ptr() == small.data_ptr(), "512 bytes at least"
    large = recorder._slot("a", torch.zeros(129))
    assert large.data_ptr() != small.data_ptr()
    assert sorted(capacity for _, capacity in recorder._slots) == [512, 1024]
    other = recorder._slot("b", torch.zeros(2, 4, dtype=torch.long))
    assert (other.shape, other.dtype) == ((2, 4), torch.long)
    assert recorder._slots["a", 1024].numel() == 1024


def test_leaves_change_places_without_loss(recorder):
    a, b = recorder._slot("a", torch.zeros(2)), recorder._slot("b", torch.zeros(2))
    a.copy_(torch.tensor([1.0, 2.0]))
    b.copy_(torch.tensor([3.0, 4.0]))
    recorder._fill({"a": b, "b": a}, {"a": a, "b": b})
    assert (a.tolist(), b.tolist()) == ([3.0, 4.0], [1.0, 2.0])
    assert _is_same(a, a)
    assert not _is_same(a, b)
    square = torch.zeros(2, 2)
    assert not _is_same(square, square.T)


def test_a_change_of_the_model_drops_its_graphs(recorder, monkeypatch):
    monkeypatch.setattr(graphs, "_capture_stream", lambda device: device)
    src = SimpleNamespace(is_cuda=True, device=torch.device("cuda"))
    usable = partial(inspect.unwrap(DecodingGraphs._is_usable), recorder)
    assert usable(src)
    recorder._seen["x"] = 1
    assert usable(src)
    assert recorder._seen["x"] == 1
    recorder.model.weight = nn.Parameter(torch.zeros(3, 2))
    assert usable(src)
    assert recorder._seen["x"] == 0
    with watch(lambda op, run, *args: run(*args)):
        assert not usable(src)
    recorder.records = False
    assert not usable(src)


def test_hooks_and_watchers_are_not_passed_by():
    model = nn.Linear(2, 3)
    assert not _is_observed(model)
    with watch(lambda op, run, *args: run(*args)):
        assert _is_observed(model)
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    assert _is_observed(model)
    handle.remove()
    handle = nn.modules.module.register_module_forward_pre_hook(lambda *_: None)
    assert _is_observed(model)
    handle.remove()
    with torch.overrides.BaseTorchFunctionMode():
        assert _is_observed(model)
    model.register_forward_hook(lambda *_: None)
    assert _is_observed(model)
