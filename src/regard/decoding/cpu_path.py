"""A step of beam search by one CPU kernel, where the constraints are simple."""

from dataclasses import replace

import torch

from regard.decoding.beam_state import BeamState, SearchPlan
from regard.decoding.search_history import FinishedHypotheses, Move
from regard.decoding_options import DecodingOptions
from regard.models.protocol import StepOutput
from regard.ops.backend import HAS_NUMBA
from regard.symbols import UNK


def refuse_kernel(beams: BeamState, options: DecodingOptions, plan: SearchPlan) -> str | None:
    """Return the reason why the kernel cannot run a search, or None."""
    constraints = beams.constraints
    if not HAS_NUMBA or beams.tokens.device.type != "cpu":
        return "it needs numba and the CPU"
    if options.num_samples or constraints.ngram or options.coverage_penalty:
        return "it neither samples nor knows n-grams or coverage"
    if constraints.prefix is not None or constraints.exact is not None:
        return "it knows no prefixes and no targets of known lengths"
    return None


def extend_by_kernel(
    beams: BeamState, out: StepOutput, step: int, options: DecodingOptions, plan: SearchPlan
) -> tuple[BeamState, Move]:
    """Like `beam_state.extend`, up to the rounding of the sum of a softmax."""
    from regard.decoding import cpu_kernels  # not above: numba may be missing, and takes long

    (rows, width), vocab = beams.tokens.shape, out.logits.shape[1]
    logits = out.logits.float().contiguous().view(rows, width, vocab)
    count = 2 * plan.beams if plan.beams > 1 else 1
    shape = (rows, plan.beams)
    tokens, parents = torch.empty(shape, dtype=torch.long), torch.empty(shape, dtype=torch.long)
    scores, log_probs = torch.empty(shape), torch.empty(shape)
    over = torch.empty(shape, dtype=torch.bool)
    ended, places = beams.finished.scores.clone(), beams.finished.places.clone()
    floats = torch.empty(2 * count + -(-vocab // cpu_kernels.BLOCK)).numpy()
    found = torch.empty(2, count, dtype=torch.long).numpy()
    penalties = torch.ones(rows, 1) * beams.penalty(step, options.length_penalty)
    cpu_kernels.extend(
        logits.numpy(),
        beams.scores.numpy(),
        beams.over.numpy(),
        beams.longest.numpy(),
        beams.constraints.limits.numpy(),
        step,
        beams.constraints.min_len,
        UNK not in beams.constraints.never,
        penalties.numpy(),
        floats[2 * count :],
        floats[:count],
        floats[count : 2 * count],
        found[0],
        found[1],
        ended.numpy(),
        places.numpy(),
        tokens.numpy(),
        scores.numpy(),
        over.numpy(),
        parents.numpy(),
        log_probs.numpy(),
    )
    finished = FinishedHypotheses(beams.finished.row, ended, places)
    after = replace(beams, tokens=tokens, scores=scores, over=over, finished=finished)
    return after, Move(parents, tokens, log_probs)
