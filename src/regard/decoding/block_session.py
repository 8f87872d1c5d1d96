"""Sessions on a GPU: blocks of steps that sources join and leave between two of them.

A block is replayed from a CUDA graph, which has no numbers of the host in it: steps are counted
from the start of the block, so that the limits, first steps and endings of all rows move back by
its length after each. So one graph serves every block of a shape. Newcomers run one block by
themselves and are then put into the batch, whose number of rows is padded to few sizes. Rows that
are done, or that nobody waits for, fill it up.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, final

import torch
from torch import Tensor

from regard.decoding.beam_state import start_rows
from regard.decoding.block_search import (
    BLOCK_STEPS,
    BlockSettings,
    Run,
    SearchState,
    encode_rows,
    keep_rows,
    padded_batch,
    padded_rows,
    run_eagerly,
    run_steps,
)
from regard.decoding.constraints import Constraints
from regard.decoding.graphs import DecodingGraphs
from regard.decoding.hypothesis import maps_on_cpu
from regard.decoding.search_history import Alternatives, FinishedHypotheses, Move
from regard.decoding.session_history import (
    Arrivals,
    SessionBatch,
    SessionHistory,
    SessionStep,
    WrittenToken,
)
from regard.models.protocol import real_lengths
from regard.state import State, StateT, map_leaves
from regard.symbols import EOS

#: Positions of a growing state are padded to multiples of this at the start of a block, and to
#: larger ones where there are many, by at most a quarter.
POSITIONS_STEP: Final = 16


@final
class BlockBatch(SessionBatch):
    """Rows that take blocks of steps together.

    Attributes:
        search: the rows, whose tensors are their own.
        numbers: of the source of each row; None for rows that fill the batch up, whatever they
            find.
        history: of the steps.
    """

    def __init__(
        self,
        settings: BlockSettings,
        graphs: DecodingGraphs,
        search: SearchState,
        numbers: list[int | None],
        arrivals: Arrivals,
    ) -> None:
        self.settings, self.search, self.numbers = settings, search, numbers
        self.history = SessionHistory(settings.kinds, settings.alternatives, arrivals)
        self._graphs = graphs
        # the same rows, in the slots of the graphs, and the number of the call that put them there
        self._placed: tuple[SearchState, int] | None = None

    @staticmethod
    def start(
        settings: BlockSettings,
        graphs: DecodingGraphs,
        src: Tensor,
        lengths: Tensor | None,
        first: int,
    ) -> "BlockBatch":
        """Encode sources, whose numbers begin with `first`."""
        sources, options = len(src), settings.options
        src, lengths = padded_batch(src, real_lengths(src, lengths))
        read = lengths.tolist()
        with _claimed(graphs, src) as run:
            state, memory, found = encode_rows(settings, src, lengths, run)
            state = _own(state, None)
        if not found["keeps_lengths"]:
            read = memory.lengths.tolist()
        positions = settings.model.tgt_positions
        rules = Constraints.of(options, memory.lengths, None, positions, known_lengths=read)
        beams, state = start_rows(memory, state, rules, options, settings.plan)
        if settings.model.any_step:
            state = state.with_positions(0)
        beams = replace(
            beams,
            constraints=replace(rules, shortest=0, longest=0),
            first_step=torch.zeros_like(memory.lengths),
        )
        numbers = [first + i if i < sources else None for i in range(len(src))]
        maps = maps_on_cpu(memory.maps, settings.kinds)
        arrivals = Arrivals(first, read[:sources], maps)
        return BlockBatch(settings, graphs, SearchState(beams, state), numbers, arrivals)

    def __len__(self) -> int:
        return len(self.live)

    @property
    def live(self) -> list[int]:
        """The rows that are still searched."""
        return [i for i, number in enumerate(self.numbers) if number is not None]

    def step(self) -> SessionStep:
        """Extend all rows by a block of tokens; those that are done leave."""
        self._fit_positions()
        before = self.search
        with _claimed(self._graphs, before.beams.tokens) as run:
            given = before
            if self._placed is not None and run is not run_eagerly:
                placed, call = self._placed
                given = placed if call == self._graphs.calls else before
            key = (self.settings.key, "session")
            after, found = run(key, lambda state, _: _block(self.settings, state), given, ())
            self._placed = (after, self._graphs.calls) if self._graphs.holds(after) else None
            # a function that ran eagerly returns tensors of the sources as they were given
            is_own = self._placed is None and given is before
            self.search = after if is_own else _own(after, before)
        others = found["alternatives"] or (None,) * BLOCK_STEPS
        steps = zip(found["moves"], found["maps"], found["sizes"], others, strict=True)
        for move, maps, size, pair in steps:
            likeliest = None if pair is None else Alternatives(*pair)
            self.history.add(Move(*move), maps, size, likeliest)
        done = found["done"].tolist()  # the one question to the device
        written = self._written(found) if self.settings.stream else []
        self._end([i for i in self.live if done[i]])
        answers = self.history.read_ended()
        self._forget()
        return SessionStep(answers, written)

    def remove(self, numbers: set[int]) -> None:
        """Remove rows by the numbers of their sources."""
        self.numbers = [None if number in numbers else number for number in self.numbers]
        self._forget()

    def can_join(self, other: "BlockBatch") -> bool:
        """Return whether the rows of another batch can be put behind these."""
        alike = self.search.beams.tokens.shape[1] == other.search.beams.tokens.shape[1]
        return alike and self.history.can_join(other.history)

    def join(self, other: "BlockBatch") -> None:
        """Put the rows of another batch behind these, and leave out those that are done."""
        theirs = other.search.beams
        finished = self.history.moved(theirs.finished, other.history, zero=other.history.steps)
        beams = self.search.beams.append(replace(theirs, finished=finished))
        self.search = SearchState(beams, self.search.state.append(other.search.state))
        self.history.join(other.history)
        self.numbers += other.numbers
        self._keep(padded_rows(len(self.live)))

    def _fit_positions(self) -> None:
        """Give a growing state the positions that its rows need, padded to one of few sizes."""
        needed = self.history.steps - self.history.first
        if not needed or not self.settings.model.any_step:
            return
        unit = max(POSITIONS_STEP, 1 << max(needed.bit_length() - 3, 0))
        state = self.search.state.with_positions(-(-needed // unit) * unit)
        if state is not self.search.state:
            self.search, self._placed = replace(self.search, state=state), None

    def _written(self, found: dict[str, Any]) -> list[WrittenToken]:
        """Return the new tokens of each row of a greedy search."""
        finished = self.search.beams.finished
        scores, places = finished.scores[:, 0].tolist(), finished.places[:, 0].tolist()
        tokens, log_probs = (
            torch.stack([move[part] for move in found["moves"]])[..., 0].tolist() for part in (1, 2)
        )
        has_cross = found["cross"][0] is not None
        cross = torch.stack(found["cross"])[:, :, 0].cpu() if has_cross else None
        written = []
        for i in self.live:
            number = self.numbers[i]
            assert number is not None
            come = self.history.arrivals_of(number)
            length = come.lengths[number - come.first]
            # places count from the end of the block
            ended = scores[i][0] > float("-inf") and places[i][0] >= -BLOCK_STEPS
            last = places[i][0] + BLOCK_STEPS if ended else BLOCK_STEPS
            for step in range(min(last + 1, BLOCK_STEPS)):
                ends = step == last
                token, log_prob = (
                    (EOS, scores[i][2]) if ends else (tokens[step][i], log_probs[step][i])
                )
                row = None if cross is None else cross[step, i, :length]
                written.append(WrittenToken(number, token, log_prob, row))
        return written

    def _end(self, rows: Sequence[int]) -> None:
        """Hand the hypotheses of rows that are done to the history."""
        if not rows:
            return
        numbers = [self.numbers[i] for i in rows]
        index = torch.tensor(rows, device=self.search.beams.tokens.device)
        ended = self.search.beams.finished.reorder(index)
        places = ended.places.cpu()
        places[..., 0] += self.history.steps
        self.history.ended.append(
            FinishedHypotheses(torch.tensor(numbers), ended.scores.cpu(), places)
        )
        for i in rows:
            self.numbers[i] = None

    def _forget(self) -> None:
        """Drop steps and sources that are not needed, and rows, if half of them are done."""
        self.history.forget(n for n in self.numbers if n is not None)
        if self.live and padded_rows(len(self.live)) <= len(self.numbers) // 2:
            self._keep(padded_rows(len(self.live)))

    def _keep(self, count: int) -> None:
        """Keep the rows that are searched, and as many others as make `count` of them."""
        live = self.live
        filling = [i for i, number in enumerate(self.numbers) if number is None]
        filling = [*filling, *[live[0]] * count][: count - len(live)]
        rows = torch.tensor([*live, *filling], device=self.search.beams.tokens.device)
        self.search, self._placed = keep_rows(self.search, rows), None
        self.history.keep_rows(rows)
        self.numbers = [*(self.numbers[i] for i in live), *[None] * len(filling)]


@contextmanager
def _claimed(graphs: DecodingGraphs, like: Tensor) -> Iterator[Run]:
    """Yield the graphs if they are free and usable on the device of a tensor."""
    with graphs.claim(like) as is_free:
        yield graphs if is_free else run_eagerly


def _block(settings: BlockSettings, search: SearchState) -> tuple[SearchState, dict[str, Any]]:
    """Return all rows after a block of steps, with steps counted from its end."""
    search, found = run_steps(settings, 0, BLOCK_STEPS, 0, search, None)
    beams = search.beams
    limits, first_step = beams.constraints.limits - BLOCK_STEPS, beams.first_step
    assert first_step is not None
    places = beams.finished.places.clone()
    places[..., 0] -= BLOCK_STEPS
    beams = replace(
        beams,
        constraints=replace(beams.constraints, limits=limits),
        first_step=first_step - BLOCK_STEPS,
        finished=replace(beams.finished, places=places),
    )
    # rows of NaN are never over
    return SearchState(beams, search.state), found | {"done": found["done"] | (limits < 0)}


def _own(state: StateT, before: State | None) -> StateT:
    """Return a state out of the slots of the graphs, which others may overwrite.

    Args:
        state: in the slots.
        before: the state before a block, whose tensors of the sources are still the same if it has
            as many rows; None if there is none.
    """
    old: dict[str, Any] = {}
    if before is not None:
        map_leaves(before, lambda name, leaf, of_source: old.setdefault(name, leaf))
    copies: list[Tensor] = []
    originals: list[Tensor] = []

    def copied(name: str, leaf: Any, of_source: bool) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        if of_source and name in old and old[name].shape == leaf.shape:
            return old[name]
        originals.append(leaf)
        copies.append(torch.empty_like(leaf, memory_format=torch.contiguous_format))
        return copies[-1]

    owned = map_leaves(state, copied)
    if copies:
        torch._foreach_copy_(copies, originals)
    return owned
