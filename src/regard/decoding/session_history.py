"""The steps that a session remembers: those since the first of the sources that are still there.

Sources join and leave, so that the rows of a step differ from those of the next one. A hypothesis
is read when its source is done, and steps that no source needs any more are forgotten.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, final

import torch
from jaxtyping import Int
from torch import Tensor

from regard.decoding.hypothesis import Hypothesis, row_maps
from regard.decoding.search_history import (
    Alternatives,
    FinishedHypotheses,
    Move,
    SearchHistory,
    read_hypotheses,
)
from regard.errors import RegardError
from regard.models.protocol import Maps
from regard.state import pad_together

#: hypotheses of sources that are done, by their numbers; or the error of a source
Found = dict[int, list[Hypothesis] | RegardError]


class WrittenToken(NamedTuple):
    """A token that a greedy search has just written.

    Attributes:
        number: of its source.
        token: its id; `eos` at the last step.
        log_prob: its log-probability.
        cross: the last layer's cross-attention, (src_len,), mean over its heads; None if the model
            has none.
    """

    number: int
    token: int
    log_prob: float
    cross: Tensor | None


class SessionStep(NamedTuple):
    """One step of a session, or a block of some steps.

    Attributes:
        done: hypotheses of the sources that have left, best first, by their numbers; or the error.
        written: the new tokens of each source, if the beam is 1 and they are asked for.
    """

    done: Found
    written: list[WrittenToken]


@dataclass
class Arrivals:
    """Sources that have come together.

    Attributes:
        first: number of the first source.
        lengths: real positions of each.
        maps: of the encoder.
        start: step of the batch at which they began.
    """

    first: int
    lengths: list[int]
    maps: Maps
    start: int = 0

    def __contains__(self, number: int) -> bool:
        return 0 <= number - self.first < len(self.lengths)

    def with_maps(self, number: int, found: list[Hypothesis]) -> list[Hypothesis]:
        """Return the hypotheses of a source with the maps of its encoder."""
        if not self.maps:
            return found
        row, length = number - self.first, self.lengths[number - self.first]
        return [
            replace(one, attention=row_maps(self.maps, row, length, length) | one.attention)
            for one in found
        ]


class SessionBatch(ABC):
    """Rows of a session that take their steps together."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of sources that are not answered yet."""

    @abstractmethod
    def step(self) -> SessionStep:
        """Extend all rows; those that are done leave."""

    @abstractmethod
    def remove(self, numbers: set[int]) -> None:
        """Remove rows by the numbers of their sources."""

    @abstractmethod
    def can_join(self, other: Any) -> bool:
        """Return whether the rows of another batch of the session can be put behind these.

        Hypotheses must be as many: rows of a small vocabulary take some steps until there are
        enough.
        """

    @abstractmethod
    def join(self, other: Any) -> None:
        """Put the rows of another batch behind these."""


@final
class SessionHistory:
    """The steps of a batch of rows, and the rows that are done and not read yet.

    Args:
        kinds: of the attention maps that are recorded.
        alternatives: likeliest tokens of each step that are recorded.
        arrivals: the first sources.

    Attributes:
        steps: taken so far; rows that have joined late count them, too.
        first: the first step that is remembered.
        sizes: beams that the model was run on at each step that is remembered.
        ended: rows that are done; their row is the number of their source.
    """

    def __init__(self, kinds: Collection[str], alternatives: int, arrivals: Arrivals) -> None:
        self.search = SearchHistory(kinds, alternatives)
        self.arrivals, self.sizes = [arrivals], list[int]()
        self.ended: list[FinishedHypotheses] = []
        self.steps = self.first = 0

    def add(self, move: Move, maps: Maps, size: int, alternatives: Alternatives | None) -> None:
        """Record a step that the model was run on `size` beams for."""
        self.search.add_maps(maps)
        self.search.add_move(move)
        if alternatives is not None:
            self.search.alternatives.append(alternatives)
        self.sizes.append(size)
        self.steps += 1

    def keep_rows(self, rows: Int[Tensor, " some"]) -> None:
        """Keep these rows of the last step alone, in this order."""
        if self.search.moves:
            self.search.moves[-1] = self.search.moves[-1].reorder(rows)

    @property
    def waiting(self) -> int:
        """Number of rows that are done and not read yet."""
        return sum(len(part.row) for part in self.ended)

    def arrivals_of(self, number: int) -> Arrivals:
        """Return the sources that a source has come with."""
        return next(come for come in self.arrivals if number in come)

    def remove(self, numbers: Collection[int]) -> None:
        """Remove rows that are done by the numbers of their sources."""
        self.ended = [part for one in self.ended if len((part := _without(one, numbers)).row)]

    def read_ended(self) -> Found:
        """Return the hypotheses of all rows that are done, and forget those rows."""
        if not self.ended:
            return {}
        finished, self.ended = FinishedHypotheses.concatenate(self.ended), []
        numbers = finished.row.tolist()
        arrivals = [self.arrivals_of(number) for number in numbers]
        first = min(come.start for come in arrivals)
        places = finished.places.clone()
        places[..., 0] -= first
        rows = replace(finished, row=torch.arange(len(numbers)), places=places)
        read = _read_rows(
            self.search.since(first - self.first),
            rows,
            [come.lengths[n - come.first] for come, n in zip(arrivals, numbers, strict=True)],
            [come.start - first for come in arrivals],
        )
        return {
            number: found if isinstance(found, RegardError) else come.with_maps(number, found)
            for number, come, found in zip(numbers, arrivals, read, strict=True)
        }

    def forget(self, numbers: Iterable[int]) -> None:
        """Drop sources that have left, and steps before the first of the others.

        Args:
            numbers: of the sources that are still searched.
        """
        there = [*numbers, *(number for part in self.ended for number in part.row.tolist())]
        self.arrivals = [come for come in self.arrivals if any(n in come for n in there)]
        first = min((come.start for come in self.arrivals), default=self.steps)
        self.search = self.search.since(first - self.first)
        self.sizes, self.first = self.sizes[first - self.first :], first

    def can_join(self, other: "SessionHistory") -> bool:
        """Return whether the steps that another history remembers are remembered here."""
        return other.first + self.steps - other.steps >= self.first

    def moved(
        self, finished: FinishedHypotheses, other: "SessionHistory", zero: int = 0
    ) -> FinishedHypotheses:
        """Return hypotheses of another history with the beams that they get here.

        Args:
            finished: of the other history.
            other: that joins this one.
            zero: the step of the other history that the places of `finished` count from.
        """
        places = finished.places.clone()
        shift = self.steps - other.steps
        for step in range(other.first, other.steps):
            ended = finished.places[..., 0] == step - zero
            places[..., 1] += ended * self.sizes[step + shift - self.first]
        return replace(finished, places=places)

    def join(self, other: "SessionHistory") -> None:
        """Put the rows of another history behind these; the last step of both is the same."""
        shift = self.steps - other.steps
        for arrivals in other.arrivals:
            arrivals.start += shift
        for part in other.ended:
            part = self.moved(part, other)
            part.places[..., 0] += shift
            self.ended.append(part)
        for i, step in enumerate(range(other.first + shift, self.steps)):
            self._join_step(step - self.first, other, i)
        self.arrivals += other.arrivals

    def _join_step(self, place: int, other: "SessionHistory", i: int) -> None:
        """Put one step of another history behind the same step of this one."""
        mine, theirs, size = self.search, other.search, self.sizes[place]
        if i == 0 and place > 0:  # parents before the first step, so that all rows have some
            before = mine.moves[place - 1]
            beams = before.tokens.shape[1]
            nothing = before.parents.new_zeros(-(-other.sizes[0] // beams), beams)
            mine.moves[place - 1] = before.append(Move(nothing, nothing, nothing.float()))
        move = theirs.moves[i]
        mine.moves[place] = mine.moves[place].append(replace(move, parents=move.parents + size))
        mine.maps[place] = {
            kind: tuple(
                pad_together(*pair) for pair in zip(layers, theirs.maps[i][kind], strict=True)
            )
            for kind, layers in mine.maps[place].items()
        }
        if mine.alternatives:
            both: Alternatives = mine.alternatives[place].append(theirs.alternatives[i])
            mine.alternatives[place] = both
        self.sizes[place] = size + other.sizes[i]


def _without(rows: FinishedHypotheses, numbers: Collection[int]) -> FinishedHypotheses:
    kept = [i for i, number in enumerate(rows.row.tolist()) if number not in numbers]
    return rows.reorder(torch.tensor(kept, dtype=torch.long))


def _read_rows(
    history: SearchHistory,
    rows: FinishedHypotheses,
    lengths: Sequence[int],
    first_steps: Sequence[int],
) -> list[list[Hypothesis] | RegardError]:
    """Return the hypotheses of each row; one whose logits are NaN gets the error alone."""
    try:
        return [*read_hypotheses(history, rows, {}, lengths, first_steps=first_steps)]
    except RegardError as error:
        if len(lengths) == 1:
            return [error]
    found: list[list[Hypothesis] | RegardError] = []
    for i, length in enumerate(lengths):
        one = replace(rows.reorder(torch.tensor([i])), row=torch.zeros(1, dtype=torch.long))
        found += _read_rows(history, one, [length], [first_steps[i]])
    return found
