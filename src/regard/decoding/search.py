"""Greedy search, beam search and sampling: one loop, for every model and device.

A hypothesis that ends leaves its beam to another one, and a row leaves the batch when none of its
live hypotheses can win any more. The loop is given what takes the steps, see `search_steps`.
"""

from collections.abc import Collection, Generator
from contextlib import nullcontext
from typing import Final

import torch
from torch import Tensor

from regard.decoding.beam_state import Choose, SearchPlan
from regard.decoding.candidates import Candidates, draw, select
from regard.decoding.constraints import check_prefix
from regard.decoding.graphs import DecodingGraphs
from regard.decoding.hypothesis import Hypothesis
from regard.decoding.search_history import FinishedHypotheses, SearchHistory, read_hypotheses
from regard.decoding.search_steps import (
    GraphBlocks,
    SearchSettings,
    SearchSteps,
    SingleSteps,
    Streamed,
)
from regard.decoding_options import DEFAULT, DecodingOptions
from regard.errors import ArgumentError
from regard.models.protocol import Lengths, SequenceModel, Src, check_batch, inference
from regard.preemption import preemption_point

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
    settings = SearchSettings(model, options, plan, tuple(kinds), alternatives)
    steps = run_search(settings, src, lengths, graphs)
    with inference(model):
        while True:
            try:
                next(steps)
            except StopIteration as end:
                found: list[list[Hypothesis]] = end.value
                return found


def run_search(
    settings: SearchSettings, src: Src, lengths: Lengths, graphs: DecodingGraphs | None = None
) -> Generator[list[Streamed], None, list[list[Hypothesis]]]:
    """Search; yield the new tokens after each step, and return the hypotheses at the end.

    The caller puts the model into inference mode while this runs, and not in between.

    Args:
        settings: of the search.
        src: the sources.
        lengths: number of real positions of each.
        graphs: of the model, to replay the steps on a GPU; None runs them one by one.
    """
    check_prefix(settings.options.prefix, rows=len(src))
    with nullcontext(False) if graphs is None else graphs.claim(src) as is_free:
        steps: SearchSteps = SingleSteps(settings)
        if is_free and graphs is not None:
            steps = GraphBlocks(settings, graphs)
        search = steps.start(src, lengths)
        history, finished, step = SearchHistory(settings.kinds), list[FinishedHypotheses](), 0
        while step <= steps.longest:
            preemption_point()
            after, records, gone, written = steps.take(search, step)
            history.steps += records
            step += len(records)
            if gone is not None:
                finished.append(gone)
            if settings.stream:
                yield written
            if after is None:
                break
            search = after
        else:
            finished.append(search.beams.finished)
    ended = FinishedHypotheses.concatenate(finished)
    return read_hypotheses(history, ended, steps.maps, steps.lengths, settings.plan.samples)
