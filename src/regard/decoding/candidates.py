"""The heart of beam search as a pure function: the best candidates of a step; and sampling.

Ties go to the lower hypothesis and then to the lower token, on every device and in every batch.
Half-precision logits have many.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from regard.decoding_options import DecodingOptions
from regard.errors import ArgumentError
from regard.state import State
from regard.symbols import BOS, EOS, PAD, UNK

NEVER = float("-inf")
#: the most tokens that a target may be allowed to have
MOST_TOKENS: Final = 100_000


@dataclass(frozen=True)
class Constraints(State):
    """The constraints of each row.

    Attributes:
        limits: most tokens of a target, `eos` not counted.
        exact: number of tokens of a target, unless its limit is lower; None if the model chooses.
        prefix: tokens that must come first, `pad` after the last; None if there are none.
        forced: number of first tokens of it whose probability counts as 1.
        forced_end: whether that of an `eos` at the limit does.
        ends: tokens as the likeliest of which `eos` counts.
        suppressed: tokens that are never written, the same in each row; None if there are none.
        suppressed_first: tokens that are not written at step `forced`.
        shortest: the smallest of the limits, known without asking the device.
        longest: the largest of them.
        min_len: fewest tokens of a target.
        ngram: length of the n-grams that may not repeat; 0 allows all.
        never: tokens that are never allowed.
    """

    limits: Int[Tensor, " rows"]
    exact: Int[Tensor, " rows"] | None
    prefix: Int[Tensor, "rows prefix_len"] | None
    forced: int
    forced_end: bool
    ends: tuple[int, ...]
    suppressed: Int[Tensor, "rows tokens"] | None
    suppressed_first: tuple[int, ...]
    shortest: int
    longest: int
    min_len: int
    ngram: int
    never: tuple[int, ...]

    @staticmethod
    def of(
        options: DecodingOptions,
        lengths: Int[Tensor, " rows"],
        exact: Int[Tensor, " rows"] | None = None,
        positions: int | None = None,
        *,
        known_lengths: Sequence[int] | None = None,
    ) -> "Constraints":
        """Return the constraints of `options` for sources of these lengths."""
        if exact is None:
            read = lengths.tolist() if known_lengths is None else known_lengths
            limits = _limits(options, read)
        else:
            limits = _exact_limits(options, exact.tolist())
        limits = _within(limits, options, positions)
        # an unknown token is not part of a text, which would be shorter than it has to be
        forbid_unknown = options.forbid_unknown or exact is not None
        return Constraints(
            limits=torch.tensor(limits, dtype=torch.long, device=lengths.device),
            exact=exact,
            prefix=_padded(options.prefix or (), lengths.device),
            forced=options.forced,
            forced_end=options.forced_end,
            ends=options.ends,
            suppressed=_padded([options.suppressed] * len(limits), lengths.device),
            suppressed_first=options.suppressed_first,
            shortest=min(limits),
            longest=max(limits),
            min_len=options.min_len,
            ngram=options.no_repeat_ngram,
            never=(PAD, BOS, UNK) if forbid_unknown else (PAD, BOS),
        )

    def allow(
        self,
        log_probs: Float[Tensor, "rows beams vocab"],
        step: int,
        history: Int[Tensor, "rows beams step"] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Set tokens that are not allowed to -inf, in place, since `log_probs` is large.

        Returns these, (rows, beams, vocab), and where the length limit forbids a likelier token,
        (rows, beams); None if no row is at its limit.
        """
        must, prefix_scores = self._prefix_at(log_probs, step)
        end, never = log_probs[..., EOS].clone(), (*self.never, *self.ends)
        for token in self.ends:
            log_probs[..., EOS] = end = torch.maximum(end, log_probs[..., token])
        for token in never:
            log_probs[..., token] = NEVER
        if step == self.forced:
            for token in self.suppressed_first:
                log_probs[..., token] = NEVER
        if self.suppressed is not None:
            places = self.suppressed[:, None].expand(-1, log_probs.shape[1], -1)
            log_probs.scatter_(2, places, NEVER)
        if self.ngram and history is not None:
            log_probs = self._without_repeats(log_probs, history)
        if self.exact is not None:
            log_probs[..., EOS] = end.masked_fill((self.exact > step)[:, None], NEVER)
        elif step < self.min_len:
            log_probs[..., EOS] = NEVER
            if log_probs.shape[2] <= 1 + len(never) + (step if self.ngram else 0):
                stuck = log_probs.amax(dim=2) == NEVER
                log_probs[..., EOS] = end.where(stuck, NEVER)
        cut = None
        if step >= self.shortest:
            at_limit = (self.limits <= step)[:, None]
            cut = at_limit & self._wants_more(log_probs, end, step)
            log_probs.masked_fill_(at_limit[..., None], NEVER)
            forced = torch.zeros_like(end) if self.forced_end else end
            log_probs[..., EOS] = forced.where(at_limit, log_probs[..., EOS])
        if must is not None and prefix_scores is not None:
            log_probs.masked_fill_((must != PAD)[..., None], NEVER)
            log_probs.scatter_(2, must.expand_as(end)[..., None], prefix_scores[..., None])
        return log_probs, cut

    def refuses_kernels(self, step: int) -> bool:
        """Return whether a step has constraints that kernels do not know."""
        prefixed = self.prefix is not None and step < self.prefix.shape[1]
        ended = self.forced_end and step >= self.shortest
        others = self.ends or self.suppressed_first or self.suppressed is not None
        return bool(prefixed or ended or others)

    def _wants_more(
        self, log_probs: Tensor, end: Float[Tensor, "rows beams"], step: int
    ) -> Bool[Tensor, "rows beams"]:
        """Return where a target would go on if it had no limit."""
        if self.exact is not None:
            return (self.exact > step)[:, None].expand_as(end)
        return log_probs.amax(dim=2) > end

    def _without_repeats(
        self, log_probs: Float[Tensor, "rows beams vocab"], history: Int[Tensor, "rows beams step"]
    ) -> Float[Tensor, "rows beams vocab"]:
        """Forbid repeated n-grams, unless a target must go on and nothing else is allowed."""
        if self.exact is None:
            _forbid_repeats(log_probs, history, self.ngram)
            return log_probs
        before = log_probs.clone()
        _forbid_repeats(log_probs, history, self.ngram)
        words = log_probs.clone()
        words[..., EOS] = NEVER
        stuck = words.amax(dim=2, keepdim=True) == NEVER
        return torch.where(stuck, before, log_probs)

    def _prefix_at(
        self, log_probs: Tensor, step: int
    ) -> tuple[Int[Tensor, "rows 1"] | None, Float[Tensor, "rows beams"] | None]:
        """Return the token that must come next, `pad` if any may, and its scores."""
        if self.prefix is None or step >= self.prefix.shape[1]:
            return None, None
        must = self.prefix[:, step, None]
        places = must.expand(log_probs.shape[:2])[..., None]
        own = log_probs.gather(2, places).squeeze(2)
        own = torch.zeros_like(own) if step < self.forced else own
        return must, own.masked_fill(must == PAD, NEVER)


def check_prefix(
    prefix: Sequence[Sequence[int]] | None, *, rows: int | None = None, vocab: int | None = None
) -> None:
    """Raises unless there is a prefix for each row, made of ids of the vocabulary."""
    if prefix is None:
        return
    if rows is not None and len(prefix) != rows:
        raise ArgumentError(
            "prefix",
            f"have a list of tokens for each of the {rows} sources",
            f"a list of {len(prefix)}",
            "give sources without a prefix an empty list",
        )
    highest = max((max(tokens, default=0) for tokens in prefix), default=0)
    if vocab is not None and highest >= vocab:
        raise ArgumentError(
            "prefix",
            f"hold ids below {vocab}, the size of the target vocabulary",
            highest,
            "check that the tokeniser is the one that the model was made for",
        )


def _limits(options: DecodingOptions, lengths: Sequence[int]) -> list[int]:
    """Return the limit of each row; one by source length is at least `min_len` and the prefix."""
    if options.max_len is not None:
        return [options.max_len] * len(lengths)
    ratio, extra, least = options.max_len_ratio, options.max_len_extra, options.min_len
    first = options.prefix or [()] * len(lengths)
    return [
        max(math.floor(ratio * length) + extra, least, len(tokens))
        for length, tokens in zip(lengths, first, strict=True)
    ]


def _exact_limits(options: DecodingOptions, exact: list[int]) -> list[int]:
    """Return the limit of each row of known length: only `max_len` may be below it."""
    for row, (tokens, length) in enumerate(zip(options.prefix or (), exact, strict=False)):
        if len(tokens) > length:
            raise ArgumentError(
                "prefix",
                "have at most as many tokens as the model writes for its source",
                f"{len(tokens)} for {length} in row {row}",
                "shorten it",
            )
    most = max(exact, default=0) if options.max_len is None else options.max_len
    return [min(length, most) for length in exact]


def _within(limits: list[int], options: DecodingOptions, positions: int | None) -> list[int]:
    """Return the limits within the positions of a model, of which `bos` takes the first."""
    if max(limits) > MOST_TOKENS and positions is None:
        raise ArgumentError(
            "max_len",
            f"allow at most {MOST_TOKENS:,} tokens of a target",
            f"{max(limits):,}",
            "lower it, or max_len_ratio, max_len_extra or min_len, from which it follows",
        )
    if positions is None:
        return limits
    longest = max(map(len, options.prefix or ()), default=0)
    if longest >= positions:
        raise ArgumentError(
            "prefix",
            f"have at most {positions - 1} tokens, the positions of the model without that of bos",
            f"one of {longest}",
            "shorten it",
        )
    return [min(limit, positions - 1) for limit in limits]


def _padded(
    prefix: Sequence[Sequence[int]], device: torch.device
) -> Int[Tensor, "rows prefix_len"] | None:
    width = max(map(len, prefix), default=0)
    if not width:
        return None
    rows = [[*tokens, *[PAD] * (width - len(tokens))] for tokens in prefix]
    return torch.tensor(rows, dtype=torch.long, device=device)


def _forbid_repeats(
    log_probs: Float[Tensor, "rows beams vocab"], history: Int[Tensor, "rows beams step"], n: int
) -> None:
    """Forbid each token that would complete an n-gram for the second time."""
    step = history.shape[2]
    if step < n:
        return
    grams = history.unfold(2, n, 1)  # (rows, beams, grams, n)
    newest = history[..., step - n + 1 :]  # the n - 1 tokens that the next one follows
    again = (grams[..., :-1] == newest[:, :, None]).all(dim=3)
    # the others point at pad, which is forbidden anyway
    log_probs.scatter_(2, grams[..., -1].where(again, PAD), NEVER)


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
