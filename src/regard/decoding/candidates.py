"""The heart of beam search as a pure function: the best candidates of a step; and sampling.

Ties go to the lower hypothesis and then to the lower token, on every device and in every batch.
Half-precision logits have many.
"""

from typing import Final, NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.decoding_options import DecodingOptions

# Tokens whose maximum stands for all of them when a vocabulary is searched.
BLOCK: Final = 64

#: Steps for which random numbers are drawn at once.
STEPS_DRAWN: Final = 32


class Candidates(NamedTuple):
    """Extensions of hypotheses by one token, best first; each tensor is (rows, k).

    Attributes:
        parents: the hypothesis of the row that is extended.
        tokens: the token that extends it.
        log_probs: the log-probability of that token.
        scores: the log-probability of the extended hypothesis; -inf where there is none.
    """

    parents: Tensor
    tokens: Tensor
    log_probs: Tensor
    scores: Tensor


def select(
    log_probs: Float[Tensor, "rows beams vocab"],
    scores: Float[Tensor, "rows beams"],
    finished: Bool[Tensor, "rows beams"],
    k: int,
) -> Candidates:
    """Return the k best extensions of all hypotheses of a row.

    A large vocabulary is read once, and neither copied nor sorted: see `_select_by_blocks`.
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
    """Return the k largest values of each row and their indices, the earlier first among equals.

    `topk` takes any of equal values, so it only gives the smallest value that is taken.
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
    log_probs: Float[Tensor, "rows beams vocab"], scores: Float[Tensor, "rows beams"], k: int
) -> Candidates:
    """Like `select`: the k best tokens are in the k blocks with the largest maxima."""
    vocab, flat = log_probs.shape[2], log_probs.flatten(1)
    highest = _block_maxima(log_probs)
    blocks = highest.shape[2]
    # in the order of the vocabulary again, so that the earlier of equals stays the earlier
    index = top((highest + scores[..., None]).flatten(1), k)[1].sort(dim=1).values
    beam = index // blocks
    first = index % blocks * BLOCK
    tokens = first[..., None] + torch.arange(BLOCK, device=first.device)  # (rows, k, BLOCK)
    places = beam[..., None] * vocab + tokens.clamp(max=vocab - 1)
    own = flat.gather(1, places.flatten(1)).view_as(places)
    totals = (own + scores.gather(1, beam)[..., None]).masked_fill(tokens >= vocab, float("-inf"))
    best, which = top(totals.flatten(1), k)
    return Candidates(
        beam.gather(1, which // BLOCK),
        tokens.flatten(1).gather(1, which).clamp(max=vocab - 1),
        own.flatten(1).gather(1, which),
        best,
    )


def _block_maxima(
    log_probs: Float[Tensor, "rows beams vocab"],
) -> Float[Tensor, "rows beams blocks"]:
    """Return the maximum of each `BLOCK` tokens; the last block may have fewer."""
    rows, beams, vocab = log_probs.shape
    whole = vocab // BLOCK
    highest = log_probs[..., : whole * BLOCK].view(rows, beams, whole, BLOCK).amax(dim=3)
    if vocab % BLOCK == 0:
        return highest
    rest = log_probs[..., whole * BLOCK :].amax(dim=2, keepdim=True)
    return torch.cat([highest, rest], dim=2)


def draw(
    log_probs: Float[Tensor, "rows vocab"],
    options: DecodingOptions,
    noise: Float[Tensor, "rows 1"],
) -> Int[Tensor, "rows 1"]:
    """Sample a token for each row. Tokens of -inf are never drawn; the rest need not sum to 1.

    `top_k` is from Fan et al. (2018), https://arxiv.org/abs/1805.04833, `top_p` from Holtzman et
    al. (2020), https://arxiv.org/abs/1904.09751. The cumulative distribution is inverted, at the
    cost of one random number per row.
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
    # below the total in spite of rounding, so that the token has a positive probability
    point = torch.minimum(noise * total, torch.nextafter(total, torch.zeros_like(total)))
    place = torch.searchsorted(mass, point, right=True).clamp(max=mass.shape[1] - 1)
    return place if tokens is None else tokens.gather(1, place)


@final
class RandomNumbers:
    """Uniform random numbers of each row and step of a search.

    They belong to a row: when other rows leave the batch does not change them.
    """

    def __init__(self, rows: int, device: torch.device, seed: int | None) -> None:
        self.rows, self.device, self.generator = rows, device, None
        if seed is not None:
            self.generator = torch.Generator(device).manual_seed(seed)
        self._block = torch.empty(rows, 0)

    def at(
        self, step: int, rows: Int[Tensor, " live"], count: int = 1
    ) -> Float[Tensor, "live count"]:
        """Return the numbers of these rows for `count` steps; `count` divides `STEPS_DRAWN`.

        Steps are taken in order.
        """
        place = step % STEPS_DRAWN
        if place == 0:
            shape = (self.rows, STEPS_DRAWN)
            self._block = torch.rand(
                shape, dtype=torch.double, device=self.device, generator=self.generator
            )
        return self._block[:, place : place + count].index_select(0, rows)
