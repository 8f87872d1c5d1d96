"""Options of decoding: defaults, ranges and help texts, from which the command line makes its own.

This file imports nothing heavy, so that a help text can be printed at once, and is copied into
exported folders, whose search follows it.
"""

import math
from collections.abc import Sequence
from dataclasses import Field, dataclass, field, fields
from typing import Any, Final, SupportsIndex

if __package__:
    from regard.errors import ArgumentError
    from regard.symbols import BOS, EOS, PAD
else:  # a copy in an exported folder
    from errors import ArgumentError  # type: ignore[import-not-found,no-redef]
    from symbols import BOS, EOS, PAD  # type: ignore[import-not-found,no-redef]

#: wider searches have no use, and a mistyped width would ask for all memory
MAX_BEAM: Final = 10_000
#: when a search ends, see `DecodingOptions`
STOPPING: Final = ("never", "heuristic", "full")


def _option(default: Any, help: str | None = None, **rules: Any) -> Any:
    """Return a field with its help text and range.

    Args:
        default: the value if none is given.
        help: one sentence for the command line; None for fields that are no option there.
        rules: `min` and `max`, inclusive, or `above`, exclusive; `fix`, for the error; and
            `shown_default`, the default in words.
    """
    return field(default=default, metadata=rules if help is None else {"help": help, **rules})


@dataclass(frozen=True, kw_only=True)
class DecodingOptions:
    """Options of search and sampling. The metadata of a field hold its help and range.

    Attributes:
        max_len: most tokens of a target, `eos` not counted. If None, it is `max_len_ratio` for each
            source token, or each vector that an adapter makes, plus `max_len_extra`. A model that
            writes one token per source token, as `Tagger`, writes as many as there are, or
            `max_len` if that is fewer, and never `unk`.
        min_len: fewest tokens of a target; ignored where no other token is allowed.
        length_penalty: alpha of Wu et al. (2016), https://arxiv.org/abs/1609.08144, eq. 14: the
            score is `log_prob / ((5 + n) / 6) ** alpha` with n tokens, `eos` counted.
        length_base: what is added to lengths: 5, as there, or 0 for `log_prob / n ** alpha`; -n if
            the first n tokens count nothing.
        early_stopping: when the search of a source ends: "never" before no live hypothesis can win,
            which is exact; "heuristic" once `beam` hypotheses have ended and none is as likely for
            its present length; "full" once `beam` have ended. As `generate` of transformers.
        prefix: tokens that a target begins with, a list for each source.
        forced: number of first tokens of the prefix whose probability counts as 1.
        forced_end: whether that of an `eos` which the limit forces does.
        counted_end: whether such an `eos` counts towards the length.
        ends: further tokens that end a target, as the likeliest of which `eos` counts.
        suppressed: tokens that are never written.
        suppressed_first: tokens that may not be the first after the forced ones.
        temperature: divides the logits before sampling.
        top_p: sample among the fewest likeliest tokens with at least this total probability.
    """

    beam: int = _option(5, "Beam width; 1 is greedy search.", min=1, max=MAX_BEAM)
    nbest: int = _option(
        1,
        "Hypotheses per source, at most the beam width. Several are rows of number, rank, score "
        "and text, separated by tabs.",
        min=1,
    )
    max_len: int | None = _option(
        None, "Most tokens of an answer.", min=0, shown_default="by length of the source"
    )
    max_len_ratio: float = _option(2.0, min=0, fix="0 disables it")
    max_len_extra: int = _option(20, min=0)
    min_len: int = _option(0, "Fewest tokens of an answer.", min=0)
    length_penalty: float = _option(
        0.6,
        "Length normalisation; above 0 favours longer answers.",
        min=0,
        max=10,
        fix="0 disables it",
    )
    length_base: int = _option(5, min=-MAX_BEAM)
    early_stopping: str = "never"
    no_repeat_ngram: int = _option(
        0, "Forbid repeated n-grams of this length; 0 allows all.", min=0
    )
    prefix: Sequence[Sequence[int]] | None = None
    forced: int = _option(0, min=0)
    forced_end: bool = False
    counted_end: bool = True
    ends: tuple[int, ...] = ()
    suppressed: tuple[int, ...] = ()
    suppressed_first: tuple[int, ...] = ()
    forbid_unknown: bool = _option(False, "Never write <unk>.")
    num_samples: int = _option(0, "Sample this many answers instead of searching.", min=0)
    temperature: float = _option(
        1.0,
        "Sampling temperature.",
        above=0,
        fix="1 samples from the model's own distribution, less is nearer to its best token",
    )
    top_k: int = _option(0, "Sample among the k likeliest tokens; 0 for all.", min=0)
    top_p: float = _option(
        1.0,
        "Sample among the likeliest tokens with this total probability.",
        above=0,
        max=1,
        fix="1 samples among all tokens",
    )
    seed: int | None = _option(
        None, "Random seed of the samples.", shown_default="a different one each time"
    )

    def __post_init__(self) -> None:
        for option in fields(self):
            _check_range(option, getattr(self, option.name))
        if self.early_stopping not in STOPPING:
            rule = f"be one of {', '.join(STOPPING)}"
            raise ArgumentError("early_stopping", rule, repr(self.early_stopping), "choose one")
        if self.seed is not None:
            check_whole(seed=self.seed)
            if not -(2**63) <= self.seed < 2**64:
                raise ArgumentError("seed", "have at most 64 bits", self.seed, "choose a smaller")
        if (self.temperature != 1 or self.top_k or self.top_p < 1) and not self.num_samples:
            raise ArgumentError(
                "num_samples",
                "be at least 1 where temperature, top_k or top_p is given",
                0,
                "set num_samples=1 to sample one target for each source",
            )
        if self.nbest > self.beam:
            raise ArgumentError(
                "nbest",
                f"be at most beam = {self.beam}",
                self.nbest,
                f"set beam={self.nbest}, or ask for fewer",
            )
        for name in ("ends", "suppressed", "suppressed_first"):
            # a folder's settings are lists, which have no hash
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for token in (*self.ends, *self.suppressed, *self.suppressed_first):
            check_least(EOS, ends_and_suppressed=token)
        for row, tokens in enumerate(self.prefix or ()):
            _check_prefix(row, tokens)
        if self.max_len is not None:
            self._check_max_len(self.max_len)

    def _check_max_len(self, max_len: int) -> None:
        if self.min_len > max_len:
            raise ArgumentError(
                "min_len",
                f"be at most max_len = {max_len}",
                self.min_len,
                "lower it, or raise max_len",
            )
        longest = max(map(len, self.prefix or ((),)), default=0)
        if longest > max_len:
            raise ArgumentError(
                "prefix",
                f"have at most max_len = {max_len} tokens",
                f"one of {longest}",
                "shorten it, or raise max_len",
            )


def given_options(**values: Any) -> dict[str, Any]:
    """Return the options that are given, by name: those that are not None."""
    return {name: value for name, value in values.items() if value is not None}


def check_whole(**values: object) -> None:
    """Raises unless the values are whole numbers, numpy's among them."""
    for name, value in values.items():
        # the check of the protocol takes as long as a small product of matrices
        if type(value) is not int and not isinstance(value, SupportsIndex):
            raise ArgumentError(name, "be a whole number", repr(value), "choose one")


def check_least(least: int, **values: int) -> None:
    """Raises unless the values are whole numbers of at least `least`."""
    check_whole(**values)
    for name, value in values.items():
        if value < least:
            raise ArgumentError(name, f"be at least {least}", value, "choose a larger number")


def _check_range(option: Field[Any], value: Any) -> None:
    """Raises unless a value lies in the range of its field; a None that is the default does."""
    rules = option.metadata
    low, above, high = rules.get("min"), rules.get("above"), rules.get("max", math.inf)
    if (low is None and above is None) or (value is None and option.default is None):
        return
    if low is not None and option.type in (int, int | None):
        check_least(low, **{option.name: value})
        if value > high:
            raise ArgumentError(option.name, f"be at most {high}", value, "choose a smaller one")
    elif above is None and not (low <= value <= high and value < math.inf):
        most = "up" if high == math.inf else f"to {high}"
        raise ArgumentError(
            option.name, f"be a finite number from {low} {most}", value, rules["fix"]
        )
    elif above is not None and not (above < value <= high and value < math.inf):
        most = "" if high == math.inf else f" and at most {high}"
        raise ArgumentError(option.name, f"be a number above {above}{most}", value, rules["fix"])


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
