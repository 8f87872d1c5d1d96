"""Sources as a model reads them, and targets as it is to write them."""

from collections.abc import Sequence

from regard.data.pairs import Pair
from regard.data.tokenizers import Tokenizer
from regard.symbols import EOS


def source_ids(
    tokenizer: Tokenizer, texts: Sequence[str], features: Sequence[Sequence[str]] | None = None
) -> list[list[int]]:
    """Ids of sources, each with `eos` at its end: a place to look at when there is none better.

    So a source is never empty, a reader knows where it ends, and a model that writes one output per
    input ends where its source does.
    """
    return [[*ids, EOS] for ids in tokenizer.encode_batch(texts, features)]


def target_ids(tokenizer: Tokenizer, pairs: Sequence[Pair]) -> list[list[int]]:
    """Ids of targets, without `eos` at their end.

    A text without a source may have several lines: each is cut into tokens by itself, and `eos`
    stands between them.
    """
    lines = [[pair.tgt] if pair.src else pair.tgt.split("\n") for pair in pairs]
    ids = iter(tokenizer.encode_batch([line for several in lines for line in several]))
    return [_with_ends([next(ids) for _ in several]) for several in lines]


def _with_ends(lines: Sequence[list[int]]) -> list[int]:
    first, *others = lines
    return [*first, *(token for line in others for token in (EOS, *line))]
