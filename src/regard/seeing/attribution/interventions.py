"""Interventions on attention while a model runs, in the thread of a block alone.

- `edited_attention` sets weights by hand, where attention is a softmax. A cell of a map is given a
  weight, and the other cells of its row share the rest in proportion to what they had: the scores
  of the row are replaced, just before their softmax, by the logarithms of the wanted weights. Fused
  kernels never have a softmax to be seen, so inside an attention that is edited operators run as
  they are defined in `reference.py`.
- `heads_muted` switches heads off. The contexts of all heads stand side by side in the input of an
  attention's output projection: with the slice of one head at zero, the head contributes nothing,
  whatever kernel computes the attention.
- `shuffled_attention` lets each weight go to another token's value.

Interventions: change what a model reads, writes or attends to, decode again, and compare.

An `Intervention` is a list of changes: tokens of the source that are replaced, a prefix that the
output must begin with, heads that are switched off, and cells of attention maps that are set by
hand. `intervened` makes the changes inside a model while a block runs; `WhatIf` holds the traces
without and with them.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from regard.attention import Attention, MultiHeadAttention
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
from regard.seeing.draw.shapes import write_by_ending
from regard.seeing.page.compare_page import render_what_if
from regard.seeing.trace.head_habits import HeadKey, TraceDistance, common_weights, trace_distance
from regard.seeing.trace.storage import to_json
from regard.seeing.trace.trace import Text, Trace, Weights

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
        cells: to be set, all of this attention.
        own: whether its queries and keys are one sequence.
        seen: queries so far in this decoding.
    """

    module: nn.Module
    cells: Sequence[AttentionCell]
    own: bool
    seen: int = 0

    def edit(self, scores: Float[Tensor, "batch heads q_len kv_len"]) -> Tensor:
        """Return scores whose softmax has the wanted weights; all queries count as seen."""
        queries, keys = scores.shape[-2:]
        if self.own and keys == queries - self._lag:
            self.seen = 0  # the first query has no past
        first, self.seen = self.seen, self.seen + queries
        # a cache with a window has forgotten its first keys
        forgotten = max(0, self.seen - self._lag - keys) if self.own else 0
        found = scores.clone()
        for row in {cell.row for cell in self.cells if first <= cell.row < self.seen}:
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
        return found

    @property
    def _lag(self) -> int:
        """1 if a query does not attend to itself, as in an LSTMN, else 0."""
        return int(isinstance(self.module, SelfAttentiveRNN) and self.module.cell == "lstm")


def edited_scores(
    scores: Float[Tensor, "batch columns"], cells: Mapping[int, float]
) -> Float[Tensor, "batch columns"]:
    """Return the logarithms of rows in which some cells have given weights.

    The other columns share the rest in proportion to `exp(scores)`; equally, if these are all zero.
    Columns that are masked stay so.
    """
    wide = scores.double()
    places = torch.tensor(list(cells), device=scores.device)
    given = torch.tensor(list(cells.values()), device=scores.device, dtype=wide.dtype)
    others = ~scores.isneginf()
    others[..., places] = False
    share = wide.masked_fill(~others, float("-inf")).softmax(dim=-1)
    # in half precision a score may be so small that all others have none
    even = others / others.sum(dim=-1, keepdim=True)
    share = torch.where(share.isnan(), even, share).nan_to_num(nan=0.0)
    weights = share * (1 - given.sum()).clamp(min=0.0)
    weights[..., places] = given
    return weights.log().to(scores.dtype)


def _check_columns(cell: AttentionCell, wanted: Mapping[int, float], scores: Tensor) -> None:
    columns = scores.shape[-1]
    where = f"{cell.kind}, layer {cell.layer}, row {cell.row}"
    for column in wanted:
        if not 0 <= column < columns or bool(scores[..., column].isneginf().all()):
            rule = f"be one that row {cell.row} can attend to ({cell.kind}, layer {cell.layer})"
            fix = f"choose one of the {columns}; in a causal map, none after the row"
            raise ArgumentError("column", rule, cell.column, fix)
    total, free = sum(wanted.values()), int((~scores.isneginf()).sum(dim=-1).min()) - len(wanted)
    if total > ONE or (not free and total < 2 - ONE):
        rule = f"sum to {'at most ' * bool(free)}1 in a row ({where})"
        raise ArgumentError("weights", rule, f"{total:g}", "lower them" if free else "set it to 1")


class _Softmaxes(TorchFunctionMode):
    """Edits the scores of each softmax over keys."""

    def __init__(self, target: EditedAttention) -> None:
        super().__init__()
        self.target = target

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is Tensor.softmax and args[0].ndim == 4:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                args = (self.target.edit(args[0]), *args[1:])
        return func(*args, **(kwargs or {}))


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


@contextmanager
def heads_muted(
    heads: Iterable[HeadSwitch] = (), attentions: Iterable[nn.Module] = ()
) -> Iterator[None]:
    """Switch heads off inside the block, for this thread alone."""

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
                heads, projection = attention.num_heads, attention.out_proj
                size = projection.in_features // heads
                found |= {
                    (kind, layer, head): HeadSwitch(projection, head * size, (head + 1) * size)
                    for head in range(heads)
                }
    return found


@contextmanager
def shuffled_attention(model: nn.Module) -> Iterator[None]:
    """Apply each attention weight to the value of another token inside the block.

    Permuting values is the same as permuting all rows of weights alike, for any mechanism and any
    number of heads. Each source has its own permutation, in which no real token keeps its place,
    unless it is the only one. Other threads that run the model meanwhile are not affected.
    """
    rng = torch.Generator().manual_seed(0)

    def mix(module: nn.Module, inputs: object, memory: Memory) -> Memory:
        keys = memory.output if memory.keys is None else memory.keys
        orders = [_cycle(n, memory.output.shape[1], rng) for n in memory.lengths.tolist()]
        order = torch.stack(orders).to(memory.output.device)[..., None]
        tokens = memory.tokens
        if tokens is not None and not tokens.is_floating_point():
            tokens = tokens.gather(1, order[..., 0])
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


#: kinds of maps whose cells can be set; an encoder that reads backwards counts from the end
SETTABLE: Final = ("cross", *OWN_KINDS)
#: largest difference between a weight that was set and the one that the model used
TOLERANCE: Final = 0.01


@dataclass(frozen=True)
class Intervention:
    """Changes of one run of a model.

    Attributes:
        replace: text by the number of the source token that it replaces.
        prefix: text that the output begins with; None for none.
        heads_off: (kind, layer, head) of heads that are switched off.
        cells: of attention maps, with the weights that they are given.
    """

    replace: Mapping[int, str]
    prefix: str | None
    heads_off: tuple[HeadKey, ...]
    cells: tuple[AttentionCell, ...]

    @staticmethod
    def of(
        replace: Mapping[int, str] | None = None,
        prefix: str | None = None,
        heads_off: Sequence[Sequence[Any]] = (),
        cells: Sequence[AttentionCell | Sequence[Any]] = (),
    ) -> "Intervention":
        """Return an intervention; raises if nothing is to be changed.

        Args:
            replace: text by the number of the source token that it replaces.
            prefix: text that the output begins with.
            heads_off: kind, layer and head of each head that is switched off.
            cells: `AttentionCell`, or kind, layer, head, row, column and weight of each.
        """
        found = Intervention(
            {int(place): text for place, text in (replace or {}).items()},
            prefix,
            tuple(_head(one) for one in heads_off),
            tuple(_cell(one) for one in cells),
        )
        if not (found.replace or found.prefix is not None or found.heads_off or found.cells):
            rule = "be a token to replace, a prefix, a head to switch off or a cell to set"
            raise ArgumentError("change", rule, "missing", "give one at least")
        return found

    def sentences(self, source: Text) -> list[str]:
        """Return a sentence for each change; `source` is the text whose tokens are replaced."""
        said = [
            message(
                "what-if.replaced",
                token=repr(source.tokens[place].text),
                place=place,
                text=repr(text),
            )
            for place, text in self.replace.items()
        ]
        said += [] if self.prefix is None else [message("what-if.prefix", prefix=repr(self.prefix))]
        said += [
            message("what-if.off", kind=kind, layer=layer, head=head)
            for kind, layer, head in self.heads_off
        ]
        return [*said, *map(str, self.cells)]

    def replaced(self, source: Text) -> str:
        """Return the text of a source with its tokens replaced, to be read anew."""
        text = source.text
        for place in sorted(self.replace, reverse=True):
            if not 0 <= place < len(source.tokens):
                rule = f"be the number of a source token, from 0 to {len(source.tokens) - 1}"
                raise ArgumentError("replace", rule, place, "count tokens from 0")
            token = source.tokens[place]
            if token.special or token.span is None:
                rule = "be the number of a token that is part of the text"
                value = f"{place}, which is {token.text!r}"
                raise ArgumentError("replace", rule, value, "choose another token")
            start, end = token.span
            text = text[:start] + self.replace[place] + text[end:]
        return text


def check_seeded(options: Mapping[str, Any]) -> None:
    """Raise if answers are sampled without a seed: they would differ without any change."""
    if options.get("num_samples") and options.get("seed") is None:
        raise ArgumentError("seed", "be given where answers are sampled", "missing", "seed=1 does")


def _head(one: Sequence[Any]) -> HeadKey:
    if isinstance(one, str) or len(one) != 3:
        rule, fix = "be kind, layer and head", 'as in ("cross", 0, 1)'
        raise ArgumentError("heads_off", rule, repr(one), fix)
    kind, layer, head = one
    return str(kind), int(layer), int(head)


def _cell(one: AttentionCell | Sequence[Any]) -> AttentionCell:
    if isinstance(one, AttentionCell):
        return one
    if isinstance(one, str) or len(one) != 6:
        rule = "be kind, layer, head, row, column and weight"
        raise ArgumentError("cells", rule, repr(one), 'as in ("cross", 0, 1, 2, 3, 0.9)')
    kind, layer, head, row, column, weight = one
    head = None if head is None else int(head)
    return AttentionCell(str(kind), int(layer), head, int(row), int(column), float(weight))


#: attention modules of a model by kind of map and layer, as `CaptureResult.modules` names them
AttentionModules = Mapping[tuple[str, int], CapturedModule]


@contextmanager
def intervened(
    change: Intervention,
    root: nn.Module,
    modules: AttentionModules,
    switches: Callable[[], Mapping[HeadKey, HeadSwitch]],
    restarts: Sequence[nn.Module] = (),
) -> Iterator[list[str]]:
    """Switch heads off and set cells inside the block, and yield remarks on it.

    Only the thread that opens the block is affected.
    """
    targets = _edited(change.cells, root, modules)
    heads, attentions = _muted(change.heads_off, root, modules, switches)
    notes = [
        f"{modules[kind, layer].name} is the attention of {count} layers: head {head} is off in all"
        for kind, layer, head in change.heads_off
        if (count := _layers_of(modules[kind, layer], modules)) > 1
    ]
    with heads_muted(heads, attentions), edited_attention(targets, restarts):
        yield notes


def _edited(
    cells: Sequence[AttentionCell], root: nn.Module, modules: AttentionModules
) -> list[EditedAttention]:
    by_map: dict[tuple[str, int], list[AttentionCell]] = {}
    for cell in cells:
        found = _find("cells", cell.kind, cell.layer, cell.head, modules)
        if cell.kind not in SETTABLE:
            rule = f"be of one of the maps {', '.join(SETTABLE)}"
            raise ArgumentError(
                "cells", rule, cell.kind, "replace a token or force a prefix instead"
            )
        if (count := _layers_of(found, modules)) > 1:
            rule = "be of a layer with an attention module of its own"
            value = f"one of {count} layers that share {found.name}"
            raise ArgumentError("cells", rule, value, "replace a token or force a prefix instead")
        by_map.setdefault((cell.kind, cell.layer), []).append(cell)
    return [
        EditedAttention(root.get_submodule(name), by_map[key], own=key[0] in OWN_KINDS)
        for key, (name, _) in modules.items()
        if key in by_map
    ]


def _muted(
    keys: Sequence[HeadKey],
    root: nn.Module,
    modules: AttentionModules,
    switches: Callable[[], Mapping[HeadKey, HeadSwitch]],
) -> tuple[list[HeadSwitch], list[nn.Module]]:
    """Return the switches of heads, and the mechanisms of one head."""
    heads: list[HeadSwitch] = []
    attentions: list[nn.Module] = []
    known = switches() if keys else {}
    for key in keys:
        module = root.get_submodule(_find("heads_off", *key, modules).name)
        if key in known:
            heads.append(known[key])
        elif isinstance(module, Attention) and not isinstance(module, MultiHeadAttention):
            attentions.append(module)
        else:
            kind, layer, head = key
            raise RegardError(
                f"a head must have an output projection to be switched off, but head {head} of "
                f"{kind}, layer {layer}, is part of a {type(module).__name__}: replace a "
                f"token or force a prefix instead."
            )
    return heads, attentions


def _layers_of(attention: CapturedModule, modules: AttentionModules) -> int:
    """Return the number of layers that an attention module serves."""
    return sum(other.name == attention.name for other in modules.values())


def _find(
    name: str, kind: str, layer: int, head: int | None, modules: AttentionModules
) -> CapturedModule:
    if (kind, layer) not in modules:
        known = ", ".join(f"{k} {n}" for k, n in modules) or "none, since it has no attention"
        rule = f"be of a map that the model has (kind and layer: {known})"
        raise ArgumentError(name, rule, f"{kind} {layer}", "choose one of these")
    found = modules[kind, layer]
    if head is not None and not 0 <= head < found.heads:
        rule = f"be of one of the {found.heads} heads of {kind}, layer {layer}"
        raise ArgumentError(name, rule, head, "count heads from 0")
    return found


@dataclass(frozen=True)
class WhatIf:
    """A run of a model, and the same run with changes.

    Attributes:
        changes: a sentence for each change.
        answers: without and with them.
        traces: of both.
        distance: between their maps, over the rows and columns that both have.
        notes: remarks, as on cells that were never computed.
    """

    changes: tuple[str, ...]
    answers: tuple[str, str]
    traces: tuple[Trace, Trace]
    distance: TraceDistance
    notes: tuple[str, ...] = ()

    @staticmethod
    def of(
        change: Intervention,
        traces: tuple[Trace, Trace],
        notes: Sequence[str] = (),
        read: Text | None = None,
    ) -> "WhatIf":
        """Compare two traces; raises if a cell does not have the weight that it was given."""
        before, after = traces
        missed = [cell for cell in change.cells if not _check_set(cell, after)]
        remarks = [f"{cell}: the map has no such cell, so nothing was set" for cell in missed]
        made = replace(change, cells=tuple(cell for cell in change.cells if cell not in missed))
        said = made.sentences(before.source if read is None else read)
        texts = before.target.text, after.target.text
        distance = trace_distance(before, after, by_position=True)
        return WhatIf(tuple(said), texts, traces, distance, (*notes, *remarks))

    def __repr__(self) -> str:
        return f"WhatIf({'; '.join(self.changes)}: {self.answers[0]!r} -> {self.answers[1]!r})"

    def difference(self, kind: str, layer: int, head: int | str = "mean") -> Weights:
        """Return the weights with the changes less those without, over what both have."""
        pair = [
            next((one for one in trace.of_kind(kind) if one.layer == layer), None)
            for trace in self.traces
        ]
        if pair[0] is None or pair[1] is None:
            rule = f"be a map of both traces: {', '.join(self.traces[0].kinds)}"
            raise ArgumentError("kind and layer", rule, f"{kind} {layer}", "choose one")
        first, second = common_weights(pair[0].weights, pair[1].weights)
        if head == "mean":
            mean: Weights = (second - first).mean(axis=0)
            return mean
        found: Weights = second[int(head)] - first[int(head)]
        return found

    def to_json(self) -> dict[str, Any]:
        """Return the comparison as JSON, with traces as `regard show -o x.json` writes them."""
        return {
            "changes": list(self.changes),
            "answers": list(self.answers),
            "traces": [to_json(trace) for trace in self.traces],
            "distance": {
                "measure": "mean total variation of the rows of a map, from 0 to 1",
                "heads": [one._asdict() for one in self.distance.heads],
                "notes": self.distance.notes,
            },
            "notes": list(self.notes),
        }

    def save(self, path: str | Path) -> None:
        """Write both maps and their difference side by side: an .html file."""
        write_by_ending(path, {"html": self.html, "htm": self.html})

    def html(self) -> str:
        """Return the page of `save`."""
        return render_what_if(self.changes, self.answers, self.traces, self.distance, self.notes)


def _check_set(cell: AttentionCell, trace: Trace) -> bool:
    """Return whether a trace has a cell; raises if it does not have the weight that was set."""
    for found in trace.of_kind(cell.kind):
        rows, columns = found.weights.shape[1:]
        if found.layer != cell.layer or cell.row >= rows or cell.column >= columns:
            continue
        heads = slice(None) if cell.head is None else slice(cell.head, cell.head + 1)
        weights = found.weights[heads, cell.row, cell.column]
        if float(np.abs(weights - cell.weight).max()) > TOLERANCE:
            raise RegardError(
                f"a cell must be of an attention whose weights are a softmax, but {cell.kind} of "
                f"layer {cell.layer} has {float(weights[0]):.2g} where {cell.weight:g} was set: "
                f"replace a token or force a prefix instead."
            )
        return True
    return False
