"""The result of `capture`: recorded weights, labels of their positions, and traces of them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final, NamedTuple, cast

import torch
from torch import Tensor

from regard.errors import ArgumentError
from regard.messages import message
from regard.seeing.trace.trace import (
    EXACT,
    Map,
    MapKind,
    MapSide,
    ModelInfo,
    Text,
    Trace,
    hides_ahead,
    missing_mass,
)

Labels = Sequence[str] | Sequence[Sequence[str]]
#: takes a start and an end; returns whether all weight of these positions falls on themselves
SpanTest = Callable[[int, int], bool]

#: weights that are kept at most, unless another number is given
MAX_WEIGHTS: Final = 50_000_000
MASKED: Final = "rows whose keys are all masked are drawn empty: the module spread them evenly"
#: parts of the names of cross-attention modules
CROSS_NAMES: Final = ("cross", "encoder_attn", "enc_dec", "encdec", "src_attn", "multihead_attn")


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """The weights of one call of an attention, or of a call for each query in turn.

    Attributes:
        name: of the calling module, as in `named_modules`.
        run: number of the call of the captured module, counted from 0.
        weights: (batch, heads, q_len, kv_len) on the CPU.
        causal, same, history, extra, slots: see `recompute.PendingWeights`.
        masked: whether rows whose keys were all masked have been set to zero.
    """

    name: str
    run: int
    weights: Tensor
    causal: bool = False
    same: bool | None = None
    history: bool = False
    extra: int = 0
    slots: bool = False
    masked: bool = False

    @property
    def size(self) -> tuple[int, int]:
        """Numbers of rows and of columns that are positions."""
        rows, columns = self.weights.shape[2:]
        return rows, columns - self.extra

    @property
    def crosses(self) -> bool:
        """True if it is cross-attention, as far as can be told."""
        if self.same is not None or self.slots:
            return not self.same and not self.slots
        leaf = ".".join(self.name.lower().split(".")[-2:])
        if any(part in leaf for part in CROSS_NAMES):
            return True
        rows, columns = self.size
        # more keys than queries may be a cache; fewer are another sequence, as a shortened one
        return rows > columns or (rows < columns and "self" not in leaf)


class CapturedModule(NamedTuple):
    """A module that attends: its name, as in `named_modules`, and the number of its heads."""

    name: str
    heads: int


@dataclass(frozen=True)
class RowPositions:
    """The real positions of one row of a batch, from `start` to `end`, and their labels."""

    start: int
    end: int
    text: Text

    @property
    def cut(self) -> slice:
        """Their slice of all positions."""
        return slice(self.start, self.end)


@dataclass(frozen=True)
class PositionNames:
    """Labels of the positions of one side.

    Attributes:
        argument: name of the labels in error messages.
        names: labels of all rows, or
        rows: labels of each row.
    """

    argument: str
    names: tuple[str, ...] | None = None
    rows: tuple[tuple[str, ...], ...] | None = None

    def named(self, tokens: Labels) -> "PositionNames":
        """Return a copy with labels; rows that have their own are cut to them."""
        parts = [] if isinstance(tokens, str | Tensor) else list(tokens)
        if parts and all(isinstance(part, str) for part in parts):
            return replace(self, names=tuple(map(str, parts)), rows=None)
        if not parts or not all(isinstance(part, list | tuple) for part in parts):
            rule = "be a list of strings, or a list of such lists"
            raise ArgumentError("tokens", rule, repr(tokens), "cut the text into tokens first")
        rows = tuple(tuple(map(str, part)) for part in parts)
        return replace(self, names=None, rows=rows)

    def check_rows(self, batches: set[int]) -> None:
        """Raise if labels of each row fit no recorded batch."""
        if self.rows is not None and len(self.rows) not in batches:
            sizes = " or ".join(map(str, sorted(batches)))
            rule = f"be as many as the rows of a batch, {sizes}"
            raise ArgumentError(self.argument, rule, len(self.rows), "give one for each row")

    def place(
        self,
        row: int,
        batch: int,
        size: int,
        fits: SpanTest,
        *,
        main: bool,
        starts: Sequence[int],
    ) -> RowPositions:
        """Find the real positions of one row, and label them; with numbers by default.

        If a row has fewer labels than positions, the model's mask tells where its padding is.
        Without one it is assumed on the right, unless the weights fit only elsewhere, as with
        padding on the left.
        """
        names: Sequence[str] | None = self.names
        count = size
        if self.rows is not None and len(self.rows) == batch:
            names = self.rows[row]
            count = min(size, len(names))
        if names is None or (len(names) != count and not main):
            names, count = [str(i) for i in range(size)], size
        if len(names) != count:
            rule = f"name the {count} positions of row {row}"
            raise ArgumentError(self.argument, rule, f"{len(names)} tokens", "name them all")
        start = _start(count, size, fits, starts) or 0
        return RowPositions(start, start + count, Text.of(names))


def _starts(mask: Any) -> tuple[int, ...]:
    """Return the first real position of each row by a mask (batch, length), 0 at padding.

    Nothing if it is no such mask, or if it hides nothing.
    """
    if not isinstance(mask, Tensor) or mask.ndim != 2 or mask.is_floating_point():
        return ()
    return () if bool(mask.all()) else tuple((mask != 0).int().argmax(dim=1).tolist())


def _start(count: int, size: int, fits: SpanTest, starts: Sequence[int]) -> int | None:
    """Return the start of `count` of `size` positions: at the front, at the end, or between.

    It is one of `starts`, if any are known.
    """
    if count == 0:
        return 0
    if size - count in starts and count < size:  # padding on the left
        return size - count
    tried = [0] if 0 in starts else [] if starts else [0, size - count, *range(1, size - count)]
    return next((start for start in tried if fits(start, start + count)), None)


class CaptureResult:
    """Weights that `capture` has recorded so far.

    Attributes:
        maps: weights by the name of the module, one tensor (batch, heads, q_len, kv_len) for each
            of its calls, on the CPU and in float32.
        notes: remarks about what was not recorded, or not exactly.
    """

    def __init__(self, model: str) -> None:
        self.maps: dict[str, list[Any]] = {}
        self.notes: list[str] = []
        self._model = model
        self._calls: list[AttentionCall] = []
        self._starts: list[tuple[tuple[int, ...], ...]] = []
        self._src = PositionNames("src_tokens")
        self._tgt = PositionNames("tgt_tokens")

    def __repr__(self) -> str:
        calls = sum(map(len, self.maps.values()))
        counts = f"modules={len(self.maps)}, calls={calls}, notes={len(self.notes)}"
        return f"CaptureResult({self._model!r}, {counts})"

    def label(self, src_tokens: Labels, tgt_tokens: Labels | None = None) -> None:
        """Label the positions: a list of tokens, or one list for each row of the batch.

        Rows with labels of their own are cut to as many positions, so that padding is not drawn: it
        is on the right, unless the weights show that it is on the left.

        Args:
            src_tokens: input of the module.
            tgt_tokens: input of its decoder, if it has one.
        """
        self._src = self._src.named(src_tokens)
        if tgt_tokens is not None:
            self._tgt = self._tgt.named(tgt_tokens)

    def start_run(self, options: Mapping[str, Any]) -> int:
        """Add a call of the module, and return its number.

        Its options may have masks of padding, as models of transformers take them.
        """
        masks = (options.get(key) for key in ("attention_mask", "decoder_attention_mask"))
        self._starts.append(tuple(map(_starts, masks)))
        return len(self._starts) - 1

    def keep(self, call: AttentionCall) -> None:
        """Add the weights of a call."""
        self._calls.append(call)
        self.maps.setdefault(call.name, []).append(call.weights)

    def drop(self, calls: Sequence[AttentionCall]) -> None:
        """Remove calls of one module."""
        self._calls = [one for one in self._calls if one not in calls]
        for name in {call.name for call in calls}:
            self.maps[name] = [one.weights for one in self._calls if one.name == name]
            if not self.maps[name]:
                del self.maps[name]

    def note(self, sentence: str) -> None:
        """Add a note, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    @property
    def traces(self) -> list[Trace]:
        """One trace for each call of the module and row of its batch.

        Maps of different sizes, as in a model that shortens its input on the way, are further
        traces of the same row.
        """
        if not self._calls:
            raise ArgumentError(
                "module",
                "run an attention inside the block",
                "one that ran none" + "".join(f" ({note})" for note in self.notes),
                "capture sees regard's attention, nn.MultiheadAttention, nn.Transformer, "
                "F.scaled_dot_product_attention, and a softmax whose result a matrix product takes",
            )
        runs = list(self._runs())
        batches = {call.weights.shape[0] for calls in runs for call in calls}
        for side in (self._src, self._tgt):
            side.check_rows(batches)
        return [trace for calls in runs for trace in self._of_run(calls)]

    def _runs(self) -> Iterator[list[AttentionCall]]:
        """Yield the calls of each run of the module; see `_joined`."""
        for _, calls in groupby(self._calls, key=lambda call: call.run):
            yield _joined([_without_masked_rows(call) for call in calls])

    def modules(self) -> dict[tuple[str, int], CapturedModule]:
        """Return the module of each map of the first trace, by kind and layer."""
        if not self._calls:
            return {}
        group, _ = _split(next(self._runs()))
        two = any(call.crosses for call in group)
        kinds = [_kind(call, two, *_sizes(group))[0] for call in group]
        return {
            (kind, kinds[:i].count(kind)): CapturedModule(call.name, call.weights.shape[1])
            for i, (call, kind) in enumerate(zip(group, kinds, strict=True))
        }

    def _of_run(self, rest: list[AttentionCall]) -> Iterator[Trace]:
        main = True
        while rest:
            group, rest = _split(rest)
            for row in range(group[0].weights.shape[0]):
                yield self._trace(group, row, main)
            main = False

    def _trace(self, group: list[AttentionCall], row: int, main: bool) -> Trace:
        """Make the trace of one row of the batch from calls whose sizes fit together."""
        batch = group[0].weights.shape[0]
        tgt_len, src_len = _sizes(group)
        two = any(call.crosses for call in group)
        kinds = [_kind(call, two, tgt_len, src_len) for call in group]

        def place(positions: PositionNames, side: MapSide, size: int) -> RowPositions:
            def fits(start: int, end: int) -> bool:
                found = zip(group, kinds, strict=True)
                return all(_fits(call, row, kind, side, start, end) for call, kind in found)

            masks = [self._starts[call.run][side == "target"] for call in group]
            starts = next(filter(None, masks), ()) if main else ()
            starts = starts[row : row + 1] if len(starts) == batch else starts
            return positions.place(row, batch, size, fits, main=main, starts=starts)

        source = target = place(self._src, "source", src_len)
        if two:
            target = place(self._tgt, "target", tgt_len)
        elif tgt_len != src_len:
            target = _last(source, src_len - tgt_len)
        notes = dict.fromkeys(self.notes)
        cuts = {"source": source.cut, "target": target.cut, "slots": slice(None)}
        model = ModelInfo(self._model)
        maps = _maps(group, kinds, row, cuts, notes)
        notes |= dict.fromkeys(_names(group, [found.kind for found in maps]))
        return Trace(source.text, target.text, tuple(maps), model, notes=tuple(notes))


def _joined(calls: list[AttentionCall]) -> list[AttentionCall]:
    """Join the calls of modules that were called with one query after another."""
    by_name: dict[str, list[AttentionCall]] = {}
    for call in calls:
        by_name.setdefault(call.name, []).append(call)
    found = []
    for call in calls:
        steps, step = by_name[call.name], (*call.weights.shape[:2], 1)
        if len(steps) == 1 or not all(other.weights.shape[:3] == step for other in steps):
            found.append(call)
        elif call is steps[0]:
            found.append(_join(steps))
    return found


def _join(steps: list[AttentionCall]) -> AttentionCall:
    """Join calls of one query to one call, with zeros for keys that a query did not have."""
    first, widths = steps[0], [step.weights.shape[3] for step in steps]
    joined = torch.zeros(*first.weights.shape[:2], len(steps), max(widths))
    for t, step in enumerate(steps):
        joined[:, :, t, : widths[t]] = step.weights[:, :, 0]
    grows = widths == list(range(1, len(steps) + 1)) and not (first.slots or first.extra)
    causal, same = (hides_ahead(joined.numpy()), True) if grows else (False, first.same)
    return replace(first, weights=joined, causal=causal, same=same)


def _without_masked_rows(call: AttentionCall) -> AttentionCall:
    """Set rows to zero whose keys are all masked, in a call under a causal mask.

    These are the rows that have the same weight on all columns, also on later ones.
    """
    if not call.causal:
        return call
    rows, columns = call.weights.shape[-2:]
    alike = call.weights.amax(dim=-1) == call.weights.amin(dim=-1)
    masked = call.weights.triu(1 + columns - rows).any(dim=-1) & alike
    if not bool(masked.any()):
        return call
    return replace(call, weights=call.weights.masked_fill(masked[..., None], 0.0), masked=True)


def _maps(
    group: list[AttentionCall],
    kinds: list[tuple[MapKind, MapSide, MapSide]],
    row: int,
    cuts: Mapping[str, slice],
    notes: dict[str, None],
) -> list[Map]:
    """Return the maps of one row of the batch, and add notes on them."""
    maps: list[Map] = []
    for call, (kind, rows, columns) in zip(group, kinds, strict=True):
        layer = sum(found.kind == kind for found in maps)
        weights = call.weights[row, :, cuts[rows]]
        inside = weights[..., cuts[columns]]
        notes |= dict.fromkeys(_beyond(call, weights.sum(dim=-1) - inside.sum(dim=-1)))
        array = inside.contiguous().numpy()
        lacks = missing_mass(array)
        maps.append(Map(kind, layer, array, lacks, rows, columns, call.causal))
        if call.masked and not bool(weights.any(dim=-1).all()):
            notes[MASKED] = None
    return maps


def _sizes(group: list[AttentionCall]) -> tuple[int, int]:
    """Return the numbers of target and source positions."""
    for call in (*(one for one in group if one.crosses), *group):
        if not call.slots:
            return call.size
    rows = group[0].size[0]
    return rows, rows


def _fits(
    call: AttentionCall,
    row: int,
    kind: tuple[MapKind, MapSide, MapSide],
    side: MapSide,
    start: int,
    end: int,
) -> bool:
    """Return whether a call has no weight outside a span of a side."""
    _, rows, columns = kind
    if columns != side:
        return True
    weights = call.weights[row, ..., : call.size[1]]
    if rows == side:
        weights = weights[:, start:end]
        if not bool(weights.any(dim=-1).all()):
            return False
    return bool((weights.sum(dim=-1) - weights[..., start:end].sum(dim=-1) <= EXACT).all())


def _last(source: RowPositions, before: int) -> RowPositions:
    """Return the rows of a map whose first `before` columns are keys of an older cache."""
    start, end = max(0, source.start - before), source.end - before
    return RowPositions(start, end, Text.of(source.text.labels[start - end :]))


def _beyond(call: AttentionCall, outside: Tensor) -> Iterator[str]:
    """Yield a note if columns that are not drawn have weight."""
    most = float(outside.max()) if outside.numel() else 0.0
    if most > EXACT and call.extra:
        yield "some of the weight is on keys that are no input (bias_k or add_zero_attn)"
    elif most > EXACT:
        yield f"rows have up to {most:.2f} of their weight beyond their end: no mask hides padding"


def _split(calls: list[AttentionCall]) -> tuple[list[AttentionCall], list[AttentionCall]]:
    """Split into calls whose sizes fit the first cross-attention, and the others."""
    first = next((call for call in calls if call.crosses), calls[0])
    batch, sizes = first.weights.shape[0], {first.size}
    if first.crosses:
        sizes |= {(side, side) for side in first.size}
    fits = [call.weights.shape[0] == batch and _together(call, first, sizes) for call in calls]
    return (
        [call for call, fit in zip(calls, fits, strict=True) if fit],
        [call for call, fit in zip(calls, fits, strict=True) if not fit],
    )


def _together(call: AttentionCall, first: AttentionCall, sizes: set[tuple[int, int]]) -> bool:
    if call.slots:
        return call.size[0] == first.size[0]
    return call.size in sizes and (call.size == first.size or not call.crosses)


def _kind(
    call: AttentionCall, two: bool, tgt_len: int, src_len: int
) -> tuple[MapKind, MapSide, MapSide]:
    """Return the kind of attention, and the sides of its rows and columns."""
    if call.crosses:
        return "cross", "target", "source"
    if call.slots:
        return "memory", "target", "slots"
    named = "decoder" in call.name.lower()
    what = "history" if call.history else "self"
    if not two:
        later = tgt_len != src_len  # queries with a cache that was filled before
        decodes = named or ((call.causal or later) and not call.history)
        kind = cast(MapKind, f"{'decoder' if decodes else 'encoder'}-{what}")
        return kind, "target" if later else "source", "source"
    size, encodes = call.size[0], "encoder" in call.name.lower() and not named
    if size == tgt_len and (size != src_len or named or (call.causal and not encodes)):
        return cast(MapKind, f"decoder-{what}"), "target", "target"
    return cast(MapKind, f"encoder-{what}"), "source", "source"


def _names(group: list[AttentionCall], kinds: Sequence[MapKind]) -> Iterator[str]:
    """Yield notes that name the modules of the layers."""
    for kind in dict.fromkeys(kinds):
        names = [call.name for call, found in zip(group, kinds, strict=True) if found == kind]
        shown = names if len(names) <= 3 else [names[0], "…", names[-1]]
        listed = ", ".join(name or "the module itself" for name in shown)
        yield message("show.layers", kind=kind, names=listed)
