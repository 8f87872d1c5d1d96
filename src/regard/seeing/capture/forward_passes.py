"""Group the calls of attention that `capture` has recorded into forward passes.

A run is one call of the captured module, or of one of its parts while the module itself is not
running. Runs that belong together form a forward pass, which has one trace for each row:

- A run of the module starts a new pass, unless its self-attention continues a cache: its keys are
  those of all queries of the pass so far and its own.
- Runs of parts, as in `generate()` and in regard's own decoding, belong to one pass until a part
  runs again without continuing what it did before. A part continues if its cache grows, or if it
  attends with one query to the same number of keys, and not all parts that ran before the first
  attention of the pass have run again.

The rows of a batch are tracked through `index_select`, `repeat_interleave`, or indexing with a
tensor, along the batch between two runs, which is how caches and states are reordered. If the
number of rows changes otherwise, a new pass starts. A caller who knows which rows a hypothesis of a
beam search was in can say so: then it is found even if it ended before the search did.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import torch
from torch import Tensor

from regard.errors import ArgumentError
from regard.seeing.trace.trace import hides_ahead

#: parts of the names of cross-attention modules
CROSS_NAMES: Final = ("cross", "encoder_attn", "enc_dec", "encdec", "src_attn", "multihead_attn")
BEAMS: Final = (
    "rows of the batch were reordered between steps, as in beam search: each trace follows one of "
    "the last rows back to the start, and hypotheses that ended before are not among them"
)


@dataclass(frozen=True)
class AttentionCall:
    """The weights of one call of an attention, or of the joined steps of one.

    Attributes:
        name: of the calling module, as in `named_modules`.
        run: number of the run, counted from 0.
        weights: (batch, heads, q_len, kv_len) on the CPU.
        causal, same, history, future, extra, slots: see `recompute.PendingWeights`.
        masked: whether rows whose keys were all masked have been set to zero.
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
        """Numbers of rows and of columns that are positions."""
        rows, columns = self.weights.shape[2:]
        return rows, columns - self.extra

    @property
    def crosses(self) -> bool:
        """True if it is cross-attention, as far as can be told."""
        if self.same is not None or self.slots:
            return not self.same and not self.slots
        if self.named_cross:
            return True
        rows, columns = self.size
        # more keys than queries may be a cache; fewer are another sequence, as a shortened one
        return rows > columns or (rows < columns and not self.named_self)

    @property
    def named_cross(self) -> bool:
        """True if the module is a cross-attention by its name."""
        return any(part in self._leaf for part in CROSS_NAMES)

    @property
    def named_self(self) -> bool:
        """True if the module is a self-attention by its name."""
        return "self" in self._leaf and not self.named_cross

    @property
    def _leaf(self) -> str:
        return ".".join(self.name.lower().split(".")[-2:])


@dataclass(frozen=True)
class BatchReorder:
    """A selection of rows of the batch between two runs.

    Attributes:
        run: number of the run after it.
        rows: number of rows before.
        indices: for each row after it, its row before.
    """

    run: int
    rows: int
    indices: tuple[int, ...]


@dataclass(frozen=True)
class ForwardPass:
    """Joined calls of the runs of one pass, with one row for each hypothesis.

    Attributes:
        calls: in the order in which their modules ran first.
        steps: number of queries of each row, if there were several runs; None otherwise.
        notes: remarks on how they were joined.
    """

    calls: list[AttentionCall]
    steps: list[int] | None = None
    notes: tuple[str, ...] = ()


def forward_passes(
    calls: Sequence[AttentionCall],
    runs: Sequence[str],
    reorders: Sequence[BatchReorder],
    hypotheses: Sequence[Sequence[int]] | None = None,
) -> list[ForwardPass]:
    """Join the runs that belong together."""
    of_run: dict[int, list[AttentionCall]] = {}
    for call in calls:
        of_run.setdefault(call.run, []).append(_without_masked_rows(call))
    done: list[_PassBuilder] = []
    current, since = _PassBuilder(), set[str]()
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
            current = _PassBuilder(frozenset(since), notes)
            parents = tuple(range(found[0].weights.shape[0]))
        current.add(found, outer, parents)
        since = set()
    passes = [builder for builder in (*done, current) if builder.runs]
    last = len(passes) - 1
    return [builder.close(hypotheses if i == last else None) for i, builder in enumerate(passes)]


def _lost_rows(before: "_PassBuilder", found: list[AttentionCall]) -> str:
    return (
        f"the batch has {found[0].weights.shape[0]} rows where it had "
        f"{before.runs[-1][0].weights.shape[0]}, and which is which is not known: what ran before "
        f"is in traces of its own"
    )


@dataclass
class _PassBuilder:
    """A pass under construction.

    Attributes:
        before: names of the parts that ran before its first call.
        notes: remarks on where it begins.
        runs: calls of each run.
        origins: for each run, the row of the previous run that each of its rows was.
        outers: for each run, the name of its outermost module.
        steps: calls of each module, by its name and the number of the call within its run.
        whole: whether the captured module itself has run.
    """

    before: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()
    runs: list[list[AttentionCall]] = field(default_factory=list)
    origins: list[tuple[int, ...]] = field(default_factory=list)
    outers: list[str] = field(default_factory=list)
    steps: dict[tuple[str, int], list[AttentionCall]] = field(default_factory=dict)
    whole: bool = False

    @property
    def last(self) -> int:
        """Number of its last run."""
        return self.runs[-1][0].run if self.runs else -1

    def parents(
        self, found: list[AttentionCall], reorders: list[BatchReorder]
    ) -> tuple[int, ...] | None:
        """Return the row of the last run that each row of the next one was; None if unknown."""
        if not self.runs:
            return None
        before, after = self.runs[-1][0].weights.shape[0], found[0].weights.shape[0]
        for reorder in reversed(reorders):
            if reorder.rows == before and len(reorder.indices) == after:
                return reorder.indices
        return tuple(range(after)) if before == after else None

    def continues(self, found: list[AttentionCall], outer: str, since: set[str]) -> bool:
        """Return whether a run belongs to this pass."""
        known = [(self.steps[key], call) for key, call in _keyed(found) if key in self.steps]
        if not known:
            return not self.whole
        grows = [
            _continues_cache(steps[0], steps[-1], sum(one.size[0] for one in steps), call)
            for steps, call in known
        ]
        fixed = [_same_keys(steps, call) for steps, call in known]
        if any(grows):
            return all(a or b for a, b in zip(grows, fixed, strict=True))
        restarts = bool(self.before) and self.before <= since
        single = all(call.size[0] == 1 for _, call in known)
        return outer != "" and all(fixed) and single and not restarts

    def add(self, found: list[AttentionCall], outer: str, parents: tuple[int, ...]) -> None:
        """Add a run."""
        self.runs.append(found)
        self.origins.append(parents)
        self.outers.append(outer)
        self.whole |= outer == ""
        for key, call in _keyed(found):
            self.steps.setdefault(key, []).append(call)

    def close(self, hypotheses: Sequence[Sequence[int]] | None) -> ForwardPass:
        """Join the calls; see `forward_passes` for the hypotheses."""
        if len(self.runs) == 1 and hypotheses is None:
            return ForwardPass(list(map(_without_empty_cache, self.runs[0])), notes=self.notes)
        if hypotheses is None:
            lines, branched = _lines(self.origins)
        else:
            lines, branched = [self._line(rows) for rows in hypotheses], False
        place = {found[0].run: i for i, found in enumerate(self.runs)}
        calls, steps = [], [0] * len(lines)
        for same in self.steps.values():
            rows = [[line.get(place[call.run]) for line in lines] for call in same]
            calls.append(_without_empty_cache(_join(same, rows)))
            if len(same) > 1:
                for i in range(len(lines)):
                    taken = zip(same, rows, strict=True)
                    count = sum(call.size[0] for call, row in taken if row[i] is not None)
                    steps[i] = max(steps[i], count)
        stepped = any(len(same) > 1 for same in self.steps.values())
        notes = (*self.notes, *((BEAMS,) if branched else ()))
        return ForwardPass(calls, steps if stepped else None, notes)

    def _line(self, rows: Sequence[int]) -> dict[int, int]:
        """Return the row of a hypothesis in each run, from its rows in the steps of decoding.

        The steps are runs of the module that ran last; before them, as in an encoder, its row is
        that from which the row of the first step was selected.
        """
        steps = [i for i, outer in enumerate(self.outers) if outer == self.outers[-1]]
        if not rows or len(rows) > len(steps):
            rule = f"have from 1 to {len(steps)} steps, as many as were recorded"
            raise ArgumentError("hypotheses", rule, f"one of {len(rows)}", "check which they are")
        for run, row in zip(steps, rows, strict=False):
            if not 0 <= row < len(self.origins[run]):
                rule = f"be rows of a batch of {len(self.origins[run])}"
                raise ArgumentError("hypotheses", rule, row, "count rows from 0")
        line = dict(zip(steps, rows, strict=False))
        for run in range(steps[0], 0, -1):
            line[run - 1] = self.origins[run][line[run]]
        return line


def _keyed(found: list[AttentionCall]) -> list[tuple[tuple[str, int], AttentionCall]]:
    """Key calls by the name of their module and the number of its earlier calls in the run."""
    names = [call.name for call in found]
    return [((name, names[:i].count(name)), found[i]) for i, name in enumerate(names)]


def _lines(origins: Sequence[Sequence[int]]) -> tuple[list[dict[int, int]], bool]:
    """Return the rows of each hypothesis by the number of the run, and whether any row branched.

    If no row was used twice, rows that left the batch early are hypotheses too, in the order of the
    first run. Otherwise only those that reach the last run are: the others were discarded.
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
    first: AttentionCall, last: AttentionCall, queries: int, call: AttentionCall
) -> bool:
    """Return whether a call attends to the keys of all calls so far and its own."""
    rows, columns = call.size
    if call.named_cross or call.slots or call.extra or columns <= rows:
        return False
    if call.weights.shape[1] != first.weights.shape[1]:
        return False
    positions = queries + rows
    known = call.named_self or call.same is True
    past = first.size[1] - first.size[0]
    if columns == past + positions:
        return known or (past == 0 and (first.causal or first.size == (1, 1)))
    if columns > positions:  # a cache of a fixed size whose end is still empty
        return known and columns == last.size[1] and not _has_weight_from(call, positions)
    # a window, which forgets the first keys: earlier queries have not seen further back either
    before = last.size[1] - last.size[0]
    return known and (columns == last.size[1] or not _has_weight_below(last, before - columns))


def _has_weight_from(call: AttentionCall, column: int) -> bool:
    return bool(call.weights[..., column:].any())


def _has_weight_below(call: AttentionCall, diagonal: int) -> bool:
    """Return whether row r has weight up to column r + diagonal."""
    return bool(call.weights.tril(diagonal).any())


def _without_empty_cache(call: AttentionCall) -> AttentionCall:
    """Cut off the empty end of a cache of a fixed size."""
    rows, columns = call.size
    if call.crosses or call.slots or call.extra or rows >= columns or _has_weight_from(call, rows):
        return call
    return replace(call, weights=call.weights[..., :rows])


def _same_keys(steps: list[AttentionCall], call: AttentionCall) -> bool:
    """Return whether a call may attend to the keys of the step before, as cross-attention does."""
    if call.named_self or (call.same is True and not call.slots):
        return False
    before = steps[-1].weights.shape
    return call.weights.shape[1] == before[1] and call.weights.shape[3] == before[3]


def _joined_in_run(calls: list[AttentionCall]) -> list[AttentionCall]:
    """Join the calls of a module that was called with one query at a time within a run."""
    by_name: dict[str, list[AttentionCall]] = {}
    for call in calls:
        by_name.setdefault(call.name, []).append(call)
    found = []
    for call in calls:
        steps, step = by_name[call.name], (*call.weights.shape[:2], 1)
        if len(steps) == 1 or not all(other.weights.shape[:3] == step for other in steps):
            found.append(call)
        elif call is steps[0]:
            rows = list(range(call.weights.shape[0]))
            found.append(_join(steps, [rows] * len(steps)))
    return found


def _join(steps: list[AttentionCall], rows: Sequence[Sequence[int | None]]) -> AttentionCall:
    """Join steps to one call with all their queries, earlier ones with zeros for later keys."""
    first = steps[0]
    ends = list(itertools.accumulate(step.size[0] for step in steps))
    grows = len(steps) > 1 and all(
        _continues_cache(first, steps[i], ends[i], step) for i, step in enumerate(steps[1:])
    )
    total = ends[-1]
    past = _without_empty_cache(first).size[1] - first.size[0] if grows else 0
    width = past + total if grows else max(step.weights.shape[3] for step in steps)
    places = []
    for step, end in zip(steps, ends, strict=True):
        right = min(past + end, width) if grows else step.weights.shape[3]
        places.append((max(0, right - step.weights.shape[3]) if grows else 0, right))
    joined = torch.zeros(len(rows[0]), first.weights.shape[1], total, width)
    for step, own, end, (left, right) in zip(steps, rows, ends, places, strict=True):
        start = end - step.size[0]
        for line, row in enumerate(own):
            if row is not None:
                joined[line, :, start:end, left:right] = step.weights[row, ..., : right - left]
    if not grows:
        return replace(first, weights=joined, causal=first.causal and len(steps) == 1)
    return replace(first, weights=joined, causal=hides_ahead(joined.numpy()), same=True)


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
