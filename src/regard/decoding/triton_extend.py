# mypy: disable-error-code="no-untyped-def,no-untyped-call,untyped-decorator"
"""Triton kernels of a step of beam search: the same as `beam_state.extend`, in three launches.

The first reads the logits once: every program sums up a piece of a beam's vocabulary and finds its
highest logit. The best tokens stand in the pieces with the highest ones, which a program of the
second reads again for its beam. The third has a program for each row, which does all that follows:
it ends hypotheses, keeps the best of them, and continues the others.
"""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.ops.triton_launch import on
from regard.symbols import BOS, EOS, PAD, UNK

#: Tokens of a piece of the vocabulary, and pieces that one program reads.
PIECE, TOGETHER = 256, 4
#: Most pieces of a vocabulary, and tokens of a beam's best pieces; they are held in registers.
MAX_PIECES, MAX_TOKENS = 4096, 8192


class ExtendedRows(NamedTuple):
    """All rows with one more token; see `BeamState`, `Move` and `FinishedHypotheses`."""

    tokens: Tensor
    parents: Tensor
    scores: Tensor
    log_probs: Tensor
    over: Tensor
    ended_scores: Tensor
    ended_places: Tensor


def refuse_size(vocab: int, best: int) -> str | None:
    """Return the reason why the kernels cannot select so many tokens, or None."""
    if triton.cdiv(vocab, PIECE) > MAX_PIECES:
        return f"since it reads at most {MAX_PIECES * PIECE} logits of a beam"
    if _next_power(best) * PIECE > MAX_TOKENS:
        return f"since it selects at most {MAX_TOKENS // PIECE} tokens of a beam"
    return None


def extend_rows(
    logits: Float[Tensor, "beams vocab"],
    scores: Float[Tensor, "rows width"],
    over: Bool[Tensor, "rows width"],
    limits: Int[Tensor, " rows"],
    longest: Float[Tensor, "rows 1"],
    ended_scores: Float[Tensor, "rows kept 3"],
    ended_places: Int[Tensor, "rows kept 3"],
    *,
    step: int,
    best: int,
    beams: int,
    penalty: float,
    has_limit: bool,
    allows_end: bool,
    allows_unknown: bool,
) -> ExtendedRows:
    """Extend the hypotheses of every row by one token."""
    (rows, width), kept = scores.shape, ended_scores.shape[1]
    logits = logits if logits.stride(1) == 1 else logits.contiguous()
    vocab, stride = logits.shape[1], logits.stride(0)
    pieces = triton.cdiv(vocab, PIECE)
    floats: dict[str, Any] = {"dtype": torch.float32, "device": logits.device}
    longs: dict[str, Any] = {"dtype": torch.long, "device": logits.device}
    highest, sums, allowed = torch.empty(3, rows * width, pieces, **floats)
    shift, log_sums = torch.empty(2, rows * width, **floats)
    values = torch.empty(rows * width, best, **floats)
    places = torch.empty(rows * width, best, dtype=torch.int32, device=logits.device)
    never = {"NO_UNK": not allows_unknown, "NO_EOS": not allows_end}
    symbols = {"PAD": PAD, "BOS": BOS, "EOS": EOS, "UNK": UNK}
    after = ExtendedRows(
        tokens=torch.empty(rows, beams, **longs),
        parents=torch.empty(rows, beams, **longs),
        scores=torch.empty(rows, beams, **floats),
        log_probs=torch.empty(rows, beams, **floats),
        over=torch.empty(rows, beams, dtype=torch.bool, device=logits.device),
        ended_scores=torch.empty(rows, kept, 3, **floats),
        ended_places=torch.empty(rows, kept, 3, **longs),
    )
    with on(logits):
        _sums_of_pieces[(rows * width, triton.cdiv(pieces, TOGETHER))](
            logits,
            highest,
            sums,
            allowed,
            vocab,
            stride,
            pieces,
            PIECE=PIECE,
            TOGETHER=TOGETHER,
            **never,
            **symbols,
            num_warps=1,
        )
        _best_of_beam[(rows * width,)](
            logits,
            highest,
            sums,
            allowed,
            shift,
            log_sums,
            values,
            places,
            vocab,
            stride,
            PIECES=pieces,
            PIECES_PAD=_next_power(pieces),
            BEST=best,
            BEST_PAD=_next_power(best),
            PIECE=PIECE,
            **never,
            **symbols,
            num_warps=4,
        )
        _extend_row[(rows,)](
            logits,
            shift,
            log_sums,
            values,
            places,
            scores.contiguous(),
            over.contiguous().view(torch.uint8),
            limits,
            longest,
            ended_scores.contiguous(),
            ended_places.contiguous(),
            *after._replace(over=after.over.view(torch.uint8)),
            vocab,
            stride,
            step,
            1.0 / penalty,
            WIDTH=width,
            WIDTH_PAD=_next_power(width),
            BEST=best,
            BEST_PAD=_next_power(best),
            BEAMS=beams,
            BEAMS_PAD=_next_power(beams),
            KEPT=kept,
            KEPT_PAD=_next_power(kept),
            LIMITED=has_limit,
            EOS=EOS,
            num_warps=1,
        )
    return after


def _next_power(n: int) -> int:
    return 1 << (n - 1).bit_length()


@triton.jit
def _allowed(
    x,
    token,
    NO_UNK: tl.constexpr,
    NO_EOS: tl.constexpr,
    PAD: tl.constexpr,
    BOS: tl.constexpr,
    EOS: tl.constexpr,
    UNK: tl.constexpr,
):
    """Return logits, with -inf in the places of tokens that are not to be chosen."""
    x = tl.where((token == PAD) | (token == BOS), float("-inf"), x)
    if NO_UNK:
        x = tl.where(token == UNK, float("-inf"), x)
    if NO_EOS:
        x = tl.where(token == EOS, float("-inf"), x)
    return x


@triton.jit
def _sums_of_pieces(
    logits,
    highest,
    sums,
    allowed,
    vocab,
    stride,
    pieces,
    PIECE: tl.constexpr,
    TOGETHER: tl.constexpr,
    NO_UNK: tl.constexpr,
    NO_EOS: tl.constexpr,
    PAD: tl.constexpr,
    BOS: tl.constexpr,
    EOS: tl.constexpr,
    UNK: tl.constexpr,
):
    """Write the maximum of each piece, the sum of its exponentials, and its best allowed logit."""
    beam = tl.program_id(0).to(tl.int64)
    piece = tl.program_id(1) * TOGETHER + tl.arange(0, TOGETHER)
    token = piece[:, None] * PIECE + tl.arange(0, PIECE)[None, :]
    x = tl.load(logits + beam * stride + token, mask=token < vocab, other=float("-inf"))
    x = x.to(tl.float32)
    most = tl.max(x, axis=1)
    # a piece of -inf alone adds nothing, and must not make NaN of it
    shift = tl.where(most == float("-inf"), 0.0, most)
    out, is_piece = beam * pieces + piece, piece < pieces
    tl.store(highest + out, most, mask=is_piece)
    tl.store(sums + out, tl.sum(tl.exp(x - shift[:, None]), axis=1), mask=is_piece)
    x = _allowed(x, token, NO_UNK, NO_EOS, PAD, BOS, EOS, UNK)
    tl.store(allowed + out, tl.max(x, axis=1), mask=is_piece)


@triton.jit
def _best_of_beam(
    logits,
    highest,
    sums,
    allowed,
    shifts,
    log_sums,
    values,
    places,
    vocab,
    stride,
    PIECES: tl.constexpr,
    PIECES_PAD: tl.constexpr,
    BEST: tl.constexpr,
    BEST_PAD: tl.constexpr,
    PIECE: tl.constexpr,
    NO_UNK: tl.constexpr,
    NO_EOS: tl.constexpr,
    PAD: tl.constexpr,
    BOS: tl.constexpr,
    EOS: tl.constexpr,
    UNK: tl.constexpr,
):
    """Write what normalises a beam's logits, and its best tokens."""
    NEVER: tl.constexpr = float("-inf")
    beam = tl.program_id(0).to(tl.int64)
    piece = tl.arange(0, PIECES_PAD)
    own, is_piece = beam * PIECES + piece, piece < PIECES
    most = tl.load(highest + own, mask=is_piece, other=NEVER)
    total = tl.load(sums + own, mask=is_piece, other=0.0)
    top = tl.max(most, axis=0)
    shift = tl.where(top == NEVER, 0.0, top)
    share = tl.where(most == NEVER, 0.0, tl.exp(most - shift))
    total_sum = tl.sum(total * share, axis=0)
    tl.store(shifts + beam, shift)
    tl.store(log_sums + beam, tl.log(tl.where(total_sum > 0, total_sum, 1.0)))

    # each of the best tokens is in one of as many pieces; of equal ones in the first
    best = tl.load(allowed + own, mask=is_piece, other=NEVER)
    slot = tl.arange(0, BEST_PAD)
    chosen = tl.full([BEST_PAD], PIECES, tl.int32)
    free = is_piece
    for i in range(BEST):
        value = tl.max(tl.where(free, best, NEVER), axis=0)
        place = tl.min(tl.where(free & (best == value), piece, PIECES), axis=0)
        # if no other is equal: NaN, or no piece is left
        place = tl.where(place < PIECES, place, tl.min(tl.where(free, piece, PIECES), axis=0))
        chosen = tl.where(slot == i, place, chosen)
        free = free & (piece != place)
    token = chosen[:, None] * PIECE + tl.arange(0, PIECE)[None, :]
    x = tl.load(logits + beam * stride + token, mask=token < vocab, other=NEVER).to(tl.float32)
    x = _allowed(x, token, NO_UNK, NO_EOS, PAD, BOS, EOS, UNK)
    for i in range(BEST):
        value = tl.max(tl.max(x, axis=1), axis=0)
        # the lowest of equal tokens; any at all if the logits are NaN
        lowest = tl.min(tl.min(tl.where(x == value, token, vocab), axis=1), axis=0)
        place = tl.minimum(lowest, vocab - 1)
        tl.store(values + beam * BEST + i, value)
        tl.store(places + beam * BEST + i, place)
        x = tl.where(token == place, NEVER, x)


@triton.jit(do_not_specialize=["step"])
def _extend_row(
    logits,
    shifts,
    log_sums,
    values,
    places,
    scores,
    over,
    limits,
    longest,
    ended_scores,
    ended_places,
    new_tokens,
    new_parents,
    new_scores,
    new_log_probs,
    new_over,
    new_ended_scores,
    new_ended_places,
    vocab,
    stride,
    step,
    factor,
    WIDTH: tl.constexpr,
    WIDTH_PAD: tl.constexpr,
    BEST: tl.constexpr,
    BEST_PAD: tl.constexpr,
    BEAMS: tl.constexpr,
    BEAMS_PAD: tl.constexpr,
    KEPT: tl.constexpr,
    KEPT_PAD: tl.constexpr,
    LIMITED: tl.constexpr,
    EOS: tl.constexpr,
):
    """Extend the hypotheses of one row by their best candidates."""
    NEVER: tl.constexpr = float("-inf")
    row = tl.program_id(0).to(tl.int64)
    beam = tl.arange(0, WIDTH_PAD)
    is_beam = beam < WIDTH
    first = row * WIDTH

    shift = tl.load(shifts + first + beam, mask=is_beam, other=0.0)
    log_sum = tl.load(log_sums + first + beam, mask=is_beam, other=0.0)
    is_over = tl.load(over + first + beam, mask=is_beam, other=1) != 0
    score = tl.load(scores + first + beam, mask=is_beam, other=NEVER)
    score = tl.where(is_over, NEVER, score)

    column = tl.arange(0, BEST_PAD)
    place = (first + beam[:, None]) * BEST + column[None, :]
    is_candidate = is_beam[:, None] & (column < BEST)[None, :]
    x = tl.load(values + place, mask=is_candidate, other=NEVER)
    token = tl.load(places + place, mask=is_candidate, other=0)
    log_prob = (x - shift[:, None]) - log_sum[:, None]
    is_cut = tl.zeros([WIDTH_PAD], dtype=tl.int64)
    if LIMITED:
        at_limit = tl.load(limits + row) <= step
        end = tl.load(logits + (first + beam) * stride + EOS, mask=is_beam, other=NEVER)
        end_log_prob = (end.to(tl.float32) - shift) - log_sum
        wants_more = tl.max(log_prob, axis=1) > end_log_prob
        is_cut = (wants_more & at_limit).to(tl.int64)
        # the end is the one candidate of each beam
        is_end = (column == 0)[None, :] & is_beam[:, None]
        forced = tl.where(is_end, end_log_prob[:, None], NEVER)
        log_prob = tl.where(at_limit, forced, log_prob)
        token = tl.where(at_limit & is_end, EOS, token)
    totals = tl.where(is_candidate, log_prob + score[:, None], NEVER)
    code = beam[:, None] * vocab + token

    slot = tl.arange(0, BEAMS_PAD)
    live = 0
    live_scores = tl.full([BEAMS_PAD], NEVER, tl.float32)
    live_log_probs = tl.full([BEAMS_PAD], NEVER, tl.float32)
    live_tokens = tl.full([BEAMS_PAD], EOS, tl.int64)
    live_parents = tl.zeros([BEAMS_PAD], dtype=tl.int64) + first

    rank = tl.arange(0, KEPT_PAD)
    is_kept = rank < KEPT
    kept = (row * KEPT + rank) * 3
    e_score = tl.load(ended_scores + kept, mask=is_kept, other=NEVER)
    e_log_prob = tl.load(ended_scores + kept + 1, mask=is_kept, other=NEVER)
    e_last = tl.load(ended_scores + kept + 2, mask=is_kept, other=NEVER)
    e_step = tl.load(ended_places + kept, mask=is_kept, other=0)
    e_beam = tl.load(ended_places + kept + 1, mask=is_kept, other=0)
    e_cut = tl.load(ended_places + kept + 2, mask=is_kept, other=0)
    before = rank[None, :] == rank[:, None] - 1  # (rank, the rank before it)

    for i in range(BEST):
        value = tl.max(tl.max(totals, axis=1), axis=0)
        # the lower hypothesis and then the lower token among equals; any if they are NaN
        lowest = tl.min(tl.min(tl.where(totals == value, code, WIDTH * vocab), axis=1), axis=0)
        chosen = tl.minimum(lowest, WIDTH * vocab - 1)
        parent = chosen // vocab
        new = (chosen % vocab).to(tl.int64)
        is_chosen = code == chosen
        term = tl.max(tl.max(tl.where(is_chosen, log_prob, NEVER), axis=1), axis=0)
        totals = tl.where(is_chosen, NEVER, totals)
        ends = new == EOS
        # among equals the hypothesis that ended first stays before
        result = value * factor
        cut = tl.sum(tl.where(beam == parent, is_cut, 0), axis=0)
        index = tl.sum(((e_score >= result) & is_kept).to(tl.int32), axis=0)
        index = tl.where(ends & (value > NEVER) & (i < BEAMS), index, KEPT_PAD)
        here, later = rank == index, rank > index
        moved = tl.max(tl.where(before, e_score[None, :], NEVER), axis=1)
        e_score = tl.where(here, result, tl.where(later, moved, e_score))
        moved = tl.max(tl.where(before, e_log_prob[None, :], NEVER), axis=1)
        e_log_prob = tl.where(here, value, tl.where(later, moved, e_log_prob))
        moved = tl.max(tl.where(before, e_last[None, :], NEVER), axis=1)
        e_last = tl.where(here, term, tl.where(later, moved, e_last))
        moved_place = tl.sum(tl.where(before, e_step[None, :], 0), axis=1)
        e_step = tl.where(here, step, tl.where(later, moved_place, e_step))
        moved_place = tl.sum(tl.where(before, e_beam[None, :], 0), axis=1)
        e_beam = tl.where(here, first + parent, tl.where(later, moved_place, e_beam))
        moved_place = tl.sum(tl.where(before, e_cut[None, :], 0), axis=1)
        e_cut = tl.where(here, cut, tl.where(later, moved_place, e_cut))
        goes_on = slot == live
        if BEST > 1:
            goes_on = goes_on & (new != EOS)
        live_scores = tl.where(goes_on, tl.where(ends, NEVER, value), live_scores)
        live_log_probs = tl.where(goes_on, term, live_log_probs)
        live_tokens = tl.where(goes_on, new, live_tokens)
        live_parents = tl.where(goes_on, first + parent, live_parents)
        live += tl.where(ends, 0, 1)

    worst = tl.max(tl.where(rank == KEPT - 1, e_score, NEVER), axis=0).to(tl.float64)
    most = live_scores.to(tl.float64) / tl.load(longest + row)
    out = row * BEAMS + slot
    is_slot = slot < BEAMS
    tl.store(new_tokens + out, live_tokens, mask=is_slot)
    tl.store(new_parents + out, live_parents, mask=is_slot)
    tl.store(new_scores + out, live_scores, mask=is_slot)
    tl.store(new_log_probs + out, live_log_probs, mask=is_slot)
    tl.store(new_over + out, (most <= worst).to(tl.uint8), mask=is_slot)
    tl.store(new_ended_scores + kept, e_score, mask=is_kept)
    tl.store(new_ended_scores + kept + 1, e_log_prob, mask=is_kept)
    tl.store(new_ended_scores + kept + 2, e_last, mask=is_kept)
    tl.store(new_ended_places + kept, e_step, mask=is_kept)
    tl.store(new_ended_places + kept + 1, e_beam, mask=is_kept)
    tl.store(new_ended_places + kept + 2, e_cut, mask=is_kept)
