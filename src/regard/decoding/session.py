"""Continuous batching: a beam search that sources join and leave between two steps.

A source that is done leaves at once, and others take its place. Newcomers are encoded, take their
first step by themselves, and are then put behind the rows that are searched already, if the states
of the model allow rows at different steps (`State.any_step`); otherwise they stay a batch of their
own, whose steps are taken in turn. Hypotheses are those that `beam_search` finds.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, final

import torch
from torch import Tensor

from regard.decoding.beam_state import BeamState, extend, follow, start_rows
from regard.decoding.constraints import Constraints
from regard.decoding.cpu_path import extend_by_kernel, refuse_kernel
from regard.decoding.hypothesis import (
    Hypothesis,
    last_cross_attention,
    maps_on_cpu,
    row_maps,
)
from regard.decoding.search import beam_plan
from regard.decoding.search_history import (
    Alternatives,
    FinishedHypotheses,
    Move,
    SearchHistory,
    read_hypotheses,
)
from regard.decoding_options import DecodingOptions
from regard.errors import RegardError
from regard.models.protocol import (
    Lengths,
    Maps,
    SequenceModel,
    Src,
    StepOutput,
    check_batch,
    inference,
    is_encoder_map,
)
from regard.ops.warm_up import TOKENS, is_warm
from regard.state import State, pad_together
from regard.symbols import EOS

#: hypotheses are read from the steps of a search for so many rows that are done at a time, or every
#: so many steps, since one takes hardly less time than several
READ_AT_ONCE: Final = 4
READ_EVERY: Final = 4


def refuse_session(model: SequenceModel, options: DecodingOptions, device: str) -> str | None:
    """Return the reason why a `DecodingSession` cannot search, or None."""
    if device != "cpu":
        return "searches of a GPU are replayed from graphs"
    if options.num_samples:
        return "samples of a batch share their random numbers"
    if options.prefix or options.min_len or options.no_repeat_ngram or options.coverage_penalty:
        return "its constraints count from the first step of a batch"
    if type(model).tgt_lengths is not SequenceModel.tgt_lengths:
        return "the model knows the lengths of its targets"
    return None


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
    """One step of a session.

    Attributes:
        done: hypotheses of the sources that have left, best first, by their numbers; or the error.
        written: the new token of each source, if the beam is 1 and they are asked for.
    """

    done: dict[int, list[Hypothesis] | RegardError]
    written: list[WrittenToken]


@dataclass
class _Arrivals:
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


@final
class DecodingSession:
    """A beam search over sources that come and go.

    Args:
        model: to search with.
        options: that `refuse_session` does not refuse.
        kinds: of the maps that hypotheses carry; none for none.
        alternatives: likeliest tokens at each place that hypotheses carry.
        stream: whether steps return the new token of each source; for a beam of 1.
    """

    def __init__(
        self,
        model: SequenceModel,
        options: DecodingOptions,
        *,
        kinds: Collection[str] = (),
        alternatives: int = 0,
        stream: bool = False,
    ) -> None:
        self.model, self.options, self.kinds = model, options, kinds
        self.alternatives, self.stream = alternatives, stream and options.beam == 1
        self.batches: list[_Batch] = []
        self._next = 0

    def __len__(self) -> int:
        return sum(map(len, self.batches))

    def add(self, src: Src, lengths: Lengths) -> list[int]:
        """Encode sources, to be searched from the next step on; return their numbers."""
        check_batch(src, lengths)
        with inference(self.model):
            self.batches.append(_Batch.start(self, src, lengths, self._next))
        numbers = list(range(self._next, self._next + len(src)))
        self._next += len(src)
        return numbers

    def remove(self, numbers: Collection[int]) -> None:
        """Remove sources that nobody waits for."""
        for batch in self.batches:
            batch.remove(set(numbers))
        self.batches = [batch for batch in self.batches if batch]

    def step(self) -> SessionStep:
        """Extend all sources by one token."""
        done: dict[int, list[Hypothesis] | RegardError] = {}
        written: list[WrittenToken] = []
        with inference(self.model):
            for batch in self.batches:
                new = batch.step()
                done |= new.done
                written += new.written
        live, self.batches = [batch for batch in self.batches if batch], []
        for batch in live:
            if self.batches and self.batches[0].can_join(batch):
                self.batches[0].join(batch)
            else:
                self.batches.append(batch)
        return SessionStep(done, written)


class _Batch:
    """Rows that take their steps together.

    Attributes:
        steps: taken so far; rows that have joined late count them, too.
        ended: rows that are done, and not read yet.
        sizes: beams that the model was run on at each step that is remembered.
        first: the first step that is remembered.
    """

    def __init__(
        self,
        session: DecodingSession,
        beams: BeamState,
        state: State,
        arrivals: _Arrivals,
    ) -> None:
        self.session, self.beams, self.state = session, beams, state
        self.history = SearchHistory(session.kinds, session.alternatives)
        self.arrivals, self.sizes = [arrivals], list[int]()
        self.ended: list[FinishedHypotheses] = []
        self.steps = self.first = 0
        self.plan = beam_plan(session.options)

    @staticmethod
    def start(
        session: DecodingSession, src: Tensor, lengths: Tensor | None, first: int
    ) -> "_Batch":
        """Encode sources, whose numbers begin with `first`."""
        model, options = session.model, session.options
        memory = model.encode(src, lengths, need_weights=any(map(is_encoder_map, session.kinds)))
        read = memory.lengths.tolist()
        constraints = Constraints.of(
            options, memory.lengths, None, model.tgt_positions, known_lengths=read
        )
        plan = beam_plan(options)
        beams, state = start_rows(memory, model.start(memory), constraints, options, plan)
        beams = replace(
            beams,
            finished=replace(beams.finished, row=beams.finished.row + first),
            first_step=torch.zeros_like(memory.lengths),
        )
        is_warm(len(src) * plan.beams * TOKENS)  # counts them
        maps = maps_on_cpu(memory.maps, session.kinds)
        return _Batch(session, beams, state, _Arrivals(first, read, maps))

    def __len__(self) -> int:
        return len(self.beams.tokens) + sum(len(part.row) for part in self.ended)

    def step(self) -> SessionStep:
        """Extend all rows by one token; those that are done leave."""
        if not len(self.beams.tokens):  # those that were left have been removed
            return SessionStep(self._read_ended(), [])
        session, before, step = self.session, self.beams.tokens.shape, self.steps
        need_weights = bool(session.kinds) or session.stream
        out = session.model.step(self.beams.tokens.flatten(), self.state, need_weights=need_weights)
        beams, move = self._extended(out)
        self.history.add_maps(out.maps)
        self.history.add_alternatives(out.logits)
        self.sizes.append(len(out.logits))
        written = self._written(beams, move, out) if session.stream else []
        gone = beams.over.all(dim=1) | (beams.constraints.limits <= step)
        if bool(gone.any()):
            self.ended.append(beams.finished.reorder(gone.nonzero().squeeze(1)))
            stay = (~gone).nonzero().squeeze(1)
            beams, move = beams.reorder(stay), move.reorder(stay)
        self.history.add_move(move)
        self.beams, self.steps = beams, step + 1
        self.state = follow(out.state, move.parents, same_rows=beams.tokens.shape == before)
        done = self._read_ended()
        self._forget()
        return SessionStep(done, written)

    def _read_ended(self) -> dict[int, list[Hypothesis] | RegardError]:
        """Return the hypotheses of rows that are done, if enough are, or none has to wait."""
        waiting = sum(len(part.row) for part in self.ended)
        few = waiting < READ_AT_ONCE and self.steps % READ_EVERY and not self.session.stream
        if not waiting or (few and len(self.beams.tokens)):
            return {}
        rows, self.ended = FinishedHypotheses.concatenate(self.ended), []
        return self._read(rows)

    def _extended(self, out: StepOutput) -> tuple[BeamState, Move]:
        options, plan = self.session.options, self.plan
        by_kernel = refuse_kernel(self.beams, options, plan) is None and is_warm()
        if by_kernel and out.logits.dtype != torch.float64:
            return extend_by_kernel(self.beams, out, self.steps, options, plan)
        return extend(self.beams, out, self.steps, options, plan)

    def _written(self, beams: BeamState, move: Move, out: StepOutput) -> list[WrittenToken]:
        """Return the new token of each row of a greedy search."""
        cross, length = last_cross_attention(out.maps), beams.real.sum(dim=1).tolist()
        scores, places = beams.finished.scores[:, 0].tolist(), beams.finished.places[:, 0].tolist()
        numbers, tokens = beams.finished.row.tolist(), move.tokens[:, 0].tolist()
        log_probs = move.log_probs[:, 0].tolist()
        written = []
        for i, number in enumerate(numbers):
            ended = scores[i][0] > float("-inf") and places[i][0] == self.steps
            token, log_prob = (EOS, scores[i][2]) if ended else (tokens[i], log_probs[i])
            row = None if cross is None else cross[i, 0, : length[i]]
            written.append(WrittenToken(number, token, log_prob, row))
        return written

    def remove(self, numbers: set[int]) -> None:
        """Remove rows by the numbers of their sources."""
        self.ended = [part for one in self.ended if len((part := _without(one, numbers)).row)]
        kept = [i for i, n in enumerate(self.beams.finished.row.tolist()) if n not in numbers]
        if len(kept) == len(self.beams.tokens):
            return
        stay, beams = torch.tensor(kept, dtype=torch.long), self.beams.tokens.shape[1]
        self.beams = self.beams.reorder(stay)
        rows = (stay[:, None] * beams + torch.arange(beams)).flatten()
        self.state = self.state.reorder(rows)
        if self.history.moves:
            self.history.moves[-1] = self.history.moves[-1].reorder(stay)
        self._forget()

    def can_join(self, other: "_Batch") -> bool:
        """Return whether the rows of another batch can be put behind these.

        The steps that it remembers must be remembered here, and hypotheses be as many: rows of a
        small vocabulary take some steps until there are enough.
        """
        return (
            self.state.any_step
            and other.first + self.steps - other.steps >= self.first
            and self.beams.tokens.shape[1] == other.beams.tokens.shape[1]
        )

    def join(self, other: "_Batch") -> None:
        """Put the rows of another batch behind these."""
        shift = self.steps - other.steps
        for arrivals in other.arrivals:
            arrivals.start += shift
        self.beams = self._with_rows(other, shift)
        self.ended += [self._moved(part, other, shift) for part in other.ended]
        for i, step in enumerate(range(other.first + shift, self.steps)):
            self._join_step(step - self.first, other, i)
        self.arrivals += other.arrivals
        self.state = self.state.append(other.state)

    def _join_step(self, place: int, other: "_Batch", i: int) -> None:
        """Put one step of another batch behind the same step of this one."""
        mine, theirs, size = self.history, other.history, self.sizes[place]
        if i == 0 and place > 0:  # parents before the first step, so that all rows have some
            beams = mine.moves[place - 1].tokens.shape[1]
            nothing = torch.zeros(-(-other.sizes[0] // beams), beams, dtype=torch.long)
            none = Move(nothing, nothing, nothing.float())
            mine.moves[place - 1] = mine.moves[place - 1].append(none)
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

    def _with_rows(self, other: "_Batch", shift: int) -> BeamState:
        """Return the beams of both batches, with steps counted as this batch counts them."""
        first_step = other.beams.first_step
        assert first_step is not None
        limits = other.beams.constraints.limits + shift
        theirs = replace(
            other.beams,
            finished=self._moved(other.beams.finished, other, shift),
            first_step=first_step + shift,
            constraints=replace(other.beams.constraints, limits=limits),
        )
        both = self.beams.append(theirs)
        known = both.constraints.limits.tolist()
        rules = replace(both.constraints, shortest=min(known), longest=max(known))
        return replace(both, constraints=rules)

    def _moved(
        self, finished: FinishedHypotheses, other: "_Batch", shift: int
    ) -> FinishedHypotheses:
        """Return hypotheses of another batch with the steps and beams of this one."""
        places = finished.places.clone()
        for step in range(other.first, other.steps):
            ended = finished.places[..., 0] == step
            places[..., 1] += ended * self.sizes[step + shift - self.first]
        places[..., 0] += shift
        return replace(finished, places=places)

    def _read(self, finished: FinishedHypotheses) -> dict[int, list[Hypothesis] | RegardError]:
        """Return the hypotheses of rows that are done, by number."""
        numbers = finished.row.tolist()
        arrivals = [self._arrivals_of(number) for number in numbers]
        first = min(come.start for come in arrivals)
        places = finished.places.clone()
        places[..., 0] -= first
        rows = replace(finished, row=torch.arange(len(numbers)), places=places)
        read = _read_rows(
            self.history.since(first - self.first),
            rows,
            [come.lengths[n - come.first] for come, n in zip(arrivals, numbers, strict=True)],
            [come.start - first for come in arrivals],
        )
        return {
            number: found if isinstance(found, RegardError) else come.with_maps(number, found)
            for number, come, found in zip(numbers, arrivals, read, strict=True)
        }

    def _arrivals_of(self, number: int) -> _Arrivals:
        return next(come for come in self.arrivals if number in come)

    def _forget(self) -> None:
        """Drop sources that have left, and steps before the first of the others."""
        parts = [self.beams.finished, *self.ended]
        numbers = [number for part in parts for number in part.row.tolist()]
        self.arrivals = [come for come in self.arrivals if any(n in come for n in numbers)]
        first = min((come.start for come in self.arrivals), default=self.steps)
        self.history = self.history.since(first - self.first)
        self.sizes, self.first = self.sizes[first - self.first :], first


def _without(rows: FinishedHypotheses, numbers: set[int]) -> FinishedHypotheses:
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
