"""The loop that greedy search, beam search and sampling share.

Rows are sources (or, when sampling, one row for each draw), lanes are the live hypotheses of a row.
The model sees (rows * lanes) tokens at a step. A hypothesis that ends leaves its lane to another
one, and a row leaves the batch when none of its live hypotheses can win any more.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.decoding.batch_pruning import BatchPruning, immediate_pruning, pruning_for
from regard.decoding.beam_state import Lanes
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
    read_out,
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

#: From log-probs (rows, lanes, vocab), scores (rows, lanes) and which lanes are over (rows, lanes)
#: to ways to go on.
Choose = Callable[[Tensor, Tensor, Tensor], Candidates]


class Plan(NamedTuple):
    """What makes one search differ from another.

    Attributes:
        choose: the ways to go on at a step.
        lanes: the most live hypotheses of a row.
        kept: how many ended hypotheses of a row are kept.
        copies: rows for each source.
        leaving: makes what says when rows that are over leave, for a device.
    """

    choose: Choose
    lanes: int = 1
    kept: int = 1
    copies: int = 1
    leaving: Callable[[torch.device], BatchPruning] = pruning_for


def search(
    model: SequenceModel,
    src: Src,
    lengths: Lengths,
    options: DecodingOptions,
    plan: Plan,
    kinds: Collection[str],
) -> list[list[Hypothesis]]:
    """Targets for all sources at once: a list for each, best first, with maps of these kinds."""
    check_batch(src, lengths)
    check_prefix(options.prefix, rows=len(src))
    trace, left, leaving = SearchHistory(kinds), [], plan.leaving(src.device)
    look = bool(kinds) or options.coverage_penalty > 0
    with inference(model):
        memory = model.encode(src, lengths, need_weights=any(map(is_encoder_map, kinds)))
        exact = model.tgt_lengths(memory)
        rules = Constraints.of(options, memory.lengths, exact, model.tgt_positions)
        front = Frontier.start(memory, rules, options, plan)
        state = model.start(memory)
        lanes = Lanes(state if plan.copies == 1 else state.reorder(front.ended.source))
        for step in range(front.rules.longest + 1):
            preemption_point()
            before = front.tokens.shape
            out = _step(model, front, lanes.state, need_weights=look)
            if out is None:
                left.append(front.ended)
                break
            if step == 0:
                check_prefix(options.prefix, vocab=out.logits.shape[1])
            trace.look(out.maps)
            front, move = _extend(front, out, step, options, plan)
            parting = leaving.after(front.over.all(dim=1))  # the one question to the device
            if parting is not None:
                left.append(front.ended.reorder(parting.gone))
                if not len(parting.stay):
                    break
                front, move = front.reorder(parting.stay), move.reorder(parting.stay)
            trace.move(move)
            lanes.follow(out.state, move.parents, same_rows=front.tokens.shape == before)
        else:
            left.append(front.ended)
        return read_out(trace, FinishedHypotheses.of_all(left), memory)


@dataclass(frozen=True)
class Frontier(State):
    """All rows that are still searched, between two steps.

    Attributes:
        tokens: the newest token of each lane.
        scores: the log-probability of each lane's hypothesis.
        over: lanes that cannot win any more.
        ended: the hypotheses that have ended.
        rules: what may be written.
        longest: the length penalty of the longest target that a row may have.
        real: which source positions are tokens.
        coverage: how much each was looked at in all; None unless it is scored.
        history: all tokens so far; None unless a rule needs them.
    """

    tokens: Int[Tensor, "rows lanes"]
    scores: Float[Tensor, "rows lanes"]
    over: Bool[Tensor, "rows lanes"]
    ended: FinishedHypotheses
    rules: Constraints
    longest: Float[Tensor, "rows 1"]
    real: Bool[Tensor, "rows src_len"]
    coverage: Float[Tensor, "rows lanes src_len"] | None
    history: Int[Tensor, "rows lanes step"] | None

    @staticmethod
    def start(
        memory: Memory,
        rules: Constraints,
        options: DecodingOptions,
        plan: Plan,
    ) -> "Frontier":
        """One empty hypothesis in each row."""
        (batch, width), device = memory.output.shape[:2], memory.output.device
        tokens = torch.full((batch, 1), BOS, device=device)
        scored, told = options.coverage_penalty > 0, options.no_repeat_ngram > 0
        front = Frontier(
            tokens=tokens,
            scores=torch.zeros(batch, 1, device=device),
            over=torch.zeros(batch, 1, dtype=torch.bool, device=device),
            ended=FinishedHypotheses.none(batch, plan.kept, device),
            rules=rules,
            longest=length_penalty(rules.limits.double() + 1, options.length_penalty)[:, None],
            real=torch.arange(width, device=device) < memory.lengths[:, None],
            coverage=torch.zeros(batch, 1, width, device=device) if scored else None,
            history=tokens.new_zeros(batch, 1, 0) if told else None,
        )
        if plan.copies == 1:
            return front
        return front.reorder(torch.arange(batch, device=device).repeat_interleave(plan.copies))


def _step(
    model: SequenceModel, front: Frontier, state: State, *, need_weights: bool
) -> StepOutput | None:
    """What the model says to the newest tokens; None if it refuses and nobody needs it any more.

    Rows that leave late are asked for more tokens, maybe past the last position that a model has
    learned.
    """
    try:
        return model.step(front.tokens.flatten(), state, need_weights=need_weights)
    except ArgumentError:
        if bool(front.over.all()):
            return None
        raise


def _extend(
    front: Frontier, out: StepOutput, step: int, options: DecodingOptions, plan: Plan
) -> tuple[Frontier, Move]:
    """All rows with one token more, and how their lanes came about."""
    rows, lanes = front.tokens.shape
    log_probs = log_softmax(out.logits).view(rows, lanes, -1)
    log_probs, cut = front.rules.allow(log_probs, step, front.history)
    if front.coverage is not None:
        look = required_cross_attention(out.maps).reshape(rows, lanes, -1)
        front = replace(front, coverage=front.coverage + look)
    choice = plan.choose(log_probs, front.scores, front.over)
    first = torch.arange(0, rows * lanes, lanes, device=choice.parents.device)[:, None]
    ending = _endings(front, choice, cut, step, options, plan.lanes)
    ended = front.ended.add(ending._replace(lane=first + ending.lane), step)
    live = _goes_on(choice, plan.lanes)
    after = replace(
        front,
        tokens=live.tokens,
        scores=live.scores,
        # a hypothesis never gets likelier, and the longest one is divided by most
        over=live.scores / front.longest <= ended.worst,
        ended=ended,
        coverage=_take(front.coverage, live.parents),
        history=_longer(front.history, live),
    )
    return after, Move(first + live.parents, live.tokens, live.log_probs)


def _endings(
    front: Frontier,
    choice: Candidates,
    cut: Bool[Tensor, "rows lanes"] | None,
    step: int,
    options: DecodingOptions,
    lanes: int,
) -> Endings:
    """The choices that end a hypothesis. To end it `eos` must be among the best `lanes`."""
    parents, tokens, last, log_prob = (part[:, :lanes] for part in choice)
    score = log_prob / length_penalty(float(step + 1), options.length_penalty)
    coverage = _take(front.coverage, parents)
    if coverage is not None:
        score = score + coverage_penalty(coverage, front.real[:, None], options.coverage_penalty)
    score = score.masked_fill(tokens != EOS, float("-inf"))
    return Endings(score, log_prob, last, parents, None if cut is None else cut.gather(1, parents))


def _goes_on(choice: Candidates, lanes: int) -> Candidates:
    """The best `lanes` choices that do not end a hypothesis; -inf where there are fewer."""
    ends = choice.tokens == EOS
    if choice.tokens.shape[1] > lanes:
        order = ends.sort(dim=1, stable=True).indices[:, :lanes]
        choice = Candidates(*(part.gather(1, order) for part in choice))
        ends = ends.gather(1, order)
    return choice._replace(scores=choice.scores.masked_fill(ends, float("-inf")))


def _take(
    values: Float[Tensor, "rows before width"] | Int[Tensor, "rows before width"] | None,
    parents: Int[Tensor, "rows lanes"],
) -> Tensor | None:
    """What the parents of each lane had."""
    if values is None:
        return None
    return values.gather(1, parents[..., None].expand(-1, -1, values.shape[2]))


def _longer(history: Tensor | None, live: Candidates) -> Tensor | None:
    """The tokens of each lane, with its newest."""
    mine = _take(history, live.parents)
    return None if mine is None else torch.cat([mine, live.tokens[..., None]], dim=2)


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

    def choose(log_probs: Tensor, scores: Tensor, over: Tensor) -> Candidates:
        tokens = draw(log_probs[:, 0], options, generator)
        own = log_probs[:, 0].gather(1, tokens)
        return Candidates(torch.zeros_like(tokens), tokens, own, scores + own)

    # a row that stays longer would draw for longer, and others would draw something else
    plan = Plan(choose, copies=options.num_samples, leaving=immediate_pruning)
    return search(model, src, lengths, options, plan, kinds if need_weights else ())


def _best(ways: int) -> Choose:
    """Chooses the best ways to go on."""

    def choose(log_probs: Tensor, scores: Tensor, over: Tensor) -> Candidates:
        return select(log_probs, scores, over, ways)

    return choose
