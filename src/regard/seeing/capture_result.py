"""What `capture` has seen, and how traces are made of it."""

from collections.abc import Iterator, Sequence
from typing import Final, cast

from torch import Tensor

from regard.errors import ArgumentError
from regard.seeing.forward_passes import AttentionCall, BatchReorder, ForwardPass, passes
from regard.seeing.positions import Labels, PositionNames, RowPositions
from regard.seeing.trace import EXACT, Map, MapKind, MapSide, ModelInfo, Text, Trace, missing_mass

Shape = tuple[int, int, int, int]

MASKED: Final = "rows whose keys are all masked are drawn empty: the module spread them evenly"


class CaptureResult:
    """What has been seen so far.

    Attributes:
        maps: weights by the name of the module, one tensor (batch, heads, q_len, kv_len) for each
            of its calls, on the CPU and in float32.
        notes: what a reader of them must know.
    """

    def __init__(self, model: str) -> None:
        self.maps: dict[str, list[Tensor]] = {}
        self.notes: list[str] = []
        self._model = model
        self._looks: list[AttentionCall] = []
        self._runs: list[str] = []
        self._reorders: list[BatchReorder] = []
        self._src = PositionNames("src_tokens")
        self._tgt = PositionNames("tgt_tokens")

    def __repr__(self) -> str:
        calls = sum(map(len, self.maps.values()))
        counts = f"modules={len(self.maps)}, calls={calls}, notes={len(self.notes)}"
        return f"CaptureResult({self._model!r}, {counts})"

    def label(self, src_tokens: Labels, tgt_tokens: Labels | None = None) -> None:
        """Names the positions: a list of tokens, or one list for each row of the batch.

        Rows with names of their own are cut to as many positions, so that padding is not drawn: it
        is on the right, unless the weights show that it is on the left. After a decoding, names are
        those of the prompt and of what was written; the last token may be named, but since the
        model has not read it there is no row for it.

        Args:
            src_tokens: what the module reads.
            tgt_tokens: what its decoder reads, where it has one.
        """
        self._src = self._src.named(src_tokens)
        if tgt_tokens is not None:
            self._tgt = self._tgt.named(tgt_tokens)

    def cut(self, src_lengths: Sequence[int], tgt_lengths: Sequence[int] | None = None) -> None:
        """Says how many positions of each row of the batch are real: the others are not drawn."""
        self._src = self._src.cut(src_lengths)
        if tgt_lengths is not None:
            self._tgt = self._tgt.cut(tgt_lengths)

    def start_run(self, name: str) -> int:
        """Count a run whose outermost module has this name; its number is returned."""
        self._runs.append(name)
        return len(self._runs) - 1

    def reorder(self, rows: int, indices: Sequence[int]) -> None:
        """Note that rows of a batch were selected before the next run."""
        self._reorders.append(BatchReorder(len(self._runs), rows, tuple(indices)))

    def keep(self, look: AttentionCall) -> None:
        """Adds a look, in the order in which they come."""
        self._looks.append(look)
        self.maps.setdefault(look.name, []).append(look.weights)

    def note(self, sentence: str) -> None:
        """Adds a note, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    @property
    def traces(self) -> list[Trace]:
        """One for each pass and each row of its batch; `seeing.forward_passes` says what a pass is.

        A call of the module is a pass, and so are all steps of a decoding together. Maps whose
        sizes do not go together, as where a model shortens its input on the way, come as further
        traces of the same row.
        """
        if not self._looks:
            raise ArgumentError(
                "module",
                "run an attention inside the block",
                "one that ran none" + "".join(f" ({note})" for note in self.notes),
                "capture sees regard's attention, nn.MultiheadAttention, nn.Transformer, "
                "F.scaled_dot_product_attention, and a softmax whose result a matrix product takes",
            )
        found = passes(self._looks, self._runs, self._reorders)
        batches = {look.weights.shape[0] for part in found for look in part.looks}
        for side in (self._src, self._tgt):
            side.check_rows(batches)
        return [trace for part in found for trace in self._of_pass(part)]

    def _of_pass(self, part: ForwardPass) -> Iterator[Trace]:
        rest = part.looks
        main = True
        while rest:
            group, rest = _split(rest)
            for row in range(group[0].weights.shape[0]):
                yield self._trace(group, part, row, main)
            main = False

    def _trace(self, group: list[AttentionCall], part: ForwardPass, row: int, main: bool) -> Trace:
        """The trace of one row of the batch, of looks that go together."""
        batch = group[0].weights.shape[0]
        tgt_len, src_len = _sizes(group)
        two = any(look.crosses for look in group)
        kinds = [_kind(look, two, tgt_len, src_len) for look in group]
        stepped = part.steps is not None and len(part.steps) == batch
        over = tgt_len - min(tgt_len, part.steps[row]) if stepped and part.steps else 0

        def place(positions: PositionNames, side: MapSide, size: int, reads: bool) -> RowPositions:
            def fits(start: int, end: int) -> bool:
                found = zip(group, kinds, strict=True)
                return all(_fits(look, row, kind, side, start, end) for look, kind in found)

            spare = stepped and reads
            return positions.place(row, batch, size, fits, main=main, spare=spare)

        source = place(self._src, "source", src_len if two else src_len - over, not two)
        target = source
        if two:
            target = place(self._tgt, "target", tgt_len - over, True)
        elif tgt_len != src_len:
            target = _last(source, src_len - tgt_len)
        cuts = {"source": source.cut, "target": target.cut, "slots": slice(None)}
        maps: list[Map] = []
        notes = dict.fromkeys((*self.notes, *part.notes))
        for look, (kind, rows, columns) in zip(group, kinds, strict=True):
            layer = sum(found.kind == kind for found in maps)
            weights = look.weights[row, :, cuts[rows]]
            if look.masked and not bool(weights.any(dim=-1).all()):
                notes[MASKED] = None
            inside = weights[..., cuts[columns]]
            notes |= dict.fromkeys(_beyond(look, weights.sum(dim=-1) - inside.sum(dim=-1)))
            maps.append(_map(kind, layer, inside, rows, columns, look.causal))
        notes |= dict.fromkeys(_names(group, maps))
        model = ModelInfo(self._model)
        return Trace(source.text, target.text, tuple(maps), model, notes=tuple(notes))


def _sizes(group: list[AttentionCall]) -> tuple[int, int]:
    """Number of positions of the target and of the source."""
    for look in (*(one for one in group if one.crosses), *group):
        if not look.slots:
            return look.size
    rows = group[0].size[0]
    return rows, rows


def _fits(
    look: AttentionCall,
    row: int,
    kind: tuple[MapKind, MapSide, MapSide],
    side: MapSide,
    start: int,
    end: int,
) -> bool:
    """Whether the weight of a look falls within some positions of a side, as far as it has them."""
    _, rows, columns = kind
    if columns != side:
        return True
    weights = look.weights[row, ..., : look.size[1]]
    if rows == side:
        weights = weights[:, start:end]
        if not bool(weights.any(dim=-1).all()):
            return False
    return bool((weights.sum(dim=-1) - weights[..., start:end].sum(dim=-1) <= EXACT).all())


def _last(source: RowPositions, before: int) -> RowPositions:
    """The rows of a map whose first columns are `before` keys of a cache that was filled before."""
    start, end = max(0, source.start - before), source.end - before
    return RowPositions(start, end, Text.of(source.text.labels[start - end :]))


def _map(
    kind: MapKind, layer: int, weights: Tensor, rows: MapSide, columns: MapSide, causal: bool
) -> Map:
    """A map; if a row sums to less than 1, with what they lack."""
    array = weights.contiguous().numpy()
    return Map(kind, layer, array, missing_mass(array), rows, columns, causal)


def _beyond(look: AttentionCall, outside: Tensor) -> Iterator[str]:
    """What is said where columns that are not drawn have weight."""
    most = float(outside.max()) if outside.numel() else 0.0
    if most > EXACT and look.extra:
        yield "some of the weight is on keys that are no input (bias_k or add_zero_attn)"
    elif most > EXACT:
        yield f"rows have up to {most:.2f} of their weight beyond `lengths`: no mask hides padding"


def _split(looks: list[AttentionCall]) -> tuple[list[AttentionCall], list[AttentionCall]]:
    """The looks that go together with the first one of a map between sequences, and the others."""
    first = next((look for look in looks if look.crosses), looks[0])
    batch, sizes = first.weights.shape[0], {first.size}
    if first.crosses:
        sizes |= {(side, side) for side in first.size}
    fits = [look.weights.shape[0] == batch and _together(look, first, sizes) for look in looks]
    return (
        [look for look, fit in zip(looks, fits, strict=True) if fit],
        [look for look, fit in zip(looks, fits, strict=True) if not fit],
    )


def _together(look: AttentionCall, first: AttentionCall, sizes: set[tuple[int, int]]) -> bool:
    if look.slots:
        return look.size[0] == first.size[0]
    return look.size in sizes and (look.size == first.size or not look.crosses)


def _kind(
    look: AttentionCall, two: bool, tgt_len: int, src_len: int
) -> tuple[MapKind, MapSide, MapSide]:
    """Which attention of a model it is, and what its rows and columns are."""
    if look.crosses:
        return "cross", "target", "source"
    if look.slots:
        return "memory", "target", "slots"
    if look.future:
        return "encoder-future", "source", "source"
    named = "decoder" in look.name.lower()
    what = "history" if look.history else "self"
    if not two:
        later = tgt_len != src_len  # queries with a cache that was filled before
        decodes = named or ((look.causal or later) and not look.history)
        kind = cast(MapKind, f"{'decoder' if decodes else 'encoder'}-{what}")
        return kind, "target" if later else "source", "source"
    size, encodes = look.size[0], "encoder" in look.name.lower() and not named
    if size == tgt_len and (size != src_len or named or (look.causal and not encodes)):
        return cast(MapKind, f"decoder-{what}"), "target", "target"
    return cast(MapKind, f"encoder-{what}"), "source", "source"


def _names(group: list[AttentionCall], maps: list[Map]) -> Iterator[str]:
    """Which module each layer is."""
    for kind in dict.fromkeys(found.kind for found in maps):
        names = [look.name for look, found in zip(group, maps, strict=True) if found.kind == kind]
        shown = names if len(names) <= 3 else [names[0], "…", names[-1]]
        yield f"layers of {kind}: {', '.join(name or 'the module itself' for name in shown)}"
