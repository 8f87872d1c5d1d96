"""Steps of beam search by CPU kernels, where the constraints are simple."""

from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from regard.decoding.beam_state import BeamState, SearchPlan
from regard.decoding.hypothesis import length_penalty
from regard.decoding.search_history import Alternatives, FinishedHypotheses, Move
from regard.decoding_options import DecodingOptions
from regard.models.protocol import StepOutput
from regard.symbols import UNK


def refuse_kernel(beams: BeamState, options: DecodingOptions) -> str | None:
    """Return the reason why the kernel cannot run a search of a compiled model, or None."""
    constraints = beams.constraints
    if options.num_samples or constraints.ngram:
        return "it neither samples nor knows n-grams"
    if constraints.prefix is not None or constraints.exact is not None:
        return "it knows no prefixes and no targets of known lengths"
    return None


def extend_by_kernel(
    beams: BeamState, out: StepOutput, step: int, options: DecodingOptions
) -> tuple[BeamState, Move]:
    """Like `beam_state.extend`, up to the rounding of the sum of a softmax."""
    from regard.ops import beam_kernels  # not above: numba may be missing, and takes long

    (rows, width), vocab = beams.tokens.shape, out.logits.shape[1]
    logits = out.logits.float().contiguous().view(rows, width, vocab)
    plan = SearchPlan.of(options)
    count = plan.best
    # arrays, since tensors take five times as long to make
    tokens, parents = np.empty((2, rows, plan.beams), np.int64)
    scores, log_probs = np.empty((2, rows, plan.beams), np.float32)
    over = np.empty((rows, plan.beams), np.bool_)
    ended, places = beams.finished.scores.numpy().copy(), beams.finished.places.numpy().copy()
    floats = np.empty(2 * count + -(-vocab // beam_kernels.BLOCK), np.float32)
    found = np.empty((2, count), np.int64)
    penalty = length_penalty(float(step + 1), options.length_penalty)
    beam_kernels.extend(
        logits.numpy(),
        beams.scores.numpy(),
        beams.over.numpy(),
        beams.longest.numpy(),
        beams.constraints.limits.numpy(),
        step,
        beams.constraints.min_len,
        UNK not in beams.constraints.never,
        np.full((rows, 1), penalty, np.float32),
        floats[2 * count :],
        floats[:count],
        floats[count : 2 * count],
        found[0],
        found[1],
        ended,
        places,
        tokens,
        scores,
        over,
        parents,
        log_probs,
    )
    move = Move(*map(torch.from_numpy, (parents, tokens, log_probs)))
    kept = [torch.from_numpy(array) for array in (ended, places)]
    finished = FinishedHypotheses(beams.finished.row, *kept)
    scored, done = torch.from_numpy(scores), torch.from_numpy(over)
    after = replace(beams, tokens=move.tokens, scores=scored, over=done, finished=finished)
    return after, move


def alternatives_by_kernel(logits: Float[Tensor, "rows vocab"], count: int) -> Alternatives:
    """Like `Alternatives.of`, up to the rounding of the sum of a softmax."""
    from regard.ops import beam_kernels

    logits = logits.float().contiguous()
    rows, vocab = logits.shape
    tokens = np.empty((rows, min(count, vocab)), np.int64)
    log_probs = np.empty(tokens.shape, np.float32)
    maxima = np.empty(-(-vocab // beam_kernels.BLOCK), np.float32)
    beam_kernels.likeliest(logits.numpy(), maxima, tokens, log_probs)
    return Alternatives(torch.from_numpy(tokens), torch.from_numpy(log_probs))
