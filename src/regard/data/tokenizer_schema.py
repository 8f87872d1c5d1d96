"""The content of tokeniser files, checked when one is read: a stranger may have written it.

Subword models are described in the language of Hugging Face's `tokenizers`, in which a file can
also ask for patterns that never end. Only what regard itself writes is accepted.
"""

from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, model_validator

from regard.symbols import SYMBOLS, UNK

#: how `data.subword_codec` cuts words before it cuts them into parts
PRE_TOKENIZER: Final = {
    "type": "Sequence",
    "pretokenizers": [
        {"type": "Punctuation", "behavior": "Isolated"},
        {"type": "Digits", "individual_digits": True},
    ],
}


def _checked_pieces(pieces: list[str]) -> list[str]:
    if tuple(pieces[: len(SYMBOLS)]) != SYMBOLS:
        raise ValueError(f"its vocabulary does not begin with {' '.join(SYMBOLS)}")
    return _checked_texts(pieces)


def _checked_texts(texts: list[str]) -> list[str]:
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        raise ValueError("a piece of its vocabulary has half of a surrogate pair") from None
    return texts


def _checked_pre_tokenizer(value: Any) -> Any:
    if value != PRE_TOKENIZER:
        raise ValueError("it cuts words in a way that regard does not")
    return value


Size = Annotated[int, Field(ge=1, lt=2**31)]


class _Record(BaseModel):
    """Required fields; all others must be empty."""

    model_config = ConfigDict(allow_inf_nan=False, extra="allow")

    @model_validator(mode="after")
    def _check_others(self) -> "_Record":
        for name, value in (self.model_extra or {}).items():
            if value:
                raise ValueError(f"regard does not know what {name!r:.40} means")
        return self


class _BPE(_Record):
    type: Literal["BPE"]
    unk_token: Literal["<unk>"]
    vocab: dict[str, Annotated[int, Field(ge=0, lt=2**31)]]
    merges: list[tuple[str, str]]

    @model_validator(mode="after")
    def _check(self) -> "_BPE":
        pieces = sorted(self.vocab, key=self.vocab.__getitem__)
        if [self.vocab[piece] for piece in pieces] != list(range(len(pieces))):
            raise ValueError("the ids of its vocabulary do not count from 0")
        _checked_pieces(pieces)
        for left, right in self.merges:
            if not {left, right, left + right} <= self.vocab.keys():
                raise ValueError(
                    f"its merge of {left!r:.40} and {right!r:.40} is of no known pieces"
                )
        return self


class _Unigram(_Record):
    type: Literal["Unigram"]
    unk_id: int
    vocab: list[tuple[str, float]]

    @model_validator(mode="after")
    def _check(self) -> "_Unigram":
        pieces = _checked_pieces([piece for piece, _ in self.vocab])
        if len({*pieces, ""}) <= len(pieces):
            raise ValueError("a piece of its vocabulary is empty, or there twice")
        if self.unk_id != UNK:
            raise ValueError(f"its unknown token is {self.unk_id}, and must be {UNK}")
        return self


class _Subwords(_Record):
    version: Literal["1.0"]
    pre_tokenizer: Annotated[dict[str, Any], AfterValidator(_checked_pre_tokenizer)]
    model: Annotated[_BPE | _Unigram, Field(discriminator="type")]


class _LabelSets(_Record):
    separator: Annotated[str, Field(min_length=1)]
    pieces: Annotated[list[str], AfterValidator(_checked_pieces)]


TEXT_KINDS: Final = ("char", "space", "word", "bpe", "unigram", "label")
PIECES: Final = TypeAdapter(Annotated[list[str], AfterValidator(_checked_pieces)])


class TokenizerFile(_Record):
    """A file of `Tokenizer`; `model` is what its codec is made from."""

    version: int
    kind: Literal["char", "space", "word", "bpe", "unigram", "label", "labels"]
    nfc: bool
    case: Literal["keep", "lower", "upper"] | None = None
    #: the first files said no more than whether all is brought to lower case
    lowercase: bool = False
    features: Annotated[list[str], AfterValidator(_checked_texts)]
    model: Any

    @model_validator(mode="after")
    def _check(self) -> "TokenizerFile":
        if self.kind == "labels":
            self.model = _LabelSets.model_validate(self.model).model_dump()
            return self
        if self.kind not in ("bpe", "unigram"):
            self.model = PIECES.validate_python(self.model)
            return self
        found = _Subwords.model_validate(self.model)
        if found.model.type.lower() != self.kind:
            raise ValueError(f"its model is {found.model.type}, and not {self.kind}")
        self.model = found.model_dump()
        return self


class StoryEncoderFile(_Record):
    """A file of `StoryEncoder`; its tokeniser is checked as a file of its own."""

    version: int
    kind: Literal["story"]
    width: Annotated[int, Field(ge=0, lt=2**16)]
    tokenizer: dict[str, Any]
