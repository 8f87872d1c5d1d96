"""The search of `regard.decoding.search` in blocks of steps, each replayed from a CUDA graph.

Choosing, ending and reordering are part of a block, and the host asks once after each which rows
are done. Batches are padded to a few shapes, so that their blocks recur.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool
from torch import Tensor

from regard.decoding.beam_state import BeamState, SearchPlan, extend, follow, start_rows
from regard.decoding.candidates import STEPS_DRAWN, RandomNumbers
from regard.decoding.constraints import Constraints, check_prefix
from regard.decoding.graphs import DecodingGraphs
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.search_history import (
    FinishedHypotheses,
    Move,
    SearchHistory,
    read_hypotheses,
)
from regard.decoding_options import DecodingOptions
from regard.models.protocol import Memory, SequenceModel, is_encoder_map, real_lengths
from regard.preemption import preemption_point
from regard.state import State

#: Steps of a block. Up to this many less one are wasted on a row that has ended; with fewer, the
#: GPU waits for the host more often. Random numbers are drawn for a multiple of it.
BLOCK_STEPS: Final = 4
assert STEPS_DRAWN % BLOCK_STEPS == 0

#: Numbers of rows that batches are padded to, up to the least; further ones double in two steps.
ROWS: Final = (1, 2, 4, 8, 12, 16, 24, 32)
#: Source lengths are padded to multiples of this, and long ones to more, by at most a quarter.
LENGTH_STEP: Final = 8


@dataclass(frozen=True)
class SearchState(State):
    """All rows between two steps: their beams, and the model's state."""

    beams: BeamState
    state: State


class _Settings(NamedTuple):
    """The arguments of a search that are the same for all of its blocks."""

    model: SequenceModel
    options: DecodingOptions
    plan: SearchPlan
    kinds: tuple[str, ...]
    key: tuple[object, ...]

    @staticmethod
    def of(
        model: SequenceModel, options: DecodingOptions, plan: SearchPlan, kinds: Collection[str]
    ) -> "_Settings":
        """Return settings; their key determines the kernels of a step, beside its shapes."""
        shared = options
        if options.prefix is not None or options.seed is not None:
            shared = replace(options, prefix=None, seed=None)
        key = (shared, plan.beams, plan.kept, plan.samples, tuple(kinds))
        return _Settings(model, options, plan, tuple(kinds), key)

    @property
    def need_weights(self) -> bool:
        """Return whether steps return attention maps."""
        return bool(self.kinds) or self.options.coverage_penalty > 0


def search_in_blocks(
    model: SequenceModel,
    src: Tensor,
    lengths: Tensor | None,
    options: DecodingOptions,
    plan: SearchPlan,
    kinds: Collection[str],
    graphs: DecodingGraphs,
) -> list[list[Hypothesis]]:
    """Return the hypotheses of each source as `search` does; `graphs` runs each block of steps."""
    settings = _Settings.of(model, options, plan, kinds)
    sources, history, finished = len(src), SearchHistory(kinds), []
    src, lengths = _padded(src, real_lengths(src, lengths))
    read = lengths.tolist()  # now, so that the host need not wait for the encoder
    state, memory, found = _encode(settings, src, lengths, graphs)
    if not found["keeps_lengths"]:
        read = memory.lengths.tolist()
    options = _with_prefixes(options, rows=len(src))
    constraints = Constraints.of(
        options, memory.lengths, found["exact"], model.tgt_positions, known_lengths=read
    )
    beams, state = start_rows(memory, state, constraints, options, plan)
    rows, real = len(beams.tokens), sources * plan.samples
    # rows that pad the batch are over from the start: their score can beat nothing
    padding = torch.arange(rows, device=src.device)[:, None] >= real
    beams = replace(
        beams,
        scores=beams.scores.masked_fill(padding, float("-inf")),
        constraints=replace(beams.constraints, shortest=0, longest=0),
    )
    noise = RandomNumbers(real, src.device, options.seed) if options.num_samples else None
    search, step = SearchState(beams, state), 0
    check_prefix(options.prefix, vocab=graphs.vocab)
    while step <= constraints.longest:
        preemption_point()
        count = min(BLOCK_STEPS, constraints.longest + 1 - step)
        numbers = None
        if noise is not None:
            numbers = noise.at(step, search.beams.finished.row.clamp(max=real - 1), count)
        search, found = _run_block(settings, search, step, count, constraints, numbers, graphs)
        graphs.vocab = found["vocab"]
        moves = [Move(*parts) for parts in found["moves"]]
        for maps in found["maps"]:
            history.add_maps(maps)
        step += count
        done = found["done"].cpu()  # the one question to the device
        if bool(done.all()):
            for move in moves:
                history.add_move(move)
            break
        stay = _fewer_rows(done)
        if stay is not None:
            gone = torch.ones_like(done).scatter_(0, stay, False).nonzero().squeeze(1)
            gone, stay = gone.to(src.device), stay.to(src.device)
            finished.append(search.beams.finished.reorder(gone))
            search, moves[-1] = _keep_rows(search, stay), moves[-1].reorder(stay)
        for move in moves:
            history.add_move(move)
    finished.append(search.beams.finished)
    ended = FinishedHypotheses.concatenate(finished)
    return read_hypotheses(history, ended, memory.maps, read[:sources], plan.samples)


def _encode(
    settings: _Settings, src: Tensor, lengths: Tensor, graphs: DecodingGraphs
) -> tuple[State, Memory, dict[str, Any]]:
    """Return the model's first state, its memory without vectors, and the lengths of targets.

    The last is `exact`, see `SequenceModel.tgt_lengths`, with `keeps_lengths`, which is whether the
    memory has the lengths of the sources, and the memory's parts.
    """
    model, kinds = settings.model, settings.kinds
    need_weights = any(map(is_encoder_map, kinds))

    def encode(state: Any, inputs: tuple[Tensor, Tensor]) -> tuple[Any, Any]:
        memory = model.encode(*inputs, need_weights=need_weights)
        exact = model.tgt_lengths(memory)
        results = {
            "lengths": memory.lengths,
            "keeps_lengths": memory.lengths is inputs[1],
            "exact": exact,
            "maps": {kind: memory.maps[kind] for kind in kinds if kind in memory.maps},
            "like": memory.output[:, :, :0],
        }
        return {"state": model.start(memory)}, results

    key = ("encode", need_weights, kinds if need_weights else ())
    found, results = graphs(key, encode, {}, (src, lengths))
    memory = Memory(results["like"], results["lengths"], maps=results["maps"])
    return found["state"], memory, results


def _run_block(
    settings: _Settings,
    search: SearchState,
    first: int,
    count: int,
    constraints: Constraints,
    noise: Tensor | None,
    graphs: DecodingGraphs,
) -> tuple[SearchState, dict[str, Any]]:
    """Return all rows after `count` steps, and the moves and maps of each."""
    # whether limits are looked at is decided for a block, and no other number of the host counts
    limited = constraints.shortest < first + count
    run = partial(_steps, settings, first, count, 0 if limited else first + count)
    return graphs((settings.key, first, count, limited), run, search, noise)


def _steps(
    settings: _Settings,
    first: int,
    count: int,
    shortest: int,
    search: SearchState,
    noise: Tensor | None,
) -> tuple[SearchState, dict[str, Any]]:
    model, options, plan, kinds, _ = settings
    beams, state = search.beams, search.state
    constraints = replace(beams.constraints, shortest=shortest, longest=0)
    beams = replace(beams, constraints=constraints)
    moves, maps, vocab = [], [], 0
    for step in range(first, first + count):
        before = beams.tokens.shape
        out = model.step(beams.tokens.flatten(), state, need_weights=settings.need_weights)
        vocab = out.logits.shape[1]
        check_prefix(options.prefix, vocab=vocab)  # when nobody has asked the model before
        maps.append({kind: out.maps[kind] for kind in kinds if kind in out.maps})
        numbers = None if noise is None else noise[:, step - first, None]
        beams, move = extend(beams, out, step, options, plan, numbers)
        state = follow(out.state, move.parents, same_rows=beams.tokens.shape == before)
        moves.append((move.parents, move.tokens, move.log_probs))
    results = {
        "moves": tuple(moves),
        "maps": tuple(maps),
        "done": beams.over.all(dim=1),
        "vocab": vocab,
    }
    # as at the start of any other block
    beams = replace(beams, constraints=replace(constraints, shortest=0))
    return SearchState(beams, state), results


def _keep_rows(search: SearchState, stay: Tensor) -> SearchState:
    """Return these rows alone, with all of their beams."""
    width = search.beams.tokens.shape[1]
    places = (stay[:, None] * width + torch.arange(width, device=stay.device)).flatten()
    return SearchState(search.beams.reorder(stay), search.state.reorder(places))


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


def _padded(src: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
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


def _with_prefixes(options: DecodingOptions, rows: int) -> DecodingOptions:
    """Return options with a prefix for each row of a padded batch."""
    if options.prefix is None:
        return options
    prefix: list[Sequence[int]] = list(options.prefix)
    return replace(options, prefix=[*prefix, *([prefix[-1]] * (rows - len(prefix)))])
