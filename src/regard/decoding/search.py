"""Greedy search, beam search and sampling: one loop, for every model.

A row is a source (or, when sampling, one sample of it), its beams are its live hypotheses. The
model sees rows * beams tokens at a step. A hypothesis that ends leaves its beam to another one, and
a row leaves the batch when none of its live hypotheses can win any more.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.decoding.batch_pruning import BatchPruning, lag_for
from regard.decoding.candidates import Candidates, draw, select
from regard.decoding.constraints import Constraints, check_prefix
from regard.decoding.hypothesis import (
    Hypothesis,
    coverage_penalty,
    length_penalty,
    required_cross_attention,
)
from regard.decoding.search_history import (
    Endings,
    FinishedHypotheses,
    Move,
    SearchHistory,
    read_hypotheses,
)
from regard.decoding_options import DEFAULT, DecodingOptions
from regard.errors import ArgumentError
from regard.models.protocol import (
    Lengths,
    Memory,
    SequenceModel,
    Src,
    StepOutput,
    check_batch,
    inference,
    is_encoder_map,
)
from regard.ops.primitives import log_softmax
from regard.preemption import preemption_point
from regard.state import State
from regard.symbols import BOS, EOS

#: The maps that hypotheses carry by default.
CROSS: Final = ("cross",)

#: From log-probs (rows, beams, vocab), scores (rows, beams) and the beams that can no longer win
#: (rows, beams) to the candidates of a step.
Choose = Callable[[Tensor, Tensor, Tensor], Candidates]


def decode(
    model: SequenceModel,
    src: Src,
    lengths: Lengths,
    options: DecodingOptions = DEFAULT,
    *,
    need_weights: bool = False,
    kinds: Collection[str] = CROSS,
) -> list[list[Hypothesis]]:
    """Return the hypotheses of a batch of sources: samples if `num_samples` is set, else by search.

    Args:
        model: any model; it is run without dropout and given back as it was.
        src: source tokens, or vectors or images for a model with an adapter; the values beyond
            `lengths` do not matter.
        lengths: number of real source tokens of each row; it may be 0. All are real if None.
        options: see `DecodingOptions`.
        need_weights: whether hypotheses carry attention maps.
        kinds: the maps that they carry then: `cross`, `decoder-self`, `decoder-history`,
            `encoder-self`, `encoder-history`, `encoder-future`, `memory`. Kinds that the model does
            not have are left out.

    Returns:
        A list of hypotheses for each source, best first. It is shorter than `nbest` where the
        constraints allow fewer targets.
    """
    run = sample if options.num_samples else beam_search
    return run(model, src, lengths, options, need_weights=need_weights, kinds=kinds)


def greedy(
    model: SequenceModel,
    src: Src,
    lengths: Lengths,
    options: DecodingOptions = DEFAULT,
    *,
    need_weights: bool = False,
    kinds: Collection[str] = CROSS,
) -> list[list[Hypothesis]]:
    """Take the likeliest token at every step; one hypothesis for each source. See `decode`."""
    return search(model, src, lengths, options, SearchPlan(_best(1)), kinds if need_weights else ())


def beam_search(
    model: SequenceModel,
    src: Src,
    lengths: Lengths,
    options: DecodingOptions = DEFAULT,
    *,
    need_weights: bool = False,
    kinds: Collection[str] = CROSS,
) -> list[list[Hypothesis]]:
    """Extend the likeliest `beam` hypotheses at every step. See `decode`.

    A hypothesis ends when its `eos` is among the best `beam` candidates. A source is done when
    `nbest` of its hypotheses have ended and no live one can score better, so none is cut short.
    """
    beam = options.beam
    # each hypothesis has one `eos` at most, so enough others go on; a beam of 1 is greedy
    candidates = 2 * beam if beam > 1 else 1
    plan = SearchPlan(_best(candidates), beams=beam, kept=options.nbest)
    return search(model, src, lengths, options, plan, kinds if need_weights else ())


def sample(
    model: SequenceModel,
    src: Src,
    lengths: Lengths,
    options: DecodingOptions = DEFAULT,
    *,
    need_weights: bool = False,
    kinds: Collection[str] = CROSS,
) -> list[list[Hypothesis]]:
    """Draw `num_samples` targets for each source, which may be equal. See `decode`.

    Their log-probabilities are the model's own, before temperature, `top_k` and `top_p`.
    """
    if not options.num_samples:
        raise ArgumentError(
            "num_samples", "be at least 1 to sample", 0, "set DecodingOptions(num_samples=1)"
        )
    generator = None
    if options.seed is not None:
        generator = torch.Generator(src.device).manual_seed(options.seed)

    def choose(log_probs: Tensor, scores: Tensor, over: Tensor) -> Candidates:
        tokens = draw(log_probs[:, 0], options, generator)
        own = log_probs[:, 0].gather(1, tokens)
        return Candidates(torch.zeros_like(tokens), tokens, own, scores + own)

    # no lag: a row that stays longer would draw more numbers, and all others different ones
    plan = SearchPlan(choose, samples=options.num_samples, lag=0)
    return search(model, src, lengths, options, plan, kinds if need_weights else ())


def _best(count: int) -> Choose:
    """Return a function that chooses the best `count` candidates."""

    def choose(log_probs: Tensor, scores: Tensor, over: Tensor) -> Candidates:
        return select(log_probs, scores, over, count)

    return choose


class SearchPlan(NamedTuple):
    """The settings by which greedy search, beam search and sampling differ.

    Attributes:
        choose: returns the candidates of a step.
        beams: most live hypotheses of a row.
        kept: finished hypotheses that are kept of a row.
        samples: rows for each source.
        lag: see `BatchPruning`; the best for the device if None.
    """

    choose: Choose
    beams: int = 1
    kept: int = 1
    samples: int = 1
    lag: int | None = None


def search(
    model: SequenceModel,
    src: Src,
    lengths: Lengths,
    options: DecodingOptions,
    plan: SearchPlan,
    kinds: Collection[str],
) -> list[list[Hypothesis]]:
    """Return the hypotheses of each source, best first, with maps of these kinds."""
    check_batch(src, lengths)
    check_prefix(options.prefix, rows=len(src))
    history, finished = SearchHistory(kinds), []
    pruning = BatchPruning(lag_for(src.device) if plan.lag is None else plan.lag)
    need_weights = bool(kinds) or options.coverage_penalty > 0
    with inference(model):
        memory = model.encode(src, lengths, need_weights=any(map(is_encoder_map, kinds)))
        exact = model.tgt_lengths(memory)
        constraints = Constraints.of(options, memory.lengths, exact, model.tgt_positions)
        beams = BeamState.start(memory, constraints, options, plan)
        state = model.start(memory)
        state = state if plan.samples == 1 else state.reorder(beams.finished.source)
        for step in range(constraints.longest + 1):
            preemption_point()
            before = beams.tokens.shape
            out = _step(model, beams, state, need_weights=need_weights)
            if out is None:
                finished.append(beams.finished)
                break
            if step == 0:
                check_prefix(options.prefix, vocab=out.logits.shape[1])
            history.add_maps(out.maps)
            beams, move = extend(beams, out, step, options, plan)
            pruned = pruning.after(beams.over.all(dim=1))  # the one question to the device
            if pruned is not None:
                finished.append(beams.finished.reorder(pruned.gone))
                if not len(pruned.stay):
                    break
                beams, move = beams.reorder(pruned.stay), move.reorder(pruned.stay)
            history.add_move(move)
            state = _follow(out.state, move.parents, same_rows=beams.tokens.shape == before)
        else:
            finished.append(beams.finished)
        return read_hypotheses(history, FinishedHypotheses.concatenate(finished), memory)


@dataclass(frozen=True)
class BeamState(State):
    """All rows that are still searched, between two steps.

    Attributes:
        tokens: the newest token of each beam.
        scores: the log-probability of each beam's hypothesis.
        over: beams that cannot win any more.
        finished: the hypotheses that have ended.
        constraints: allowed tokens and lengths.
        longest: the length penalty of the longest target that a row may have.
        real: which source positions are tokens.
        coverage: the summed attention weights of each; None unless it is scored.
        history: all tokens so far; None unless a constraint needs them.
    """

    tokens: Int[Tensor, "rows beams"]
    scores: Float[Tensor, "rows beams"]
    over: Bool[Tensor, "rows beams"]
    finished: FinishedHypotheses
    constraints: Constraints
    longest: Float[Tensor, "rows 1"]
    real: Bool[Tensor, "rows src_len"]
    coverage: Float[Tensor, "rows beams src_len"] | None
    history: Int[Tensor, "rows beams step"] | None

    @staticmethod
    def start(
        memory: Memory, constraints: Constraints, options: DecodingOptions, plan: SearchPlan
    ) -> "BeamState":
        """Return one empty hypothesis for each row."""
        (batch, width), device = memory.output.shape[:2], memory.output.device
        tokens = torch.full((batch, 1), BOS, device=device)
        has_coverage, has_history = options.coverage_penalty > 0, options.no_repeat_ngram > 0
        longest = length_penalty(constraints.limits.double() + 1, options.length_penalty)
        beams = BeamState(
            tokens=tokens,
            scores=torch.zeros(batch, 1, device=device),
            over=torch.zeros(batch, 1, dtype=torch.bool, device=device),
            finished=FinishedHypotheses.none(batch, plan.kept, device),
            constraints=constraints,
            longest=longest[:, None],
            real=torch.arange(width, device=device) < memory.lengths[:, None],
            coverage=torch.zeros(batch, 1, width, device=device) if has_coverage else None,
            history=tokens.new_zeros(batch, 1, 0) if has_history else None,
        )
        if plan.samples == 1:
            return beams
        return beams.reorder(torch.arange(batch, device=device).repeat_interleave(plan.samples))


def _step(
    model: SequenceModel, beams: BeamState, state: State, *, need_weights: bool
) -> StepOutput | None:
    """Run the model on the newest tokens; None if it refuses and no row needs it any more.

    Rows that leave late are extended further, maybe past the last position that a model has
    learned.
    """
    try:
        return model.step(beams.tokens.flatten(), state, need_weights=need_weights)
    except ArgumentError:
        if bool(beams.over.all()):
            return None
        raise


def _follow(state: State, parents: Int[Tensor, "rows beams"], *, same_rows: bool) -> State:
    """Return the model's state with each beam in the place of its parent.

    Args:
        state: after a step.
        parents: the beam, counted through all rows, that each beam extends.
        same_rows: whether all rows are still there, with as many beams as before.
    """
    if not same_rows:
        return state.reorder(parents.flatten())
    if parents.shape[1] == 1:  # a single beam is its own parent
        return state
    return state.reorder_within_sources(parents.flatten())


def extend(
    beams: BeamState, out: StepOutput, step: int, options: DecodingOptions, plan: SearchPlan
) -> tuple[BeamState, Move]:
    """Return all rows with one more token, and the parents of their beams."""
    rows, width = beams.tokens.shape
    log_probs = log_softmax(out.logits).view(rows, width, -1)
    log_probs, cut = beams.constraints.allow(log_probs, step, beams.history)
    if beams.coverage is not None:
        weights = required_cross_attention(out.maps).reshape(rows, width, -1)
        beams = replace(beams, coverage=beams.coverage + weights)
    candidates = plan.choose(log_probs, beams.scores, beams.over)
    first = torch.arange(0, rows * width, width, device=candidates.parents.device)[:, None]
    endings = _endings(beams, candidates, cut, step, options, plan.beams)
    finished = beams.finished.add(endings._replace(beam=first + endings.beam), step)
    live = _continuations(candidates, plan.beams)
    history = _take(beams.history, live.parents)
    after = replace(
        beams,
        tokens=live.tokens,
        scores=live.scores,
        # a hypothesis never gets likelier, and the longest one is divided by most
        over=live.scores / beams.longest <= finished.worst,
        finished=finished,
        coverage=_take(beams.coverage, live.parents),
        history=None if history is None else torch.cat([history, live.tokens[..., None]], dim=2),
    )
    return after, Move(first + live.parents, live.tokens, live.log_probs)


def _endings(
    beams: BeamState,
    candidates: Candidates,
    cut: Bool[Tensor, "rows beams"] | None,
    step: int,
    options: DecodingOptions,
    width: int,
) -> Endings:
    """Return the candidates that end a hypothesis: `eos` must be among the best `width`."""
    parents, tokens, last, log_prob = (part[:, :width] for part in candidates)
    score = log_prob / length_penalty(float(step + 1), options.length_penalty)
    coverage = _take(beams.coverage, parents)
    if coverage is not None:
        score = score + coverage_penalty(coverage, beams.real[:, None], options.coverage_penalty)
    score = score.masked_fill(tokens != EOS, float("-inf"))
    return Endings(score, log_prob, last, parents, None if cut is None else cut.gather(1, parents))


def _continuations(candidates: Candidates, width: int) -> Candidates:
    """Return the best `width` candidates that end no hypothesis; -inf where there are fewer."""
    ends = candidates.tokens == EOS
    if candidates.tokens.shape[1] > width:
        order = ends.sort(dim=1, stable=True).indices[:, :width]
        candidates = Candidates(*(part.gather(1, order) for part in candidates))
        ends = ends.gather(1, order)
    return candidates._replace(scores=candidates.scores.masked_fill(ends, float("-inf")))


def _take(
    values: Float[Tensor, "rows before width"] | Int[Tensor, "rows before width"] | None,
    parents: Int[Tensor, "rows beams"],
) -> Tensor | None:
    """Return the values of each beam's parent."""
    if values is None:
        return None
    return values.gather(1, parents[..., None].expand(-1, -1, values.shape[2]))
