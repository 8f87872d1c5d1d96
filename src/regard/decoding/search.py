"""The loop that greedy search, beam search and sampling share.

Rows are sources (or, when sampling, one row for each draw), lanes are the live hypotheses of a row.
The model sees (rows * lanes) tokens at a step. A hypothesis that ends leaves its lane to another
one, and a row leaves the batch when none of its live hypotheses can win any more.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.decoding.hypothesis import Hypothesis
from regard.decoding.lanes import Lanes
from regard.decoding.leaving import Leaving, without_waiting
from regard.decoding.options import DecodingOptions
from regard.decoding.readout import read_out
from regard.decoding.rules import Rules, check_prefix
from regard.decoding.running import inference, of_encoder
from regard.decoding.scoring import coverage_penalty, length_penalty, needed_look
from regard.decoding.select import Choice
from regard.decoding.trace import Ended, Ending, Move, Trace
from regard.errors import ArgumentError
from regard.models.protocol import Lengths, Memory, SequenceModel, Src, StepOutput, check_batch
from regard.ops.softmax import log_softmax
from regard.preemption import preemption_point
from regard.state import State
from regard.symbols import BOS, EOS

#: From log-probs (rows, lanes, vocab), scores (rows, lanes) and which lanes are over (rows, lanes)
#: to ways to go on.
Choose = Callable[[Tensor, Tensor, Tensor], Choice]


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
    leaving: Callable[[torch.device], Leaving] = without_waiting


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
    trace, left, leaving = Trace(kinds), [], plan.leaving(src.device)
    look = bool(kinds) or options.coverage_penalty > 0
    with inference(model):
        memory = model.encode(src, lengths, need_weights=any(map(of_encoder, kinds)))
        exact = model.tgt_lengths(memory)
        rules = Rules.of(options, memory.lengths, exact, model.tgt_positions)
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
        return read_out(trace, Ended.of_all(left), memory)


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
    ended: Ended
    rules: Rules
    longest: Float[Tensor, "rows 1"]
    real: Bool[Tensor, "rows src_len"]
    coverage: Float[Tensor, "rows lanes src_len"] | None
    history: Int[Tensor, "rows lanes step"] | None

    @staticmethod
    def start(
        memory: Memory,
        rules: Rules,
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
            ended=Ended.none(batch, plan.kept, device),
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
        look = needed_look(out.maps).reshape(rows, lanes, -1)
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
    choice: Choice,
    cut: Bool[Tensor, "rows lanes"] | None,
    step: int,
    options: DecodingOptions,
    lanes: int,
) -> Ending:
    """The choices that end a hypothesis. To end it `eos` must be among the best `lanes`."""
    parents, tokens, last, log_prob = (part[:, :lanes] for part in choice)
    score = log_prob / length_penalty(float(step + 1), options.length_penalty)
    coverage = _take(front.coverage, parents)
    if coverage is not None:
        score = score + coverage_penalty(coverage, front.real[:, None], options.coverage_penalty)
    score = score.masked_fill(tokens != EOS, float("-inf"))
    return Ending(score, log_prob, last, parents, None if cut is None else cut.gather(1, parents))


def _goes_on(choice: Choice, lanes: int) -> Choice:
    """The best `lanes` choices that do not end a hypothesis; -inf where there are fewer."""
    ends = choice.tokens == EOS
    if choice.tokens.shape[1] > lanes:
        order = ends.sort(dim=1, stable=True).indices[:, :lanes]
        choice = Choice(*(part.gather(1, order) for part in choice))
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


def _longer(history: Tensor | None, live: Choice) -> Tensor | None:
    """The tokens of each lane, with its newest."""
    mine = _take(history, live.parents)
    return None if mine is None else torch.cat([mine, live.tokens[..., None]], dim=2)
