"""`regard.capture`: record the attention weights of any module, whatever kernel computes them."""

import difflib
import itertools
import math
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.attention import (
    AdditiveAttention,
    Attention,
    MultiHeadAttention,
    MultiplicativeAttention,
    Projected,
    ScaledDotProductAttention,
    SimpleSelfAttention,
)
from regard.errors import ArgumentError
from regard.layers import ContentMemory
from regard.models.encoders import SelfAttentiveEncoder
from regard.ops import dot_product_attention
from regard.ops.backend import watch
from regard.preemption import is_preemptible
from regard.seeing.capture import recompute
from regard.seeing.capture.capture_result import MAX_WEIGHTS, CaptureResult, Labels
from regard.seeing.capture.forward_passes import AttentionCall
from regard.seeing.capture.recompute import PRODUCTS, ContextTracker, PendingWeights, SoftmaxTracker
from regard.seeing.trace.trace import hides_ahead

NameFilter = Callable[[str], bool]
#: mechanisms whose weights are recorded at the operators; all others are asked for them
BY_OPERATOR: Final = (
    AdditiveAttention,
    MultiHeadAttention,
    MultiplicativeAttention,
    ScaledDotProductAttention,
    SimpleSelfAttention,
)
ATTENTION: Final = re.compile("attention|attn", re.IGNORECASE)
#: parts of an attention that do not attend themselves, by their names
PARTS: Final = re.compile(
    "norm|drop|bias|embed|proj|linear|conv|mask|output|residual|gate|scale", re.IGNORECASE
)


@dataclass
class Frame:
    """A module that is running.

    Attributes:
        name: as in `named_modules`.
        module: itself.
        same: whether its queries and keys are one sequence; None if unknown.
        asks: whether we ask it for its weights.
        asked: whether its caller asked for them too.
        lengths: of the sequences among its arguments.
        sizes: all sizes that a length among its arguments may be.
        queries: number of queries of each of its calls, by the number of the call.
        cached: whether a cache is among its arguments.
        recorded: whether an attention in it was recorded or noted.
    """

    name: str
    module: nn.Module
    same: bool | None = None
    asks: bool = False
    asked: bool = False
    lengths: frozenset[int] = frozenset()
    sizes: frozenset[int] = frozenset()
    queries: dict[int, int] = field(default_factory=dict)
    cached: bool = False
    recorded: bool = False

    @property
    def attends(self) -> bool:
        """True if it is an attention by its class name or its own."""
        kind, leaf = type(self.module), self.name.rpartition(".")[2]
        if ATTENTION.search(kind.__name__):
            return True
        other = kind.__module__.startswith("torch.nn.") or PARTS.search(f"{leaf} {kind.__name__}")
        return bool(ATTENTION.search(leaf)) and not other


class Hook:
    """A hook on one module, which does nothing in copies of the module."""

    def __init__(self, module: nn.Module, call: Callable[..., Any]) -> None:
        self.module, self.call = module, call

    def __call__(self, part: nn.Module, *args: Any) -> Any:
        """Call it, unless the module is a copy or is being compiled."""
        if part is not self.module or torch.compiler.is_compiling():
            return None
        return self.call(part, *args)

    def __deepcopy__(self, memo: Any) -> Callable[..., None]:
        return _no_hook

    def __reduce__(self) -> tuple[Any, ...]:
        return partial, (_no_hook,)


def _no_hook(*_: Any) -> None:
    """Do nothing."""


def selected_rows(args: Sequence[Any]) -> Tensor | None:
    """Return the indices of a selection along the first axis; None for any other selection."""
    tensor, *rest = args
    if len(rest) == 2 and rest[0] == 0 and tensor.ndim > 1:
        indices = rest[1]
    elif len(rest) == 1 and isinstance(rest[0], Tensor) and tensor.ndim > 2:
        indices = rest[0]  # tensors of fewer axes are indexed by code that has no states
    else:
        return None
    numbers = indices.ndim == 1 and indices.dtype in (torch.int32, torch.int64)
    return indices if numbers else None


def repeated_rows(
    tensor: Tensor, repeats: Any = None, dim: int | None = None, **_: Any
) -> Tensor | None:
    """Return the row that each row was, if all were repeated equally often along the first axis."""
    if dim != 0 or not isinstance(repeats, int) or tensor.ndim < 2:
        return None
    return torch.arange(len(tensor)).repeat_interleave(repeats)


def batch_sizes(args: Any, kwargs: Any) -> frozenset[int]:
    """Return the numbers of rows that a module's arguments may have; none if they cannot tell."""
    given = [x for x in (*args, *kwargs.values()) if isinstance(x, Tensor) and not x.is_nested]
    first = {x.shape[0] if x.ndim < 5 else math.prod(x.shape[:-3]) for x in given if x.ndim > 1}
    # some modules take the length first
    second = {x.shape[1] for x in given if x.ndim == 3 and x.is_floating_point()}
    return frozenset(first | second)


def _lengths(x: Any) -> tuple[int, ...]:
    """Return the numbers of positions that an argument may have, if it is a tensor of vectors."""
    if not isinstance(x, Tensor) or x.is_nested or not x.is_floating_point():
        return ()
    if x.ndim == 4:  # by heads, or in two dimensions
        return x.shape[2], math.prod(x.shape[1:-1]), math.prod(x.shape[2:])
    return tuple(x.shape[:-1]) if x.ndim == 3 else ()


def frame_of(name: str, module: nn.Module, args: Any, kwargs: Any) -> Frame:
    """Return the frame of a module that is called with some arguments."""
    if not isinstance(module, Attention):
        lengths = frozenset(
            x.shape[-2]
            for x in (*args, *kwargs.values())
            if isinstance(x, Tensor) and not x.is_nested and x.ndim >= 3 and x.is_floating_point()
        )
        cached = any(
            value is not None and ("past" in key or "cache" in key) and not isinstance(value, bool)
            for key, value in kwargs.items()
        )
        sizes = frozenset(n for x in (*args, *kwargs.values()) for n in _lengths(x))
        return Frame(name, module, lengths=lengths, sizes=sizes, cached=cached)
    given = {**dict(zip(("query", "key"), args, strict=False)), **kwargs}
    query, key = given.get("query"), given.get("key")
    # a decoder projects the keys of its source beforehand; its own cache it reads causally
    same = (
        None if isinstance(key, Projected) and given.get("causal") else key is None or key is query
    )
    asked = bool(kwargs.get("need_weights", True))
    return Frame(name, module, same, not isinstance(module, BY_OPERATOR), asked)


def check_module(module: nn.Module) -> None:
    """Raise ArgumentError for a module in which hooks do not work."""
    if not isinstance(module, nn.Module):
        raise ArgumentError("module", "be an nn.Module", repr(module), "pass the model itself")
    for name, part in module.named_modules():
        where = f"{type(part).__name__} at {name!r}" if name else type(part).__name__
        fix = _refused(part)
        if fix is not None:
            rule = "not be compiled, scripted or replicated, where hooks do not work"
            raise ArgumentError("module", rule, where, fix)


def _refused(module: nn.Module) -> str | None:
    """Return the next step if a module cannot be captured, else None."""
    if isinstance(module, nn.DataParallel):
        return "pass its `.module`"
    if isinstance(module, torch.jit.ScriptModule):
        return "pass the module that it was made from"
    if hasattr(module, "_orig_mod"):
        return "pass the module that it was made from, its `._orig_mod`"
    if getattr(module, "_compiled_call_impl", None) is not None:
        return "capture it before `.compile()` is called"
    return None


def chosen_names(module: nn.Module, layers: Any) -> NameFilter:
    """Return a predicate of the names of the modules to record."""
    if layers is None:
        return lambda name: True
    if callable(layers):
        found: NameFilter = layers
        return found
    if not isinstance(layers, str | Sequence):
        rule = "be names of modules or a function of a name"
        raise ArgumentError("layers", rule, repr(layers), "pass a list")
    chosen = [layers] if isinstance(layers, str) else list(layers or ())
    if not chosen:
        raise ArgumentError("layers", "name a module or more", repr(layers), "None is all of them")
    known = [name for name, _ in module.named_modules()]
    for name in chosen:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1, cutoff=0.0)
            raise ArgumentError(
                "layers",
                "be names of `named_modules`",
                repr(name),
                f"perhaps {close[0]!r} is meant",
            )
    return lambda name: any(name == one or name.startswith(f"{one}.") or not one for one in chosen)


#: functions that repeat rows, as of a source for each of its beams
REPETITIONS: Final = (torch.repeat_interleave, Tensor.repeat_interleave)
#: functions that select rows of caches and states
SELECTIONS: Final = (
    torch.index_select,
    Tensor.index_select,
    Tensor.__getitem__,
    *REPETITIONS,
)
#: functions of linear maps, and the place of the input among their arguments, before the weight
LINEAR_MAPS: Final = {F.linear: 0, torch.addmm: 1}


@contextmanager
def capture(
    module: nn.Module,
    layers: str | Sequence[str] | NameFilter | None = None,
    *,
    max_weights: int = MAX_WEIGHTS,
    tokens: Labels | None = None,
    lengths: Sequence[int] | Tensor | None = None,
) -> Iterator[CaptureResult]:
    """Record the attention weights of a module while it runs inside the block.

    Recorded are regard's own attention, `nn.MultiheadAttention` and what is built from it, calls of
    `F.scaled_dot_product_attention`, and attention that is written out as a softmax and a matrix
    product. Other fused kernels and compiled functions are not: a module that is an attention by
    its name, but in which none was recorded, is named in the notes, as is everything else whose
    weights cannot be had exactly.
    The weights are computed beside the module's own work, before dropout. Outputs, gradients and
    random numbers are those without the block, except that torch's inference fast path is off,
    which rounds a little differently and leaves padding at zero. No hook stays behind.

        with regard.capture(module) as seen:
            module(x)
        seen.traces[0]

    Each call of the module has a trace for each row of the batch. All steps of a `generate()` with
    a cache, and of regard's own decoding, are joined into one; see `seeing.capture.forward_passes`.
    Only the thread that opens the block is recorded: several threads can each capture their own.

    Args:
        module: any module that is not compiled, scripted or a `DataParallel`.
        layers: modules to record: names as in `named_modules`, each with its submodules, or a
            predicate of a name. Default: all.
        max_weights: number of weights that are kept; later ones are left out, with a note.
        tokens: labels of the positions, as in `CaptureResult.label`.
        lengths: number of real positions of each row; the rest is cut off in traces.

    Examples:
        >>> layer = torch.nn.TransformerEncoderLayer(12, 3, 24, batch_first=True).eval()
        >>> with regard.capture(layer, tokens=["the", "cat", "sat"]) as seen, torch.no_grad():
        ...     out = layer(torch.randn(1, 3, 12))
        >>> seen
        CaptureResult('TransformerEncoderLayer', modules=1, calls=1, notes=0)
        >>> seen.traces[0].maps[0]
        Map('encoder-self', layer=0, weights=(3, 3, 3))
    """
    check_module(module)
    wanted = chosen_names(module, layers)
    if max_weights < 1:
        raise ArgumentError("max_weights", "be at least 1", max_weights, f"try {MAX_WEIGHTS}")
    result = CaptureResult(type(module).__name__)
    if lengths is not None:
        result.cut(lengths.tolist() if isinstance(lengths, Tensor) else lengths)
    if tokens is not None:
        result.label(tokens)
    with _recording(module, _Recorder(result, wanted, max_weights)):
        yield result


@contextmanager
def _recording(module: nn.Module, recorder: "_Recorder") -> Iterator[None]:
    """Let a recorder follow a module inside the block."""
    with ExitStack() as stack:
        stack.callback(recorder.close)
        for name, part in module.named_modules():
            recorder.follow(name, part, stack)
        stack.enter_context(watch(recorder.operator))
        # while a mode is on, torch's modules do not take their inference fast path
        stack.enter_context(_TorchCalls(recorder))
        yield


class _Attended(NamedTuple):
    """A call of attention: its weights, the module that made it, and its number in order."""

    pending: PendingWeights
    frame: Frame
    number: int


class _Recorder:
    """Tracks which module is running, and records the weights of the attention that it calls."""

    def __init__(self, result: CaptureResult, wanted: NameFilter, max_weights: int) -> None:
        self.result, self.wanted, self.room = result, wanted, max_weights
        self.frames: list[Frame] = []
        self.run = -1
        self.batches, self.written = frozenset[int](), 0
        self.folded: list[_Attended] = []
        self.contexts = ContextTracker()
        self.silent = 0
        self.open = True
        self.thread = threading.get_ident()

    def close(self) -> None:
        """Stop recording."""
        self.open = False

    def follow(self, name: str, module: nn.Module, stack: ExitStack) -> None:
        """Register hooks that track when a module starts and ends, until the stack is closed."""

        def before(part: nn.Module, args: Any, kwargs: Any) -> Any:
            if not self._is_here():
                return None
            if not self.frames:
                self.run = self.result.start_run(name, kwargs)
                self.batches = batch_sizes(args, kwargs)
                read = kwargs.get("decoder_input_ids")
                self.written = read.shape[-1] if isinstance(read, Tensor) else 0
            frame = frame_of(name, part, args, kwargs)
            self.frames.append(frame)
            return (args, {**kwargs, "need_weights": True}) if frame.asks else None

        def after(part: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            if not self._is_here():
                return None
            if not self.frames or self.frames[-1].module is not part:
                return None  # another hook failed before ours
            frame = self.frames[-1]
            weights = getattr(output, "weights", None)
            if frame.asks and weights is not None:
                self.keep(PendingWeights(weights.shape, lambda: weights))
            self.frames.pop()
            self._drop_pieces(frame)
            if not self.frames:  # heads that were never put side by side: there is one
                for found in tuple(self.folded):
                    self.unfold(found, None)
            if output is not None and not frame.recorded and self.wanted(frame.name):
                self._note_missed(frame)
            hides = frame.asks and not frame.asked and weights is not None
            return output._replace(weights=None) if hides else None

        first = module.register_forward_pre_hook(Hook(module, before), with_kwargs=True)
        stack.callback(first.remove)
        last = module.register_forward_hook(Hook(module, after), with_kwargs=True, always_call=True)
        stack.callback(last.remove)

    def _is_here(self) -> bool:
        """Return whether a module runs in the thread of the block; note it if not."""
        if threading.get_ident() == self.thread:
            return self.open
        if self.open and not is_preemptible():  # threads of a server take turns
            self.result.note(
                "the module also ran in another thread, where nothing is recorded: open a block in "
                "each thread"
            )
        return False

    def _note_missed(self, frame: Frame) -> None:
        """Note a module that is an attention by its name, but in which none was recorded."""
        if not frame.attends or self.silent:
            return
        self._mark_recorded()
        kind = type(frame.module).__name__
        where = f"{frame.name} ({kind})" if frame.name else kind
        self.result.note(
            f"{where} ran, but how it attends cannot be seen: neither by torch's functions nor "
            f"by a softmax and a matrix product"
        )

    @contextmanager
    def silence(self) -> Iterator[None]:
        """Ignore the calls that an attention makes itself."""
        self.silent += 1
        try:
            yield
        finally:
            self.silent -= 1

    @property
    def listens(self) -> bool:
        """True if a call is the module's own: not made by an attention that is recorded as a whole,
        nor by a backward pass that repeats it, nor for a CUDA graph, which cannot be read from."""
        if not (
            self.open
            and threading.get_ident() == self.thread
            and self.frames
            and not self.silent
            and not any(frame.asks for frame in self.frames)
            and torch._C._current_graph_task_id() == -1
        ):
            return False
        return not self._in_cuda_graph()

    def _in_cuda_graph(self) -> bool:
        """Return whether calls are captured for a CUDA graph; note it if so."""
        cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        if not cuda or not torch.cuda.is_current_stream_capturing():
            return False
        self.result.note("what ran while a CUDA graph was being captured is not recorded")
        return True

    def between_runs(self, call: Any, args: Any, kwargs: dict[str, Any]) -> None:
        """Record a selection of rows of the batch, by which caches and states are reordered."""
        if call not in SELECTIONS or self.silent or not self.open or self._in_cuda_graph():
            return
        try:
            with recompute.aside():
                repeats = call in REPETITIONS
                indices = repeated_rows(*args, **kwargs) if repeats else selected_rows(args)
                if indices is not None:
                    self.result.reorder(len(args[0]), indices.tolist())
        except Exception as error:
            self.result.note(f"rows were selected between two runs, but cannot be read ({error})")

    def operator(self, name: str, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run an operator of regard, and record its weights."""
        with self.silence():
            output = run(*args, **kwargs)
        if self.listens:
            with self.guard():
                pending = recompute.from_operator(
                    name, args, kwargs, output, reads_back=self.reads_back
                )
                if pending is not None:
                    found = self.keep(pending)
                    if name == dot_product_attention.__name__:
                        self.contexts.start(None, args, output.context, found)
        return output

    @contextmanager
    def guard(self, where: str | None = None) -> Iterator[None]:
        """Turn errors into notes: recording must not stop the module."""
        try:
            yield
        except Exception as error:
            where = where or self.frames[-1].name or "the module itself"
            self._mark_recorded()
            self.result.note(f"the weights of {where} cannot be had ({error})")

    def _mark_recorded(self) -> None:
        for frame in self.frames:
            frame.recorded = True

    @property
    def reads_back(self) -> bool:
        """True if the running module was given each source from its end."""
        inside = itertools.pairwise(frame.module for frame in self.frames)
        return any(isinstance(a, SelfAttentiveEncoder) and b is a.back for a, b in inside)

    def attended(self, pending: PendingWeights) -> "_Attended":
        """Keep the weights of a call once the number of its heads is known."""
        self._mark_recorded()
        found = _Attended(pending, self.frames[-1], self.result.next_number())
        found.frame.queries[found.number] = pending.shape[-2]
        if len(pending.shape) == 3:  # heads may be folded into the batch: its context will tell
            self.folded.append(found)
        else:
            self._keep_rows(found)
        return found

    def unfold(self, found: "_Attended", heads: Tensor | None) -> None:
        """Keep weights whose first axis is the batch, or whose heads were folded into it."""
        if all(one is not found for one in self.folded):
            return
        self.folded = [one for one in self.folded if one is not found]
        rows, queries, keys = found.pending.shape
        pending = found.pending
        if heads is None:
            shape = (rows, 1, queries, keys)
        else:
            shape = (*heads.shape, queries, keys)
            pending = pending._replace(
                compute=lambda: found.pending.compute().flatten(0, 1)[heads.long()]
            )
        self._keep_rows(found._replace(pending=pending._replace(shape=shape)))

    def _drop_pieces(self, frame: Frame) -> None:
        """Drop the calls of a module that attends to its sequence piece by piece, and note it."""
        pieces = set(frame.queries.values())
        if not frame.sizes or len(frame.queries) < 2 or pieces <= {1, *frame.sizes}:
            return
        self.folded = [one for one in self.folded if one.number not in frame.queries]
        if self.result.drop(frame.name, frame.queries):
            self.result.note(
                f"{frame.name or 'the module itself'} attends in pieces of "
                f"{', '.join(map(str, sorted(pieces)))} queries: no map shows its positions"
            )

    def _keep_rows(self, found: "_Attended") -> None:
        """Keep the weights of a call whose rows are those of the batch; others are noted."""
        rows, queries = math.prod(found.pending.shape[:-3]), found.pending.shape[-2]
        name = found.frame.name
        where = name or "the module itself"
        if rows > 1 and self.batches and rows not in self.batches:
            why = f"within {rows} windows, blocks or folded heads of a batch of {min(self.batches)}"
        elif "decoder." in name and queries > self.written > 0 and not queries % self.written:
            why = f"with {queries} queries for {self.written} tokens of the decoder"
        else:
            self._keep(found)
            return
        if self.wanted(name):
            self.result.note(f"{where} attends {why}: no map shows its positions")

    def keep(self, pending: PendingWeights) -> "_Attended":
        """Compute and keep the weights of a call of the running module."""
        self._mark_recorded()
        found = _Attended(pending, self.frames[-1], self.result.next_number())
        self._keep(found)
        return found

    def _keep(self, found: "_Attended") -> None:
        """Compute and keep the weights of a call, if they are wanted and there is room."""
        pending, frame, number = found
        if not self.wanted(frame.name):
            return
        where = frame.name or "the module itself"
        with self.guard(where):
            wanted = math.prod(pending.shape)
            if wanted > self.room:
                self.result.note(
                    f"the weights of {where} and others were not kept, since max_weights is "
                    f"reached: raise it, or choose layers"
                )
                return
            with recompute.aside(), self.silence():
                call = self._call(pending, frame, where)
            self.room -= wanted
            if frame.module.training:
                self.result.note(
                    "the module was in training mode: these are the weights before dropout"
                )
            self.result.keep(call, number)

    def _call(self, pending: PendingWeights, frame: Frame, where: str) -> AttentionCall:
        """Compute the weights of a call."""
        weights, causal = _readable(pending.compute()), pending.causal
        if not bool(weights.isfinite().all()):
            weights = weights.nan_to_num(nan=0.0)
            self.result.note(f"some weights of {where} are NaN, and are left out")
        if causal is None:
            causal = weights.shape[2] == weights.shape[3] and hides_ahead(weights.numpy())
        queries, keys = weights.shape[2:]
        same = frame.same if pending.same is None else pending.same
        if same is None and frame.cached and keys > queries and keys not in frame.lengths:
            same = True
        return AttentionCall(
            *(frame.name, self.run, weights, causal, same),
            *(pending.history, pending.future, pending.extra, pending.slots),
        )


def _readable(tensor: Tensor) -> Tensor:
    """Return a copy on the CPU in float32 that is no inference tensor."""
    if torch._C._functorch.is_batchedtensor(tensor):
        raise RuntimeError("inside torch.vmap there is no batch to be seen")
    recompute.check_plain(weights=tensor)
    with torch.inference_mode(False), torch.no_grad():
        return tensor.detach().to("cpu", torch.float32, copy=True)


class _TorchCalls(TorchFunctionMode):
    """Observes calls of torch's functions."""

    def __init__(self, recorder: _Recorder) -> None:
        super().__init__()
        self.recorder, self.softmaxes = recorder, SoftmaxTracker()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.compiler.is_compiling():  # which traces this function too
            return func(*args, **kwargs)
        output = func(*args, **kwargs)
        if not self.recorder.frames:
            self.recorder.between_runs(func, args, kwargs)
        elif self.recorder.listens:
            with self.recorder.guard():
                self._see(func, args, kwargs, output)
        return output

    def _see(self, func: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        if func in recompute.TORCH_FUNCTIONS:
            pending = recompute.TORCH_FUNCTIONS[func](*args, **kwargs)
            self._attend(func, args, output, pending)
        elif func in PRODUCTS:
            weights = self.softmaxes.weights_of_product(func, args)
            if weights is not None:
                slots = isinstance(self.recorder.frames[-1].module, ContentMemory)
                pending = PendingWeights(
                    weights.shape,
                    lambda: recompute.four_axes(weights.read()),
                    causal=None,
                    slots=slots,
                )
                self._attend(func, args, output, pending)
            elif len(args) == 2 and isinstance(args[0], Tensor) and args[1].ndim == 2:
                # a linear map that is written out; the first argument of einsum is a string
                self._project(args[0], args[1].T)
        elif func in LINEAR_MAPS:
            if len(args) > LINEAR_MAPS[func] + 1:
                x, weight = args[LINEAR_MAPS[func] :][:2]
                self._project(x, weight if func is F.linear else weight.T)
        else:
            self.softmaxes.follow(func, args, kwargs, output)
            self.recorder.contexts.follow(func, args, kwargs, output)
            context = self.recorder.contexts.known(output) if self.recorder.folded else None
            if context is not None and context.order.shape[-1] > context.size:
                self.recorder.unfold(context.source, context.heads)

    def _project(self, x: Tensor, weight: Tensor) -> None:
        """Note which linear map, (outputs, inputs), reads the heads of an attention."""
        context = self.recorder.contexts.known(x)
        if context is None or (heads := context.heads) is None:
            return
        self.recorder.unfold(context.source, heads)
        shape = context.source.pending.shape
        folded, rows = len(shape) == 3, torch.arange(heads.numel()).view_as(heads)
        if folded or (heads.shape == shape[:2] and torch.equal(heads, rows.int())):
            self.recorder.result.project(context.source.frame.name, weight)

    def _attend(self, func: Any, args: Any, output: Any, pending: PendingWeights) -> None:
        found = self.recorder.attended(pending)
        context = output[0] if isinstance(output, tuple) else output
        if pending.projection is not None:
            self.recorder.result.project(found.frame.name, pending.projection)
        elif not context.is_nested:
            self.recorder.contexts.start(func, args, context, found)
