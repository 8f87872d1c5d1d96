"""Interventions on attention while a model runs, in the thread of a block alone.

- `edited_attention` sets weights by hand, for any model whose attention is a softmax. A cell of a
  map is given a weight, and the other cells of its row share the rest in proportion to what they
  had: the scores of the row are replaced, just before their softmax, by the logarithms of the
  wanted weights. Fused kernels never have a softmax to be seen, so inside an attention that is
  edited `F.scaled_dot_product_attention` is written out, and operators of regard run as they are
  defined in `reference.py`.
- `heads_muted` and `heads_off` switch heads off. The contexts of all heads stand side by side in
  the input of an attention's output projection: with the slice of one head at zero, by a hook, or
  with its weights at zero, the head contributes nothing, whatever kernel computes the attention.
- `shuffled_attention` lets each weight go to another token's value.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.attention import MultiHeadAttention
from regard.errors import ArgumentError, RegardError
from regard.layers import SelfAttentiveRNN
from regard.layers.transformer import TransformerDecoderLayer, TransformerEncoderLayer
from regard.messages import message
from regard.models.encoders import Encoder
from regard.models.protocol import Memory
from regard.ops import (
    AttentionOutput,
    additive_attention,
    dot_product_attention,
    self_attentive_rnn,
)
from regard.ops.additive_attention import PATHS as ADDITIVE
from regard.ops.backend import watch
from regard.ops.dot_product_attention import PATHS as DOT_PRODUCT
from regard.ops.self_attentive_rnn import PATHS as SELF_ATTENTIVE
from regard.preemption import is_preemptible, preemptible
from regard.seeing.attribution.input_scorer import hooked
from regard.seeing.capture.capture_result import CapturedModule
from regard.seeing.capture.softmax_tracker import SOFTMAXES, sdpa_scores
from regard.seeing.trace.head_habits import HeadKey

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
        scores, allowed = sdpa_scores(query, key, attn_mask, is_causal, scale, enable_gqa)
        scores = scores.masked_fill(~allowed, float("-inf"))
        if enable_gqa:
            value = value.repeat_interleave(query.shape[-3] // value.shape[-3], dim=-3)
        weights = torch.softmax(self._edited(scores), dim=-1)
        return weights.to(value.dtype) @ value


@contextmanager
def edited_attention(
    targets: Iterable[EditedAttention], restarts: Sequence[nn.Module] = ()
) -> Iterator[None]:
    """Set cells of attention maps inside the block; the model is as before after it.

    Rows of cross-attention are counted from the last run of a module of `restarts`, as an encoder.
    """
    running: list[tuple[nn.Module, ExitStack]] = []
    edited = list(targets)

    def restart(*_: Any) -> None:
        for target in edited:
            target.seen = 0

    def definition(name: str, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return (DEFINITIONS.get(name, run) if running else run)(*args, **kwargs)

    def before(target: EditedAttention, module: nn.Module, inputs: Any) -> None:
        block = ExitStack()
        block.enter_context(_Softmaxes(target))
        running.append((module, block))

    def after(module: nn.Module, inputs: Any, output: Any) -> None:
        if running and running[-1][0] is module:
            running.pop()[1].close()

    first = [(part, restart) for part in restarts]
    first += [(target.module, partial(before, target)) for target in edited]
    last = [(target.module, after) for target in edited]
    with ExitStack() as stack:
        stack.enter_context(hooked(first, last, always=True))
        stack.enter_context(watch(definition))
        if not is_preemptible():  # recurrent decoders then attend by a call for each step
            stack.enter_context(preemptible(lambda: None))
        yield


class HeadSwitch(NamedTuple):
    """The slice of an output projection's input that belongs to one head."""

    projection: nn.Module
    start: int
    end: int

    @property
    def weights(self) -> Tensor:
        """The weights of the slice, as a view."""
        weight = self.projection.weight
        assert isinstance(weight, Tensor)
        # the Conv1D of transformers has its weights as (inputs, outputs)
        by_input = weight if _is_transposed(self.projection) else weight.T
        return by_input[self.start : self.end]


@contextmanager
def heads_off(*heads: HeadSwitch) -> Iterator[None]:
    """Switch heads off inside the block; the weights are restored after it, bit by bit."""
    with torch.no_grad():
        kept = [(head.weights, head.weights.clone()) for head in heads]
        for weights, _ in kept:
            weights.zero_()
    try:
        yield
    finally:
        with torch.no_grad():
            for weights, own in kept:
                weights.copy_(own)


@contextmanager
def heads_muted(
    heads: Iterable[HeadSwitch] = (), attentions: Iterable[nn.Module] = ()
) -> Iterator[None]:
    """Switch heads off inside the block for this thread alone, by hooks instead of weights.

    For models that other threads run meanwhile. Each output projection must be called as a module.
    """

    def mute(head: HeadSwitch, module: nn.Module, inputs: tuple[Tensor, ...]) -> Any:
        merged = inputs[0].clone()
        merged[..., head.start : head.end] = 0.0
        return (merged, *inputs[1:])

    def without_context(module: nn.Module, inputs: Any, output: AttentionOutput) -> Any:
        return output._replace(context=torch.zeros_like(output.context))

    slices = [(head.projection, partial(mute, head)) for head in heads]
    with hooked(slices, [(attention, without_context) for attention in attentions]):
        yield


def transformer_switches(model: nn.Module) -> dict[HeadKey, HeadSwitch]:
    """Return the switch of each head of a model that is made of regard's Transformer layers.

    Layers are counted in the order of the modules, as in the maps of a trace. Attention of other
    sorts has one head, which is all that the model has, and no switch.
    """
    found: dict[HeadKey, HeadSwitch] = {}
    layers: dict[str, int] = {}
    for module in model.modules():
        own: dict[str, nn.Module | None] = {}
        if isinstance(module, TransformerEncoderLayer):
            own = {"encoder-self": module.attention}
        elif isinstance(module, TransformerDecoderLayer):
            own = {"decoder-self": module.attention, "cross": module.cross}
        for kind, attention in own.items():
            if isinstance(attention, MultiHeadAttention):
                layer = layers[kind] = layers.get(kind, -1) + 1
                found |= _switches(kind, layer, attention.out_proj, attention.num_heads)
    return found


def module_switches(
    root: nn.Module, attentions: Mapping[tuple[str, int], CapturedModule]
) -> dict[HeadKey, HeadSwitch]:
    """Return the switch of each head of any model.

    Raises:
        ArgumentError: for an attention without an output projection.
    """
    # by their memory: some maps use a view, the transposed weight
    owners = {part.weight.data_ptr(): part for part in root.modules() if _inputs(part)}  # type: ignore[operator]
    found: dict[HeadKey, HeadSwitch] = {}
    for (kind, layer), (name, heads, weight) in attentions.items():
        projection = None if weight is None else owners.get(weight.data_ptr())
        if projection is None:
            raise ArgumentError(
                "attention",
                "have its heads read side by side by one linear module, to switch one off",
                name or type(root).__name__,
                "look at its habits alone",
            )
        found |= _switches(kind, layer, projection, heads)
    return found


def _switches(
    kind: str, layer: int, projection: nn.Module, heads: int
) -> dict[HeadKey, HeadSwitch]:
    size = _inputs(projection) // heads
    return {
        (kind, layer, head): HeadSwitch(projection, head * size, (head + 1) * size)
        for head in range(heads)
    }


def _is_transposed(module: nn.Module) -> bool:
    return type(module).__name__ == "Conv1D"


def _inputs(module: nn.Module) -> int:
    """Return the width of the inputs of a linear map; 0 for any other module."""
    weight = getattr(module, "weight", None)
    if not isinstance(weight, Tensor) or weight.ndim != 2 or not weight.is_floating_point():
        return 0
    if not (isinstance(module, nn.Linear) or _is_transposed(module)):
        return 0
    return int(weight.shape[0] if _is_transposed(module) else weight.shape[1])


@contextmanager
def shuffled_attention(model: nn.Module, seed: int = 0) -> Iterator[None]:
    """Apply each attention weight to the value of another token inside the block.

    Permuting values is the same as permuting all rows of weights alike, for any mechanism and any
    number of heads. Each source has its own permutation, in which no real token keeps its place,
    unless it is the only one. Other threads that run the model meanwhile are not affected.
    """
    rng = torch.Generator().manual_seed(seed)

    def mix(module: nn.Module, inputs: object, memory: Memory) -> Memory:
        keys = memory.output if memory.keys is None else memory.keys
        orders = [_cycle(n, memory.output.shape[1], rng) for n in memory.lengths.tolist()]
        order = torch.stack(orders).to(memory.output.device)[..., None]
        tokens = None if memory.tokens is None else memory.tokens.gather(1, order[..., 0])
        output = memory.output.gather(1, order.expand_as(memory.output))
        return replace(memory, keys=keys, output=output, tokens=tokens)

    encoders = [module for module in model.modules() if isinstance(module, Encoder)]
    with hooked(after=[(encoder, mix) for encoder in encoders]):
        yield


def _cycle(real: int, length: int, rng: torch.Generator) -> Tensor:
    """Return a permutation of `length` places: one cycle of the first `real`, the rest fixed."""
    order = torch.arange(length)
    ring = torch.randperm(real, generator=rng)
    order[ring] = ring.roll(1)
    return order
