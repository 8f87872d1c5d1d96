"""Texts of a trace: tokens, where they stand in the text, and of which word they are part."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from regard.data import Tokenizer, parse_features
from regard.data.codecs import words_at
from regard.data.normal import Span
from regard.seeing import Text, Token
from regard.symbols import EOS, SYMBOLS, UNK

END: Final = Token(SYMBOLS[EOS], special=True)


def text_given(tokenizer: Tokenizer, text: str, ids: Sequence[int]) -> Text:
    """A text that was cut into these tokens, `eos` not among them; features follow it at a tab."""
    plain, tab, tail = text.partition("\t") if tokenizer.features else (text, "", "")
    spans = tokenizer.spans(plain)
    shown = tokenizer.tokens(ids)
    cut = zip(shown[: len(spans)], spans, tokenizer.word_ids(plain), strict=True)
    tokens = [Token(piece, span, word) for piece, span, word in cut]
    named = zip(shown[len(spans) :], _feature_spans(tail, len(plain) + len(tab)), strict=True)
    tokens += [Token(name, span, special=True) for name, span in named]
    return Text(text, (*tokens, END))


def _feature_spans(tail: str, start: int) -> list[Span]:
    """Where the features stand that follow a text."""
    spans, at = [], 0
    for name in parse_features(tail):
        at = tail.index(name, at)
        spans.append((start + at, start + at + len(name)))
        at += len(name)
    return spans


def text_written(
    tokenizer: Tokenizer, ids: Sequence[int], *, unk: Sequence[str] = (), finished: bool = True
) -> Text:
    """The text that these tokens make, with `eos` after them if it is finished.

    A token stands where the text grows by it: models cut words as their tokeniser never would. An
    unknown word that leaves no trace in the text has no span.

    Args:
        tokenizer: that of the target.
        ids: without `eos`.
        unk: what stands for each unknown token.
        finished: whether the model ended it.
    """
    grown = [tokenizer.decode(ids[:end], unk=unk) for end in range(len(ids) + 1)]
    text = grown[-1]
    spans = [(len(before), len(after)) for before, after in pairwise(grown)]
    if tokenizer.kind != "char":
        spans = [_without_space(text, span) for span in spans]
    words = words_at(text, (start for start, _ in spans))
    tokens = [
        Token(piece) if start == end and number == UNK else Token(piece, (start, end), word)
        for piece, number, (start, end), word in zip(
            tokenizer.tokens(ids), ids, spans, words, strict=True
        )
    ]
    return Text(text, (*tokens, END) if finished else tuple(tokens))


def _without_space(text: str, span: Span) -> Span:
    """A space that joins a piece to what is before it is no part of it."""
    start, end = span
    while start < end and text[start].isspace():
        start += 1
    return start, end
