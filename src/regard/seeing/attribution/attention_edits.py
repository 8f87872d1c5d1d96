"""Set attention weights by hand while a model runs, for any model whose attention is a softmax.

A cell of a map is given a weight, and the other cells of its row share the rest in proportion to
what they had. This is done where every attention passes: the scores of the row are replaced, just
before their softmax, by the logarithms of the wanted weights, so that whatever the model does with
its weights afterwards, it does with these. Fused kernels never have a softmax to be seen, so inside
an attention that is edited `F.scaled_dot_product_attention` is written out, and operators of regard
run as they are defined in `reference.py`.

All of it is done by modes and hooks that act in the thread of the block alone.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.errors import ArgumentError, RegardError
from regard.layers import SelfAttentiveRNN
from regard.messages import message
from regard.ops import additive_attention, dot_product_attention, self_attentive_rnn
from regard.ops.additive_attention import PATHS as ADDITIVE
from regard.ops.backend import watch
from regard.ops.dot_product_attention import PATHS as DOT_PRODUCT
from regard.ops.self_attentive_rnn import PATHS as SELF_ATTENTIVE
from regard.preemption import is_preemptible, preemptible
from regard.seeing.capture.softmax_tracker import SOFTMAXES

#: definitions of the operators that attend, by name
DEFINITIONS: Final[dict[str, Callable[..., Any]]] = {
    dot_product_attention.__name__: DOT_PRODUCT["reference"].run,
    additive_attention.__name__: ADDITIVE["reference"].run,
    self_attentive_rnn.__name__: SELF_ATTENTIVE["reference"].run,
}
#: kinds of maps in which a query attends to the sequence that it belongs to
OWN_KINDS: Final = (*("encoder-self", "decoder-self", "encoder-history", "decoder-history"),)
#: largest sum of weights that are set in one row
ONE: Final = 1 + 1e-6


@dataclass(frozen=True)
class AttentionCell:
    """A cell of an attention map, and the weight that it is given.

    Attributes:
        kind: of the map.
        layer: counted from 0.
        head: counted from 0; None for all heads.
        row: counted from 0.
        column: counted from 0.
        weight: from 0 to 1.
    """

    kind: str
    layer: int
    head: int | None
    row: int
    column: int
    weight: float

    def __post_init__(self) -> None:
        if not 0 <= self.weight <= 1:
            rule = "be from 0 to 1"
            raise ArgumentError("weight", rule, self.weight, "the rest of its row fills up to 1")
        for name in ("layer", "row", "column", "head"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ArgumentError(name, "be at least 0", value, "count from 0")

    def __str__(self) -> str:
        return message("what-if.cell-all" if self.head is None else "what-if.cell", **vars(self))


@dataclass
class EditedAttention:
    """An attention module of which some cells are set.

    Attributes:
        module: the attention.
        heads: number of its heads.
        cells: to be set, all of this attention.
        own: whether its queries and keys are one sequence.
        seen: queries so far in this decoding.
    """

    module: nn.Module
    heads: int
    cells: Sequence[AttentionCell]
    own: bool
    seen: int = 0

    def edit(self, scores: Float[Tensor, "*batch q_len kv_len"]) -> Tensor:
        """Return scores whose softmax has the wanted weights; all queries count as seen."""
        queries, keys = scores.shape[-2:]
        if self.own and keys == queries - self._lag:
            self.seen = 0  # the first query has no past
        first, self.seen = self.seen, self.seen + queries
        # a cache with a window has forgotten its first keys
        forgotten = max(0, self.seen - self._lag - keys) if self.own else 0
        found = None
        for row in {cell.row for cell in self.cells if first <= cell.row < self.seen}:
            found = self._by_head(scores).clone() if found is None else found
            cells = [cell for cell in self.cells if cell.row == row]
            for head in range(found.shape[1]):
                wanted = {
                    cell.column - forgotten: cell.weight
                    for cell in cells
                    if cell.head in (None, head)
                }
                if wanted:
                    place = found[:, head, row - first]
                    _check_columns(cells[0], wanted, place)
                    place.copy_(edited_scores(place, wanted))
        return scores if found is None else found.reshape(scores.shape)

    @property
    def _lag(self) -> int:
        """1 if a query does not attend to itself, as in an LSTMN, else 0."""
        return int(isinstance(self.module, SelfAttentiveRNN) and self.module.cell == "lstm")

    def _by_head(self, scores: Tensor) -> Float[Tensor, "batch heads q_len kv_len"]:
        """Return scores with an axis of heads; some libraries put heads beside the batch."""
        if scores.ndim == 4 and scores.shape[1] == self.heads:
            return scores
        if scores.ndim == 3 and len(scores) % self.heads == 0:
            return scores.view(-1, self.heads, *scores.shape[1:])
        raise RegardError(
            f"the scores of an attention must be (batch, {self.heads} heads, queries, keys) to be "
            f"set by hand, but those of {type(self.module).__name__} are {tuple(scores.shape)}: "
            f"switch heads off instead."
        )


def edited_scores(
    scores: Float[Tensor, "batch columns"], cells: Mapping[int, float]
) -> Float[Tensor, "batch columns"]:
    """Return the logarithms of rows in which some cells have given weights.

    The other columns share the rest in proportion to `exp(scores)`; equally, if these are all zero.
    Columns that are masked stay so.
    """
    wide = scores.double()
    masked = _is_masked(scores)
    places = torch.tensor(list(cells), device=scores.device)
    given = torch.tensor(list(cells.values()), device=scores.device, dtype=wide.dtype)
    others = ~masked
    others[..., places] = False
    share = wide.masked_fill(~others, float("-inf")).softmax(dim=-1)
    # in half precision a score may be so small that all others have none
    even = others / others.sum(dim=-1, keepdim=True)
    share = torch.where(share.isnan(), even, share).nan_to_num(nan=0.0)
    weights = share * (1 - given.sum()).clamp(min=0.0)
    weights[..., places] = given
    return weights.log().to(scores.dtype)


def _is_masked(scores: Tensor) -> Bool[Tensor, "*batch columns"]:
    """Return which scores are minus infinity, or the lowest numbers, which some libraries add."""
    return scores <= torch.finfo(scores.dtype).min / 2


def _check_columns(cell: AttentionCell, wanted: Mapping[int, float], scores: Tensor) -> None:
    columns = scores.shape[-1]
    where = f"{cell.kind}, layer {cell.layer}, row {cell.row}"
    for column in wanted:
        if not 0 <= column < columns or bool(_is_masked(scores)[..., column].all()):
            rule = f"be one that row {cell.row} can attend to ({cell.kind}, layer {cell.layer})"
            fix = f"choose one of the {columns}; in a causal map, none after the row"
            raise ArgumentError("column", rule, cell.column, fix)
    total, free = sum(wanted.values()), int((~_is_masked(scores)).sum(dim=-1).min()) - len(wanted)
    if total > ONE or (not free and total < 2 - ONE):
        rule = f"sum to {'at most ' * bool(free)}1 in a row ({where})"
        raise ArgumentError("weights", rule, f"{total:g}", "lower them" if free else "set it to 1")


class _Softmaxes(TorchFunctionMode):
    """Edits the scores of each softmax, and writes fused attention out."""

    def __init__(self, target: EditedAttention) -> None:
        super().__init__()
        self.target = target

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            return self._attend(*args, **kwargs)
        if func in SOFTMAXES:
            scores = args[0] if args else kwargs["input"]
            dim = kwargs.get("dim", args[1] if len(args) > 1 else None)
            if scores.ndim >= 3 and dim in (-1, scores.ndim - 1):
                rest = {name: value for name, value in kwargs.items() if name != "input"}
                return func(self._edited(scores), *args[1:], **rest)
        return func(*args, **kwargs)

    def _edited(self, scores: Tensor) -> Tensor:
        with torch._C.DisableTorchFunction(), torch.no_grad():
            return self.target.edit(scores)

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Tensor:
        """Write `F.scaled_dot_product_attention` out, without dropout."""
        if enable_gqa:
            groups = query.shape[-3] // key.shape[-3]
            key, value = (x.repeat_interleave(groups, dim=-3) for x in (key, value))
        scores = query @ key.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
        if is_causal:  # torch aligns it at the top left
            order = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
            scores = scores.masked_fill(~order, float("-inf"))
        if attn_mask is not None and attn_mask.dtype == torch.bool:
            scores = scores.masked_fill(~attn_mask, float("-inf"))
        elif attn_mask is not None:
            scores = scores + attn_mask
        weights = torch.softmax(self._edited(scores), dim=-1)
        return weights.to(value.dtype) @ value


@contextmanager
def edited_attention(
    targets: Iterable[EditedAttention], restarts: Sequence[nn.Module] = ()
) -> Iterator[None]:
    """Set cells of attention maps inside the block; the model is as before after it.

    Args:
        targets: attention modules with their cells.
        restarts: modules that run once before each decoding, as an encoder does: rows of
            cross-attention are counted from there.
    """
    thread = threading.get_ident()
    running: list[tuple[nn.Module, ExitStack]] = []
    edited = list(targets)

    def restart(*_: Any) -> None:
        if threading.get_ident() == thread:
            for target in edited:
                target.seen = 0

    def definition(name: str, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return (DEFINITIONS.get(name, run) if running else run)(*args, **kwargs)

    def follow(target: EditedAttention, stack: ExitStack) -> None:
        def before(module: nn.Module, inputs: Any) -> None:
            if threading.get_ident() == thread:
                block = ExitStack()
                block.enter_context(_Softmaxes(target))
                running.append((module, block))

        def after(module: nn.Module, inputs: Any, output: Any) -> None:
            if threading.get_ident() == thread and running and running[-1][0] is module:
                running.pop()[1].close()

        stack.callback(target.module.register_forward_pre_hook(before).remove)
        last = target.module.register_forward_hook(after, always_call=True)
        stack.callback(last.remove)

    with ExitStack() as stack:
        for part in restarts:
            stack.callback(part.register_forward_pre_hook(restart).remove)
        for target in edited:
            follow(target, stack)
        stack.enter_context(watch(definition))
        if not is_preemptible():  # recurrent decoders then attend by a call for each step
            stack.enter_context(preemptible(lambda: None))
        yield
