"""`regard.capture`: where the attention of any module looks, whatever kernel computes it."""

import difflib
import inspect
import itertools
import math
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard import ops
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
from regard.ops.backend import watch
from regard.seeing import recompute
from regard.seeing.capture_result import CaptureResult, Shape
from regard.seeing.forward_passes import AttentionCall, hides_all_ahead
from regard.seeing.positions import Labels
from regard.seeing.softmax_tracker import PRODUCTS, SoftmaxTracker

MAX_WEIGHTS: Final = 50_000_000
#: how rows of caches and states are selected
SELECTIONS: Final = (torch.index_select, Tensor.index_select, Tensor.__getitem__)
NameFilter = Callable[[str], bool]
#: mechanisms whose weights are had from the operators; all others are asked for them
BY_OPERATOR: Final = (
    AdditiveAttention,
    MultiHeadAttention,
    MultiplicativeAttention,
    ScaledDotProductAttention,
    SimpleSelfAttention,
)
ATTENTION: Final = re.compile("attention|attn", re.IGNORECASE)
#: words in the names of modules that belong to an attention, but do not attend
PARTS: Final = re.compile(
    "norm|drop|bias|embed|proj|linear|conv|mask|output|residual|gate|scale", re.IGNORECASE
)


@contextmanager
def capture(
    module: nn.Module,
    layers: str | Sequence[str] | NameFilter | None = None,
    *,
    max_weights: int = MAX_WEIGHTS,
    tokens: Labels | None = None,
    lengths: Sequence[int] | Tensor | None = None,
) -> Iterator[CaptureResult]:
    """Record where a module looks while it runs inside the block.

    Recorded are regard's own attention, `nn.MultiheadAttention` and what is built from it, calls of
    `F.scaled_dot_product_attention` and `flex_attention`, and attention that is written out as a
    softmax and a matrix product. Other fused kernels and functions that are compiled are not: a
    module called an attention in which none was seen is named in the notes, as is everything else
    whose weights cannot be had exactly.
    The weights are computed beside the module's own work, before dropout. Outputs, gradients and
    random numbers are those without the block, except that torch's inference fast path is off,
    which rounds a little differently and leaves padding at zero. Nothing stays behind.

        with regard.capture(module) as seen:
            module(x)
        seen.traces[0]

    Each call of the module has a trace for each row. All steps of a `generate()` with a cache, and
    of regard's own decoding, are joined into one; `seeing.forward_passes` defines which calls are.
    Only the thread that opens the block is recorded: several threads can each capture their own.

    Args:
        module: any module that is not compiled, scripted or a `DataParallel`.
        layers: the modules to look at: names as in `named_modules`, each with all that is under it,
            or a function that takes a name. All if None.
        max_weights: how many weights are kept at most; what comes after is left out, with a note.
        tokens: names of the positions, as in `CaptureResult.label`.
        lengths: number of real positions of each row; what is beyond is cut off in traces.
    """
    _check_module(module)
    wanted = _wanted(module, layers)
    if max_weights < 1:
        raise ArgumentError("max_weights", "be at least 1", max_weights, f"try {MAX_WEIGHTS}")
    seen = CaptureResult(type(module).__name__)
    if lengths is not None:
        seen.cut(lengths.tolist() if isinstance(lengths, Tensor) else lengths)
    if tokens is not None:
        seen.label(tokens)
    recorder = _Recorder(seen, wanted, max_weights)
    with ExitStack() as stack:
        stack.callback(recorder.close)
        for name, part in module.named_modules():
            recorder.follow(name, part, stack)
        stack.enter_context(watch(recorder.operator))
        # while a mode is on, torch's modules do not take their inference fast path
        stack.enter_context(_TorchCalls(recorder))
        yield seen


@dataclass
class _Frame:
    """A module that is running.

    Attributes:
        name: as in `named_modules`.
        module: itself.
        same: whether its queries and keys are one sequence; None if that is not known.
        asks: whether it is asked for its weights, and
        asked: whether its caller had asked for them too.
        lengths: of the sequences that it was given.
        cached: whether it was given a cache.
        heard: whether an attention was seen in it, or an unseen one was noted.
    """

    name: str
    module: nn.Module
    same: bool | None = None
    asks: bool = False
    asked: bool = False
    lengths: frozenset[int] = frozenset()
    cached: bool = False
    heard: bool = False

    @property
    def attends(self) -> bool:
        """Whether it is an attention by the name of its class or its own."""
        kind, leaf = type(self.module), self.name.rpartition(".")[2]
        if ATTENTION.search(kind.__name__):
            return True
        other = kind.__module__.startswith("torch.nn.") or PARTS.search(f"{leaf} {kind.__name__}")
        return bool(ATTENTION.search(leaf)) and not other


class _Hook:
    """A hook on one module, which a copy of the module does not keep."""

    def __init__(self, module: nn.Module, call: Callable[..., Any]) -> None:
        self.module, self.call = module, call

    def __call__(self, part: nn.Module, *args: Any) -> Any:
        if part is not self.module or torch.compiler.is_compiling():
            return None
        return self.call(part, *args)

    def __deepcopy__(self, memo: Any) -> Callable[..., None]:
        return _leave

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[()]]:
        return _copied_hook, ()


def _copied_hook() -> Callable[..., None]:
    return _leave


def _leave(copied: nn.Module, *_: Any) -> None:
    """Stand in a copy of a module for the hooks of the original, and remove itself when called."""
    for part in copied.modules():
        for hooks in (part._forward_pre_hooks, part._forward_hooks):
            for key in [key for key, hook in hooks.items() if hook is _leave]:
                del hooks[key]
                part._forward_pre_hooks_with_kwargs.pop(key, None)
                part._forward_hooks_with_kwargs.pop(key, None)
                part._forward_hooks_always_called.pop(key, None)


class _Recorder:
    """Knows which module is running, and keeps the weights of the attention that it calls."""

    def __init__(self, seen: CaptureResult, wanted: NameFilter, max_weights: int) -> None:
        self.seen, self.wanted = seen, wanted
        self.room = max_weights
        self.frames: list[_Frame] = []
        self.run = -1
        self.silent = 0
        self.open = True
        self.thread = threading.get_ident()

    def close(self) -> None:
        """Stop recording."""
        self.open = False

    def follow(self, name: str, module: nn.Module, stack: ExitStack) -> None:
        """Hooks that say when the module starts and ends, until the stack is closed."""

        def before(part: nn.Module, args: Any, kwargs: Any) -> Any:
            if not self._is_here():
                return None
            if not self.frames:
                self.run = self.seen.start_run(name)
            frame = _frame(name, part, args, kwargs)
            self.frames.append(frame)
            return (args, {**kwargs, "need_weights": True}) if frame.asks else None

        def after(part: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            if not self._is_here():
                return None
            if not self.frames or self.frames[-1].module is not part:
                return None  # another hook has failed before ours
            frame = self.frames[-1]
            weights = getattr(output, "weights", None)
            if frame.asks and weights is not None:
                self.keep(lambda: weights.shape, lambda: weights)
            self.frames.pop()
            if output is not None and not frame.heard and self.wanted(frame.name):
                self._miss(frame)
            hides = frame.asks and not frame.asked and weights is not None
            return output._replace(weights=None) if hides else None

        first = module.register_forward_pre_hook(_Hook(module, before), with_kwargs=True)
        stack.callback(first.remove)
        last = module.register_forward_hook(
            _Hook(module, after), with_kwargs=True, always_call=True
        )
        stack.callback(last.remove)

    def _is_here(self) -> bool:
        """Whether a module runs in the thread of the block; notes it if not."""
        if threading.get_ident() == self.thread:
            return self.open
        if self.open:
            self.seen.note(
                "the module also ran in another thread, where nothing is recorded: open a block in "
                "each thread"
            )
        return False

    def _miss(self, frame: _Frame) -> None:
        """Says so where a module is an attention by its name, and none was seen in it."""
        if not frame.attends or self.silent:
            return
        self.hear()
        kind = type(frame.module).__name__
        where = f"{frame.name} ({kind})" if frame.name else kind
        self.seen.note(
            f"{where} ran, but how it attends cannot be seen: neither by torch's functions nor "
            f"by a softmax and a matrix product"
        )

    @contextmanager
    def silence(self) -> Iterator[None]:
        """Does not listen to what an attention itself calls."""
        self.silent += 1
        try:
            yield
        finally:
            self.silent -= 1

    @property
    def listens(self) -> bool:
        """Whether a call is the module's own: not made by an attention that is seen as a whole, nor
        by a backward pass that repeats it, nor for a CUDA graph, which cannot be read from."""
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
        """Whether calls are captured for a CUDA graph, when nothing may be read; notes it if so."""
        cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        if not cuda or not torch.cuda.is_current_stream_capturing():
            return False
        self.seen.note("what ran while a CUDA graph was being captured is not recorded")
        return True

    def between_runs(self, call: Any, args: Any) -> None:
        """Notes a selection of rows along a batch, by which caches and states are reordered."""
        if call not in SELECTIONS or self.silent or not self.open or self._in_cuda_graph():
            return
        try:
            with recompute.aside():
                found = _selected_rows(args)
                if found is not None:
                    self.seen.reorder(len(args[0]), found.tolist())
        except Exception as error:
            self.seen.note(f"rows were selected between two runs, but cannot be read ({error})")

    def operator(self, name: str, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Runs an operator of regard, and keeps its weights."""
        with self.silence():
            output = run(*args, **kwargs)
        if self.listens and name in recompute.OPERATORS:
            with self.guard():
                self._operator(name, SIGNATURES[name].bind(*args, **kwargs).arguments, output)
        return output

    def _operator(self, name: str, given: dict[str, Any], output: Any) -> None:
        size, weights = recompute.OPERATORS[name]
        history = name == "self_attentive_rnn"
        causal = history or given.get("causal") or recompute.hides_ahead(given.get("mask"))
        shape, future = size(given), history and self.reads_back
        read = recompute.turned(weights) if future else weights
        self.keep(
            lambda: shape,
            lambda: read(given, output),
            causal=bool(causal) and not future and shape[2] == shape[3],
            same=_one_sequence(name, given),
            history=history,
            future=future,
        )

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Turns errors into notes: what is recorded must not stop the module."""
        try:
            yield
        except Exception as error:
            where = self.frames[-1].name or "the module itself"
            self.hear()
            self.seen.note(f"the weights of {where} cannot be had ({error})")

    def hear(self) -> None:
        """Says of all modules that are running that an attention was seen in them."""
        for frame in self.frames:
            frame.heard = True

    @property
    def reads_back(self) -> bool:
        """Whether what runs was given each source from its end."""
        inside = itertools.pairwise(frame.module for frame in self.frames)
        return any(isinstance(a, SelfAttentiveEncoder) and b is a.back for a, b in inside)

    def keep(
        self,
        shape: Callable[[], Shape | torch.Size],
        weights: Callable[[], Tensor | None],
        *,
        causal: bool | None = False,
        same: bool | None = None,
        history: bool = False,
        future: bool = False,
        extra: int = 0,
        slots: bool = False,
    ) -> None:
        """Computes and keeps the weights of a call, if they are wanted and there is room.

        If `causal` is None, the weights themselves tell whether they are.
        """
        frame = self.frames[-1]
        self.hear()
        if not self.wanted(frame.name):
            return
        where = frame.name or "the module itself"
        with self.guard():
            if math.prod(shape()) > self.room:
                self.seen.note(
                    f"the weights of {where} and others were not kept, since max_weights is "
                    f"reached: raise it, or choose layers"
                )
                return
            with recompute.aside(), self.silence():
                found = weights()
                assert found is not None
                found = _readable(found)
            if not bool(found.isfinite().all()):
                self.seen.note(f"some weights of {where} are NaN, and are left out")
                found = found.nan_to_num(nan=0.0)
            self.room -= found.numel()
            if frame.module.training:
                self.seen.note(
                    "the module was in training mode: these are the weights before dropout"
                )
            rows, columns = found.shape[2:]
            same = frame.same if same is None else same
            if same is None and frame.cached and columns > rows and columns not in frame.lengths:
                same = True
            if causal is None:
                causal = rows == columns and hides_all_ahead(found)
            self.seen.keep(
                AttentionCall(
                    frame.name, self.run, found, causal, same, history, future, extra, slots
                )
            )


#: of the operators, by name; implementations are called with the arguments of their operator
SIGNATURES: Final = {name: inspect.signature(getattr(ops, name)) for name in recompute.OPERATORS}


def _selected_rows(args: Sequence[Any]) -> Tensor | None:
    """The indices of a selection of rows along the first axis; None if it is another one."""
    tensor, *rest = args
    if len(rest) == 2 and rest[0] == 0 and tensor.ndim > 1:
        indices = rest[1]
    elif len(rest) == 1 and isinstance(rest[0], Tensor) and tensor.ndim > 2:
        indices = rest[0]  # by indexing, which other code does with tensors that are no states
    else:
        return None
    numbers = indices.ndim == 1 and indices.dtype in (torch.int32, torch.int64)
    return indices if numbers else None


def _readable(tensor: Tensor) -> Tensor:
    """A copy on the CPU in float32, which is no inference tensor."""
    if torch._C._functorch.is_batchedtensor(tensor):
        raise RuntimeError("inside torch.vmap there is no batch to be seen")
    recompute.check_plain(weights=tensor)
    with torch.inference_mode(False), torch.no_grad():
        return tensor.detach().to("cpu", torch.float32, copy=True)


def _frame(name: str, module: nn.Module, args: Any, kwargs: Any) -> _Frame:
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
        return _Frame(name, module, lengths=lengths, cached=cached)
    given = {**dict(zip(("query", "key"), args, strict=False)), **kwargs}
    query, key = given.get("query"), given.get("key")
    # a decoder projects the keys of its source beforehand; those of its own cache it hides ahead
    same = (
        None if isinstance(key, Projected) and given.get("causal") else key is None or key is query
    )
    asked = bool(kwargs.get("need_weights", True))
    return _Frame(name, module, same, not isinstance(module, BY_OPERATOR), asked)


class _TorchCalls(TorchFunctionMode):
    """Sees calls of torch's functions, and lets them go their way."""

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
            self.recorder.between_runs(func, args)
        elif self.recorder.listens:
            with self.recorder.guard():
                self._see(func, args, kwargs, output)
        return output

    def _see(self, func: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        if func is recompute.SDPA:
            self._sdpa(recompute.bind_sdpa(*args, **kwargs))
        elif func is recompute.MULTI_HEAD:
            self._multi_head(recompute.bind_multi_head(*args, **kwargs))
        elif func is recompute.FLEX:
            self._flex(recompute.bind_flex(*args, **kwargs), output[0])
        elif func in PRODUCTS:
            self._product(func, args)
        else:
            self.softmaxes.follow(func, args, kwargs, output)

    def _product(self, func: Any, args: Any) -> None:
        found = self.softmaxes.summing(func, args)
        if found is not None:
            self.recorder.keep(
                lambda: found.weights.shape,
                lambda: recompute.four_axes(found.read()),
                causal=None,
                slots=isinstance(self.recorder.frames[-1].module, ContentMemory),
            )

    def _sdpa(self, given: dict[str, Any]) -> None:
        causal, (_, _, rows, columns) = recompute.sdpa_causal(given), recompute.sdpa_shape(given)
        self.recorder.keep(
            lambda: recompute.sdpa_shape(given),
            lambda: recompute.sdpa_weights(given),
            causal=causal,
            same=True if causal and rows != columns else None,  # the queries are the last keys
        )

    def _flex(self, given: dict[str, Any], output: Tensor) -> None:
        self.recorder.keep(
            lambda: recompute.sdpa_shape(given),
            lambda: recompute.flex_weights(given, output),
            causal=None,
        )

    def _multi_head(self, given: dict[str, Any]) -> None:
        self.recorder.keep(
            lambda: recompute.multi_head_shape(given),
            lambda: recompute.multi_head_weights(given),
            causal=recompute.hides_ahead(given["attn_mask"], blocked=True),
            same=given["query"] is given["key"],
            extra=recompute.extra_keys(given),
        )


def _one_sequence(name: str, given: dict[str, Any]) -> bool | None:
    if name in ("attentive_rnn", "monotonic_alignment"):
        return False
    return True if name == "self_attentive_rnn" or given.get("causal") else None


def _check_module(module: nn.Module) -> None:
    if not isinstance(module, nn.Module):
        raise ArgumentError("module", "be an nn.Module", repr(module), "pass the model itself")
    for name, part in module.named_modules():
        where = f"{type(part).__name__} at {name!r}" if name else type(part).__name__
        fix = _refused(part)
        if fix is not None:
            rule = "not be compiled, scripted or replicated, where hooks do not work"
            raise ArgumentError("module", rule, where, fix)


def _refused(module: nn.Module) -> str | None:
    """What to do instead, if the module cannot be looked at."""
    if isinstance(module, nn.DataParallel):
        return "pass its `.module`"
    if isinstance(module, torch.jit.ScriptModule):
        return "pass the module that it was made from"
    if hasattr(module, "_orig_mod"):
        return "pass the module that it was made from, its `._orig_mod`"
    if getattr(module, "_compiled_call_impl", None) is not None:
        return "look at it before `.compile()` is called"
    return None


def _wanted(module: nn.Module, layers: Any) -> NameFilter:
    """Whether a module is to be looked at, by its name."""
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
