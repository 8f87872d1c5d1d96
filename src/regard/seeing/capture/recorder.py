"""`regard.capture`: record the attention weights of any module, whatever kernel computes them."""

import difflib
import math
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import torch
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
from regard.ops.backend import watch
from regard.preemption import is_preemptible
from regard.seeing.capture import recompute
from regard.seeing.capture.capture_result import (
    MAX_WEIGHTS,
    AttentionCall,
    CaptureResult,
    Labels,
)
from regard.seeing.capture.recompute import PRODUCTS, PendingWeights, SoftmaxTracker
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
#: names by which modules know the number of their heads
HEADS: Final = ("num_heads", "num_attention_heads", "n_heads", "n_head", "heads")
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
        sizes: all sizes that a length among its arguments may be.
        queries: number of queries of each of its calls.
        calls: those whose weights were kept.
        recorded: whether an attention in it was recorded or noted.
    """

    name: str
    module: nn.Module
    same: bool | None = None
    asks: bool = False
    asked: bool = False
    sizes: frozenset[int] = frozenset()
    queries: list[int] = field(default_factory=list)
    calls: list[AttentionCall] = field(default_factory=list)
    recorded: bool = False

    @property
    def attends(self) -> bool:
        """True if it is an attention by its class name or its own."""
        kind, leaf = type(self.module), self.name.rpartition(".")[2]
        if ATTENTION.search(kind.__name__):
            return True
        other = kind.__module__.startswith("torch.nn.") or PARTS.search(f"{leaf} {kind.__name__}")
        return bool(ATTENTION.search(leaf)) and not other


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
        sizes = frozenset(n for x in (*args, *kwargs.values()) for n in _lengths(x))
        return Frame(name, module, sizes=sizes)
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


@contextmanager
def capture(
    module: nn.Module,
    layers: str | Sequence[str] | NameFilter | None = None,
    *,
    max_weights: int = MAX_WEIGHTS,
    tokens: Labels | None = None,
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

    Each call of the module has a trace for each row of the batch. To see what was generated, run
    the module once on prompt and answer, or take `regard.generate`, which does. Only the thread
    that opens the block is recorded: several threads can each capture their own.

    Args:
        module: any module that is not compiled, scripted or a `DataParallel`.
        layers: modules to record: names as in `named_modules`, each with its submodules, or a
            predicate of a name. Default: all.
        max_weights: number of weights that are kept; later ones are left out, with a note.
        tokens: labels of the positions, as in `CaptureResult.label`.

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


class _Recorder:
    """Tracks which module is running, and records the weights of the attention that it calls."""

    def __init__(self, result: CaptureResult, wanted: NameFilter, max_weights: int) -> None:
        self.result, self.wanted, self.room = result, wanted, max_weights
        self.frames: list[Frame] = []
        self.run = -1
        self.batches, self.written = frozenset[int](), 0
        self.silent = 0
        self.open = True
        self.thread = threading.get_ident()

    def close(self) -> None:
        """Stop recording."""
        self.open = False

    def follow(self, name: str, module: nn.Module, stack: ExitStack) -> None:
        """Register hooks that track when a module starts and ends, until the stack is closed."""

        def before(part: nn.Module, args: Any, kwargs: Any) -> Any:
            if part is not module or not self._is_here():  # a copy has the hooks, too
                return None
            if not self.frames:
                self.run = self.result.start_run(kwargs)
                self.batches = batch_sizes(args, kwargs)
                read = kwargs.get("decoder_input_ids")
                self.written = read.shape[-1] if isinstance(read, Tensor) else 0
            frame = frame_of(name, part, args, kwargs)
            self.frames.append(frame)
            return (args, {**kwargs, "need_weights": True}) if frame.asks else None

        def after(part: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            if part is not module or not self._is_here():
                return None
            if not self.frames or self.frames[-1].module is not part:
                return None  # another hook failed before ours
            frame = self.frames[-1]
            weights = getattr(output, "weights", None)
            if frame.asks and weights is not None:
                self.keep(PendingWeights(weights.shape, lambda: weights))
            self.frames.pop()
            self._drop_pieces(frame)
            if output is not None and not frame.recorded and self.wanted(frame.name):
                self._note_missed(frame)
            hides = frame.asks and not frame.asked and weights is not None
            return output._replace(weights=None) if hides else None

        first = module.register_forward_pre_hook(before, with_kwargs=True)
        stack.callback(first.remove)
        last = module.register_forward_hook(after, with_kwargs=True, always_call=True)
        stack.callback(last.remove)

    def _is_here(self) -> bool:
        """Return whether a module runs in the thread of the block; note it if not."""
        if torch.compiler.is_compiling():
            return False
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

    def operator(self, name: str, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Run an operator of regard, and record its weights."""
        with self.silence():
            output = run(*args, **kwargs)
        if self.listens:
            with self.guard():
                pending = recompute.from_operator(name, args, kwargs, output)
                if pending is not None:
                    self.keep(pending)
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

    def attended(self, pending: PendingWeights) -> None:
        """Keep the weights of a call whose rows are those of the batch; others are noted."""
        self._mark_recorded()
        frame, shape = self.frames[-1], pending.shape
        frame.queries.append(shape[-2])
        if len(shape) == 3:  # heads may be folded into the batch
            heads, compute = self._folded_heads(frame.module, shape[0]), pending.compute
            shape = (shape[0] // heads, heads, *shape[1:])
            pending = pending._replace(shape=shape, compute=lambda: compute().reshape(shape))
        rows, queries, where = math.prod(shape[:-3]), shape[-2], frame.name or "the module itself"
        if rows > 1 and self.batches and rows not in self.batches:
            why = f"within {rows} windows, blocks or folded heads of a batch of {min(self.batches)}"
        elif "decoder." in frame.name and queries > self.written > 0 and not queries % self.written:
            why = f"with {queries} queries for {self.written} tokens of the decoder"
        else:
            self.keep(pending)
            return
        if self.wanted(frame.name):
            self.result.note(f"{where} attends {why}: no map shows its positions")

    def _folded_heads(self, module: nn.Module, rows: int) -> int:
        """Return the number of heads that are folded into the rows of a batch; 1 if unknown.

        Modules of transformers have the heads of a text side by side (docs/guides/zoo.md); of any
        other, a batch of one is known.
        """
        own = (getattr(module, name, None) for name in HEADS)
        heads = next((n for n in own if isinstance(n, int) and n > 0), 1)
        known = rows == heads or type(module).__module__.startswith("transformers.")
        fits = not rows % heads and (not self.batches or rows // heads in self.batches)
        return heads if known and fits else 1

    def _drop_pieces(self, frame: Frame) -> None:
        """Drop the calls of a module that attends to its sequence piece by piece, and note it."""
        pieces = set(frame.queries)
        if not frame.sizes or len(frame.queries) < 2 or pieces <= {1, *frame.sizes}:
            return
        if frame.calls:
            self.result.drop(frame.calls)
            self.result.note(
                f"{frame.name or 'the module itself'} attends in pieces of "
                f"{', '.join(map(str, sorted(pieces)))} queries: no map shows its positions"
            )

    def keep(self, pending: PendingWeights) -> None:
        """Compute and keep the weights of a call, if they are wanted and there is room."""
        self._mark_recorded()
        frame = self.frames[-1]
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
            self.result.keep(call)
            frame.calls.append(call)

    def _call(self, pending: PendingWeights, frame: Frame, where: str) -> AttentionCall:
        """Compute the weights of a call."""
        weights, causal = _readable(pending.compute()), pending.causal
        if not bool(weights.isfinite().all()):
            weights = weights.nan_to_num(nan=0.0)
            self.result.note(f"some weights of {where} are NaN, and are left out")
        if causal is None:
            causal = weights.shape[2] == weights.shape[3] and hides_ahead(weights.numpy())
        same = frame.same if pending.same is None else pending.same
        return AttentionCall(
            *(frame.name, self.run, weights, causal, same),
            *(pending.history, pending.extra, pending.slots),
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
        if self.recorder.listens:
            with self.recorder.guard():
                self._see(func, args, kwargs, output)
        return output

    def _see(self, func: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        if func in recompute.TORCH_FUNCTIONS:
            pending = recompute.TORCH_FUNCTIONS[func](*args, **kwargs)
            self.recorder.attended(pending)
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
                self.recorder.attended(pending)
        else:
            self.softmaxes.follow(func, args, kwargs, output)
