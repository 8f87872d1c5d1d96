"""The beams of all rows between two steps of a search, and the step from one set to the next.

A row is a source (or, when sampling, one sample of it), its beams are its live hypotheses. The
model sees rows * beams tokens at a step.
"""

from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.decoding.candidates import Candidates, Constraints, draw, select
from regard.decoding.search_history import FinishedHypotheses, Move, length_penalty
from regard.decoding_options import DecodingOptions
from regard.models.protocol import StepOutput
from regard.ops.backend import refuse_triton
from regard.ops.primitives import log_softmax
from regard.state import State
from regard.symbols import BOS, EOS, UNK

#: Widest beam of the kernels.
MAX_KERNEL_BEAM: Final = 16


class SearchPlan(NamedTuple):
    """The settings by which greedy search, beam search and sampling differ.

    Attributes:
        beams: most live hypotheses of a row.
        kept: finished hypotheses that are kept of a row.
        samples: rows for each source.
        best: candidates of a step if it takes the best; 0 if it draws them.
    """

    beams: int = 1
    kept: int = 1
    samples: int = 1
    best: int = 0

    @staticmethod
    def of(options: DecodingOptions) -> "SearchPlan":
        """Return the plan of a search with these options."""
        if options.num_samples:
            return SearchPlan(samples=options.num_samples)
        beam = options.beam
        # each hypothesis has one `eos` at most, so enough others go on; a beam of 1 is greedy
        kept = options.nbest if options.early_stopping == "never" else beam
        return SearchPlan(beam, kept=kept, best=2 * beam if beam > 1 else 1)


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
        history: all tokens so far; None unless a constraint needs them.
    """

    tokens: Int[Tensor, "rows beams"]
    scores: Float[Tensor, "rows beams"]
    over: Bool[Tensor, "rows beams"]
    finished: FinishedHypotheses
    constraints: Constraints
    longest: Float[Tensor, "rows 1"]
    history: Int[Tensor, "rows beams step"] | None

    @staticmethod
    def start(rows: int, constraints: Constraints, options: DecodingOptions) -> "BeamState":
        """Return one empty hypothesis for each row."""
        device = constraints.limits.device
        tokens = torch.full((rows, 1), BOS, device=device)
        longest = length_penalty(constraints.limits.double() + 1, options)
        return BeamState(
            tokens=tokens,
            scores=torch.zeros(rows, 1, device=device),
            over=torch.zeros(rows, 1, dtype=torch.bool, device=device),
            finished=FinishedHypotheses.none(rows, SearchPlan.of(options).kept, device),
            constraints=constraints,
            longest=longest[:, None],
            history=tokens.new_zeros(rows, 1, 0) if options.no_repeat_ngram else None,
        )


def start_rows(
    lengths: Int[Tensor, " rows"], state: State, constraints: Constraints, options: DecodingOptions
) -> tuple[BeamState, State]:
    """Return the beams and the model's state before the first step, with all rows of a source."""
    beams, samples = BeamState.start(len(lengths), constraints, options), options.num_samples
    if samples <= 1:
        return beams, state
    rows = torch.arange(len(lengths) * samples, device=lengths.device)
    source = rows // samples
    beams = beams.reorder(source)
    return replace(beams, finished=replace(beams.finished, row=rows)), state.reorder(source)


def follow(state: State, parents: Int[Tensor, "rows beams"], *, same_rows: bool) -> State:
    """Return the model's state with each beam in the place of its parent."""
    if not same_rows:
        return state.reorder(parents.flatten())
    if parents.shape[1] == 1:  # a single beam is its own parent
        return state
    return state.reorder_within_sources(parents.flatten())


def extend(
    beams: BeamState,
    out: StepOutput,
    step: int,
    options: DecodingOptions,
    noise: Float[Tensor, "rows 1"] | None = None,
) -> tuple[BeamState, Move]:
    """Return all rows with one more token, and the parents of their beams."""
    if refuse_kernels(beams, out.logits, step, SearchPlan.of(options)) is None:
        return extend_by_kernels(beams, out, step, options)
    return extend_by_definition(beams, out, step, options, noise)


def extend_by_definition(
    beams: BeamState,
    out: StepOutput,
    step: int,
    options: DecodingOptions,
    noise: Float[Tensor, "rows 1"] | None = None,
) -> tuple[BeamState, Move]:
    """Return what `extend` does, operator by operator."""
    (rows, width), plan = beams.tokens.shape, SearchPlan.of(options)
    log_probs = log_softmax(out.logits).view(rows, width, -1)
    log_probs, cut = beams.constraints.allow(log_probs, step, beams.history)
    if noise is None:
        candidates = select(log_probs, beams.scores, beams.over, plan.best)
    else:
        tokens = draw(log_probs[:, 0], options, noise)
        own = log_probs[:, 0].gather(1, tokens)
        candidates = Candidates(torch.zeros_like(tokens), tokens, own, beams.scores + own)
    first = torch.arange(0, rows * width, width, device=candidates.parents.device)[:, None]
    # a hypothesis ends where its `eos` is among the best candidates
    parents, tokens, last, log_prob = (part[:, : plan.beams] for part in candidates)
    length: Any = float(step + 1)
    if not options.counted_end and step >= beams.constraints.shortest:
        length = length - (beams.constraints.limits <= step).to(log_prob.dtype)[:, None]
    score = log_prob / length_penalty(length, options)
    score = score.masked_fill(tokens != EOS, float("-inf"))
    was_cut = torch.zeros_like(parents) if cut is None else cut.gather(1, parents).long()
    finished = beams.finished.add(
        torch.stack([score, log_prob, last], dim=2),
        torch.stack([torch.full_like(parents, step), first + parents, was_cut], dim=2),
    )
    live, history = _continuations(candidates, plan.beams), beams.history
    if history is not None:
        kept = history.gather(1, live.parents[..., None].expand(-1, -1, step))
        history = torch.cat([kept, live.tokens[..., None]], dim=2)
    after = replace(
        beams,
        tokens=live.tokens,
        scores=live.scores,
        over=cannot_win(live.scores, beams, finished, step, options),
        finished=finished,
        history=history,
    )
    return after, Move(first + live.parents, live.tokens, live.log_probs)


def cannot_win(
    scores: Float[Tensor, "rows beams"],
    beams: BeamState,
    finished: FinishedHypotheses,
    step: int,
    options: DecodingOptions,
) -> Bool[Tensor, "rows beams"]:
    """Return which live hypotheses are over, since all that are kept have ended and are better.

    One never gets likelier, and the longest is divided by most. Otherwise all of a row go on as
    long as the best of them.
    """
    if options.early_stopping == "never":
        return scores / beams.longest <= finished.worst
    if options.early_stopping == "full":
        return (finished.worst > float("-inf")).expand_as(scores)
    present = scores[:, :1] / length_penalty(float(step + 1), options)
    return (present <= finished.worst).expand_as(scores)


def refuse_kernels(beams: BeamState, logits: Tensor, step: int, plan: SearchPlan) -> str | None:
    """Return the reason why the kernels of `triton_extend` cannot run a step, or None."""
    reason = refuse_triton(logits, "the logits")
    if reason is not None:
        return reason
    from regard.decoding import triton_extend  # loads triton

    rules, vocab, best = beams.constraints, logits.shape[1], plan.best
    if rules.ngram or rules.exact is not None or rules.refuses_kernels(step):
        return "since its constraints need more than the newest logits"
    if not best or max(plan.beams, plan.kept) > MAX_KERNEL_BEAM:
        return f"since it selects at most {MAX_KERNEL_BEAM} hypotheses"
    if vocab < 4 * best + len(rules.never) + 1:
        return "since the vocabulary is hardly larger than the beam"
    reason = triton_extend.refuse_size(vocab, best)
    if reason is not None:
        return reason
    if logits.dtype not in (torch.float32, torch.bfloat16, torch.float16):
        return f"since it computes in float32 and the logits are {logits.dtype}"
    return None


def extend_by_kernels(
    beams: BeamState, out: StepOutput, step: int, options: DecodingOptions
) -> tuple[BeamState, Move]:
    """Return what `extend` does, by two kernels."""
    from regard.decoding import triton_extend  # loads triton

    rules, finished, plan = beams.constraints, beams.finished, SearchPlan.of(options)
    found = triton_extend.extend_rows(
        out.logits,
        beams.scores,
        beams.over,
        rules.limits,
        beams.longest,
        finished.scores,
        finished.places,
        step=step,
        best=plan.best,
        beams=plan.beams,
        penalty=length_penalty(float(step + 1), options),
        has_limit=step >= rules.shortest,
        allows_end=step >= rules.min_len,
        allows_unknown=UNK not in rules.never,
    )
    after = replace(
        beams,
        tokens=found.tokens,
        scores=found.scores,
        over=found.over,
        finished=FinishedHypotheses(finished.row, found.ended_scores, found.ended_places),
    )
    if options.early_stopping != "never":
        over = cannot_win(after.scores, beams, after.finished, step, options)
        after = replace(after, over=over)
    return after, Move(found.parents, found.tokens, found.log_probs)


def _continuations(candidates: Candidates, width: int) -> Candidates:
    """Return the best `width` candidates that end no hypothesis; -inf where there are fewer."""
    ends = candidates.tokens == EOS
    if candidates.tokens.shape[1] > width:
        order = ends.sort(dim=1, stable=True).indices[:, :width]
        candidates = Candidates(*(part.gather(1, order) for part in candidates))
        ends = ends.gather(1, order)
    return candidates._replace(scores=candidates.scores.masked_fill(ends, float("-inf")))
