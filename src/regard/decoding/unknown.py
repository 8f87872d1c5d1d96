"""Unknown words replaced by what the model looked at when it wrote them.

Luong et al. (2015), https://arxiv.org/abs/1410.8206, do it with alignments; here they come from the
attention itself.
"""

from collections.abc import Mapping, Sequence

from regard.decoding.scoring import last_look
from regard.errors import ArgumentError
from regard.models.protocol import Maps
from regard.symbols import SYMBOLS, UNK


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
    look = last_look(attention)
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
