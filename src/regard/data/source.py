"""Sources as a model reads them."""

from collections.abc import Sequence

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
