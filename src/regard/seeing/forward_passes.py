"""Calls of attention that `capture` has recorded, and how the steps of a decoding are joined.

A run is one call of the captured module, or of one of its parts while the module itself is not
running. Runs that belong together form a pass, of which there is one trace for each row:

- A run of the module starts a new pass, unless its self-attention continues a cache: its keys are
  those of all queries of the pass so far and its own.
- Runs of parts, as `generate()` and regard's own decoding make them, belong to one pass until a
  part runs again without continuing what it did before. A part continues if its cache grows, or if
  it looks with one query at keys of the same number, and not all parts that ran before the first
  attention of the pass have run again.

The rows of a batch are followed through `index_select`, or indexing with a tensor, along the batch
between two runs, which is how caches and states are reordered. If the number of rows changes
otherwise, a new pass starts.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import torch
from torch import Tensor

#: parts of a module's name that say that it looks from one sequence at another
CROSS_NAMES: Final = ("cross", "encoder_attn", "enc_dec", "encdec", "src_attn", "multihead_attn")
BEAMS: Final = (
    "rows of the batch were reordered between steps, as in beam search: each trace follows one of "
    "the last rows back to the start, and hypotheses that ended before are not among them"
)


@dataclass(frozen=True)
class AttentionCall:
    """The weights of one call of an attention, or of the joined steps of one.

    Attributes:
        name: of the module that made it, as in `named_modules`.
        run: which run it was part of, counted from 0.
        weights: (batch, heads, q_len, kv_len) on the CPU.
        causal: whether a mask hid what comes after each position.
        same: whether queries and keys came from one sequence; None if that is not known.
        history: whether it is what a self-attentive RNN looks back at.
        future: whether this one has read from the end, and its past is what follows.
        extra: how many of the last columns are no input.
        slots: whether the columns are no positions, but slots of an external memory.
        masked: whether rows whose keys were all masked have been emptied.
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
    masked: bool = False

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
        if self.named_cross:
            return True
        rows, columns = self.size
        return rows != columns and not self.named_self

    @property
    def named_cross(self) -> bool:
        """Whether the module is a cross-attention by its name."""
        return any(part in self._leaf for part in CROSS_NAMES)

    @property
    def named_self(self) -> bool:
        """Whether the module is a self-attention by its name."""
        return "self" in self._leaf and not self.named_cross

    @property
    def _leaf(self) -> str:
        return ".".join(self.name.lower().split(".")[-2:])


@dataclass(frozen=True)
class BatchReorder:
    """A selection of rows along the batch, made between two runs.

    Attributes:
        run: the run after it.
        rows: number of rows before.
        indices: the row that each row after it was.
    """

    run: int
    rows: int
    indices: tuple[int, ...]


@dataclass(frozen=True)
class ForwardPass:
    """The looks of runs that belong together, each with one row for each hypothesis.

    Attributes:
        looks: in the order in which their modules ran first.
        steps: number of queries of each row, if there were several runs; None otherwise.
        notes: what a reader must know of how they were joined.
    """

    looks: list[AttentionCall]
    steps: list[int] | None = None
    notes: tuple[str, ...] = ()


def passes(
    looks: Sequence[AttentionCall], runs: Sequence[str], reorders: Sequence[BatchReorder]
) -> list[ForwardPass]:
    """Join the runs that belong together.

    Args:
        looks: all looks, in the order of their calls.
        runs: for each run the name of its outermost module, "" for the captured module itself.
        reorders: selections of rows between runs, in their order.
    """
    of_run: dict[int, list[AttentionCall]] = {}
    for look in looks:
        of_run.setdefault(look.run, []).append(_without_masked_rows(look))
    done: list[_Assembly] = []
    current, since = _Assembly(), set[str]()
    for run, outer in enumerate(runs):
        if run not in of_run:
            since.add(outer)
            continue
        found = _joined_in_run(of_run[run])
        parents = current.parents(found, [r for r in reorders if current.last < r.run <= run])
        continues = bool(current.runs) and current.continues(found, outer, since)
        if parents is None or not continues:
            notes = (_lost_rows(current, found),) if continues else ()
            done.append(current)
            current = _Assembly(frozenset(since), notes)
            parents = tuple(range(found[0].weights.shape[0]))
        current.add(found, outer, parents)
        since = set()
    return [assembly.close() for assembly in (*done, current) if assembly.runs]


def _lost_rows(before: "_Assembly", found: list[AttentionCall]) -> str:
    return (
        f"the batch has {found[0].weights.shape[0]} rows where it had "
        f"{before.runs[-1][0].weights.shape[0]}, and which is which is not known: what ran before "
        f"is in traces of its own"
    )


@dataclass
class _Assembly:
    """A pass that is being put together.

    Attributes:
        before: names of the parts that ran before its first look.
        notes: what a reader must know of where it begins.
        runs: the looks of each run.
        origins: for each run, the row of the run before that each of its rows was.
        steps: the looks of each module, by its name and the number of the call within its run.
        whole: whether the captured module itself has run.
    """

    before: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    runs: list[list[AttentionCall]] = field(default_factory=list)
    origins: list[tuple[int, ...]] = field(default_factory=list)
    steps: dict[tuple[str, int], list[AttentionCall]] = field(default_factory=dict)
    whole: bool = False

    @property
    def last(self) -> int:
        """The number of its last run."""
        return self.runs[-1][0].run if self.runs else -1

    def parents(
        self, found: list[AttentionCall], reorders: list[BatchReorder]
    ) -> tuple[int, ...] | None:
        """The row of the last run that each row of the next one was; None if that is not known."""
        if not self.runs:
            return None
        before, after = self.runs[-1][0].weights.shape[0], found[0].weights.shape[0]
        for reorder in reversed(reorders):
            if reorder.rows == before and len(reorder.indices) == after:
                return reorder.indices
        return tuple(range(after)) if before == after else None

    def continues(self, found: list[AttentionCall], outer: str, since: set[str]) -> bool:
        """Whether a run belongs to this pass."""
        known = [(self.steps[key], look) for key, look in _keyed(found) if key in self.steps]
        if not known:
            return not self.whole
        grows = [
            _continues_cache(steps[0], steps[-1], sum(one.size[0] for one in steps), look)
            for steps, look in known
        ]
        fixed = [_same_keys(steps, look) for steps, look in known]
        if any(grows):
            return all(a or b for a, b in zip(grows, fixed, strict=True))
        restarts = bool(self.before) and self.before <= since
        single = all(look.size[0] == 1 for _, look in known)
        return outer != "" and all(fixed) and single and not restarts

    def add(self, found: list[AttentionCall], outer: str, parents: tuple[int, ...]) -> None:
        """Take a run in."""
        self.runs.append(found)
        self.origins.append(parents)
        self.whole |= outer == ""
        for key, look in _keyed(found):
            self.steps.setdefault(key, []).append(look)

    def close(self) -> ForwardPass:
        """The joined looks."""
        if len(self.runs) == 1:
            return ForwardPass(list(map(_without_empty_cache, self.runs[0])), notes=self.notes)
        lines, branched = _lines(self.origins)
        place = {found[0].run: i for i, found in enumerate(self.runs)}
        looks, steps = [], [0] * len(lines)
        for same in self.steps.values():
            rows = [[line.get(place[look.run]) for line in lines] for look in same]
            looks.append(_without_empty_cache(_join(same, rows)))
            if len(same) > 1:
                for i in range(len(lines)):
                    taken = zip(same, rows, strict=True)
                    count = sum(look.size[0] for look, row in taken if row[i] is not None)
                    steps[i] = max(steps[i], count)
        stepped = any(len(same) > 1 for same in self.steps.values())
        notes = (*self.notes, *((BEAMS,) if branched else ()))
        return ForwardPass(looks, steps if stepped else None, notes)


def _keyed(found: list[AttentionCall]) -> list[tuple[tuple[str, int], AttentionCall]]:
    """Looks by the name of their module and how often it had been called in the run."""
    names = [look.name for look in found]
    return [((name, names[:i].count(name)), found[i]) for i, name in enumerate(names)]


def _lines(origins: Sequence[Sequence[int]]) -> tuple[list[dict[int, int]], bool]:
    """The rows that belong to one hypothesis, by the number of the run.

    If no row was used twice, rows that left the batch early are lines too, in the order of the
    first run. Otherwise only those that reach the last run are: the others were given up.
    """
    lines, ended, branched = [{0: row} for row in range(len(origins[0]))], [], False
    for i, parents in enumerate(origins[1:], start=1):
        branched |= len(set(parents)) < len(parents)
        ended += [line for row, line in enumerate(lines) if row not in parents]
        lines = [{**lines[parent], i: row} for row, parent in enumerate(parents)]
    if not branched:
        lines = sorted([*lines, *ended], key=lambda line: line[0])
    return lines, branched


def _continues_cache(
    first: AttentionCall, last: AttentionCall, queries: int, look: AttentionCall
) -> bool:
    """Whether a look is at the keys of all looks so far and its own.

    Args:
        first: the first look of the module in the pass,
        last: and the one before this.
        queries: number of queries so far.
        look: the next one.
    """
    rows, columns = look.size
    if look.named_cross or look.slots or look.extra or columns <= rows:
        return False
    if look.weights.shape[1] != first.weights.shape[1]:
        return False
    positions = queries + rows
    known = look.named_self or look.same is True
    past = first.size[1] - first.size[0]
    if columns == past + positions:
        return known or (past == 0 and (first.causal or first.size == (1, 1)))
    if columns > positions:  # a cache of a fixed size, of which the end is still empty
        return known and columns == last.size[1] and not _has_weight_from(look, positions)
    # a window, which forgets the first keys: earlier queries have not seen further back either
    before = last.size[1] - last.size[0]
    return known and (
        columns == last.size[1] or not bool(last.weights.tril(before - columns).any())
    )


def _has_weight_from(look: AttentionCall, column: int) -> bool:
    return bool(look.weights[..., column:].any())


def _without_empty_cache(look: AttentionCall) -> AttentionCall:
    """A look of self-attention without the end of a cache of a fixed size that is still empty."""
    rows, columns = look.size
    if look.crosses or look.slots or look.extra or rows >= columns or _has_weight_from(look, rows):
        return look
    return replace(look, weights=look.weights[..., :rows])


def _same_keys(steps: list[AttentionCall], look: AttentionCall) -> bool:
    """Whether a look may be at the keys of the step before, as cross-attention is."""
    if look.named_self or (look.same is True and not look.slots):
        return False
    before = steps[-1].weights.shape
    return look.weights.shape[1] == before[1] and look.weights.shape[3] == before[3]


def _joined_in_run(looks: list[AttentionCall]) -> list[AttentionCall]:
    """Where a module was called with one query at a time in a run, one look with all of them."""
    by_name: dict[str, list[AttentionCall]] = {}
    for look in looks:
        by_name.setdefault(look.name, []).append(look)
    found = []
    for look in looks:
        steps = by_name[look.name]
        if len(steps) == 1 or not all(_is_step(look, other) for other in steps):
            found.append(look)
        elif look is steps[0]:
            rows = list(range(look.weights.shape[0]))
            found.append(_join(steps, [rows] * len(steps)))
    return found


def _is_step(look: AttentionCall, other: AttentionCall) -> bool:
    return other.weights.shape[2] == 1 and other.weights.shape[:2] == look.weights.shape[:2]


def _join(steps: list[AttentionCall], rows: Sequence[Sequence[int | None]]) -> AttentionCall:
    """One look with the queries of all steps, earlier ones with zeros for later keys.

    Args:
        steps: the looks of one module, in their order.
        rows: for each step, the row of each line; None where the line has ended.
    """
    first = steps[0]
    ends = list(itertools.accumulate(step.size[0] for step in steps))
    grows = len(steps) > 1 and all(
        _continues_cache(first, steps[i], ends[i], step) for i, step in enumerate(steps[1:])
    )
    total = ends[-1]
    past = _without_empty_cache(first).size[1] - first.size[0] if grows else 0
    width = past + total if grows else max(step.weights.shape[3] for step in steps)
    joined = torch.zeros(len(rows[0]), first.weights.shape[1], total, width)
    for step, own, end in zip(steps, rows, ends, strict=True):
        start = end - step.size[0]
        right = min(past + end, width) if grows else step.weights.shape[3]
        left = max(0, right - step.weights.shape[3]) if grows else 0
        for line, row in enumerate(own):
            if row is not None:
                joined[line, :, start:end, left:right] = step.weights[row, ..., : right - left]
    if not grows:
        return replace(first, weights=joined, causal=first.causal and len(steps) == 1)
    return replace(first, weights=joined, causal=hides_all_ahead(joined), same=True)


def hides_all_ahead(weights: Tensor) -> bool:
    """Whether no row has weight on what comes after it, the last row standing at the last column.

    Rows whose weights are all alike do not count: a row whose keys are all masked, as padding on
    the left has them, is spread over all columns by a softmax of equal scores.
    """
    rows, columns = weights.shape[-2:]
    if not 1 < rows <= columns:
        return False
    alike = _alike(weights)
    ahead = weights.triu(1 + columns - rows).any(dim=-1)
    return not bool((ahead & ~alike).any()) and not bool(alike[..., :-1].all())


def _without_masked_rows(look: AttentionCall) -> AttentionCall:
    """A look under a causal mask, with zeros in rows whose keys are all masked.

    These are the rows that have the same weight on all columns, also on those ahead.
    """
    if not look.causal:
        return look
    rows, columns = look.weights.shape[-2:]
    masked = look.weights.triu(1 + columns - rows).any(dim=-1) & _alike(look.weights)
    if not bool(masked.any()):
        return look
    return replace(look, weights=look.weights.masked_fill(masked[..., None], 0.0), masked=True)


def _alike(weights: Tensor) -> Tensor:
    """Which rows have the same weight on every column."""
    return weights.amax(dim=-1) == weights.amin(dim=-1)
