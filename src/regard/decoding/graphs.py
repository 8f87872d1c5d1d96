"""CUDA graphs of a model's decoding: functions of states, recorded once and replayed.

A step of a small model launches some hundred kernels that a GPU runs faster than the host can
launch them. A recorded graph launches all of them at once. It reads and writes memory at fixed
addresses, so states live in `slots` of the recorder: a replayed function finds its inputs there,
and leaves the state that the next one reads.
"""

import gc
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, final
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from regard.device import reset_cuda_generator
from regard.ops.backend import active_backend, is_watched
from regard.preemption import has_hooks, submodules, undisturbed
from regard.state import map_leaves

#: Calls of a kind and shape that run eagerly before it is recorded: the first one compiles kernels
#: and lets libraries choose theirs, and a shape that does not recur is not worth recording.
EAGER_CALLS: Final = 1
#: Most graphs at a time; each takes some memory of the host. What finds no room runs eagerly; when
#: that happens more often than replays, and so often at least, shapes have changed, and all graphs
#: are dropped: to record one takes as long as several eager calls.
MAX_GRAPHS: Final = 256
#: Share of a GPU's memory that must be free before another graph is recorded.
FREE_SHARE: Final = 0.1
#: Share of it that the graphs of all models may keep. Beyond it, models that have searched least
#: recently lose theirs.
KEPT_SHARE: Final = 0.25
#: Smallest size of a slot in bytes, and the alignment of what is packed.
ALIGNMENT: Final = 512

#: A function of a state, which is overwritten by the next call, and of other tensors, to the state
#: after it and to results that are the caller's. All are trees as `map_leaves` walks through them.
Function = Callable[[Any, Any], tuple[Any, Any]]


@dataclass(frozen=True, eq=False)
class _Recording:
    """A recorded function.

    Attributes:
        graph: of its kernels.
        slots: of the state that it reads, by name.
        inputs: slots of the other tensors, by name.
        state: the state after it, in slots.
        results: with the place of each tensor in `flat`.
        flat: the results, one tensor for each dtype.
        following: recordings that were called with `state`, by their keys.
    """

    graph: torch.cuda.CUDAGraph
    slots: dict[str, Tensor]
    inputs: dict[str, Tensor]
    state: Any
    results: Any
    flat: list[Tensor]
    following: dict[Hashable, "_Recording"] = field(default_factory=dict)


@final
class _KeptMemory:
    """Bytes that the graphs of each model of this process keep, the last used one at the end."""

    def __init__(self) -> None:
        self._bytes: WeakKeyDictionary[DecodingGraphs, int] = WeakKeyDictionary()
        self._lock = threading.Lock()

    def add(self, graphs: "DecodingGraphs", more: int = 0) -> None:
        """Note that a model searches, or that it keeps more."""
        with self._lock:
            self._bytes[graphs] = self._bytes.pop(graphs, 0) + more

    def forget(self, graphs: "DecodingGraphs") -> None:
        """Note that a model keeps nothing any more."""
        with self._lock:
            self._bytes.pop(graphs, None)

    def is_too_much(self) -> bool:
        """Return whether all models together keep more than their share."""
        return sum(self._bytes.values()) > KEPT_SHARE * torch.cuda.mem_get_info()[1]

    def drop_oldest(self, but: "DecodingGraphs") -> bool:
        """Clear the graphs that were not used for longest; False if no others are idle."""
        with self._lock:
            others = [graphs for graphs, size in self._bytes.items() if size and graphs is not but]
        return any(graphs.clear_if_idle() for graphs in others)


_kept: Final = _KeptMemory()


@final
class DecodingGraphs:
    """Replays the steps of a model's searches from CUDA graphs.

    Pass it to `decode` with the same model again and again: a kind of search is recorded when it
    recurs with batches of similar shape. Answers are those of the plain search, up to rounding in
    sums whose order depends on the shape of a batch. It runs one search at a time; another thread
    that comes meanwhile searches without it.

    Without a GPU, with hooks in the model, under autocast, or while somebody watches the operators
    (as `regard.capture` does), the search is the plain one.

    Args:
        model: whose searches are recorded. Weights may change in place.
        records: whether graphs are recorded; if not, the same functions run eagerly, on any
            device, which is of use in tests.
    """

    def __init__(self, model: nn.Module, *, records: bool = True) -> None:
        self.model, self.records = model, records
        self._needs_gpu = records
        self.vocab: int | None = None  # of the model's targets, once a search has seen it
        self._lock = threading.Lock()
        self._fingerprint: Hashable = None
        self._pool: Any = None
        self._stream: Any = None
        self._seen: Counter[Hashable] = Counter()
        self._replays = self._misses = 0  # calls that were replayed, and that found no room
        self._recordings: dict[Hashable, _Recording] = {}
        self._slots: dict[tuple[str, int], Tensor] = {}
        self._last: _Recording | None = None  # whose state is in the slots

    def __repr__(self) -> str:
        return f"DecodingGraphs({len(self._recordings)} recorded)"

    @contextmanager
    def claim(self, src: Tensor) -> Iterator[bool]:
        """Yield whether a search of these sources may use the graphs, which it then has alone."""
        if not self._lock.acquire(blocking=False):
            yield False
            return
        try:
            # graphs are captured on the current device, which need not be that of the model
            with torch.cuda.device(src.device) if src.is_cuda else nullcontext():
                yield self._is_usable(src)
        finally:
            self._lock.release()

    def _is_usable(self, src: Tensor) -> bool:
        if not self._needs_gpu:
            return True
        if not src.is_cuda or not self.records:
            return False
        modules = submodules(self.model)
        if _is_observed(modules):
            return False
        fingerprint = (
            src.device,
            tuple(
                weight.data_ptr()
                for module in modules
                for weights in (module._parameters, module._buffers)
                for weight in weights.values()
                if weight is not None
            ),
            torch.get_float32_matmul_precision(),
            torch.are_deterministic_algorithms_enabled(),
            active_backend(),
        )
        if fingerprint != self._fingerprint:
            self.clear()
            self._fingerprint = fingerprint
            self._stream = _capture_stream(src.device)
        _kept.add(self)
        return True

    def clear_if_idle(self) -> bool:
        """Drop all graphs unless a search uses them, and return whether they are gone."""
        if not self._lock.acquire(blocking=False):
            return False
        try:
            self.clear()
        finally:
            self._lock.release()
        return True

    def clear(self) -> None:
        """Drop all graphs and give their memory back."""
        _kept.forget(self)
        had_some = bool(self._recordings or self._slots)
        self._pool = None  # one whose graphs are all gone cannot be used again
        self._last = None
        self._recordings.clear()
        self._slots.clear()
        self._seen.clear()
        self._replays = self._misses = 0
        if had_some and self._needs_gpu:
            torch.cuda.empty_cache()  # no other pool, and no eager call, can use theirs

    def __call__(
        self, key: Hashable, function: Function, state: Any, inputs: Any = ()
    ) -> tuple[Any, Any]:
        """Return `function(state, inputs)`, replayed if it was recorded.

        Args:
            key: together with the structure, shapes and numbers of the arguments, it determines
                which kernels the function launches.
            function: to run.
            state: its first argument. If it is the very state that the last call has returned,
                nothing is copied and nothing is walked through.
            inputs: its second argument.
        """
        last = self._last
        given, shapes = _flatten(inputs)
        key = (key, shapes)
        recording = None
        if last is not None and last.state is state:
            recording = last.following.get(key)
        if recording is None:
            recording = self._find(key, function, state, inputs)
            if recording is None:
                self._last = None
                return function(state, inputs)
            if last is not None and last.state is state:
                last.following[key] = recording
        for name, slot in recording.inputs.items():
            slot.copy_(given[name], non_blocking=True)
        recording.graph.replay()
        self._replays += 1
        self._last = recording
        flat = [together.clone() for together in recording.flat]
        return recording.state, _unpack(recording.results, flat)

    def _find(
        self, key: Hashable, function: Function, state: Any, inputs: Any
    ) -> _Recording | None:
        """Return the recording of a call whose state is in its slots; None to run it eagerly."""
        leaves, structure = _flatten(state)
        full = (key, structure)
        recording = self._recordings.get(full)
        if recording is not None:
            self._fill(leaves, recording.slots)
            return recording
        self._seen[full] += 1
        if not self._worth_recording(full):
            return None
        recording = self._record(function, state, inputs)
        if recording is not None:
            self._recordings[full] = recording
        return recording

    def _worth_recording(self, full: Hashable) -> bool:
        if not self.records or self._seen[full] <= EAGER_CALLS:
            return False
        if len(self._recordings) < MAX_GRAPHS:  # else nothing is asked: calls without room are many
            while (scarce := _is_memory_scarce()) and _kept.drop_oldest(but=self):
                pass
            if not scarce:
                return True
        self._misses += 1
        if self._misses >= max(MAX_GRAPHS, self._replays):
            self.clear()
        return False

    def _record(self, function: Function, state: Any, inputs: Any) -> _Recording | None:
        """Record a call; None if that failed, after which nothing is recorded any more."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        held = set(self._slots)
        placed, given = self._fill_tree(state), self._fill_tree(inputs)
        grown = sum(self._slots[key].numel() for key in self._slots.keys() - held)
        graph, now = torch.cuda.CUDAGraph(), torch.cuda.current_stream()
        before = torch.cuda.memory_reserved()
        self._stream.wait_stream(now)
        try:
            with (
                torch.cuda.stream(self._stream),
                _without_garbage_collection(),
                undisturbed(),
                _own_workspaces(),
            ):
                # other threads may use the GPU meanwhile
                graph.capture_begin(self._pool, capture_error_mode="thread_local")
                try:
                    after, results = function(placed, given)
                    after, (results, flat) = self._fill_tree(after), _pack(results)
                finally:
                    graph.capture_end()
        except RuntimeError as error:
            torch.cuda.synchronize()
            self.records = False
            self.clear()
            reset_cuda_generator()
            reason = str(error).partition("\n")[0]
            warnings.warn(f"decoding is not replayed from CUDA graphs: {reason}", stacklevel=2)
            return None
        now.wait_stream(self._stream)
        # what is recorded has memory of its own
        _kept.add(self, grown + torch.cuda.memory_reserved() - before)
        slots, inputs = _flatten(placed)[0], _flatten(given)[0]
        return _Recording(graph, slots, inputs, after, results, flat)

    def _slot(self, name: str, leaf: Tensor) -> Tensor:
        """Return memory for a leaf of this name, dtype and shape, at the same address again.

        Slots grow by powers of two, so all shapes together take at most four times the largest.
        """
        size = max(leaf.numel() * leaf.element_size(), ALIGNMENT)
        capacity = 1 << (size - 1).bit_length()
        key = (name, capacity)
        if key not in self._slots:
            self._slots[key] = torch.empty(capacity, dtype=torch.uint8, device=leaf.device)
        used = self._slots[key][: leaf.numel() * leaf.element_size()]
        return used.view(leaf.dtype).view(leaf.shape)

    def _fill(self, leaves: dict[str, Tensor], slots: dict[str, Tensor]) -> None:
        """Copy leaves into these slots, except those that are there."""
        moved = [
            (slots[name], leaf)
            for name, leaf in leaves.items()
            if leaf.numel()
            and not (leaf.is_contiguous() and leaf.data_ptr() == slots[name].data_ptr())
        ]
        if moved:
            addresses = {slot.untyped_storage().data_ptr() for slot in self._slots.values()}
            # a leaf in the slot of another one would be overwritten before it is read
            safe = [
                leaf.clone() if leaf.untyped_storage().data_ptr() in addresses else leaf
                for _, leaf in moved
            ]
            torch._foreach_copy_([slot for slot, _ in moved], safe)

    def _fill_tree(self, tree: Any) -> Any:
        leaves, _ = _flatten(tree)
        slots = {name: self._slot(name, leaf) for name, leaf in leaves.items()}
        self._fill(leaves, slots)
        return map_leaves(tree, lambda name, leaf, _: slots.get(name, leaf))


def _is_memory_scarce() -> bool:
    if _kept.is_too_much():  # whatever is given back
        return True
    free, total = torch.cuda.mem_get_info()
    unused = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    if free < FREE_SHARE * total <= free + unused:
        torch.cuda.empty_cache()  # what eager calls keep, or models that are gone
        free, _ = torch.cuda.mem_get_info()
    return free < FREE_SHARE * total


@cache
def _capture_stream(device: torch.device) -> Any:
    """Return the one stream that records graphs on a device: cuBLAS keeps memory for each."""
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


@contextmanager
def _own_workspaces() -> Iterator[None]:
    """Let cuBLAS take its working memory from the graph that is recorded inside the block.

    Memory that others share may be given back by them, as compiled models of torch do, and a
    replayed graph would write into what has become somebody else's.
    """
    clear = torch._C._cuda_clearCublasWorkspaces
    clear()
    try:
        yield
    finally:
        clear()


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Keep Python from destroying another graph inside the block, which would end a capture."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _is_observed(modules: list[nn.Module]) -> bool:
    """Return whether somebody would miss calls that are replayed instead of made."""
    if torch.is_autocast_enabled("cuda") or is_watched():
        return True
    if torch._C._len_torch_dispatch_stack() or torch._C._len_torch_function_stack():
        return True
    shared = nn.modules.module
    if shared._global_forward_hooks or shared._global_forward_pre_hooks:
        return True
    return has_hooks(modules)


def _flatten(tree: Any) -> tuple[dict[str, Tensor], Hashable]:
    """Return the tensors of a tree by name, and what else there is to know of it."""
    leaves: dict[str, Tensor] = {}
    structure: list[Hashable] = []

    def collect(name: str, leaf: Any, of_source: bool) -> Any:
        if isinstance(leaf, Tensor):
            leaves[name] = leaf
            structure.append((name, leaf.shape, leaf.dtype))
        else:
            structure.append((name, leaf))
        return leaf

    map_leaves(tree, collect)
    return leaves, tuple(structure)


@dataclass(frozen=True)
class _Packed:
    """The place of a tensor in the flat tensor of its dtype."""

    flat: int
    start: int
    shape: torch.Size


def _pack(tree: Any) -> tuple[Any, list[Tensor]]:
    """Join the tensors of a tree into one flat tensor for each dtype, so that few are copied."""
    leaves, _ = _flatten(tree)
    dtypes = list(dict.fromkeys(leaf.dtype for leaf in leaves.values()))
    parts: list[list[Tensor]] = [[] for _ in dtypes]
    places: dict[str, _Packed] = {}
    ends = [0] * len(dtypes)
    for name, leaf in leaves.items():
        flat = dtypes.index(leaf.dtype)
        places[name] = _Packed(flat, ends[flat], leaf.shape)
        parts[flat].append(leaf.reshape(-1))
        ends[flat] += leaf.numel()
    packed = map_leaves(tree, lambda name, leaf, _: places.get(name, leaf))
    return packed, [torch.cat(some) for some in parts]


def _unpack(packed: Any, flat: list[Tensor]) -> Any:
    def restore(name: str, place: Any, of_source: bool) -> Any:
        if not isinstance(place, _Packed):
            return place
        return flat[place.flat][place.start :][: place.shape.numel()].view(place.shape)

    return map_leaves(packed, restore)
