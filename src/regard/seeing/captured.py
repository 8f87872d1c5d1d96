"""What `capture` has seen, and how traces are made of it."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, cast

import torch.nn.functional as F
from torch import Tensor, cat

from regard.errors import ArgumentError
from regard.seeing.positions import Labels, Positions
from regard.seeing.trace import EXACT, Kind, Map, ModelInfo, Side, Trace, lacking

Shape = tuple[int, int, int, int]

#: parts of a module's name that say that it looks from one sequence at another
CROSS_NAMES: Final = ("cross", "encoder_attn", "enc_dec", "encdec", "src_attn", "multihead_attn")


@dataclass(frozen=True)
class Look:
    """The weights of one call of an attention.

    Attributes:
        name: of the module that made it, as in `named_modules`.
        run: which call of the outermost module it was part of, counted from 0.
        weights: (batch, heads, q_len, kv_len) on the CPU.
        causal: whether a mask hid what comes after each position.
        same: whether queries and keys came from one sequence; None if that is not known.
        history: whether it is what a self-attentive RNN looks back at.
        future: whether this one has read from the end, and its past is what follows.
        extra: how many of the last columns are no input.
        slots: whether the columns are no positions, but slots of an external memory.
    """

    name: str
    run: int
    weights: Tensor
    causal: bool = False
    same: bool | None = None
    history: bool = False
    future: bool = False
    extra: int = 0
    slots: bool = False

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns that are positions."""
        rows, columns = self.weights.shape[2:]
        return rows, columns - self.extra

    @property
    def crosses(self) -> bool:
        """Whether it looks from one sequence at another, as well as can be told."""
        if self.same is not None or self.slots:
            return not self.same and not self.slots
        leaf = ".".join(self.name.lower().split(".")[-2:])
        if any(part in leaf for part in CROSS_NAMES):
            return True
        rows, columns = self.size
        return rows != columns


class Seen:
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
        self._looks: list[Look] = []
        self._src = Positions("src_tokens")
        self._tgt = Positions("tgt_tokens")

    def __repr__(self) -> str:
        calls = sum(map(len, self.maps.values()))
        counts = f"modules={len(self.maps)}, calls={calls}, notes={len(self.notes)}"
        return f"Seen({self._model!r}, {counts})"

    def label(self, src_tokens: Labels, tgt_tokens: Labels | None = None) -> None:
        """Names the positions: a list of tokens, or one list for each row of the batch.

        Rows are cut to as many positions as they have names, so that padding is not drawn.

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

    def keep(self, look: Look) -> None:
        """Adds a look, in the order in which they come."""
        self._looks.append(look)
        self.maps.setdefault(look.name, []).append(look.weights)

    def note(self, sentence: str) -> None:
        """Adds a note, once."""
        if sentence not in self.notes:
            self.notes.append(sentence)

    @property
    def traces(self) -> list[Trace]:
        """One for each call of the outermost module and each row of its batch.

        Maps whose sizes do not go together, as where a model shortens its input on the way, come as
        further traces of the same row.
        """
        if not self._looks:
            raise ArgumentError(
                "module",
                "run an attention inside the block",
                "one that ran none" + "".join(f" ({note})" for note in self.notes),
                "capture sees regard's attention, nn.MultiheadAttention, nn.Transformer, "
                "F.scaled_dot_product_attention, and a softmax whose result a matrix product takes",
            )
        for side in (self._src, self._tgt):
            side.check_rows({look.weights.shape[0] for look in self._looks})
        runs = dict.fromkeys(look.run for look in self._looks)
        return [trace for run in runs for trace in self._of_run(run)]

    def _of_run(self, run: int) -> Iterator[Trace]:
        rest = _joined([look for look in self._looks if look.run == run])
        main = True
        while rest:
            group, rest = _split(rest)
            for row in range(group[0].weights.shape[0]):
                yield self._trace(group, row, main)
            main = False

    def _trace(self, group: list[Look], row: int, main: bool) -> Trace:
        """The trace of one row of the batch, of looks that go together."""
        batch = group[0].weights.shape[0]
        tgt_len, src_len = next((look.size for look in group if look.crosses), group[0].size)
        two = any(look.crosses for look in group)
        source = target = self._src.text(row, batch, src_len, main)
        if two:
            target = self._tgt.text(row, batch, tgt_len, main)
        sizes: dict[str, int | None]
        sizes = {"source": len(source.tokens), "target": len(target.tokens), "slots": None}
        maps: list[Map] = []
        notes = dict.fromkeys(self.notes)
        for look in group:
            kind, rows, columns = _place(look, two, tgt_len, src_len)
            layer = sum(found.kind == kind for found in maps)
            weights = look.weights[row, :, : sizes[rows]]
            inside = weights[..., : sizes[columns]]
            outside = weights[..., inside.shape[-1] :]
            notes |= dict.fromkeys(_beyond(look, outside.sum(dim=-1)))
            maps.append(_map(kind, layer, inside, rows, columns, look.causal))
        notes |= dict.fromkeys(_names(group, maps))
        return Trace(source, target, tuple(maps), ModelInfo(self._model), notes=tuple(notes))


def _map(kind: Kind, layer: int, weights: Tensor, rows: Side, columns: Side, causal: bool) -> Map:
    """A map; if a row sums to less than 1, with what they lack."""
    array = weights.contiguous().numpy()
    return Map(kind, layer, array, lacking(array), rows, columns, causal)


def _beyond(look: Look, outside: Tensor) -> Iterator[str]:
    """What is said where columns that are not drawn have weight."""
    most = float(outside.max()) if outside.numel() else 0.0
    if most > EXACT and look.extra:
        yield "some of the weight is on keys that are no input (bias_k or add_zero_attn)"
    elif most > EXACT:
        yield f"rows have up to {most:.2f} of their weight beyond `lengths`: no mask hides padding"


def _joined(looks: list[Look]) -> list[Look]:
    """Where a module was called with one query at a time, one look with all of them."""
    by_name: dict[str, list[Look]] = {}
    for look in looks:
        by_name.setdefault(look.name, []).append(look)
    done: set[str] = set()
    found = []
    for look in looks:
        steps = by_name[look.name]
        if len(steps) == 1 or not all(_is_step(look, other) for other in steps):
            found.append(look)
        elif look.name not in done:
            done.add(look.name)
            found.append(_join(steps))
    return found


def _is_step(look: Look, other: Look) -> bool:
    return other.weights.shape[2] == 1 and other.weights.shape[:2] == look.weights.shape[:2]


def _join(steps: list[Look]) -> Look:
    width = max(step.weights.shape[3] for step in steps)
    rows = [F.pad(step.weights, (0, width - step.weights.shape[3])) for step in steps]
    # a cache that grows by a key with each query holds the queries themselves
    grows = all(b.size[1] == a.size[1] + 1 for a, b in itertools.pairwise(steps))
    causal = grows and steps[0].size[1] == 1
    return replace(steps[0], weights=cat(rows, dim=2), causal=causal, same=causal or steps[0].same)


def _split(looks: list[Look]) -> tuple[list[Look], list[Look]]:
    """The looks that go together with the first one of a map between sequences, and the others."""
    first = next((look for look in looks if look.crosses), looks[0])
    batch, sizes = first.weights.shape[0], {first.size}
    if first.crosses:
        sizes |= {(side, side) for side in first.size}
    fits = [look.weights.shape[0] == batch and _fits(look, first, sizes) for look in looks]
    return (
        [look for look, fit in zip(looks, fits, strict=True) if fit],
        [look for look, fit in zip(looks, fits, strict=True) if not fit],
    )


def _fits(look: Look, first: Look, sizes: set[tuple[int, int]]) -> bool:
    if look.slots:
        return look.size[0] == first.size[0]
    return look.size in sizes and (look.size == first.size or not look.crosses)


def _place(look: Look, two: bool, tgt_len: int, src_len: int) -> tuple[Kind, Side, Side]:
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
        decodes = named or (look.causal and not look.history)
        return cast(Kind, f"{'decoder' if decodes else 'encoder'}-{what}"), "source", "source"
    size = look.size[0]
    if size == tgt_len and (size != src_len or named or look.causal):
        return cast(Kind, f"decoder-{what}"), "target", "target"
    return cast(Kind, f"encoder-{what}"), "source", "source"


def _names(group: list[Look], maps: list[Map]) -> Iterator[str]:
    """Which module each layer is."""
    for kind in dict.fromkeys(found.kind for found in maps):
        names = [look.name for look, found in zip(group, maps, strict=True) if found.kind == kind]
        shown = names if len(names) <= 3 else [names[0], "…", names[-1]]
        yield f"layers of {kind}: {', '.join(name or 'the module itself' for name in shown)}"
