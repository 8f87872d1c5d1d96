"""Greedy search, beam search and sampling: one loop, for every model.

A hypothesis that ends leaves its beam to another one, and a row leaves the batch when none of its
live hypotheses can win any more. On a GPU the loop may be replayed from CUDA graphs, some steps at
a time: see `block_search`.
"""

from collections.abc import Collection
from typing import Final

import torch
from torch import Tensor

from regard.decoding.batch_pruning import BatchPruning, lag_for
from regard.decoding.beam_state import BeamState, Choose, SearchPlan, extend, follow, start_rows
from regard.decoding.block_search import search_in_blocks
from regard.decoding.candidates import Candidates, RandomNumbers, draw, select
from regard.decoding.constraints import Constraints, check_prefix
from regard.decoding.cpu_path import extend_by_kernel, refuse_kernel
from regard.decoding.graphs import DecodingGraphs
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.search_history import FinishedHypotheses, SearchHistory, read_hypotheses
from regard.decoding.single_source import search_single_source
from regard.decoding_options import DEFAULT, DecodingOptions
from regard.errors import ArgumentError
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
from regard.preemption import preemption_point
from regard.state import State

#: The maps that hypotheses carry by default.
CROSS: Final = ("cross",)


def decode(
    model: SequenceModel,
    src: Src,
    lengths: Lengths,
    options: DecodingOptions = DEFAULT,
    *,
    need_weights: bool = False,
    kinds: Collection[str] = CROSS,
    graphs: DecodingGraphs | None = None,
    alternatives: int = 0,
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
        graphs: of this model, to replay the steps on a GPU; None runs them one by one.
        alternatives: likeliest tokens at each place that hypotheses carry.

    Returns:
        A list of hypotheses for each source, best first. It is shorter than `nbest` where the
        constraints allow fewer targets.
    """
    run = sample if options.num_samples else beam_search
    return run(
        model,
        src,
        lengths,
        options,
        need_weights=need_weights,
        kinds=kinds,
        graphs=graphs,
        alternatives=alternatives,
    )


def greedy(
    model: SequenceModel,
    src: Src,
    lengths: Lengths,
    options: DecodingOptions = DEFAULT,
    *,
    need_weights: bool = False,
    kinds: Collection[str] = CROSS,
    graphs: DecodingGraphs | None = None,
) -> list[list[Hypothesis]]:
    """Take the likeliest token at every step; one hypothesis for each source. See `decode`."""
    kinds = kinds if need_weights else ()
    return search(model, src, lengths, options, SearchPlan(_best(1), best=1), kinds, graphs)


def beam_search(
    model: SequenceModel,
    src: Src,
    lengths: Lengths,
    options: DecodingOptions = DEFAULT,
    *,
    need_weights: bool = False,
    kinds: Collection[str] = CROSS,
    graphs: DecodingGraphs | None = None,
    alternatives: int = 0,
) -> list[list[Hypothesis]]:
    """Extend the likeliest `beam` hypotheses at every step. See `decode`.

    A hypothesis ends when its `eos` is among the best `beam` candidates. A source is done when
    `nbest` of its hypotheses have ended and no live one can score better, so none is cut short.
    """
    kinds = kinds if need_weights else ()
    return search(model, src, lengths, options, beam_plan(options), kinds, graphs, alternatives)


def beam_plan(options: DecodingOptions) -> SearchPlan:
    """Return the plan of a beam search."""
    beam = options.beam
    # each hypothesis has one `eos` at most, so enough others go on; a beam of 1 is greedy
    candidates = 2 * beam if beam > 1 else 1
    return SearchPlan(_best(candidates), beams=beam, kept=options.nbest, best=candidates)


def sample(
    model: SequenceModel,
    src: Src,
    lengths: Lengths,
    options: DecodingOptions = DEFAULT,
    *,
    need_weights: bool = False,
    kinds: Collection[str] = CROSS,
    graphs: DecodingGraphs | None = None,
    alternatives: int = 0,
) -> list[list[Hypothesis]]:
    """Draw `num_samples` targets for each source, which may be equal. See `decode`.

    Their log-probabilities are the model's own, before temperature, `top_k` and `top_p`.
    """
    if not options.num_samples:
        raise ArgumentError(
            "num_samples", "be at least 1 to sample", 0, "set DecodingOptions(num_samples=1)"
        )

    def choose(log_probs: Tensor, scores: Tensor, over: Tensor, noise: Tensor | None) -> Candidates:
        assert noise is not None
        tokens = draw(log_probs[:, 0], options, noise)
        own = log_probs[:, 0].gather(1, tokens)
        return Candidates(torch.zeros_like(tokens), tokens, own, scores + own)

    plan = SearchPlan(choose, samples=options.num_samples)
    kinds = kinds if need_weights else ()
    return search(model, src, lengths, options, plan, kinds, graphs, alternatives)


def _best(count: int) -> Choose:
    """Return a function that chooses the best `count` candidates."""

    def choose(log_probs: Tensor, scores: Tensor, over: Tensor, noise: Tensor | None) -> Candidates:
        return select(log_probs, scores, over, count)

    return choose


def search(
    model: SequenceModel,
    src: Src,
    lengths: Lengths,
    options: DecodingOptions,
    plan: SearchPlan,
    kinds: Collection[str],
    graphs: DecodingGraphs | None = None,
    alternatives: int = 0,
) -> list[list[Hypothesis]]:
    """Return the hypotheses of each source, best first, with maps of these kinds."""
    check_batch(src, lengths)
    check_prefix(options.prefix, rows=len(src))
    with inference(model):
        if graphs is not None:
            with graphs.claim(src) as is_free:
                if is_free:
                    return search_in_blocks(
                        model, src, lengths, options, plan, kinds, graphs, alternatives
                    )
        return search_step_by_step(model, src, lengths, options, plan, kinds, alternatives)


def search_step_by_step(
    model: SequenceModel,
    src: Src,
    lengths: Lengths,
    options: DecodingOptions,
    plan: SearchPlan,
    kinds: Collection[str],
    alternatives: int = 0,
) -> list[list[Hypothesis]]:
    """Search one step after another; rows leave the batch as soon as they are known to be done."""
    history, finished = SearchHistory(kinds, alternatives), []
    pruning = BatchPruning(lag_for(src.device) if plan.lag is None else plan.lag)
    need_weights = bool(kinds) or options.coverage_penalty > 0
    memory = model.encode(src, lengths, need_weights=any(map(is_encoder_map, kinds)))
    read = memory.lengths.tolist()
    exact = model.tgt_lengths(memory)
    constraints = Constraints.of(
        options, memory.lengths, exact, model.tgt_positions, known_lengths=read
    )
    beams, state = start_rows(memory, model.start(memory), constraints, options, plan)
    by_kernel = refuse_kernel(beams, options, plan) is None
    by_kernel = by_kernel and is_warm(len(beams.tokens) * plan.beams * TOKENS)
    noise = None
    if options.num_samples:
        noise = RandomNumbers(len(beams.tokens), src.device, options.seed)
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
        history.add_alternatives(out.logits)
        numbers = None if noise is None else noise.at(step, beams.finished.row)
        if by_kernel and out.logits.dtype != torch.float64:
            beams, move = extend_by_kernel(beams, out, step, options, plan)
        else:
            beams, move = extend(beams, out, step, options, plan, numbers)
        pruned = pruning.after(beams.over.all(dim=1))  # the one question to the device
        if pruned is not None:
            finished.append(beams.finished.reorder(pruned.gone))
            if not len(pruned.stay):
                break
            beams, move = beams.reorder(pruned.stay), move.reorder(pruned.stay)
        history.add_move(move)
        state = follow(out.state, move.parents, same_rows=beams.tokens.shape == before)
        if by_kernel and beams.tokens.shape == (1, plan.beams):
            take_steps = model.single_steps(state, plan.beams)
            if take_steps is not None:
                rest = search_single_source(take_steps, beams, step + 1, options, history)
                finished.append(rest)
                break
    else:
        finished.append(beams.finished)
    ended = FinishedHypotheses.concatenate(finished)
    return read_hypotheses(history, ended, memory.maps, read, plan.samples)


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
