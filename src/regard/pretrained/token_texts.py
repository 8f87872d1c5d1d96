"""Texts of traces from the tokens of a Hugging Face tokenizer: labels, spans, words, specials."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from regard.errors import ArgumentError
from regard.seeing.trace.trace import Text, Token

Span = tuple[int, int]

#: marks of a token that begins a word, and of one that continues it
WORD_START = "▁"
WORD_PART = "##"


class TokenizedText(NamedTuple):
    """A text as a model reads it: the ids of its tokens, and their labels and spans."""

    ids: list[int]
    text: Text

    def unknown(self, unk: int | None) -> tuple[str, ...]:
        """Return the parts of the text that the tokenizer has no token for, but its `unk`."""
        pairs = zip(self.ids, self.text.tokens, strict=True)
        spans = [token.span for one, token in pairs if one == unk and token.span is not None]
        return tuple(self.text.text[slice(*span)] for span in spans)


def encode(
    tokenizer: Any, text: str, *, special: bool = True, target: bool = False
) -> TokenizedText:
    """Encode one text."""
    given: dict[str, Any] = {"text_target" if target else "text": text}
    fast = bool(getattr(tokenizer, "is_fast", False))
    found = tokenizer(**given, add_special_tokens=special, return_offsets_mapping=fast)
    ids = [int(one) for one in found["input_ids"]]
    spans = [(int(a), int(b)) for a, b in found["offset_mapping"]] if fast else None
    return TokenizedText(ids, Text(text, tuple(_tokens(tokenizer, text, ids, spans))))


def encode_chat(tokenizer: Any, text: str) -> TokenizedText:
    """Encode a text as the message of a user, by the chat template of the tokenizer."""
    if not getattr(tokenizer, "chat_template", None):
        raise ArgumentError(
            "chat",
            "be left out for a tokenizer without a chat template",
            "given",
            "leave it out, or save the tokenizer with its chat_template",
        )
    message = [{"role": "user", "content": text}]
    prompt = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
    return encode(tokenizer, str(prompt), special=False)


def joined(tokenizer: Any, prompt: TokenizedText, ids: Sequence[int]) -> TokenizedText:
    """Return a prompt with further tokens after it."""
    return TokenizedText([*prompt.ids, *ids], written(tokenizer, ids, after=prompt))


def written(tokenizer: Any, ids: Sequence[int], *, after: TokenizedText | None = None) -> Text:
    """Return the text of tokens that a model has written."""
    if after is None:
        text = _decode(tokenizer, ids)
        return Text(text, tuple(_tokens(tokenizer, text, ids)))
    text = after.text.text + continuation(tokenizer, after.ids, ids)
    begins = after.text.tokens
    return Text(
        text, (*begins, *_tokens(tokenizer, text, ids, after=begins, start=len(after.text.text)))
    )


def continuation(tokenizer: Any, prompt: Sequence[int], ids: Sequence[int]) -> str:
    """Return the text of tokens after a prompt, with the space between the two if there is one."""
    before, whole = _decode(tokenizer, prompt), _decode(tokenizer, [*prompt, *ids])
    return whole[len(before) :] if whole.startswith(before) else _decode(tokenizer, ids)


def labels(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    """Return a readable label for each token; a leading space is written as `▁`."""
    special, pieces = special_ids(tokenizer), [_piece(tokenizer, one) for one in ids]
    return [
        str(piece) if one in special else _label(tokenizer, one, piece)
        for one, piece in zip(ids, pieces, strict=True)
    ]


def _piece(tokenizer: Any, one: int) -> Any:
    """Return the token of an id; None for a row of the embedding that the tokenizer never uses."""
    try:
        return tokenizer.convert_ids_to_tokens(int(one))
    except IndexError:  # of sentencepiece
        return None


def special_ids(tokenizer: Any) -> set[int]:
    """Return the ids of special tokens; unknown and masked words are none."""
    added = getattr(tokenizer, "added_tokens_decoder", {})
    found = {*tokenizer.all_special_ids, *(i for i, token in added.items() if token.special)}
    return found - {tokenizer.unk_token_id, tokenizer.mask_token_id}


def _decode(tokenizer: Any, ids: Sequence[int]) -> str:
    known = [one for one in ids if _piece(tokenizer, one) is not None]
    return str(
        tokenizer.decode(known, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    )


def _label(tokenizer: Any, one: int, piece: Any) -> str:
    if piece is None:
        return _unused(one)
    if piece.startswith((WORD_START, WORD_PART)):
        return str(piece)
    shown = str(tokenizer.decode([one], clean_up_tokenization_spaces=False))
    if not shown or "\ufffd" in shown:  # some of the bytes of a character
        return str(piece)
    return WORD_START + shown[1:] if shown.startswith(" ") and shown.strip() else shown


def _unused(one: int) -> str:
    """Return the label of an id that a tokenizer has no token for."""
    return f"<{one}>"


def _tokens(
    tokenizer: Any,
    text: str,
    ids: Sequence[int],
    spans: Sequence[Span] | None = None,
    *,
    after: Sequence[Token] = (),
    start: int = 0,
) -> Iterator[Token]:
    """Yield tokens with spans and words: tokens are of one word if no space is between them."""
    special = special_ids(tokenizer)
    numbers = [token.word for token in after if token.word is not None]
    word = numbers[-1] if numbers else -1
    end = after[-1].span[1] if after and after[-1].span is not None else None
    place = start
    for i, (one, label) in enumerate(zip(ids, labels(tokenizer, ids), strict=True)):
        if one in special or label == _unused(one):
            end = None
            yield Token(label, special=True)
            continue
        piece = label.removeprefix(WORD_START).removeprefix(WORD_PART)
        span = _stripped(text, spans[i]) if spans is not None else _find(text, piece, place)
        if not (text[slice(*span)] if span is not None else piece).strip():
            end = None
            yield Token(label, span)
            continue
        if span is not None:
            place = span[1]
            word += end is None or span[0] > end
        else:
            word += end is None or label.startswith(WORD_START)
        end = place
        yield Token(label, span, word)


def _find(text: str, piece: str, start: int) -> Span | None:
    """Return the span of a piece that follows a place, but for spaces between them."""
    at = text.find(piece, start)
    if at < 0 or not piece or text[start:at].strip():
        return None
    return at, at + len(piece)


def _stripped(text: str, span: Span) -> Span | None:
    """Return a span without spaces around it; as it is if there is nothing else."""
    start, end = span
    part = text[start:end]
    if start == end:
        return None
    if not part.strip():
        return span
    return start + len(part) - len(part.lstrip()), end - len(part) + len(part.rstrip())
