# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"
"""The CPU kernel of a step of beam search: from logits to the next beams in one pass.

No log-probability is written but those of the candidates, and a block of the vocabulary whose
maximum cannot be among the best is skipped. Ties go to the lower hypothesis and then to the lower
token, as in `decoding.candidates.select`.
"""

import math
from typing import Final

import numpy as np
from numba import boolean, float32, float64, int64

from regard.ops.cpu_math import LARGEST, LEAST, exponential, f32
from regard.ops.cpu_runtime import batch, kernel, part, rows
from regard.symbols import EOS

BLOCK: Final = 64  # tokens whose maximum stands for all of them
FIRST: Final = 4  # tokens below are pad, bos, eos and unk
LOWEST: Final = np.int32(-(2**31))

ids, id_rows, id_batch = int64[::1], int64[:, ::1], int64[:, :, ::1]
flags, wide = boolean[:, ::1], float64[:, ::1]


@part
def ordered(bits):
    """Bits of floats as integers in the order of the floats, and back."""
    return bits ^ ((bits >> np.int32(31)) & np.int32(0x7FFFFFFF))


@part
def block_maxima(logits, maxima):
    """The largest logit of each block, and of all; maxima of integers are vectorised."""
    V, bits, highest = len(logits), logits.view(np.int32), maxima.view(np.int32)
    most = ordered(bits[0])
    for i in range(len(maxima)):
        values, largest = bits[i * BLOCK : min((i + 1) * BLOCK, V)], LOWEST
        for j in range(len(values)):
            largest = max(largest, ordered(values[j]))
        highest[i] = ordered(largest)
        most = max(most, largest)
    return np.int32(ordered(most)).view(np.float32)


@part
def log_of_sum(logits, most):
    """`log sum exp(logits - most)`; NaN if one is NaN."""
    total = f32(0.0)
    for j in range(len(logits)):
        x = logits[j] - most
        total += exponential(-LARGEST if x < -LARGEST else x)
    return f32(math.log(total))


@part
def insert(token, beam, own, total, found, place, best, terms):
    """Put a candidate among the best, behind those that are as good."""
    i = len(best) - 1
    while i > 0 and total > best[i - 1]:
        best[i], terms[i] = best[i - 1], terms[i - 1]
        found[i], place[i] = found[i - 1], place[i - 1]
        i -= 1
    best[i], terms[i], found[i], place[i] = total, own, token, beam


@part
def keep_ending(scores, places, score, log_prob, last, step, beam, cut):
    """Put an ended hypothesis among those that are kept, behind those that are as good."""
    i = len(scores)
    while i > 0 and score > scores[i - 1, 0]:
        if i < len(scores):
            scores[i], places[i] = scores[i - 1], places[i - 1]
        i -= 1
    if i < len(scores):
        scores[i, 0], scores[i, 1], scores[i, 2] = score, log_prob, last
        places[i, 0], places[i, 1], places[i, 2] = step, beam, cut


@kernel(rows, id_rows, rows)
def likeliest(logits, tokens, log_probs):
    """The likeliest tokens of each row of logits, best first, and their log-probabilities.

    Both are written, as many as they have room for; the lower token comes first among equals.
    """
    V, count = logits.shape[1], tokens.shape[1]
    maxima = np.empty(-(-V // BLOCK), np.float32)
    for r in range(len(logits)):
        x, found, best = logits[r], tokens[r], log_probs[r]
        most = block_maxima(x, maxima)
        found[:], best[:] = 0, LEAST
        for b in range(len(maxima)):
            if not maxima[b] > best[count - 1]:
                continue
            for j in range(b * BLOCK, min((b + 1) * BLOCK, V)):
                i = count
                while i > 0 and x[j] > best[i - 1]:
                    if i < count:
                        best[i], found[i] = best[i - 1], found[i - 1]
                    i -= 1
                if i < count:
                    best[i], found[i] = x[j], j
        log_sum = log_of_sum(x, most)
        for i in range(count):
            best[i] = (best[i] - most) - log_sum


@kernel(
    batch, rows, flags, wide, ids, int64, int64, boolean, float32, int64,
    batch, id_batch, id_rows, rows, flags, id_rows, rows,
)  # fmt: skip
def extend(
    logits, scores, over, longest, limits, step, min_len, unknown, penalty, count,
    ended, places, next_tokens, next_scores, next_over, parents, log_probs,
):  # fmt: skip
    """Extend each row of beams by one token.

    `logits` are (rows, beams, vocab); `scores`, `over`, `longest` and `limits` those of
    `BeamState`. `step` is the number of tokens so far: with fewer than `min_len` none ends.
    `unknown` is whether `unk` is allowed, `penalty` that of the length of a hypothesis that ends
    now, `count` the number of candidates. `ended` and `places` are of `FinishedHypotheses` and
    change in place; the rest, (rows, new beams), is written.
    """
    (beams, V), width = logits.shape[1:], next_tokens.shape[1]
    maxima = np.empty(-(-V // BLOCK), np.float32)
    best, terms = np.empty(count, np.float32), np.empty(count, np.float32)
    found, place = np.empty(count, np.int64), np.empty(count, np.int64)
    for r in range(len(logits)):
        best[:], terms[:] = LEAST, LEAST
        found[:], place[:] = 0, 0
        cut = int64(0)
        at_limit = limits[r] <= step
        for b in range(beams):
            score = scores[r, b]
            if over[r, b] or score == LEAST:
                continue
            x = logits[r, b]
            most = block_maxima(x, maxima)
            log_sum = log_of_sum(x, most)
            end = (x[EOS] - most) - log_sum
            if (at_limit or step >= min_len) and end + score > best[count - 1]:
                insert(EOS, b, end, end + score, found, place, best, terms)
            first = FIRST - 1 if unknown else FIRST
            if at_limit:
                continue
            for i in range(len(maxima)):
                if not ((maxima[i] - most) - log_sum) + score > best[count - 1]:
                    continue
                for j in range(max(first, i * BLOCK), min((i + 1) * BLOCK, V)):
                    own = (x[j] - most) - log_sum
                    if own + score > best[count - 1]:
                        insert(j, b, own, own + score, found, place, best, terms)
        for i in range(min(width, count)):
            if found[i] == EOS and best[i] > LEAST:
                if at_limit:
                    x, cut = logits[r, place[i]], int64(0)
                    for j in range(FIRST - 1 if unknown else FIRST, V):
                        if x[j] > x[EOS]:
                            cut = int64(1)
                keep_ending(
                    ended[r], places[r], best[i] / penalty, best[i], terms[i], step,
                    r * beams + place[i], cut,
                )  # fmt: skip
        i = 0
        for c in range(count):
            if i < width and found[c] != EOS:
                next_tokens[r, i], next_scores[r, i] = found[c], best[c]
                parents[r, i], log_probs[r, i] = r * beams + place[c], terms[c]
                i += 1
        while i < width:
            next_tokens[r, i], next_scores[r, i] = EOS, LEAST
            parents[r, i], log_probs[r, i] = r * beams, LEAST
            i += 1
        worst = ended[r, ended.shape[1] - 1, 0]
        for i in range(width):
            next_over[r, i] = np.float64(next_scores[r, i]) / longest[r, 0] <= np.float64(worst)
