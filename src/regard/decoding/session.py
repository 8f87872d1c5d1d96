"""Continuous batching: a beam search that sources join and leave between two steps.

A source that is done leaves at once, and others take its place. Newcomers are encoded, take their
first step by themselves, and are then put behind the rows that are searched already, if rows of
the model's states may be at different steps (`SequenceModel.any_step`); otherwise they stay a batch
of their own, whose steps are taken in turn. Hypotheses are those that `beam_search` finds.

On a GPU steps are taken in blocks, see `block_session`.
"""

from collections.abc import Collection
from dataclasses import replace
from typing import Final, final

import torch
from torch import Tensor

from regard.decoding.beam_state import BeamState, extend, follow, start_rows
from regard.decoding.block_search import BlockSettings
from regard.decoding.block_session import BlockBatch
from regard.decoding.constraints import Constraints
from regard.decoding.cpu_path import alternatives_by_kernel, extend_by_kernel, refuse_kernel
from regard.decoding.graphs import DecodingGraphs
from regard.decoding.hypothesis import last_cross_attention, maps_on_cpu
from regard.decoding.search import beam_plan
from regard.decoding.search_history import Alternatives, Move
from regard.decoding.session_history import (
    Arrivals,
    Found,
    SessionBatch,
    SessionHistory,
    SessionStep,
    WrittenToken,
)
from regard.decoding_options import DecodingOptions
from regard.models.protocol import (
    Lengths,
    SequenceModel,
    Src,
    StepOutput,
    check_batch,
    inference,
    is_encoder_map,
)
from regard.ops.warm_up import TOKENS, is_warm
from regard.state import State
from regard.symbols import EOS

#: hypotheses are read from the steps of a search for so many rows that are done at a time, or every
#: so many steps, since one takes hardly less time than several
READ_AT_ONCE: Final = 4
READ_EVERY: Final = 4


def refuse_session(
    model: SequenceModel, options: DecodingOptions, device: str, *, stream: bool = False
) -> str | None:
    """Return the reason why a `DecodingSession` cannot search or should not, or None.

    Args:
        model: to search with.
        options: of decoding.
        device: type of the model's device.
        stream: whether tokens are passed on as they are written, for which the alternative is one
            source at a time.
    """
    if device not in ("cpu", "cuda"):
        return f"sources do not join searches on the device {device}"
    if device == "cuda" and not model.any_step:
        return "rows of the model are all at the same step, and a GPU replays large batches"
    if device == "cuda" and not stream:
        # benchmarks/results/session-latency-h200.json: whole batches answer sooner
        return "a GPU replays whole batches from graphs faster than rows that join them"
    if options.num_samples:
        return "samples of a batch share their random numbers"
    if options.prefix or options.min_len or options.no_repeat_ngram or options.coverage_penalty:
        return "its constraints count from the first step of a batch"
    if type(model).tgt_lengths is not SequenceModel.tgt_lengths:
        return "the model knows the lengths of its targets"
    return None


@final
class DecodingSession:
    """A beam search over sources that come and go.

    Args:
        model: to search with.
        options: that `refuse_session` does not refuse.
        kinds: of the maps that hypotheses carry; none for none.
        alternatives: likeliest tokens at each place that hypotheses carry.
        stream: whether steps return the new token of each source; for a beam of 1.
        graphs: of this model, to take blocks of steps on a GPU; None takes one step at a time.
    """

    def __init__(
        self,
        model: SequenceModel,
        options: DecodingOptions,
        *,
        kinds: Collection[str] = (),
        alternatives: int = 0,
        stream: bool = False,
        graphs: DecodingGraphs | None = None,
    ) -> None:
        self.model, self.options, self.kinds = model, options, kinds
        self.alternatives, self.stream = alternatives, stream and options.beam == 1
        self.batches: list[SessionBatch] = []
        self._graphs, self._next = graphs, 0
        self._settings = BlockSettings.of(
            model,
            options,
            beam_plan(options),
            kinds,
            alternatives=alternatives,
            stream=self.stream,
        )

    def __len__(self) -> int:
        return sum(map(len, self.batches))

    def add(self, src: Src, lengths: Lengths) -> list[int]:
        """Encode sources, to be searched from the next step on; return their numbers."""
        check_batch(src, lengths)
        with inference(self.model):
            if self._graphs is None:
                batch: SessionBatch = _Batch.start(self, src, lengths, self._next)
            else:
                batch = BlockBatch.start(self._settings, self._graphs, src, lengths, self._next)
        self.batches.append(batch)
        numbers = list(range(self._next, self._next + len(src)))
        self._next += len(src)
        return numbers

    def remove(self, numbers: Collection[int]) -> None:
        """Remove sources that nobody waits for."""
        for batch in self.batches:
            batch.remove(set(numbers))
        self.batches = [batch for batch in self.batches if batch]

    def step(self) -> SessionStep:
        """Extend all sources by one token, or by a block of them on a GPU."""
        done: Found = {}
        written: list[WrittenToken] = []
        with inference(self.model):
            for batch in self.batches:
                new = batch.step()
                done |= new.done
                written += new.written
            self._join_batches()
        return SessionStep(done, written)

    def _join_batches(self) -> None:
        """Put the rows of all batches into the first, as far as that is possible."""
        live, self.batches = [batch for batch in self.batches if batch], []
        for batch in live:
            first = self.batches[0] if self.batches and self.model.any_step else None
            if first is not None and first.can_join(batch):
                first.join(batch)
            else:
                self.batches.append(batch)


@final
class _Batch(SessionBatch):
    """Rows that take their steps together.

    Attributes:
        beams: of the rows.
        state: of the model.
        history: of the steps.
    """

    def __init__(
        self, session: DecodingSession, beams: BeamState, state: State, arrivals: Arrivals
    ) -> None:
        self.session, self.beams, self.state = session, beams, state
        self.history = SessionHistory(session.kinds, session.alternatives, arrivals)
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
        return _Batch(session, beams, state, Arrivals(first, read, maps))

    def __len__(self) -> int:
        return len(self.beams.tokens) + self.history.waiting

    def step(self) -> SessionStep:
        """Extend all rows by one token; those that are done leave."""
        history = self.history
        if not len(self.beams.tokens):  # those that were left have been removed
            return SessionStep(history.read_ended(), [])
        session, before, step = self.session, self.beams.tokens.shape, history.steps
        need_weights = bool(session.kinds) or session.stream
        out = session.model.step(self.beams.tokens.flatten(), self.state, need_weights=need_weights)
        beams, move = self._extended(out)
        written = self._written(beams, move, out) if session.stream else []
        gone = beams.over.all(dim=1) | (beams.constraints.limits <= step)
        if bool(gone.any()):
            history.ended.append(beams.finished.reorder(gone.nonzero().squeeze(1)))
            stay = (~gone).nonzero().squeeze(1)
            beams, move = beams.reorder(stay), move.reorder(stay)
        others = self._alternatives(out.logits) if session.alternatives else None
        history.add(move, out.maps, len(out.logits), others)
        self.beams = beams
        self.state = follow(out.state, move.parents, same_rows=beams.tokens.shape == before)
        done = self._read_ended()
        history.forget(beams.finished.row.tolist())
        return SessionStep(done, written)

    def _read_ended(self) -> Found:
        """Return the hypotheses of rows that are done, if enough are, or none has to wait."""
        few = self.history.waiting < READ_AT_ONCE and self.history.steps % READ_EVERY
        if few and not self.session.stream and len(self.beams.tokens):
            return {}
        return self.history.read_ended()

    def _extended(self, out: StepOutput) -> tuple[BeamState, Move]:
        options, plan, step = self.session.options, self.plan, self.history.steps
        if self._runs_kernels(out.logits):
            return extend_by_kernel(self.beams, out, step, options, plan)
        return extend(self.beams, out, step, options, plan)

    def _alternatives(self, logits: Tensor) -> Alternatives:
        by_kernel = self._runs_kernels(logits)
        return (alternatives_by_kernel if by_kernel else Alternatives.of)(
            logits, self.session.alternatives
        )

    def _runs_kernels(self, logits: Tensor) -> bool:
        if refuse_kernel(self.beams, self.session.options, self.plan) is not None:
            return False
        return is_warm() and logits.dtype != torch.float64

    def _written(self, beams: BeamState, move: Move, out: StepOutput) -> list[WrittenToken]:
        """Return the new token of each row of a greedy search."""
        cross, length = last_cross_attention(out.maps), beams.real.sum(dim=1).tolist()
        scores, places = beams.finished.scores[:, 0].tolist(), beams.finished.places[:, 0].tolist()
        numbers, tokens = beams.finished.row.tolist(), move.tokens[:, 0].tolist()
        log_probs = move.log_probs[:, 0].tolist()
        written = []
        for i, number in enumerate(numbers):
            ended = scores[i][0] > float("-inf") and places[i][0] == self.history.steps
            token, log_prob = (EOS, scores[i][2]) if ended else (tokens[i], log_probs[i])
            row = None if cross is None else cross[i, 0, : length[i]]
            written.append(WrittenToken(number, token, log_prob, row))
        return written

    def remove(self, numbers: set[int]) -> None:
        """Remove rows by the numbers of their sources."""
        self.history.remove(numbers)
        kept = [i for i, n in enumerate(self.beams.finished.row.tolist()) if n not in numbers]
        if len(kept) == len(self.beams.tokens):
            return
        stay, beams = torch.tensor(kept, dtype=torch.long), self.beams.tokens.shape[1]
        self.beams = self.beams.reorder(stay)
        rows = (stay[:, None] * beams + torch.arange(beams)).flatten()
        self.state = self.state.reorder(rows)
        self.history.keep_rows(stay)
        self.history.forget(self.beams.finished.row.tolist())

    def can_join(self, other: "_Batch") -> bool:
        """Return whether the rows of another batch can be put behind these."""
        alike = self.beams.tokens.shape[1] == other.beams.tokens.shape[1]
        return alike and self.history.can_join(other.history)

    def join(self, other: "_Batch") -> None:
        """Put the rows of another batch behind these."""
        self.beams = self._with_rows(other)
        self.history.join(other.history)
        # positions that no row needs any more are dropped
        needed = self.history.steps - self.history.first
        self.state = self.state.append(other.state).with_positions(needed)

    def _with_rows(self, other: "_Batch") -> BeamState:
        """Return the beams of both batches, with steps counted as this batch counts them."""
        first_step, shift = other.beams.first_step, self.history.steps - other.history.steps
        assert first_step is not None
        finished = self.history.moved(other.beams.finished, other.history)
        finished.places[..., 0] += shift
        limits = other.beams.constraints.limits + shift
        theirs = replace(
            other.beams,
            finished=finished,
            first_step=first_step + shift,
            constraints=replace(other.beams.constraints, limits=limits),
        )
        both = self.beams.append(theirs)
        known = both.constraints.limits.tolist()
        rules = replace(both.constraints, shortest=min(known), longest=max(known))
        return replace(both, constraints=rules)
