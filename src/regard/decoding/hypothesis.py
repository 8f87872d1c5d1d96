"""Hypotheses: targets that decoding returns, their scores and their attention maps.

Scores are those of Wu et al. (2016), https://arxiv.org/abs/1609.08144, eq. 14:
`log P(Y|X) / lp(Y)`, without its coverage penalty.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from jaxtyping import Float
from torch import Tensor

from regard.errors import ArgumentError
from regard.models.protocol import Maps, is_encoder_map
from regard.symbols import SYMBOLS, UNK

Number = TypeVar("Number", float, Tensor)


@dataclass(frozen=True)
class Hypothesis:
    """One target for a source.

    Attributes:
        tokens: the target, without `bos` and `eos`.
        score: what hypotheses are ranked by: `log_prob` with the length penalty.
        log_prob: the model's log-probability of the whole target, `eos` included.
        token_log_probs: its terms, one per token and one for `eos`.
        attention: by kind, one tensor (heads, q_len, kv_len) per layer, on the CPU. Row t of
            `cross` is where the model looked when it wrote token t, and the last row when it wrote
            `eos`; its columns are the real source tokens. The columns of `decoder-self` and
            `decoder-history` are the tokens that the model had read by then, `bos` first.
        finished: False if the length limit cut it off and the model would have gone on.
        alternatives: if asked for, the likeliest tokens at each place, `eos` last, with their
            log-probabilities, best first; constraints do not count.
    """

    tokens: list[int]
    score: float
    log_prob: float
    token_log_probs: list[float]
    attention: Maps = field(default_factory=dict, compare=False)
    finished: bool = True
    alternatives: list[list[tuple[int, float]]] = field(default_factory=list, compare=False)

    def __repr__(self) -> str:
        parts = [f"{len(self.tokens)} tokens", f"score={self.score:.4g}"]
        parts += [f"attention={list(self.attention)}"] * bool(self.attention)
        parts += ["finished=False"] * (not self.finished)
        return f"Hypothesis({', '.join(parts)})"


def length_penalty(length: Number, alpha: float) -> Number:
    """Return lp(Y) of targets with `length` tokens, `eos` counted; 1 for the shortest."""
    penalty: Number = ((5 + length) / 6) ** alpha
    return penalty


def last_cross_attention(maps: Maps) -> Float[Tensor, "*batch q_len kv_len"] | None:
    """Return the last layer's cross-attention, mean over its heads; None if there is none."""
    layers = maps.get("cross")
    return layers[-1].mean(dim=-3) if layers else None


def maps_on_cpu(maps: Maps, kinds: Collection[str]) -> Maps:
    """Copy the maps of these kinds to the CPU, a whole layer at a time."""
    return {kind: tuple(m.cpu() for m in maps[kind]) for kind in kinds if kind in maps}


def row_maps(maps: Maps, row: int, tgt_len: int, src_len: int) -> Maps:
    """Return the maps of one row, without padding.

    Each is a copy, so that a hypothesis does not hold the maps of its whole batch in memory.
    """
    return {
        kind: tuple(_trim(kind, layer[row], tgt_len, src_len) for layer in maps[kind])
        for kind in maps
    }


def _trim(
    kind: str, weights: Float[Tensor, "heads q_len kv_len"], tgt_len: int, src_len: int
) -> Float[Tensor, "heads rows columns"]:
    """Return a map of one row without padding."""
    if kind == "hops":
        return weights[..., :src_len].clone()
    if is_encoder_map(kind):
        return weights[:, :src_len, :src_len].clone()
    columns = {"cross": src_len, "memory": None}  # all slots of a memory are real
    return weights[:, :tgt_len, : columns.get(kind, tgt_len)].clone()


def replace_unknown(
    tokens: Sequence[str],
    attention: Maps,
    src_tokens: Sequence[str],
    *,
    unk: str = SYMBOLS[UNK],
    dictionary: Mapping[str, str] | None = None,
) -> list[str]:
    """Replace each unknown word of a target by the source word with the most attention.

    Luong et al. (2015), https://arxiv.org/abs/1410.8206, do so with alignments; here they come from
    the attention itself.

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
    weights = last_cross_attention(attention)
    if weights is None:
        raise ArgumentError(
            "attention",
            "have a map `cross` to replace unknown words by",
            f"of the kinds {sorted(attention)}",
            "decode with need_weights=True and a preset that attends",
        )
    rows, columns = weights.shape
    if rows < len(tokens) or columns < len(src_tokens):
        raise ArgumentError(
            "attention",
            f"have a row for each of {len(tokens)} tokens and a column for each of "
            f"{len(src_tokens)} source tokens",
            f"of {rows} rows and {columns} columns",
            "pass the words of the same source and hypothesis",
        )
    replaced, most = list(tokens), weights[:, : len(src_tokens)].argmax(dim=1).tolist()
    for place in unknown:
        word = src_tokens[most[place]]
        replaced[place] = word if dictionary is None else dictionary.get(word, word)
    return replaced
