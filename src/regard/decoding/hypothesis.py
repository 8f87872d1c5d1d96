"""What decoding returns: one target, how likely it is, and where the model looked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from jaxtyping import Bool, Float
from torch import Tensor

from regard.errors import ArgumentError
from regard.models.protocol import Maps
from regard.symbols import SYMBOLS, UNK


@dataclass(frozen=True)
class Hypothesis:
    """One target for a source.

    Attributes:
        tokens: the target, without `bos` and `eos`.
        score: what hypotheses are ranked by: `log_prob` with the penalties that were asked for.
        log_prob: the model's log-probability of the whole target, `eos` included.
        token_log_probs: its terms, one per token and one for `eos`.
        attention: by kind, one tensor (heads, q_len, kv_len) per layer, on the CPU. Row t of
            `cross` is where the model looked when it wrote token t, and the last row when it wrote
            `eos`; its columns are the real source tokens. The columns of `decoder-self` and
            `decoder-history` are the tokens that the model had read by then, `bos` first.
        finished: False if the limit of length cut it off and the model would have gone on.
    """

    tokens: list[int]
    score: float
    log_prob: float
    token_log_probs: list[float]
    attention: Maps = field(default_factory=dict, compare=False)
    finished: bool = True

    def __repr__(self) -> str:
        parts = [f"{len(self.tokens)} tokens", f"score={self.score:.4g}"]
        parts += [f"attention={list(self.attention)}"] * bool(self.attention)
        parts += ["finished=False"] * (not self.finished)
        return f"Hypothesis({', '.join(parts)})"


# A source token that nothing looked at costs beta times the logarithm of this, not infinity:
# local attention gives exact zeros.
LEAST_COVERAGE: Final = 1e-6

Number = TypeVar("Number", float, Tensor)


def length_penalty(length: Number, alpha: float) -> Number:
    """lp(Y) of targets with `length` tokens, `eos` counted: 1 for the shortest that there is."""
    penalty: Number = ((5 + length) / 6) ** alpha
    return penalty


def coverage_penalty(
    coverage: Float[Tensor, "*rows src_len"], real: Bool[Tensor, "*#rows src_len"], beta: float
) -> Float[Tensor, "*rows"]:
    """cp(X; Y): 0 if every source token got one whole look, and less than 0 otherwise."""
    missing = coverage.clamp(LEAST_COVERAGE, 1.0).log().masked_fill(~real, 0.0)
    return beta * missing.sum(dim=-1)


def last_cross_attention(maps: Maps) -> Float[Tensor, "*batch q_len kv_len"] | None:
    """The cross attention of the last layer, mean over its heads; None for a model without one."""
    layers = maps.get("cross")
    return layers[-1].mean(dim=-3) if layers else None


def required_cross_attention(maps: Maps) -> Float[Tensor, "batch q_len kv_len"]:
    """The same, of a model that must have it."""
    look = last_cross_attention(maps)
    if look is None:
        raise ArgumentError(
            "coverage_penalty",
            "be 0 for a model without cross attention",
            "more than 0",
            "leave it out, or use a preset that attends",
        )
    return look


def replace_unknown(
    tokens: Sequence[str],
    attention: Maps,
    src_tokens: Sequence[str],
    *,
    unk: str = SYMBOLS[UNK],
    dictionary: Mapping[str, str] | None = None,
) -> list[str]:
    """The target with each unknown word replaced by the source word that was most looked at.

    Args:
        tokens: the words of a hypothesis.
        attention: of that hypothesis; the last layer of `cross` counts, mean over its heads.
        src_tokens: the words of its source. The map may be wider, if the model read an end symbol.
        unk: how an unknown word is written.
        dictionary: translations of source words; a word that is not in it is copied.
    """
    unknown = [place for place, token in enumerate(tokens) if token == unk]
    if not unknown or not src_tokens:
        return list(tokens)
    look = last_cross_attention(attention)
    if look is None:
        raise ArgumentError(
            "attention",
            "have a map `cross` to replace unknown words by",
            f"of the kinds {sorted(attention)}",
            "decode with need_weights=True and a preset that attends",
        )
    rows, columns = look.shape
    if rows < len(tokens) or columns < len(src_tokens):
        raise ArgumentError(
            "attention",
            f"have a row for each of {len(tokens)} tokens and a column for each of "
            f"{len(src_tokens)} source tokens",
            f"of {rows} rows and {columns} columns",
            "pass the words of the same source and hypothesis",
        )
    replaced, most = list(tokens), look[:, : len(src_tokens)].argmax(dim=1).tolist()
    for place in unknown:
        word = src_tokens[most[place]]
        replaced[place] = word if dictionary is None else dictionary.get(word, word)
    return replaced
