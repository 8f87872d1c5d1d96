"""The steps of a search: one at a time, or several in one call.

`SingleSteps` runs the model and extends the beams on any device. `GraphBlocks` replays some steps
from a CUDA graph: choosing, ending and reordering are part of a block, and the host asks once after
each which rows are done. Batches are padded to a few shapes, so that their blocks recur.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple, final

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

from regard.decoding.beam_state import BeamState, SearchPlan, cannot_win, extend, follow, start_rows
from regard.decoding.candidates import STEPS_DRAWN, Constraints, RandomNumbers, check_prefix
from regard.decoding.graphs import DecodingGraphs
from regard.decoding.search_history import (
    Alternatives,
    FinishedHypotheses,
    Move,
    StepRecord,
    last_cross_attention,
    length_penalty,
)
from regard.decoding_options import DecodingOptions
from regard.models.protocol import (
    Maps,
    Memory,
    SequenceModel,
    StepOutput,
    is_encoder_map,
    real_lengths,
)
from regard.ops.backend import steps_by_kernels
from regard.state import State
from regard.symbols import EOS, UNK


def refuse_kernel(beams: BeamState, options: DecodingOptions) -> str | None:
    """Return the reason why the kernel cannot run a search of a compiled model, or None."""
    constraints = beams.constraints
    if options.num_samples or constraints.ngram:
        return "it neither samples nor knows n-grams"
    if constraints.exact is not None:
        return "it knows no targets of known lengths"
    return None


def extend_by_kernel(
    beams: BeamState, out: StepOutput, step: int, options: DecodingOptions
) -> tuple[BeamState, Move]:
    """Like `beam_state.extend`, up to the rounding of the sum of a softmax."""
    from regard.ops import beam_kernels  # not above: numba may be missing, and takes long

    (rows, width), vocab = beams.tokens.shape, out.logits.shape[1]
    logits = out.logits.float().contiguous().view(rows, width, vocab)
    plan = SearchPlan.of(options)
    # arrays, since tensors take five times as long to make
    tokens, parents = np.empty((2, rows, plan.beams), np.int64)
    scores, log_probs = np.empty((2, rows, plan.beams), np.float32)
    over = np.empty((rows, plan.beams), np.bool_)
    ended, places = beams.finished.scores.numpy().copy(), beams.finished.places.numpy().copy()
    beam_kernels.extend(
        logits.numpy(),
        beams.scores.numpy(),
        beams.over.contiguous().numpy(),
        beams.longest.numpy(),
        beams.constraints.limits.numpy(),
        step,
        beams.constraints.min_len,
        UNK not in beams.constraints.never,
        length_penalty(float(step + 1), options),
        plan.best,
        ended,
        places,
        tokens,
        scores,
        over,
        parents,
        log_probs,
    )
    move = Move(*map(torch.from_numpy, (parents, tokens, log_probs)))
    kept = [torch.from_numpy(array) for array in (ended, places)]
    finished = FinishedHypotheses(beams.finished.row, *kept)
    scored, done = torch.from_numpy(scores), torch.from_numpy(over)
    if options.early_stopping != "never":
        done = cannot_win(scored, beams, finished, step, options)
    after = replace(beams, tokens=move.tokens, scores=scored, over=done, finished=finished)
    return after, move


def alternatives_by_kernel(logits: Float[Tensor, "rows vocab"], count: int) -> Alternatives:
    """Like `Alternatives.of`, up to the rounding of the sum of a softmax."""
    from regard.ops import beam_kernels

    logits = logits.float().contiguous()
    rows, vocab = logits.shape
    tokens = np.empty((rows, min(count, vocab)), np.int64)
    log_probs = np.empty(tokens.shape, np.float32)
    beam_kernels.likeliest(logits.numpy(), tokens, log_probs)
    return Alternatives(torch.from_numpy(tokens), torch.from_numpy(log_probs))


#: Steps of a block. Up to this many less one are wasted on a row that has ended; with fewer, the
#: GPU waits for the host more often. Random numbers are drawn for a multiple of it.
BLOCK_STEPS: Final = 4
assert STEPS_DRAWN % BLOCK_STEPS == 0

#: Numbers of rows that batches are padded to, up to the least; further ones double in two steps.
ROWS: Final = (1, 2, 4, 8, 12, 16, 24, 32)
#: Source lengths are padded to multiples of this, and long ones to more, by at most a quarter.
LENGTH_STEP: Final = 8


class SearchSettings(NamedTuple):
    """The arguments of a search that are the same for all of its steps.

    Attributes:
        model: to search with.
        options: of decoding.
        kinds: of the maps that are recorded.
        alternatives: likeliest tokens of each step that are recorded.
        stream: whether the new tokens of each step are returned; for a beam of 1.
    """

    model: SequenceModel
    options: DecodingOptions
    kinds: tuple[str, ...]
    alternatives: int = 0
    stream: bool = False

    @property
    def plan(self) -> SearchPlan:
        """Return how many hypotheses the search keeps."""
        return SearchPlan.of(self.options)

    @property
    def need_weights(self) -> bool:
        """Return whether steps return attention maps."""
        return bool(self.kinds) or self.stream

    @property
    def needs_encoder_maps(self) -> bool:
        """Return whether the encoder returns attention maps."""
        return any(map(is_encoder_map, self.kinds))


@dataclass(frozen=True)
class SearchState(State):
    """All rows between two steps: their beams, and the model's state."""

    beams: BeamState
    state: State


class Streamed(NamedTuple):
    """A token that a greedy search has just written.

    Attributes:
        token: its id; `eos` at the last step.
        log_prob: its log-probability.
        cross: the last layer's cross-attention, (src_len,), mean over its heads; None if the model
            has none.
        finished: False at an `eos` that the length limit has forced.
        row: number of its source in the batch.
    """

    token: int
    log_prob: float
    cross: Tensor | None
    finished: bool = True
    row: int = 0


class Taken(NamedTuple):
    """Steps that were taken in one call.

    Attributes:
        search: the rows that are still searched; None if there are none.
        records: of each step.
        gone: the hypotheses of rows that have left; None if none has.
        written: the new tokens, if they are asked for.
    """

    search: SearchState | None
    records: list[StepRecord]
    gone: FinishedHypotheses | None
    written: list[Streamed]


class SearchSteps(ABC):
    """Starts a search, and takes its steps.

    Attributes:
        settings: of the search.
        longest: most tokens of a target, once it has started.
        lengths: real positions of each source, once it has started.
        maps: of the encoder, likewise.
        vocab: size of the target vocabulary, once a step was taken.
    """

    longest: int
    lengths: list[int]
    maps: Maps
    vocab: int

    def __init__(self, settings: SearchSettings) -> None:
        self.settings = settings

    @abstractmethod
    def start(self, src: Tensor, lengths: Tensor | None) -> SearchState:
        """Encode the sources; return the rows before the first step."""

    @abstractmethod
    def take(self, search: SearchState, step: int) -> Taken:
        """Extend all rows by one token or more; those that are done leave."""

    def _start_rows(
        self, memory: Memory, state: State, exact: Tensor | None, options: DecodingOptions
    ) -> SearchState:
        constraints = Constraints.of(
            options,
            memory.lengths,
            exact,
            self.settings.model.tgt_positions,
            known_lengths=self.lengths,
        )
        self.longest, self.maps = constraints.longest, memory.maps
        return SearchState(*start_rows(memory.lengths, state, constraints, options))

    def _step(
        self, search: SearchState, step: int, noise: Tensor | None, *, compiled: bool = False
    ) -> tuple[BeamState, State, StepRecord]:
        """Return the beams after one step, the model's state of those before, and the record."""
        settings, beams = self.settings, search.beams
        out = settings.model.step(
            beams.tokens.flatten(), search.state, need_weights=settings.need_weights
        )
        self.vocab = out.logits.shape[1]
        if step == 0:
            check_prefix(settings.options.prefix, vocab=self.vocab)
        args = (beams, out, step, settings.options)
        compiled = compiled and not beams.constraints.refuses_kernels(step)
        beams, move = extend_by_kernel(*args) if compiled else extend(*args, noise)
        likeliest = alternatives_by_kernel if compiled else Alternatives.of
        record = StepRecord(
            move,
            {kind: out.maps[kind] for kind in settings.kinds if kind in out.maps},
            likeliest(out.logits, settings.alternatives) if settings.alternatives else None,
            last_cross_attention(out.maps) if settings.stream else None,
        )
        return beams, out.state, record

    def _written(
        self, beams: BeamState, records: Sequence[StepRecord], first: int
    ) -> list[Streamed]:
        """Return the tokens of a greedy search that steps from `first` on have written."""
        if not self.settings.stream:
            return []
        scores, places = (
            part[:, 0].tolist() for part in (beams.finished.scores, beams.finished.places)
        )
        tokens, log_probs = (
            torch.stack([part[:, 0] for part in parts]).tolist()
            for parts in zip(*(record.move[1:] for record in records), strict=True)
        )
        cross = [None if one.cross is None else one.cross.cpu() for one in records]
        written = []
        for i, row in enumerate(beams.finished.row.tolist()):
            if row >= len(self.lengths):  # it pads the batch
                continue
            # the step at which the row has ended, or one that is still to come
            ended, _, cut = places[i] if scores[i][0] > float("-inf") else (self.longest + 1, 0, 0)
            for t, seen in enumerate(cross[: max(ended + 1 - first, 0)]):
                token, log_prob, is_cut = tokens[t][i], log_probs[t][i], False
                if first + t == ended:
                    token, log_prob, is_cut = EOS, scores[i][2], bool(cut)
                weights = None if seen is None else seen[i, 0, : self.lengths[row]]
                written.append(Streamed(token, log_prob, weights, not is_cut, row))
        return written


@final
class SingleSteps(SearchSteps):
    """Runs one step after another on any device; rows leave as soon as they are done."""

    def start(self, src: Tensor, lengths: Tensor | None) -> SearchState:
        """See `SearchSteps`."""
        model, options = self.settings[:2]
        memory = model.encode(src, lengths, need_weights=self.settings.needs_encoder_maps)
        self.lengths = memory.lengths.tolist()
        state = model.start(memory)
        search = self._start_rows(memory, state, model.tgt_lengths(memory), options)
        self._compiled = model.is_compiled and refuse_kernel(search.beams, options) is None
        self._noise = None
        if options.num_samples:
            self._noise = RandomNumbers(len(search.beams.tokens), src.device, options.seed)
        return search

    def take(self, search: SearchState, step: int) -> Taken:
        """See `SearchSteps`."""
        before = search.beams.tokens.shape
        noise = None
        if self._noise is not None:
            noise = self._noise.at(step, search.beams.finished.row)
        beams, state, record = self._step(search, step, noise, compiled=self._compiled)
        written = self._written(beams, [record], step)
        done, gone = beams.over.all(dim=1), None
        if bool(done.any()):  # the only host sync per step
            gone = beams.finished.reorder(done.nonzero().squeeze(1))
            stay = (~done).nonzero().squeeze(1)
            if not len(stay):
                return Taken(None, [record], gone, written)
            beams, record = beams.reorder(stay), record.reorder(stay)
        state = follow(state, record.move.parents, same_rows=beams.tokens.shape == before)
        return Taken(SearchState(beams, state), [record], gone, written)


@final
class GraphBlocks(SearchSteps):
    """Replays blocks of steps from CUDA graphs."""

    def __init__(self, settings: SearchSettings, graphs: DecodingGraphs) -> None:
        super().__init__(settings)
        self.graphs = graphs
        # determines the kernels of a step, beside its shapes
        self.key = (replace(settings.options, prefix=None, seed=None), *settings[2:])

    def start(self, src: Tensor, lengths: Tensor | None) -> SearchState:
        """See `SearchSteps`."""
        options, plan, sources = self.settings.options, self.settings.plan, len(src)
        src, lengths = padded_batch(src, real_lengths(src, lengths))
        self.lengths = lengths.tolist()  # now, so that the host need not wait for the encoder
        state, memory, found = self._encode(src, lengths)
        if not found["keeps_lengths"]:
            self.lengths = memory.lengths.tolist()
        if options.prefix is not None:
            prefix: list[Sequence[int]] = list(options.prefix)
            padding = [prefix[-1]] * (len(src) - sources)
            options = replace(options, prefix=[*prefix, *padding])
        search = self._start_rows(memory, state, found["exact"], options)
        self.lengths = self.lengths[:sources]
        beams, real = search.beams, sources * plan.samples
        self._constraints = beams.constraints
        # rows that pad the batch are over from the start: their score can beat nothing
        padded = torch.arange(len(beams.tokens), device=src.device)[:, None] >= real
        beams = replace(
            beams,
            scores=beams.scores.masked_fill(padded, float("-inf")),
            constraints=replace(beams.constraints, shortest=0, longest=0),
        )
        self._real, self._noise = real, None
        if options.num_samples:
            self._noise = RandomNumbers(real, src.device, options.seed)
        check_prefix(options.prefix, vocab=self.graphs.vocab)
        return SearchState(beams, search.state)

    def _encode(self, src: Tensor, lengths: Tensor) -> tuple[State, Memory, dict[str, Any]]:
        """Return the model's first state, its memory without vectors, and the lengths of targets.

        The last is `exact`, see `SequenceModel.tgt_lengths`, with `keeps_lengths`, which is whether
        the memory has the lengths of the sources, and the memory's parts.
        """
        model, kinds = self.settings.model, self.settings.kinds
        need_weights = self.settings.needs_encoder_maps

        def encode(state: Any, inputs: tuple[Tensor, Tensor]) -> tuple[Any, Any]:
            memory = model.encode(*inputs, need_weights=need_weights)
            results = {
                "lengths": memory.lengths,
                "keeps_lengths": memory.lengths is inputs[1],
                "exact": model.tgt_lengths(memory),
                "maps": {kind: memory.maps[kind] for kind in kinds if kind in memory.maps},
                "like": memory.output[:, :, :0],
            }
            return {"state": model.start(memory)}, results

        key = ("encode", need_weights, kinds if need_weights else ())
        found, results = self.graphs(key, encode, {}, (src, lengths))
        memory = Memory(results["like"], results["lengths"], maps=results["maps"])
        return found["state"], memory, results

    def take(self, search: SearchState, step: int) -> Taken:
        """See `SearchSteps`."""
        count = min(BLOCK_STEPS, self.longest + 1 - step)
        noise = None
        if self._noise is not None:
            rows = search.beams.finished.row.clamp(max=self._real - 1)
            noise = self._noise.at(step, rows, count)
        # whether limits are looked at is decided for a block: no other number of the host counts
        limited = self._constraints.shortest < step + count
        run = partial(self._run, step, count, 0 if limited else step + count)
        search, found = self.graphs((self.key, step, count, limited), run, search, noise)
        records, finished = list(found["records"]), search.beams.finished
        written = self._written(search.beams, records, step)
        done = found["done"].cpu()  # the only host sync per block
        if bool(done.all()):
            return Taken(None, records, finished, written)
        stay = _fewer_rows(done)
        if stay is None:
            return Taken(search, records, None, written)
        gone = torch.ones_like(done).scatter_(0, stay, False).nonzero().squeeze(1)
        gone, stay = gone.to(finished.row.device), stay.to(finished.row.device)
        records[-1] = records[-1].reorder(stay)
        return Taken(_keep_rows(search, stay), records, finished.reorder(gone), written)

    def _run(
        self, first: int, count: int, shortest: int, search: SearchState, noise: Tensor | None
    ) -> tuple[SearchState, dict[str, Any]]:
        """Return all rows after `count` steps, and what they have recorded.

        Limits are looked at from step `shortest` on.
        """
        constraints = replace(search.beams.constraints, shortest=shortest, longest=0)
        search = SearchState(replace(search.beams, constraints=constraints), search.state)
        records = []
        for step in range(first, first + count):
            before = search.beams.tokens.shape
            numbers = None if noise is None else noise[:, step - first, None]
            with steps_by_kernels():
                beams, state, record = self._step(search, step, numbers)
            same_rows, parents = beams.tokens.shape == before, record.move.parents
            if same_rows and parents.shape[1] > 1:
                state = state.follow(parents.flatten())
            else:
                state = follow(state, parents, same_rows=same_rows)
            search = SearchState(beams, state)
            records.append(record)
        # as at the start of any other block
        beams = replace(search.beams, constraints=replace(constraints, shortest=0))
        self.graphs.vocab = self.vocab
        results = {"records": tuple(records), "done": beams.over.all(dim=1)}
        return SearchState(beams, search.state), results


def _keep_rows(search: SearchState, stay: Tensor) -> SearchState:
    """Return these rows alone, with all of their beams."""
    width = search.beams.tokens.shape[1]
    places = (stay[:, None] * width + torch.arange(width, device=stay.device)).flatten()
    return SearchState(search.beams.reorder(stay), search.state.settled.reorder(places))


def _fewer_rows(done: Bool[Tensor, " rows"]) -> Tensor | None:
    """Return the rows of a batch of half the size or less that has all live ones, or None.

    Rows that are done fill it up.
    """
    live = int((~done).sum())
    rows = padded_rows(live)
    if rows > len(done) // 2:
        return None
    return done.long().sort(stable=True).indices[:rows]


def padded_rows(rows: int) -> int:
    """Return the number of rows that a batch is padded to."""
    size = next((size for size in ROWS if size >= rows), ROWS[-1])
    while size < rows:
        half = size + size // 2  # 48, 96, 192, ...
        size = half if half >= rows else 2 * size
    return size


def padded_length(length: int) -> int:
    """Return the length that sources are padded to."""
    unit = max(LENGTH_STEP, 1 << max(length.bit_length() - 3, 0))
    return -(-length // unit) * unit


def padded_batch(src: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Pad a batch to more rows, which repeat the last one, and its sources to more positions.

    Images, which have more axes, keep their size.
    """
    rows = padded_rows(len(src))
    if src.dim() <= 3:
        extra = padded_length(src.shape[1]) - src.shape[1]
        src = F.pad(src, (*((0, 0) * (src.dim() - 2)), 0, extra))
    if rows > len(src):
        index = torch.arange(rows, device=src.device).clamp(max=len(src) - 1)
        src, lengths = src.index_select(0, index), lengths.index_select(0, index)
    return src, lengths
