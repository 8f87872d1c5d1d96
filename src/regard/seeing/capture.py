"""`regard.capture`: where the attention of any module looks, whatever kernel computes it."""

import difflib
import functools
import inspect
import itertools
import math
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
from regard.seeing import recompute
from regard.seeing.captured import Look, Seen, Shape
from regard.seeing.positions import Labels
from regard.seeing.softmaxes import PRODUCTS, Softmaxes, hides_all_ahead

MAX_WEIGHTS: Final = 50_000_000
Wanted = Callable[[str], bool]
#: mechanisms whose weights are had from the operators; all others are asked for them
BY_OPERATOR: Final = (
    AdditiveAttention,
    MultiHeadAttention,
    MultiplicativeAttention,
    ScaledDotProductAttention,
    SimpleSelfAttention,
)


@contextmanager
def capture(
    module: nn.Module,
    layers: str | Sequence[str] | Wanted | None = None,
    *,
    max_weights: int = MAX_WEIGHTS,
    tokens: Labels | None = None,
    lengths: Sequence[int] | Tensor | None = None,
) -> Iterator[Seen]:
    """Sees where a module looks while it runs inside the block.

    It sees regard's own attention, `nn.MultiheadAttention` and what is built from it, calls of
    `F.scaled_dot_product_attention`, and attention that is written out as a softmax and a matrix
    product. It sees no other fused kernel; a module called an attention in which it saw none is
    named in the notes.
    The weights are computed beside the module's own work, before dropout. Outputs, gradients and
    random numbers are those without the block, except that torch's inference fast path is off,
    which rounds a little differently and leaves padding at zero. Nothing stays behind.

        with regard.capture(module) as seen:
            module(x)
        seen.traces[0]

    Args:
        module: any module that is not compiled, scripted or a `DataParallel`.
        layers: the modules to look at: names as in `named_modules`, each with all that is under it,
            or a function that takes a name. All if None.
        max_weights: how many weights are kept at most; what comes after is left out, with a note.
        tokens: names of the positions, as in `Seen.label`.
        lengths: number of real positions of each row; what is beyond is cut off in traces.
    """
    _check_module(module)
    wanted = _wanted(module, layers)
    if max_weights < 1:
        raise ArgumentError("max_weights", "be at least 1", max_weights, f"try {MAX_WEIGHTS}")
    seen = Seen(type(module).__name__)
    if lengths is not None:
        seen.cut(lengths.tolist() if isinstance(lengths, Tensor) else lengths)
    if tokens is not None:
        seen.label(tokens)
    recorder = _Recorder(seen, wanted, max_weights)
    with ExitStack() as stack:
        for name, part in module.named_modules():
            recorder.follow(name, part, stack)
        for name in recompute.OPERATORS:
            stack.callback(setattr, ops, name, getattr(ops, name))
            setattr(ops, name, _watched(recorder, name))
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
        heard: whether an attention was seen in it.
    """

    name: str
    module: nn.Module
    same: bool | None
    asks: bool
    asked: bool
    heard: bool = False


class _Recorder:
    """Knows which module is running, and keeps the weights of the attention that it calls."""

    def __init__(self, seen: Seen, wanted: Wanted, max_weights: int) -> None:
        self.seen, self.wanted = seen, wanted
        self.room = max_weights
        self.frames: list[_Frame] = []
        self.run = -1
        self.silent = 0
        self.thread = threading.get_ident()

    def follow(self, name: str, module: nn.Module, stack: ExitStack) -> None:
        """Hooks that say when the module starts and ends, until the stack is closed."""

        def before(part: nn.Module, args: Any, kwargs: Any) -> Any:
            if threading.get_ident() != self.thread:
                return None
            self.run += not self.frames
            frame = _frame(name, part, args, kwargs)
            self.frames.append(frame)
            return (args, {**kwargs, "need_weights": True}) if frame.asks else None

        def after(part: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            if threading.get_ident() != self.thread:
                return None
            if not self.frames or self.frames[-1].module is not part:
                return None  # another hook has failed before ours
            frame = self.frames[-1]
            weights = getattr(output, "weights", None)
            if frame.asks and weights is not None:
                self.keep(weights.shape, lambda: weights)
            self.frames.pop()
            if output is not None and not frame.heard and self.wanted(frame.name):
                self._miss(frame)
            hides = frame.asks and not frame.asked and weights is not None
            return output._replace(weights=None) if hides else None

        first = module.register_forward_pre_hook(before, with_kwargs=True)
        stack.callback(first.remove)
        last = module.register_forward_hook(after, with_kwargs=True, always_call=True)
        stack.callback(last.remove)

    def _miss(self, frame: _Frame) -> None:
        """Says so where a module is an attention by its name, and none was seen in it."""
        kind = type(frame.module).__name__
        if kind.lower().endswith(("attention", "attn")) and not self.silent:
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
        by a backward pass that repeats it."""
        return (
            threading.get_ident() == self.thread
            and bool(self.frames)
            and not self.silent
            and not any(frame.asks for frame in self.frames)
            and torch._C._current_graph_task_id() == -1
        )

    @property
    def reads_back(self) -> bool:
        """Whether what runs was given each source from its end."""
        inside = itertools.pairwise(frame.module for frame in self.frames)
        return any(isinstance(a, SelfAttentiveEncoder) and b is a.back for a, b in inside)

    def keep(
        self,
        shape: Shape | torch.Size,
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
        for outer in self.frames:
            outer.heard = True
        if not self.wanted(frame.name):
            return
        where = frame.name or "the module itself"
        if math.prod(shape) > self.room:
            self.seen.note(
                f"the weights of {where} and others were not kept, since max_weights is reached: "
                f"raise it, or choose layers"
            )
            return
        try:
            with recompute.aside(), self.silence():
                found = weights()
                assert found is not None
                found = _readable(found).to("cpu", torch.float32, copy=True)
        except Exception as error:  # what is seen must not stop the module that is looked at
            self.seen.note(f"the weights of {where} cannot be had ({error})")
            return
        if not bool(found.isfinite().all()):
            self.seen.note(f"some weights of {where} are NaN, and are left out")
            found = found.nan_to_num(nan=0.0)
        self.room -= found.numel()
        if frame.module.training:
            self.seen.note("the module was in training mode: these are the weights before dropout")
        same = frame.same if same is None else same
        causal = hides_all_ahead(found) if causal is None else causal
        self.seen.keep(
            Look(frame.name, self.run, found, causal, same, history, future, extra, slots)
        )


def _readable(tensor: Tensor) -> Tensor:
    if torch._C._functorch.is_batchedtensor(tensor):
        raise RuntimeError("inside torch.vmap there is no batch to be seen")
    return tensor.detach()


def _frame(name: str, module: nn.Module, args: Any, kwargs: Any) -> _Frame:
    if not isinstance(module, Attention):
        return _Frame(name, module, None, False, False)
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
        self.recorder, self.softmaxes = recorder, Softmaxes()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        if not self.recorder.listens:
            return output
        if func is recompute.SDPA:
            self._sdpa(recompute.bind_sdpa(*args, **kwargs))
        elif func is recompute.MULTI_HEAD:
            self._multi_head(recompute.bind_multi_head(*args, **kwargs))
        elif func in PRODUCTS:
            self._product(func, args)
        else:
            self.softmaxes.follow(func, args, kwargs, output)
        return output

    def _product(self, func: Any, args: Any) -> None:
        found = self.softmaxes.summing(func, args)
        if found is not None:
            self.recorder.keep(
                found.weights.shape,
                lambda: recompute.four_axes(found.read()),
                causal=None,
                slots=isinstance(self.recorder.frames[-1].module, ContentMemory),
            )

    def _sdpa(self, given: dict[str, Any]) -> None:
        shape = recompute.sdpa_shape(given)
        square = shape[2] == shape[3]
        causal = square and (given["is_causal"] or recompute.hides_ahead(given["attn_mask"]))
        self.recorder.keep(shape, lambda: recompute.sdpa_weights(given), causal=causal)

    def _multi_head(self, given: dict[str, Any]) -> None:
        self.recorder.keep(
            recompute.multi_head_shape(given),
            lambda: recompute.multi_head_weights(given),
            causal=recompute.hides_ahead(given["attn_mask"], blocked=True),
            same=given["query"] is given["key"],
            extra=recompute.extra_keys(given),
        )


def _watched(recorder: _Recorder, name: str) -> Callable[..., Any]:
    """An operator of regard that says what it was given."""
    original = getattr(ops, name)
    signature = inspect.signature(original)
    size, weights = recompute.OPERATORS[name]

    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        with recorder.silence():
            output = original(*args, **kwargs)
        if recorder.listens:
            given = signature.bind(*args, **kwargs).arguments
            history = name == "self_attentive_rnn"
            causal = history or given.get("causal") or recompute.hides_ahead(given.get("mask"))
            shape, future = size(given), history and recorder.reads_back
            read = recompute.turned(weights) if future else weights
            recorder.keep(
                shape,
                lambda: read(given, output),
                causal=bool(causal) and not future and shape[2] == shape[3],
                same=_one_sequence(name, given),
                history=history,
                future=future,
            )
        return output

    return call


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


def _wanted(module: nn.Module, layers: Any) -> Wanted:
    """Whether a module is to be looked at, by its name."""
    if layers is None:
        return lambda name: True
    if callable(layers):
        found: Wanted = layers
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
