"""Sources as a model reads them, and targets as it is to write them."""

from collections.abc import Sequence

from regard.data.frames import Frames
from regard.data.kept import read_kept
from regard.data.lines import PathLike
from regard.data.pairs import Pair
from regard.data.tokenizers import Tokenizer
from regard.errors import RegardError
from regard.symbols import EOS

#: what a run knows of its sources: how text is cut, or how vectors are brought to scale
SourceSide = Tokenizer | Frames


def load_side(path: PathLike) -> SourceSide:
    """What a run has kept of its sources."""
    content = read_kept(path)
    if content.get("kind") == Frames.kind:
        return Frames.from_json(path, content)
    return Tokenizer.from_json(path, content)


def text_side(side: SourceSide, what: str) -> Tokenizer:
    """The tokeniser of sources that are text.

    Args:
        side: of a run.
        what: must have such sources, worded to go before "must".
    """
    if isinstance(side, Tokenizer):
        return side
    raise RegardError(
        f"{what} must have a source of text, but this run reads {side.summary}: use `regard "
        f"predict`, `regard evaluate`, `regard show` or `regard check` with it."
    )


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
