"""Tokenisers: text to token ids and back.

The content of their files is checked when one is read: a stranger may have written it. Subword
models are described in the language of Hugging Face's `tokenizers`, in which a file can also ask
for patterns that never end. Only what regard itself writes is accepted.
"""

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from operator import index
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    NamedTuple,
    SupportsIndex,
)

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from regard import safe_read
from regard.atomic_files import VERSION, StoredEncoder, invalid_file, validated
from regard.data.foreign_tokenizers import tokenizer_growth
from regard.data.lookup_codecs import (
    CASES,
    KINDS,
    Codec,
    ImportedCodec,
    LabelSetCodec,
    SpaceCodec,
    Span,
    SubwordCodec,
    TableCodec,
    WordCodec,
    cut_word,
    json_list,
    normaliser,
    origins,
    words_at,
)
from regard.data.pairs import Pair, draw_sample
from regard.decoding_options import MAX_BEAM, DecodingOptions
from regard.errors import ArgumentError
from regard.messages import message
from regard.safe_read import PathLike
from regard.symbols import EOS, SYMBOLS, UNK

SAMPLE: Final = 10_000
# Each bound separates sets that we know: letters and phonemes of dictionaries, names, inflected
# forms, dates, captions, everyday sentences, tokenised and plain Japanese.
FEW_SPACES: Final = 0.05
LONG: Final = 30.0
SHORT: Final = 3.0
MANY_DIGITS: Final = 0.2
FEW_LABELS: Final = 100
EACH_LABEL: Final = 20
SMALL_SET: Final = 500
SMALL_VOCABULARY: Final = 8000
FEW_NEW_WORDS: Final = 0.01
#: what may part the labels of a target, and characters of such a label at most
SEPARATORS: Final = "|;,"
LABEL_CHARS: Final = 40
UNSPACED: Final = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN")


class TokenizerChoice(NamedTuple):
    """A kind of tokeniser, and the reason for it, worded to follow "because"."""

    kind: str
    reason: str


class _Measures(NamedTuple):
    """Statistics of a sample of lines."""

    spaced: float  # share of lines with a space inside
    chars: float  # characters per line
    per_line: float  # chunks between spaces per line
    types: int  # different chunks
    repeats: float  # how often each of them comes
    type_length: float  # characters of a different chunk
    digits: float  # share of digits among characters
    unspaced: float  # share of characters of scripts without spaces
    words: int  # different words, without punctuation
    new_words: float  # share of words in every second line that the other lines have not


def choose_tokenizer(texts: Iterable[str]) -> TokenizerChoice:
    """Choose the kind of tokeniser that suits 10,000 of the texts, drawn from all."""
    lines = [text.strip() for text in draw_sample(texts, SAMPLE)]
    lines = [line for line in lines if line]
    if not lines:
        rule = "have something in them"
        raise ArgumentError("texts", rule, "empty", "check where they come from")
    return _suitable(_measure(lines))


def is_unspaced(texts: Iterable[str]) -> bool:
    """Return whether most letters of 10,000 texts are of scripts without spaces."""
    letters = Counter("".join("".join(draw_sample(texts, SAMPLE)).split()))
    return 2 * sum(n for letter, n in letters.items() if _is_unspaced(letter)) > letters.total()


def choose_label_tokenizer(
    targets: Iterable[str], each: int = EACH_LABEL
) -> TokenizerChoice | None:
    """Return the tokeniser of labels if 10,000 targets, drawn from all, are a few that come again
    and again, `each` times on average, and None if not.

    A single target is no label: there is nothing to tell apart.
    """
    lines = (" ".join(target.split()) for target in draw_sample(targets, SAMPLE))
    counts = Counter(line for line in lines if line)
    most = FEW_LABELS if each < EACH_LABEL else SAMPLE  # of rarer ones, more are no labels
    if not 2 <= len(counts) <= most or counts.total() < each * len(counts):
        return None
    often = counts.total() / len(counts)
    reason = message("train.why.labels", count=len(counts), often=often)
    return TokenizerChoice("label", reason)


def find_separator(targets: Iterable[str]) -> str:
    """Return what parts the labels of targets that name several: a sign, "json" for lists, or "".

    Parted by it, a tenth of 10,000 targets at least must name several labels, none of them twice,
    and labels must be fewer than targets that differ, and come again: three times on average, or
    five if they are many.
    """
    lines = [line for line in (" ".join(t.split()) for t in draw_sample(targets, SAMPLE)) if line]
    if lines and all(json_list(line) is not None for line in lines):
        return "json"
    for sign in SEPARATORS:
        sets = [[part.strip() for part in line.split(sign)] for line in lines]
        counts = Counter(part for parts in sets for part in parts)
        several = sum(len(parts) > 1 for parts in sets)
        plain = sum(len({*parts}) == len(parts) and "" not in parts for parts in sets)
        each = 3 if len(counts) <= FEW_LABELS else 5
        if (
            10 * several > len(lines)
            and plain > 0.99 * len(lines)
            and len(counts) <= min(len({*lines}) - 1, counts.total() / each)
            and max(map(len, counts)) <= LABEL_CHARS
        ):
            return sign
    return ""


def _suitable(seen: _Measures) -> TokenizerChoice:
    repeated = seen.types <= FEW_LABELS and seen.repeats >= EACH_LABEL and seen.spaced == 0
    closed = seen.types <= SMALL_SET and seen.repeats >= 5 and seen.digits < MANY_DIGITS
    if seen.unspaced > 0.5 and seen.chars / seen.per_line > 4:
        long = seen.chars > LONG
        reason = message(f"train.why.unspaced-{'long' if long else 'short'}")
        return TokenizerChoice("unigram" if long else "char", reason)
    if repeated:
        return TokenizerChoice("space", message("train.why.repeated", count=seen.types))
    if seen.spaced <= FEW_SPACES:
        return TokenizerChoice("char", message("train.why.single-words"))
    if seen.unspaced > 0.5 and seen.type_length < 1.5:
        return TokenizerChoice("space", message("train.why.single-characters"))
    if closed and (seen.type_length <= 4 or seen.repeats >= 100):
        return TokenizerChoice("space", message("train.why.symbols", count=seen.types))
    if seen.digits >= MANY_DIGITS:
        return TokenizerChoice("char", message("train.why.digits"))
    if seen.per_line <= SHORT and seen.repeats < 3:
        return TokenizerChoice("char", message("train.why.different"))
    if seen.words <= SMALL_VOCABULARY and seen.new_words <= FEW_NEW_WORDS:
        return TokenizerChoice("word", message("train.why.few-words", count=seen.words))
    return TokenizerChoice("bpe", message("train.why.new-words", share=seen.new_words))


def _measure(lines: list[str]) -> _Measures:
    chunks = Counter(chunk for line in lines for chunk in line.split())
    chars = Counter("".join(lines))
    total = sum(count for char, count in chars.items() if not char.isspace())
    first, second = (_count_words(half) for half in (lines[::2], lines[1::2]))
    new = sum(count for word, count in second.items() if word not in first)
    return _Measures(
        spaced=sum(len(line.split()) > 1 for line in lines) / len(lines),
        chars=sum(map(len, lines)) / len(lines),
        per_line=chunks.total() / len(lines),
        types=len(chunks),
        repeats=chunks.total() / len(chunks),
        type_length=sum(map(len, chunks)) / len(chunks),
        digits=sum(count for char, count in chars.items() if char.isdigit()) / total,
        unspaced=sum(count for char, count in chars.items() if _is_unspaced(char)) / total,
        words=len(first | second),
        new_words=new / max(1, second.total()),
    )


def _count_words(lines: list[str]) -> Counter[str]:
    chunks = Counter(chunk for line in lines for chunk in line.split())
    words: Counter[str] = Counter()
    for chunk, count in chunks.items():
        for word in cut_word(chunk):
            words[word] += count
    return words


def _is_unspaced(char: str) -> bool:
    return unicodedata.name(char, "").startswith(UNSPACED)


#: how words are cut before subword codecs cut them into parts
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


class TokenizerFile(_Record):
    """A file of `Tokenizer`; `model` is what its codec is made from."""

    version: int
    kind: str
    nfc: bool
    case: Literal["keep", "lower", "upper"] | None = None
    #: the first files said no more than whether all is brought to lower case
    lowercase: bool = False
    features: Annotated[list[str], AfterValidator(_checked_texts)]
    model: Any


class StoryEncoderFile(_Record):
    """A file of `StoryEncoder`; its tokeniser is checked as a file of its own."""

    version: int
    kind: Literal["story"]
    width: Annotated[int, Field(ge=0, lt=2**16)]
    tokenizer: dict[str, Any]


class _Imported(_Record):
    tokenizer: dict[str, Any]
    ids: list[Annotated[int, Field(ge=-1, lt=2**31)]]
    pieces: Annotated[list[str], AfterValidator(_checked_pieces)]
    prefix: list[Annotated[int, Field(ge=0)]]
    suffix: list[Annotated[int, Field(ge=0)]] = []
    decoding: dict[str, Any]
    origin: dict[str, Any]

    @model_validator(mode="after")
    def _check(self) -> "_Imported":
        count = len(self.pieces)
        if len(self.ids) != count or len(set(self.pieces)) != count:
            raise ValueError("its vocabulary does not have an id for each of its pieces")
        options = DecodingOptions(**{"beam": MAX_BEAM, **self.decoding})  # which checks them
        chosen = (*options.ends, *options.suppressed, *options.suppressed_first)
        last = max([*self.prefix, *self.suffix, *chosen], default=0)
        if last >= count:
            raise ValueError(f"a token around its texts is {last}, beyond the last")
        tokenizer_growth(self.tokenizer, count)
        return self


#: texts around the turns of a conversation, see `PromptCodec`
FRAMES: Final = frozenset(
    {"opening", "system", "after_system", "to_assistant", "to_user", "to_answer"}
)


class _Prompt(_Imported):
    frames: dict[str, str]

    @model_validator(mode="after")
    def _check_frames(self) -> "_Prompt":
        if self.frames.keys() != FRAMES:
            raise ValueError(f"its frames are {', '.join(self.frames)}")
        return self


PIECES: Final = TypeAdapter(Annotated[list[str], AfterValidator(_checked_pieces)])


def _checked_model(kind: str, model: Any) -> Any:
    """Return what a codec is made from; raises ValueError unless regard could have written it."""
    if kind == "labels":
        return _LabelSets.model_validate(model).model_dump()
    if kind == "imported":
        return _Imported.model_validate(model).model_dump()
    if kind == "prompt":
        return _Prompt.model_validate(model).model_dump()
    if kind not in ("bpe", "unigram"):
        return PIECES.validate_python(model)
    found = _Subwords.model_validate(model)
    if found.model.type.lower() != kind:
        raise ValueError(f"its model is {found.model.type}, and not {kind}")
    return found.model_dump()


TOKENIZER_KINDS: Final = tuple(name for name, kind in KINDS.items() if kind.train)


def _normaliser(nfc: bool, case: str) -> Callable[[str], str]:
    if case not in CASES:
        raise ArgumentError("case", f"be one of {', '.join(CASES)}", repr(case), "choose one")
    return normaliser(nfc=nfc, case=case)


class _ById(dict[SupportsIndex, str]):
    """The text of each id, made once, so that a sentence needs no function for each token."""

    def __init__(self, make: Callable[[int], str]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, number: SupportsIndex) -> str:
        made = self[index(number)] = self._make(index(number))
        return made


class Tokenizer(StoredEncoder):
    """A tokeniser with normalisation, special symbols and features.

    Ids 0 to 3 are pad, bos, eos and unk in every vocabulary, and text cannot name them. Features
    are whole symbols with ids after those of all text, and follow the text that they belong to.

    Args:
        kind: char, space, word, bpe, unigram, label, or labels, of which a text has several.
        codec: splits and joins text.
        nfc: whether text is converted to Unicode's composed form first.
        case: "lower" or "upper" to convert text to that case first; "keep" leaves it as it is.
        features: the names of all features.
    """

    #: text has no frames
    frame_size: ClassVar[int] = 0
    #: how limits of a source's length are worded before "or"
    limit_unit: ClassVar[str] = ""

    def __init__(
        self,
        kind: str,
        codec: Codec,
        *,
        nfc: bool = True,
        case: str = "keep",
        features: Sequence[str] = (),
    ) -> None:
        self.kind = kind
        self.nfc = nfc
        self.case = case
        self.features = tuple(features)
        self._codec = codec
        self._normalise = _normaliser(nfc, case)
        base = len(codec.pieces)
        self._feature_ids = {name: base + i for i, name in enumerate(self.features)}
        self._written, self._shown = _ById(self._written_form), _ById(self._displayed_form)

    @classmethod
    def train(
        cls,
        kind: str,
        texts: Iterable[str],
        *,
        vocab_size: int = 8000,
        min_count: int = 1,
        nfc: bool = True,
        case: str = "keep",
        features: Iterable[str] = (),
    ) -> "Tokenizer":
        """Learn a vocabulary, which is the same for the same texts.

        Args:
            kind: char, space, word, bpe, unigram or label; `choose_tokenizer` finds one.
            texts: training data, read once.
            vocab_size: the most tokens, pad, bos, eos and unk among them, features not; all
                labels are kept.
            min_count: how often a token must be seen; for bpe, a merge. No part of unigram.
            nfc: whether to bring text to Unicode's composed form, so that é has one spelling.
            case: "lower" or "upper" to bring text to that case, "keep" to leave it as it is.
            features: the names of all features.
        """
        train = KINDS[kind].train if kind in KINDS else None
        if train is None:
            rule = f"be one of {', '.join(TOKENIZER_KINDS)}"
            raise ArgumentError("kind", rule, repr(kind), "choose one")
        if vocab_size <= len(SYMBOLS):
            rule = f"be more than {len(SYMBOLS)}, the number of special symbols"
            raise ArgumentError("vocab_size", rule, vocab_size, "raise it")
        normalise = _normaliser(nfc, case)
        codec = train(map(normalise, texts), vocab_size, min_count)
        if len(codec.pieces) <= len(SYMBOLS):
            rule = "have something in them"
            raise ArgumentError("texts", rule, "empty", "check where they come from")
        return cls(kind, codec, nfc=nfc, case=case, features=sorted(set(features)))

    def grown(self, words: Iterable[str], vocab_size: int) -> "Tokenizer":
        """Return the tokeniser with more tokens: the first new words that it would not split.

        Only space and word can grow; the others are returned as they are.
        """
        if type(self._codec) not in (SpaceCodec, WordCodec):
            return self
        pieces = dict.fromkeys(self._codec.pieces)
        for word in words:
            if len(pieces) >= vocab_size:
                break
            if word in pieces or self._normalise(word) != word:
                continue
            if self._codec.spans(word) == [(0, len(word))]:
                pieces[word] = None
        codec = type(self._codec)(list(pieces))
        return Tokenizer(self.kind, codec, nfc=self.nfc, case=self.case, features=self.features)

    @property
    def grows(self) -> bool:
        """True if tokens are looked up one by one, so that further ones change no other."""
        return isinstance(self._codec, TableCodec | WordCodec | LabelSetCodec)

    def extended(self, other: "Tokenizer") -> "Tokenizer":
        """Return the tokeniser with the tokens and features of another that it lacks, at the end.

        One of subwords keeps its tokens.
        """
        features = dict.fromkeys((*self.features, *other.features))
        codec, pieces = self._codec, [*dict.fromkeys((*self._codec.pieces, *other._codec.pieces))]
        if isinstance(codec, LabelSetCodec):
            codec = LabelSetCodec(pieces, codec.separator)
        elif isinstance(codec, TableCodec | WordCodec):
            codec = type(codec)(pieces)
        return Tokenizer(self.kind, codec, nfc=self.nfc, case=self.case, features=tuple(features))

    def rows_in(self, older: "Tokenizer") -> list[int]:
        """Return the id of each token and feature in another tokeniser, or -1."""
        ids = {piece: i for i, piece in enumerate(older._codec.pieces)}
        features = older._feature_ids
        own = (ids.get(piece, -1) for piece in self._codec.pieces)
        return [*own, *(features.get(name, -1) for name in self.features)]

    @property
    def imported(self) -> ImportedCodec | None:
        """The codec, if it is that of another library."""
        return self._codec if isinstance(self._codec, ImportedCodec) else None

    @property
    def prefix(self) -> list[int]:
        """Ids that all texts begin with, such as that of their language."""
        return [] if self.imported is None else self.imported.prefix

    @property
    def end(self) -> int:
        """The id after a source: `eos`, or a language."""
        return self._codec.end

    @property
    def decoding(self) -> dict[str, Any]:
        """Options of decoding that targets have by default."""
        return {} if self.imported is None else self.imported.decoding

    @property
    def vocab_size(self) -> int:
        """Number of ids, including features and special symbols."""
        return len(self._codec.pieces) + len(self.features)

    def encode_sources(self, pairs: Sequence[Pair]) -> list[list[int]]:
        """Return the ids of the sources of pairs, features and `eos` among them."""
        return source_ids(self, [p.src for p in pairs], [p.features for p in pairs])

    def fits(self, pair: Pair, row: Sequence[int], limit: int) -> bool:
        """Return whether a source has some tokens, and at most `limit` without `eos`.

        A source without any token has no meaning, unless the pair is a text without a source.
        """
        return (len(row) > 1 or not pair.src) and len(row) <= limit + 1

    @property
    def summary(self) -> str:
        """A short description; special symbols are no labels."""
        symbols = len(SYMBOLS) if self.kind in ("label", "labels") else 0
        return f"{self.kind}, {self.vocab_size - symbols}"

    @property
    def merges(self) -> list[tuple[str, str]]:
        """Merges in the order in which they were learned. Only bpe has any."""
        return self._codec.merges if isinstance(self._codec, SubwordCodec) else []

    def encode(self, text: str, features: Sequence[str] = ()) -> list[int]:
        """Return ids of a text and its features, without bos and eos."""
        return self.encode_batch([text], [features])[0]

    def encode_batch(
        self, texts: Sequence[str], features: Sequence[Sequence[str]] | None = None
    ) -> list[list[int]]:
        """Return ids of many texts, which is faster than one by one."""
        ids = self._codec.encode_batch([self._normalise(text) for text in texts])
        if features is not None and any(features):
            find = self._feature_ids.get
            for row, names in zip(ids, features, strict=True):
                row += [find(name, UNK) for name in names]
        return ids

    def decode(self, ids: Iterable[SupportsIndex], *, unk: str | Sequence[str] = "") -> str:
        """Return the text of the tokens before the first eos, without features and symbols.

        Args:
            ids: token ids.
            unk: text for unknown tokens; a sequence has one for each of them.
        """
        numbers = list(ids)
        if EOS in numbers:
            del numbers[numbers.index(EOS) :]
        text = list(map(self._written.__getitem__, numbers))
        if UNK in numbers:
            unknown = repeat(unk) if isinstance(unk, str) else iter(unk)
            known = zip(numbers, text, strict=True)
            text = [next(unknown, "") if number == UNK else piece for number, piece in known]
        return self._codec.join(list(filter(None, text)))

    def _written_form(self, number: int) -> str:
        """Return the piece of an id in a text, which has no features and symbols."""
        self._check_id(number)
        return self._codec.pieces[number] if UNK < number < len(self._codec.pieces) else ""

    def normalize(self, text: str) -> str:
        """Return a text in the form in which `decode` writes it.

        This is `decode(encode(text))` for a text whose tokens are all known, and unknown ones are
        kept. Bring references to this form before comparing predictions with them.
        """
        return self._codec.normalize(self._normalise(text))

    @property
    def normal_form(self) -> str:
        """The name of the normalisation, for the signature of a metric: "nfc+spaces"."""
        steps = ["nfc" if self.nfc else "", self.case if self.case != "keep" else ""]
        return "+".join(filter(None, [*steps, self._codec.form])) or "none"

    def tokens(self, ids: Iterable[SupportsIndex]) -> list[str]:
        """Return the displayed form of each id, including special symbols and features."""
        return list(map(self._shown.__getitem__, ids))

    def _displayed_form(self, number: int) -> str:
        self._check_id(number)
        base = len(self._codec.pieces)
        if number >= base:
            return f"[{self.features[number - base]}]"
        piece = self._codec.pieces[number]
        return piece if number <= UNK else self._codec.show(piece)

    def spans(self, text: str) -> list[Span]:
        """Return the span of each token of `encode(text)` in `text`, as (start, end)."""
        origin = origins(text, self._normalise)
        ends = [*origin, (len(text), len(text))]
        return [
            (origin[start][0], origin[end - 1][1]) if end > start else (ends[start][0],) * 2
            for start, end in self._codec.spans(self._normalise(text))
        ]

    def word_ids(self, text: str) -> list[int | None]:
        """Return the number of the word that each token of `encode(text)` is part of.

        Words are separated by spaces; a token that is itself a space belongs to none.
        """
        return words_at(text, (start for start, _ in self.spans(text)))

    def _check_id(self, number: int) -> None:
        if not 0 <= number < self.vocab_size:
            rule = f"be from 0 to {self.vocab_size - 1}, the entries of the vocabulary"
            fix = "check that the tokeniser is the one that the model was made for"
            raise ArgumentError("ids", rule, number, fix)

    @classmethod
    def from_json(cls, path: PathLike, content: dict[str, Any]) -> "Tokenizer":
        """Return the tokeniser that a file describes; raises DataError if it is invalid."""
        if (kind := content.get("kind")) not in (*KINDS, None):
            raise invalid_file(path, f"it is of the kind {kind!s:.40}, which cuts no text")
        file = validated(TokenizerFile, path, content)
        try:
            codec = KINDS[file.kind].load(_checked_model(file.kind, file.model))
        except ValidationError as error:
            raise invalid_file(path, safe_read.explain(error)) from None
        except ValueError as error:
            raise invalid_file(path, str(error)) from None
        case = file.case or ("lower" if file.lowercase else "keep")
        return cls(file.kind, codec, nfc=file.nfc, case=case, features=file.features)

    def to_json(self) -> dict[str, Any]:
        """Return the content of its file, without the checksum."""
        return {
            "version": VERSION,
            "kind": self.kind,
            "nfc": self.nfc,
            "case": self.case,
            "features": list(self.features),
            "model": self._codec.to_json(),
        }


def source_ids(
    tokenizer: Tokenizer, texts: Sequence[str], features: Sequence[Sequence[str]] | None = None
) -> list[list[int]]:
    """Return ids of sources, each with `tokenizer.end` after it: a fallback for attention.

    A source is then never empty, its end is marked, and a model that writes one output per input
    ends where its source does.
    """
    rows = tokenizer.encode_batch(texts, features)
    for row in rows:
        row.append(tokenizer.end)
    return rows
