"""Greedy search, beam search and sampling, for every model."""

from collections.abc import Collection
from typing import Final

import torch
from torch import Tensor

from regard.decoding.hypothesis import Hypothesis
from regard.decoding.leaving import at_once
from regard.decoding.options import DEFAULT, DecodingOptions
from regard.decoding.sampling import draw
from regard.decoding.search import Choose, Plan, search
from regard.decoding.select import Choice, select
from regard.errors import ArgumentError
from regard.models.protocol import Lengths, SequenceModel, Src

#: The maps that hypotheses carry if no others are asked for.
CROSS: Final = ("cross",)


def decode(
    model: SequenceModel,
    src: Src,
    lengths: Lengths,
    options: DecodingOptions = DEFAULT,
    *,
    need_weights: bool = False,
    kinds: Collection[str] = CROSS,
) -> list[list[Hypothesis]]:
    """Targets as `options` ask for them: drawn if `num_samples` is not 0, greedy if `beam` is 1.

    Args:
        model: any model; it is run without dropout and given back as it was.
        src: source tokens, or vectors or images for a model with an adapter; what stands beyond
            `lengths` does not matter.
        lengths: number of real source tokens of each row; it may be 0. All are real if None.
        options: see `DecodingOptions`.
        need_weights: whether hypotheses carry where the model looked.
        kinds: which maps they carry then: `cross`, `decoder-self`, `decoder-history`,
            `encoder-self`, `encoder-history`, `encoder-future`, `memory`. A kind that the model
            does not have is left out.

    Returns:
        A list of hypotheses for each source, best first. It is shorter than asked for where the
        rules allow fewer targets.
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
    """The likeliest token at every step; one hypothesis for each source. See `decode`."""
    return search(model, src, lengths, options, Plan(_best(1)), kinds if need_weights else ())


def beam_search(
    model: SequenceModel,
    src: Src,
    lengths: Lengths,
    options: DecodingOptions = DEFAULT,
    *,
    need_weights: bool = False,
    kinds: Collection[str] = CROSS,
) -> list[list[Hypothesis]]:
    """The likeliest `beam` hypotheses go on at every step. See `decode`.

    A hypothesis ends when its `eos` is among the best `beam` ways to go on. A source is done when
    it has `nbest` that ended and no live one can score better, so nothing is cut short.
    """
    beam = options.beam
    # each hypothesis ends in one way at most, so that enough others go on; a beam of 1 is greedy
    ways = 2 * beam if beam > 1 else 1
    plan = Plan(_best(ways), lanes=beam, kept=options.nbest)
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
    """Draws `num_samples` targets for each source; equal ones may come. See `decode`.

    Their log-probabilities are the model's own, before temperature, `top_k` and `top_p`.
    """
    if not options.num_samples:
        raise ArgumentError(
            "num_samples", "be at least 1 to sample", 0, "set DecodingOptions(num_samples=1)"
        )
    generator = None
    if options.seed is not None:
        generator = torch.Generator(src.device).manual_seed(options.seed)

    def choose(log_probs: Tensor, scores: Tensor, over: Tensor) -> Choice:
        tokens = draw(log_probs[:, 0], options, generator)
        own = log_probs[:, 0].gather(1, tokens)
        return Choice(torch.zeros_like(tokens), tokens, own, scores + own)

    # a row that stays longer would draw for longer, and others would draw something else
    plan = Plan(choose, copies=options.num_samples, leaving=at_once)
    return search(model, src, lengths, options, plan, kinds if need_weights else ())


def _best(ways: int) -> Choose:
    """Chooses the best ways to go on."""

    def choose(log_probs: Tensor, scores: Tensor, over: Tensor) -> Choice:
        return select(log_probs, scores, over, ways)

    return choose
