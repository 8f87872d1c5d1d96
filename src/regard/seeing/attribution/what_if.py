"""Interventions: change what a model reads, writes or attends to, decode again, and compare.

An `Intervention` is a list of changes: tokens of the source that are replaced, a prefix that the
output must begin with, heads that are switched off, and cells of attention maps that are set by
hand. `intervened` makes the changes inside a model while a block runs; `WhatIf` holds the traces
without and with them.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from torch import nn

from regard.attention import Attention, MultiHeadAttention
from regard.errors import ArgumentError, RegardError
from regard.messages import message
from regard.seeing.attribution.interventions import (
    OWN_KINDS,
    AttentionCell,
    EditedAttention,
    HeadSwitch,
    edited_attention,
    heads_muted,
)
from regard.seeing.capture.capture_result import CapturedModule
from regard.seeing.draw.shapes import write_by_ending
from regard.seeing.page.compare_page import render_what_if
from regard.seeing.trace.head_habits import HeadKey
from regard.seeing.trace.map_distance import TraceDistance, common_distance, common_weights
from regard.seeing.trace.storage import to_json
from regard.seeing.trace.trace import Text, Trace, Weights

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
        EditedAttention(root.get_submodule(name), heads, by_map[key], own=key[0] in OWN_KINDS)
        for key, (name, heads, _) in modules.items()
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
        answers: tuple[str, str] | None = None,
        notes: Sequence[str] = (),
        read: Text | None = None,
    ) -> "WhatIf":
        """Compare two traces; raises if a cell does not have the weight that it was given."""
        before, after = traces
        missed = [cell for cell in change.cells if not _check_set(cell, after)]
        remarks = [f"{cell}: the map has no such cell, so nothing was set" for cell in missed]
        made = replace(change, cells=tuple(cell for cell in change.cells if cell not in missed))
        said = made.sentences(before.source if read is None else read)
        texts = (before.target.text, after.target.text) if answers is None else answers
        return WhatIf(
            tuple(said), texts, traces, common_distance(before, after), (*notes, *remarks)
        )

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
        first, second = common_weights(pair[0], pair[1])
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
