"""What a caller may ask of decoding."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, SupportsIndex

from regard.errors import ArgumentError
from regard.symbols import BOS, EOS, PAD


@dataclass(frozen=True, kw_only=True)
class DecodingOptions:
    """How targets are searched for, or drawn.

    Attributes:
        beam: hypotheses that a source has at a time; 1 is greedy.
        nbest: hypotheses to return for each source; at most `beam`.
        max_len: the most tokens of a target, `eos` not counted. If None it grows with the source:
        max_len_ratio: so many for each source token, or each vector that an adapter makes,
        max_len_extra: and so many more. A model that writes one token for each of its source, as
            `Tagger`, writes as many as these, or `max_len` if that is fewer, and never `unk`.
        min_len: the fewest tokens of a target; it gives way where nothing else may be written.
        length_penalty: alpha of Wu et al. (2016), https://arxiv.org/abs/1609.08144, eq. 14: the
            score is `log_prob / ((5 + n) / 6) ** alpha` with n tokens, `eos` counted. 0 for none.
        coverage_penalty: beta of the same equation: what source tokens cost that got less than one
            whole look. It needs a model with cross attention. 0 for none.
        no_repeat_ngram: no n-gram of this length comes twice in a target; 0 for no such rule.
        prefix: tokens that a target begins with, a list for each source.
        forbid_unknown: whether `unk` is never written.
        num_samples: targets to draw for each source; 0 searches for the best one instead.
        temperature: what logits are divided by before a draw.
        top_k: how many of the likeliest tokens a draw is among; 0 for all.
        top_p: a draw is among the fewest likeliest tokens that have this probability together.
        seed: of the draws; None for torch's own state.
    """

    beam: int = 5
    nbest: int = 1
    max_len: int | None = None
    max_len_ratio: float = 2.0
    max_len_extra: int = 20
    min_len: int = 0
    length_penalty: float = 0.6
    coverage_penalty: float = 0.0
    no_repeat_ngram: int = 0
    prefix: Sequence[Sequence[int]] | None = None
    forbid_unknown: bool = False
    num_samples: int = 0
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int | None = None

    def __post_init__(self) -> None:
        check_least(1, beam=self.beam, nbest=self.nbest)
        check_least(
            0,
            max_len=0 if self.max_len is None else self.max_len,
            max_len_extra=self.max_len_extra,
            min_len=self.min_len,
            no_repeat_ngram=self.no_repeat_ngram,
            num_samples=self.num_samples,
            top_k=self.top_k,
        )
        for name in ("max_len_ratio", "length_penalty", "coverage_penalty"):
            _check_finite(name, getattr(self, name))
        self._check_sampling()
        self._check_together()
        for row, tokens in enumerate(self.prefix or ()):
            _check_prefix(row, tokens)

    def _check_sampling(self) -> None:
        if not 0 < self.temperature < math.inf:
            raise ArgumentError(
                "temperature",
                "be a number above 0",
                self.temperature,
                "1 draws from the model's own distribution, less is nearer to its best token",
            )
        if not 0 < self.top_p <= 1:
            raise ArgumentError(
                "top_p", "be above 0 and at most 1", self.top_p, "1 draws among all tokens"
            )
        if self.seed is not None:
            check_whole(seed=self.seed)
            if not -(2**63) <= self.seed < 2**64:
                raise ArgumentError("seed", "have at most 64 bits", self.seed, "choose a smaller")
        drawing = self.temperature != 1 or self.top_k or self.top_p < 1
        if drawing and not self.num_samples:
            raise ArgumentError(
                "num_samples",
                "be at least 1 where temperature, top_k or top_p is given",
                0,
                "set num_samples=1 to draw one target for each source",
            )

    def _check_together(self) -> None:
        if self.nbest > self.beam:
            raise ArgumentError(
                "nbest",
                f"be at most beam = {self.beam}",
                self.nbest,
                f"set beam={self.nbest}, or ask for fewer",
            )
        if self.max_len is None:
            return
        if self.min_len > self.max_len:
            raise ArgumentError(
                "min_len",
                f"be at most max_len = {self.max_len}",
                self.min_len,
                "lower it, or raise max_len",
            )
        longest = max(map(len, self.prefix or ((),)), default=0)
        if longest > self.max_len:
            raise ArgumentError(
                "prefix",
                f"have at most max_len = {self.max_len} tokens",
                f"one of {longest}",
                "shorten it, or raise max_len",
            )


def check_whole(**values: object) -> None:
    """Raises unless the values are whole numbers, numpy's among them."""
    for name, value in values.items():
        if not isinstance(value, SupportsIndex):
            raise ArgumentError(name, "be a whole number", repr(value), "choose one")


def check_least(least: int, **values: int) -> None:
    """Raises unless the values are whole numbers, and at least this."""
    check_whole(**values)
    for name, value in values.items():
        if value < least:
            raise ArgumentError(name, f"be at least {least}", value, "choose a larger number")


def _check_finite(name: str, value: float) -> None:
    if not 0 <= value < math.inf:
        raise ArgumentError(name, "be a finite number from 0 up", value, "0 switches it off")


def _check_prefix(row: int, tokens: Sequence[int]) -> None:
    wrong = [token for token in tokens if token < 0 or token in (PAD, BOS, EOS)]
    if wrong:
        raise ArgumentError(
            "prefix",
            f"hold ids of words, none below 0 and none of pad, bos, eos = {PAD}, {BOS}, {EOS}",
            f"{list(tokens)} in row {row}",
            f"leave out {wrong[0]}",
        )


DEFAULT: Final = DecodingOptions()
