"""The heart of beam search: the best ways to go on, as a pure function.

Ties go to the lower hypothesis and then to the lower token, on every device and in every batch.
Half-precision logits have many.
"""

from typing import Final, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.decoding_options import DecodingOptions

# Tokens whose maximum stands for all of them when a vocabulary is searched.
BLOCK: Final = 64


class Candidates(NamedTuple):
    """Ways to go on, best first; each tensor is (rows, k).

    Attributes:
        parents: which hypothesis of the row goes on.
        tokens: with which token.
        log_probs: of that token.
        scores: of the hypothesis with it; -inf if it is none.
    """

    parents: Tensor
    tokens: Tensor
    log_probs: Tensor
    scores: Tensor


def select(
    log_probs: Float[Tensor, "rows lanes vocab"],
    scores: Float[Tensor, "rows lanes"],
    finished: Bool[Tensor, "rows lanes"],
    k: int,
) -> Candidates:
    """The k best of all hypotheses of a row with one more token each.

    A large vocabulary is read once, and neither copied nor sorted: see `_select_by_blocks`.

    Args:
        log_probs: of each token after each hypothesis.
        scores: of the hypotheses so far.
        finished: hypotheses that do not go on.
        k: how many; fewer are returned if there are fewer.
    """
    scores = scores.masked_fill(finished, float("-inf"))
    if log_probs.shape[2] > 4 * BLOCK:
        return _select_by_blocks(log_probs, scores, k)
    totals, index = top((log_probs + scores[..., None]).flatten(1), k)
    vocab = log_probs.shape[2]
    own = log_probs.flatten(1).gather(1, index)
    return Candidates(index // vocab, index % vocab, own, totals)


def top(
    values: Float[Tensor, "rows n"], k: int
) -> tuple[Float[Tensor, "rows k"], Int[Tensor, "rows k"]]:
    """The k largest of each row and where they stand, the earlier first among equals.

    `topk` takes any of equal values, so it only says where the edge is.
    """
    n = values.shape[1]
    k = min(k, n)
    if k == 1:
        kept, index = values.max(dim=1, keepdim=True)
        return kept, index
    edge = values.topk(k).values[:, -1:]
    earlier = torch.arange(n, 0, -1, device=values.device)
    order = torch.where(values > edge, earlier + n, earlier * (values == edge))
    index = order.topk(k).indices  # ascending below n and above it, since no two are equal
    kept, rank = values.gather(1, index).sort(dim=1, descending=True, stable=True)
    return kept, index.gather(1, rank)


def _select_by_blocks(
    log_probs: Float[Tensor, "rows lanes vocab"], scores: Float[Tensor, "rows lanes"], k: int
) -> Candidates:
    """The same choice: the k best tokens are in the k blocks with the best maxima."""
    vocab, flat = log_probs.shape[2], log_probs.flatten(1)
    highest = _block_maxima(log_probs)
    blocks = highest.shape[2]
    # in the order of the vocabulary again, so that the earlier of equals stays the earlier
    index = top((highest + scores[..., None]).flatten(1), k)[1].sort(dim=1).values
    lane = index // blocks
    first = index % blocks * BLOCK
    tokens = first[..., None] + torch.arange(BLOCK, device=first.device)  # (rows, k, BLOCK)
    places = lane[..., None] * vocab + tokens.clamp(max=vocab - 1)
    own = flat.gather(1, places.flatten(1)).view_as(places)
    totals = (own + scores.gather(1, lane)[..., None]).masked_fill(tokens >= vocab, float("-inf"))
    best, which = top(totals.flatten(1), k)
    return Candidates(
        lane.gather(1, which // BLOCK),
        tokens.flatten(1).gather(1, which).clamp(max=vocab - 1),
        own.flatten(1).gather(1, which),
        best,
    )


def _block_maxima(
    log_probs: Float[Tensor, "rows lanes vocab"],
) -> Float[Tensor, "rows lanes blocks"]:
    """The best of each `BLOCK` tokens; the last block may have fewer."""
    rows, lanes, vocab = log_probs.shape
    whole = vocab // BLOCK
    highest = log_probs[..., : whole * BLOCK].view(rows, lanes, whole, BLOCK).amax(dim=3)
    if vocab % BLOCK == 0:
        return highest
    rest = log_probs[..., whole * BLOCK :].amax(dim=2, keepdim=True)
    return torch.cat([highest, rest], dim=2)


def draw(
    log_probs: Float[Tensor, "rows vocab"],
    options: DecodingOptions,
    generator: torch.Generator | None = None,
) -> Int[Tensor, "rows 1"]:
    """A token for each row. What is -inf is never drawn; the rest need not sum to 1.

    The distribution function is inverted, at the cost of one random number per row.
    """
    # the best is 0, whatever it is divided by, and in double precision nothing else overflows
    wide = log_probs.double()
    scores, tokens = (wide - wide.amax(dim=1, keepdim=True)) / options.temperature, None
    if options.top_k or options.top_p < 1:
        scores, tokens = top(scores, options.top_k or scores.shape[1])
    probs = scores.softmax(dim=1)
    if options.top_p < 1:
        before = probs.cumsum(dim=1) - probs
        probs = probs.masked_fill(before >= options.top_p, 0.0)
    mass = probs.cumsum(dim=1)
    total = mass[:, -1:]
    point = torch.rand(total.shape, dtype=total.dtype, device=total.device, generator=generator)
    # below the total whatever the rounding, so that the token found has a probability
    point = torch.minimum(point * total, torch.nextafter(total, torch.zeros_like(total)))
    place = torch.searchsorted(mass, point, right=True).clamp(max=mass.shape[1] - 1)
    return place if tokens is None else tokens.gather(1, place)
