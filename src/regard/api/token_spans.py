"""Texts of a trace: tokens, where they stand in the text, and of which word they are part."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from regard.data import Tokenizer, parse_features
from regard.data.lookup_codecs import words_at
from regard.data.normalization import Span
from regard.data.subword_codec import WORD_START
from regard.decoding import Hypothesis, replace_unknown
from regard.seeing import Text, Token
from regard.symbols import EOS, SYMBOLS, UNK

END: Final = Token(SYMBOLS[EOS], special=True)
SUBWORDS: Final = ("bpe", "unigram")
#: unknown inputs that a note names
NAMED: Final = 5


class Source(NamedTuple):
    """A source with its features beside it, so that a tab in its text is part of the text.

    Attributes:
        text: what is read.
        features: symbols that join it.
    """

    text: str
    features: tuple[str, ...] = ()

    @staticmethod
    def of(tokenizer: Tokenizer, given: "str | Source") -> "Source":
        """Return a source; a string has features after a tab where the tokeniser knows some."""
        if isinstance(given, Source):
            return given
        return Source(*split_features(given)) if tokenizer.features else Source(given)


def text_given(tokenizer: Tokenizer, given: str | Source, ids: Sequence[int]) -> Text:
    """A text that was cut into these tokens, `eos` not among them; features follow it at a tab."""
    plain, features = Source.of(tokenizer, given)
    text = with_features(plain, features) if isinstance(given, Source) else given
    spans = tokenizer.spans(plain)
    shown = tokenizer.tokens(ids)
    cut = zip(shown[: len(spans)], spans, tokenizer.word_ids(plain), strict=True)
    tokens = [Token(piece, span, word) for piece, span, word in cut]
    named = zip(shown[len(spans) :], _feature_spans(text, features, len(plain) + 1), strict=True)
    tokens += [Token(name, span, special=True) for name, span in named]
    return Text(text, (*tokens, END))


def with_features(text: str, features: Sequence[str]) -> str:
    """A source and its features in one string, as lines of text have them: after a tab."""
    return f"{text}\t{';'.join(features)}" if features else text


def split_features(text: str) -> tuple[str, tuple[str, ...]]:
    """A text and its features, which a tab separates."""
    plain, _, features = text.partition("\t")
    return plain, parse_features(features)


def _feature_spans(text: str, features: Iterable[str], start: int) -> list[Span]:
    """Where the features stand that follow a text, from this place on."""
    spans, end = [], start
    for name in features:
        at = text.index(name, end)
        end = at + len(name)
        spans.append((at, end))
    return spans


def unknown_in(source: Text) -> tuple[str, ...]:
    """What stands in a source where the model has no token for it, in order."""
    spans = (token.span for token in source.tokens if token.text == SYMBOLS[UNK])
    return tuple(source.text[slice(*span)] for span in spans if span is not None)


def not_known(tokenizer: Tokenizer, given: str | Source, ids: Sequence[int]) -> tuple[str, ...]:
    """What the model has no token for, of a source that was cut into these, `eos` last."""
    return unknown_in(text_given(tokenizer, given, ids[:-1])) if UNK in ids else ()


def replaced(
    src: Tokenizer, tgt: Tokenizer, found: Hypothesis, asked: str | Source, ids: Sequence[int]
) -> list[str]:
    """What stands for each unknown word of an answer: the source's, where it looked most."""
    if UNK not in found.tokens:
        return []
    given = words_of(src, text_given(src, asked, ids[:-1]))
    if not given:
        return []
    words = replace_unknown(tgt.tokens(found.tokens), found.attention, given)
    return [word for word, i in zip(words, found.tokens, strict=True) if i == UNK]


def words_of(tokenizer: Tokenizer, source: Text) -> list[str]:
    """What stands in a source at each token, as an answer may have it; features are no part of it.

    Tokens are not taken as they are drawn, which shows spaces: what an answer needs of these, its
    own tokens say.
    """
    words = []
    for token in source.tokens:
        if token.special or token.span is None:
            continue
        there = source.text[slice(*token.span)]
        as_drawn = token.text != SYMBOLS[UNK] and not there.isspace()
        words.append(token.text if as_drawn else there)
    if tokenizer.kind in SUBWORDS:
        return [word.removeprefix(WORD_START) for word in words]
    return words


def unknown_note(tokenizer: Tokenizer, source: Text) -> tuple[str, ...]:
    """A sentence that names what the model does not know, if there is anything.

    Where that is most of the source, the user is asked whether the model knows another case.
    """
    unknown, total = unknown_in(source), len(source.tokens) - 1
    if not unknown:
        return ()
    are = "is" if len(unknown) == 1 else "are"
    said = f"{len(unknown)} of {total} inputs {are} unknown to the model: {name_some(unknown)}"
    if 2 * len(unknown) <= total:
        return (said,)
    plain = Source.of(tokenizer, source.text).text
    turned = tokenizer.encode(plain.swapcase()).count(UNK)
    how = "another case" if turned < len(unknown) else "another script"
    return (f"{said}; was it trained on {how}?",)


def name_some(unknown: Iterable[str]) -> str:
    """The first few different ones, quoted."""
    names = [repr(name) for name in dict.fromkeys(unknown)]
    more = [f"{len(names) - NAMED} more"] if len(names) > NAMED else []
    return ", ".join([*names[:NAMED], *more])


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
