"""The search of `regard.decoding.search` in blocks of steps, each replayed from a CUDA graph.

Choosing, ending and reordering are part of a block, and the host asks once after each which rows
are done. Batches are padded to a few shapes, so that their blocks recur.
"""

from collections.abc import Callable, Collection, Hashable, Sequence
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
from regard.decoding.graphs import DecodingGraphs, Function
from regard.decoding.hypothesis import Hypothesis, last_cross_attention
from regard.decoding.search_history import (
    Alternatives,
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


#: Runs a function of a state and other tensors by its key: `DecodingGraphs`, or `run_eagerly`.
Run = Callable[[Hashable, Function, Any, Any], tuple[Any, Any]]


def run_eagerly(key: Hashable, function: Function, state: Any, inputs: Any) -> tuple[Any, Any]:
    """Run a function as it is, for a search that may not use the graphs."""
    return function(state, inputs)


@dataclass(frozen=True)
class SearchState(State):
    """All rows between two steps: their beams, and the model's state."""

    beams: BeamState
    state: State


class BlockSettings(NamedTuple):
    """The arguments of a search that are the same for all of its blocks.

    Attributes:
        model: to search with.
        options: of decoding.
        plan: of the search.
        kinds: of the maps that are recorded.
        alternatives: likeliest tokens of each step that are recorded.
        stream: whether the last layer's cross-attention of each step is returned.
        key: determines the kernels of a step, beside its shapes.
    """

    model: SequenceModel
    options: DecodingOptions
    plan: SearchPlan
    kinds: tuple[str, ...]
    alternatives: int
    stream: bool
    key: tuple[object, ...]

    @staticmethod
    def of(
        model: SequenceModel,
        options: DecodingOptions,
        plan: SearchPlan,
        kinds: Collection[str],
        *,
        alternatives: int = 0,
        stream: bool = False,
    ) -> "BlockSettings":
        """Return settings and their key."""
        shared = options
        if options.prefix is not None or options.seed is not None:
            shared = replace(options, prefix=None, seed=None)
        rows = (plan.beams, plan.kept, plan.samples)
        key = (shared, *rows, tuple(kinds), alternatives, stream)
        return BlockSettings(model, options, plan, tuple(kinds), alternatives, stream, key)

    @property
    def need_weights(self) -> bool:
        """Return whether steps return attention maps."""
        return bool(self.kinds) or self.stream or self.options.coverage_penalty > 0


def search_in_blocks(
    model: SequenceModel,
    src: Tensor,
    lengths: Tensor | None,
    options: DecodingOptions,
    plan: SearchPlan,
    kinds: Collection[str],
    graphs: DecodingGraphs,
    alternatives: int = 0,
) -> list[list[Hypothesis]]:
    """Return the hypotheses of each source as `search` does; `graphs` runs each block of steps."""
    settings = BlockSettings.of(model, options, plan, kinds, alternatives=alternatives)
    sources, history, finished = len(src), SearchHistory(kinds, alternatives), []
    src, lengths = padded_batch(src, real_lengths(src, lengths))
    read = lengths.tolist()  # now, so that the host need not wait for the encoder
    state, memory, found = encode_rows(settings, src, lengths, graphs)
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
        history.alternatives += [Alternatives(*pair) for pair in found["alternatives"]]
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
            search, moves[-1] = keep_rows(search, stay), moves[-1].reorder(stay)
        for move in moves:
            history.add_move(move)
    finished.append(search.beams.finished)
    ended = FinishedHypotheses.concatenate(finished)
    return read_hypotheses(history, ended, memory.maps, read[:sources], plan.samples)


def encode_rows(
    settings: BlockSettings, src: Tensor, lengths: Tensor, run: Run
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
    found, results = run(key, encode, {}, (src, lengths))
    memory = Memory(results["like"], results["lengths"], maps=results["maps"])
    return found["state"], memory, results


def _run_block(
    settings: BlockSettings,
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
    run = partial(run_steps, settings, first, count, 0 if limited else first + count)
    return graphs((settings.key, first, count, limited), run, search, noise)


def run_steps(
    settings: BlockSettings,
    first: int,
    count: int,
    shortest: int,
    search: SearchState,
    noise: Tensor | None,
) -> tuple[SearchState, dict[str, Any]]:
    """Return all rows after steps `first` to `first + count - 1`, and what they have recorded.

    Limits are looked at from step `shortest` on.
    """
    model, options, plan, kinds = settings.model, settings.options, settings.plan, settings.kinds
    beams, state = search.beams, search.state
    constraints = replace(beams.constraints, shortest=shortest, longest=0)
    beams = replace(beams, constraints=constraints)
    moves, maps, alternatives, cross, sizes, vocab = [], [], [], [], [], 0
    for step in range(first, first + count):
        before = beams.tokens.shape
        sizes.append(beams.tokens.numel())
        out = model.step(beams.tokens.flatten(), state, need_weights=settings.need_weights)
        vocab = out.logits.shape[1]
        check_prefix(options.prefix, vocab=vocab)  # when nobody has asked the model before
        maps.append({kind: out.maps[kind] for kind in kinds if kind in out.maps})
        cross.append(last_cross_attention(out.maps) if settings.stream else None)
        if settings.alternatives:
            likeliest = Alternatives.of(out.logits, settings.alternatives)
            alternatives.append((likeliest.tokens, likeliest.log_probs))
        numbers = None if noise is None else noise[:, step - first, None]
        beams, move = extend(beams, out, step, options, plan, numbers)
        state = follow(out.state, move.parents, same_rows=beams.tokens.shape == before)
        moves.append((move.parents, move.tokens, move.log_probs))
    results = {
        "moves": tuple(moves),
        "maps": tuple(maps),
        "alternatives": tuple(alternatives),
        "cross": tuple(cross),
        "sizes": tuple(sizes),
        "done": beams.over.all(dim=1),
        "vocab": vocab,
    }
    # as at the start of any other block
    beams = replace(beams, constraints=replace(constraints, shortest=0))
    return SearchState(beams, state), results


def keep_rows(search: SearchState, stay: Tensor) -> SearchState:
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


def _with_prefixes(options: DecodingOptions, rows: int) -> DecodingOptions:
    """Return options with a prefix for each row of a padded batch."""
    if options.prefix is None:
        return options
    prefix: list[Sequence[int]] = list(options.prefix)
    return replace(options, prefix=[*prefix, *([prefix[-1]] * (rows - len(prefix)))])
