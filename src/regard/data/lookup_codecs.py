"""Codecs of text and ids: its normal form, pieces that are looked up, and subwords.

This file is copied into exported folders, where it runs without regard.

Subwords are byte pair encoding and unigram models of Hugging Face's `tokenizers`, which is called
once for each distinct word: on running text that is many times faster than passing whole lines.
"""

import itertools
import json
import re
import sys
import unicodedata
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple, TypeVar

if __package__:
    from regard.symbols import EOS, SYMBOLS, UNK
else:  # a copy in an exported folder
    from symbols import EOS, SYMBOLS, UNK  # type: ignore[import-not-found,no-redef]

if TYPE_CHECKING:
    from tokenizers import Tokenizer as HFTokenizer

Span = tuple[int, int]

#: the name of `collapse_spaces` in the signature of a metric
SPACES: Final = "spaces"

#: what may be done to small and capital letters
CASES: Final[dict[str, Callable[[str], str]]] = {
    "keep": str,
    "lower": str.lower,
    "upper": str.upper,
}


def normaliser(*, nfc: bool, case: str) -> Callable[[str], str]:
    """Return the normalisation of a tokeniser. NFC is last: lower case may decompose a letter."""
    turn = CASES[case]

    def normalise(text: str) -> str:
        text = turn(text)
        return unicodedata.normalize("NFC", text) if nfc and not text.isascii() else text

    return normalise


def collapse_spaces(text: str) -> str:
    """Return the text with one space for each run of white space, and none at its ends."""
    return " ".join(text.split())


def origins(text: str, normalise: Callable[[str], str]) -> list[Span]:
    """Return the span of `text` that each character of the normalised text comes from.

    Characters that only together have their form, like a letter and its accents, share a span.
    """
    whole = normalise(text)
    if whole == text:
        return [(i, i + 1) for i in range(len(text))]
    spans: list[Span] = []
    start = 0
    for end in range(1, len(text) + 1):
        if end < len(text) and not _parts(normalise, text[start:end], text[end]):
            continue
        spans += [(start, end)] * len(normalise(text[start:end]))
        start = end
    # a form that depends on more than its neighbours, like a final sigma, keeps the count
    return spans if len(spans) == len(whole) else [(0, len(text))] * len(whole)


def _parts(normalise: Callable[[str], str], left: str, right: str) -> bool:
    """Return whether the text may be split here without a change to either side."""
    if unicodedata.combining(right):
        return False
    return normalise(left + right) == normalise(left) + normalise(right)


OPEN_BOX: Final = "␣"
MAX_REMEMBERED: Final = 200_000
MAX_WORD: Final = 64


CodecT = TypeVar("CodecT", bound="TableCodec")


class Codec(ABC):
    """A codec between normalised text and the ids of its pieces.

    Attributes:
        pieces: the vocabulary; the first four are the special symbols.
        form: name of what `normalize` does; "" if common text stays as it is.
        end: the id after a source.
    """

    form: ClassVar[str] = ""
    end: int = EOS

    def __init__(self, pieces: Sequence[str]) -> None:
        self.pieces = list(pieces)
        # text cannot name the special symbols
        self._table = {piece: i for i, piece in enumerate(pieces) if i >= len(SYMBOLS)}

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of the pieces of each text."""

    @abstractmethod
    def spans(self, text: str) -> list[Span]:
        """Return the span of each piece in the text."""

    @abstractmethod
    def join(self, pieces: Sequence[str]) -> str:
        """Join pieces to text."""

    def normalize(self, text: str) -> str:
        """Return the text as `join` would write it if the vocabulary had all its pieces."""
        return text

    def show(self, piece: str) -> str:
        """Return a piece as it is displayed."""
        return piece

    def to_json(self) -> Any:
        """Return all that is needed to restore the codec: the vocabulary."""
        return self.pieces


def count_pieces(pieces: Iterable[Iterable[str]], vocab_size: int, min_count: int) -> list[str]:
    """Return the special symbols and the most frequent pieces, ties in alphabetical order."""
    counts: Counter[str] = Counter()
    for some in pieces:
        counts.update(some)
    for symbol in SYMBOLS:
        del counts[symbol]
    often = ((-count, piece) for piece, count in counts.items() if count >= min_count)
    return [*SYMBOLS, *(piece for _, piece in sorted(often)[: vocab_size - len(SYMBOLS)])]


class TableCodec(Codec):
    """A codec whose pieces are looked up one by one."""

    @staticmethod
    @abstractmethod
    def cut(text: str) -> Iterable[str]:
        """Return the pieces of a text."""

    @classmethod
    def train(cls: type[CodecT], texts: Iterable[str], vocab_size: int, min_count: int) -> CodecT:
        """Count pieces."""
        return cls(count_pieces(map(cls.cut, texts), vocab_size, min_count))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of the pieces of each text."""
        find, cut = self._table.get, self.cut
        return [[find(piece, UNK) for piece in cut(text)] for text in texts]


class CharCodec(TableCodec):
    """One piece per character. Joined again, the text is the same to the last character."""

    @staticmethod
    def cut(text: str) -> Iterable[str]:
        """Return the characters."""
        return text

    def spans(self, text: str) -> list[Span]:
        """Return each character by itself."""
        return [(i, i + 1) for i in range(len(text))]

    def join(self, pieces: Sequence[str]) -> str:
        """Concatenate characters."""
        return "".join(pieces)

    def show(self, piece: str) -> str:
        """Return the character; a space becomes an open box."""
        return OPEN_BOX if piece == " " else piece


class SpaceCodec(TableCodec):
    """One piece per symbol between spaces, such as a phoneme."""

    form = SPACES

    @staticmethod
    def cut(text: str) -> Iterable[str]:
        """Return the symbols."""
        return text.split()

    def spans(self, text: str) -> list[Span]:
        """Return each symbol, without the spaces around it."""
        return words_of(text)

    def join(self, pieces: Sequence[str]) -> str:
        """Join symbols, or labels of which a model wrote several, by spaces."""
        return " ".join(pieces)

    def normalize(self, text: str) -> str:
        """Return the text with single spaces."""
        return collapse_spaces(text)


class LabelCodec(SpaceCodec):
    """One piece per text, such as the class of an example. A text of nothing but spaces has none.

    A label is one of a closed set: all of them are in the vocabulary, however many there are.
    """

    @staticmethod
    def cut(text: str) -> Iterable[str]:
        """Return the label, if there is one."""
        return list(filter(None, [collapse_spaces(text)]))

    @classmethod
    def train(cls: type[CodecT], texts: Iterable[str], vocab_size: int, min_count: int) -> CodecT:
        """Count labels; both limits are for vocabularies that may lack something."""
        return cls(count_pieces(map(cls.cut, texts), sys.maxsize, 1))

    def spans(self, text: str) -> list[Span]:
        """Return the whole text, without the spaces around it."""
        label = text.strip()
        start = text.index(label)
        return [(start, start + len(label))] if label else []


class LabelSetCodec(Codec):
    """One piece for each of the labels that a text names, such as the genres of a film.

    They are a closed set, as those of `LabelCodec`; their order and repetitions do not matter.

    Args:
        pieces: the vocabulary.
        separator: what parts labels, or "json" if a text is a JSON list of them.
    """

    form = "sorted"

    def __init__(self, pieces: Sequence[str], separator: str) -> None:
        super().__init__(pieces)
        self.separator = separator

    @classmethod
    def train(cls, texts: Iterable[str], separator: str) -> "LabelSetCodec":
        """Count labels."""
        sets = (split_labels(text, separator) for text in texts)
        return cls(count_pieces(sets, sys.maxsize, 1), separator)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of the labels of each text."""
        find = self._table.get
        return [[find(label, UNK) for label in split_labels(t, self.separator)] for t in texts]

    def spans(self, text: str) -> list[Span]:
        """Return the place of each label."""
        found = [(text.find(label), len(label)) for label in split_labels(text, self.separator)]
        # a label with several spaces, or escaped in JSON, is not found as it is
        return [(at, at + size) if at >= 0 else (0, len(text)) for at, size in found]

    def join(self, pieces: Sequence[str]) -> str:
        """Join labels as targets do."""
        if self.separator == "json":
            return json.dumps(list(pieces), ensure_ascii=False)
        return (f"{self.separator} " if self.separator in ",;" else f" {self.separator} ").join(
            pieces
        )

    def normalize(self, text: str) -> str:
        """Return the labels in alphabetical order, a line for each, as metrics read them."""
        return "\n".join(sorted(split_labels(text, self.separator)))

    def to_json(self) -> Any:
        """Return the vocabulary and the separator."""
        return {"separator": self.separator, "pieces": self.pieces}


def split_labels(text: str, separator: str) -> list[str]:
    """Return the different labels that a text names."""
    listed = json_list(text) if separator == "json" else text.split(separator)
    parts = [text] if listed is None else listed
    return [label for label in dict.fromkeys(map(collapse_spaces, parts)) if label]


def json_list(text: str) -> list[str] | None:
    """Return the items of a JSON list of texts and numbers; None for another text."""
    try:
        found = json.loads(text) if text.lstrip().startswith("[") else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, list) or not all(isinstance(p, str | int | float) for p in found):
        return None
    return list(map(str, found))


class Chunks:
    """A cache of the ids of frequent words."""

    def __init__(self, cut_all: Callable[[Sequence[str]], list[list[int]]]) -> None:
        self._cut_all = cut_all
        # tuples of numbers, unlike lists, are no work for the garbage collector
        self._known: dict[str, tuple[int, ...]] = {}

    def encode_batch(self, texts: Sequence[Sequence[str]]) -> list[list[int]]:
        """Return the ids of each text, which is a list of words."""
        known, rest = self._known, dict[str, tuple[int, ...]]()
        words = dict.fromkeys(itertools.chain.from_iterable(texts))
        missing = [word for word in words if word not in known]
        room = len(known) < MAX_REMEMBERED
        for word, ids in zip(missing, self._cut_all(missing), strict=True):
            (known if room and len(word) <= MAX_WORD else rest)[word] = tuple(ids)

        def find_in_both(word: str) -> tuple[int, ...]:
            return rest[word] if word in rest else known[word]

        # millions of words: most batches need no function of Python for each
        find = find_in_both if rest else known.__getitem__
        return [list(itertools.chain.from_iterable(map(find, text))) for text in texts]


def words_of(text: str) -> list[Span]:
    """Return the spans of the words between spaces."""
    return [match.span() for match in re.finditer(r"\S+", text)]


def words_at(text: str, places: Iterable[int]) -> list[int | None]:
    """Return the number of the word that each character is part of; None for a space."""
    words = words_of(text)
    starts = [start for start, _ in words]
    found: list[int | None] = []
    for place in places:
        word = bisect_right(starts, place) - 1
        found.append(word if word >= 0 and place < words[word][1] else None)
    return found


JOINER: Final = "￭"
# what joins the letters of Persian and Indic words is part of the word
IN_WORDS: Final = "_\u200c\u200d"


class WordCodec(Codec):
    """Words and punctuation marks, each a piece.

    A mark that stands close to what is beside it has a joiner there, as in the tokeniser of
    OpenNMT (Klein et al., 2017), and words never have one: `"so", he said` is `"￭`, `so`, `￭"`,
    `￭,`, `he`, `said`. So a word has one number wherever it stands, and nothing is lost.
    """

    form = SPACES

    def __init__(self, pieces: Sequence[str]) -> None:
        super().__init__(pieces)
        self._chunks = Chunks(self._cut_all)

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int, min_count: int) -> "WordCodec":
        """Count words and punctuation marks."""
        chunks: dict[str, list[str]] = {}

        def pieces(text: str) -> Iterable[str]:
            for chunk in text.split():
                if chunk not in chunks:
                    chunks[chunk] = mark_joins(cut_word(chunk))
                yield from chunks[chunk]

        return cls(count_pieces(map(pieces, texts), vocab_size, min_count))

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of the words and marks of each text."""
        return self._chunks.encode_batch([text.split() for text in texts])

    def _cut_all(self, chunks: Sequence[str]) -> list[list[int]]:
        find = self._table.get
        return [[find(piece, UNK) for piece in mark_joins(cut_word(chunk))] for chunk in chunks]

    def spans(self, text: str) -> list[Span]:
        """Return each word and mark, without the spaces around them."""
        found = []
        for start, end in words_of(text):
            for piece in cut_word(text[start:end]):
                found.append((start, start + len(piece)))
                start += len(piece)
        return found

    def join(self, pieces: Sequence[str]) -> str:
        """Join words by spaces, except at joiners."""
        text, joined = [], True
        for piece in pieces:
            if not (joined or _joins(piece, 0)):
                text.append(" ")
            joined = _joins(piece, -1)
            text.append(self.show(piece))
        return "".join(text)

    def normalize(self, text: str) -> str:
        """Return the words with a single space between them."""
        return collapse_spaces(text)

    def show(self, piece: str) -> str:
        """Return the word or mark without joiners."""
        piece = piece[1:] if _joins(piece, 0) else piece
        return piece[:-1] if _joins(piece, -1) else piece


def cut_word(word: str) -> list[str]:
    """Split a word into runs of letters and digits, and runs of equal other characters."""
    runs = itertools.groupby(word, key=lambda char: "" if _in_word(char) else char)
    return ["".join(run) for _, run in runs]


def mark_joins(pieces: Sequence[str]) -> list[str]:
    """Put joiners on the punctuation of a word: on its right only if a word follows."""
    marked = []
    for i, piece in enumerate(pieces):
        if not _in_word(piece[0]):
            before_word = i + 1 < len(pieces) and _in_word(pieces[i + 1][0])
            piece = JOINER * (i > 0) + piece + JOINER * before_word
        marked.append(piece)
    return marked


def _in_word(char: str) -> bool:
    return char.isalnum() or char in IN_WORDS or unicodedata.category(char).startswith("M")


def _joins(piece: str, side: int) -> bool:
    return len(piece) > 1 and piece[side] == JOINER


WORD_START: Final = "▁"
# what a vocabulary is learned from: more adds time and memory, and changes little
MAX_TYPES: Final = 2_000_000
MAX_WORDS: Final = 5_000_000


class SubwordCodec(Codec):
    """Parts of words, learned by byte pair encoding or as a unigram language model.

    Words are what stands between spaces, and begin with `▁`. Marks and digits stand alone.
    """

    def __init__(self, model: "HFTokenizer") -> None:
        self._model = model
        by_number = {number: piece for piece, number in model.get_vocab().items()}
        super().__init__([by_number[number] for number in range(len(by_number))])
        self._chunks = Chunks(self._cut_all)

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of the subwords of each text."""
        return self._chunks.encode_batch([text.split(" ") if text else [] for text in texts])

    def _cut_all(self, chunks: Sequence[str]) -> list[list[int]]:
        found = self._model.encode_batch_fast([WORD_START + chunk for chunk in chunks])
        # text that spells a special symbol is not one
        return [[max(number, UNK) for number in encoding.ids] for encoding in found]

    def spans(self, text: str) -> list[Span]:
        """Return each subword. The `▁` of a word is not in the text, and has no width by itself."""
        found, start = [], 0
        for chunk in text.split(" ") if text else []:
            # what is counted from the `▁` is one too many
            offsets = self._model.encode(WORD_START + chunk).offsets
            found += [(start + max(a - 1, 0), start + max(b - 1, 0)) for a, b in offsets]
            start += len(chunk) + 1
        return found

    def join(self, pieces: Sequence[str]) -> str:
        """Join words by spaces."""
        return "".join(pieces).replace(WORD_START, " ").removeprefix(" ")

    def normalize(self, text: str) -> str:
        """Return the text with spaces for `▁`, which pieces use for a space."""
        return text.replace(WORD_START, " ")

    @property
    def merges(self) -> list[tuple[str, str]]:
        """Merges of byte pair encoding, in the order in which they were learned."""
        return [(a, b) for a, b in self.to_json()["model"].get("merges", [])]

    def to_json(self) -> Any:
        """Return the learned model, as `tokenizers` writes it."""
        return json.loads(self._model.to_str())


def train_bpe(texts: Iterable[str], vocab_size: int, min_count: int) -> SubwordCodec:
    """Learn byte pair encoding: merge the most frequent pair repeatedly (Sennrich et al., 2016)."""
    from tokenizers import models, trainers

    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        # what was seen once is not a rule
        min_frequency=max(2, min_count),
        special_tokens=list(SYMBOLS),
        show_progress=False,
    )
    return _train(models.BPE(unk_token=SYMBOLS[UNK]), trainer, texts, vocab_size)


def train_unigram(texts: Iterable[str], vocab_size: int, min_count: int) -> SubwordCodec:
    """Learn a unigram language model: prune the least useful pieces repeatedly (Kudo, 2018)."""
    from tokenizers import models, trainers

    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SYMBOLS),
        unk_token=SYMBOLS[UNK],
        show_progress=False,
    )
    return _train(models.Unigram(), trainer, texts, vocab_size)


def _train(model: Any, trainer: Any, texts: Iterable[str], vocab_size: int) -> SubwordCodec:
    from tokenizers import Tokenizer as HFTokenizer
    from tokenizers import pre_tokenizers

    learner = HFTokenizer(model)
    learner.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Punctuation(), pre_tokenizers.Digits(individual_digits=True)]
    )
    counts = _count_words(texts)
    # a script of thousands of signs must leave room for parts of several signs
    alphabet = _alphabet(counts, max(1, vocab_size * 3 // 4 - len(SYMBOLS)))
    learner.train_from_iterator(_repeated(counts, alphabet), trainer)
    return from_json(_settled(json.loads(learner.to_str())))


def _count_words(texts: Iterable[str]) -> Counter[str]:
    counts: Counter[str] = Counter()
    for text in texts:
        words = text.split(" ")
        full = len(counts) >= MAX_TYPES
        counts.update([word for word in words if word in counts] if full else words)
    return counts


def _alphabet(counts: Counter[str], size: int) -> set[str]:
    """Return the most frequent characters; the others become unknown."""
    chars: Counter[str] = Counter()
    for word, count in counts.items():
        for char in WORD_START + word:
            chars[char] += count
    return {char for char, _ in sorted(chars.items(), key=lambda c: (-c[1], c[0]))[:size]}


def _repeated(counts: Counter[str], alphabet: set[str]) -> Iterator[str]:
    """Yield each word as often as it was found, scaled down if there are too many."""
    scale = max(1, counts.total() // MAX_WORDS)
    for word, count in counts.items():
        runs = itertools.groupby(WORD_START + word, key=alphabet.__contains__)
        known = ["".join(run) for is_known, run in runs if is_known]
        for _ in range(max(1, count // scale)):
            yield from known


def _settled(learned: dict[str, Any]) -> dict[str, Any]:
    """Return the learned model without added tokens, in an order that does not vary by run."""
    learned["added_tokens"] = []
    if learned["model"]["type"] == "Unigram":
        vocab = learned["model"]["vocab"]
        learned["model"]["vocab"] = vocab[: len(SYMBOLS)] + _ranked(vocab[len(SYMBOLS) :])
    return learned


def _ranked(scored: list[list[Any]]) -> list[list[Any]]:
    """Return pieces and their scores, the same in each run.

    The trainer sums scores in an order that varies by run, hence the rounding. It gives characters
    that it would have dropped the lowest score, and each 0.0001 more than the one before, in an
    order that varies as well; here they all get the lowest.
    """
    lowest = min((score for _, score in scored), default=0.0)
    dropped = lowest + 0.0001 * (1 + sum(len(piece) == 1 for piece, _ in scored))
    ranked = []
    for piece, score in scored:
        by_chance = len(piece) == 1 and score <= dropped
        ranked.append((-round(lowest if by_chance else score, 4), piece))
    return [[piece, -score] for score, piece in sorted(ranked)]


def from_json(learned: dict[str, Any]) -> SubwordCodec:
    """Return the codec that `SubwordCodec.to_json` describes. Raises ValueError if it is none."""
    return SubwordCodec(load_tokenizer(learned))


#: who says what in a conversation, as `join_turns` of stories.py writes it
SPEAKERS: Final = re.compile(r"(?:^| \| )(system|user|assistant): ")


class ImportedCodec(Codec):
    """A tokeniser of another library, whose tokens have other ids here.

    Args:
        tokenizer: what `tokenizers` is to do, as it writes it.
        ids: the number there of each id here; -1 for a symbol that is none of its tokens.
        pieces: the vocabulary.
        prefix: ids that every text begins with, such as the name of its language.
        decoding: options of decoding that such targets have by default.
        origin: the configuration of the model that it comes from, and other files of it.
        suffix: ids that every source ends with, if not with `eos` alone.
    """

    def __init__(
        self,
        tokenizer: dict[str, Any],
        ids: Sequence[int],
        pieces: Sequence[str],
        prefix: Sequence[int] = (),
        decoding: dict[str, Any] | None = None,
        origin: dict[str, Any] | None = None,
        suffix: Sequence[int] = (),
    ) -> None:
        super().__init__(pieces)
        self._model = load_tokenizer(tokenizer)
        self.ids, self.tokenizer = list(ids), tokenizer
        self.prefix, self.decoding = list(prefix), dict(decoding or {})
        self.origin, self.suffix = dict(origin or {}), list(suffix)
        *self._last, self.end = self.suffix or [EOS]
        self.theirs = dict(zip(pieces, ids, strict=True))
        # text that spells a special symbol is not one
        self._ours = {number: max(i, UNK) for i, number in enumerate(ids)}

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, after those of the prefix; without `end`."""
        encoded = self._model.encode_batch_fast(list(texts), add_special_tokens=False)
        find = self._ours.get
        return [[*self.prefix, *(find(i, UNK) for i in one.ids), *self._last] for one in encoded]

    def spans(self, text: str) -> list[Span]:
        """Return the span of each token; those of prefix and suffix have no width."""
        encoded, end = self._model.encode(text, add_special_tokens=False), len(text)
        return [(0, 0)] * len(self.prefix) + encoded.offsets + [(end, end)] * len(self._last)

    def join(self, pieces: Sequence[str]) -> str:
        """Return the text of tokens without special ones, and of what stands for unknown ones."""
        texts = []
        for known, run in itertools.groupby(pieces, self.theirs.__contains__):
            some = list(run)
            ids = [self.theirs[piece] for piece in some if known]
            texts.append(
                str(self._model.decode(ids, skip_special_tokens=True)) if known else " ".join(some)
            )
        return texts[0] if len(texts) == 1 else " ".join(text.strip() for text in texts)

    def show(self, piece: str) -> str:
        """Return the text of a token, if it is whole, with a low line for a space before it."""
        shown = self._model.decode([self.theirs[piece]], skip_special_tokens=False)
        if not shown or "\ufffd" in shown or piece.startswith(WORD_START):
            return piece
        return WORD_START + shown[1:] if shown[0] == " " else str(shown)

    def to_json(self) -> Any:
        """Return the arguments."""
        names = ("tokenizer", "ids", "pieces", "prefix", "decoding", "origin", "suffix")
        return {name: getattr(self, name) for name in names}


def load_tokenizer(content: dict[str, Any]) -> "HFTokenizer":
    """Return a tokeniser of the library `tokenizers`; raises ValueError if it is none."""
    from tokenizers import Tokenizer as HFTokenizer  # most kinds need none

    try:
        return HFTokenizer.from_str(json.dumps(content))
    except Exception as error:  # tokenizers raises no narrower kind
        raise ValueError(str(error)[:200]) from None


class PromptCodec(ImportedCodec):
    """A tokeniser of prompts: the turns of a conversation, each framed as its model expects.

    A text is one turn, or several as `join_turns` of stories.py writes them. As in transformers,
    frames and turns are cut together.

    Args:
        frames: texts before the first turn (`opening`), before and after what a system says
            (`system`, `after_system`), between turns (`to_assistant`, `to_user`), and before the
            answer that is to be written (`to_answer`).
        arguments: those of `ImportedCodec`.
    """

    def __init__(self, frames: dict[str, str], **arguments: Any) -> None:
        super().__init__(**arguments)
        self.frames = frames
        self._any = {number: i for i, number in enumerate(self.ids) if number >= 0}

    def _framed(self, text: str) -> tuple[str, list[int | None]]:
        """Return a prompt, and for each of its characters the place in the text, if it has one."""
        marks = [*SPEAKERS.finditer(text)]
        if not marks or marks[0].start() > 0:
            turns = [("user", 0, len(text))]
        else:
            ends = [*(mark.start() for mark in marks[1:]), len(text)]
            turns = [(m[1], m.end(), end) for m, end in zip(marks, ends, strict=True)]
        whole, places, before = "", list[int | None](), ""
        for role, start, end in turns:
            names = {"system": "after_system", "user": "to_assistant", "assistant": "to_user"}
            first = "system" if role == "system" else "opening"
            frame = self.frames[names[before] if before else first]
            whole += frame + text[start:end]
            places += [*([None] * len(frame)), *range(start, end)]
            before = role
        frame = self.frames["after_system" if before == "system" else "to_answer"]
        return whole + frame, [*places, *([None] * len(frame))]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each prompt, up to where the answer begins."""
        framed = [self._framed(text)[0] for text in texts]
        encoded = self._model.encode_batch_fast(framed, add_special_tokens=False)
        find = self._any.get
        return [[*self.prefix, *(find(i, UNK) for i in one.ids)] for one in encoded]

    def spans(self, text: str) -> list[Span]:
        """Return the span of each token; those of frames have no width."""
        whole, places = self._framed(text)
        encoded = self._model.encode(whole, add_special_tokens=False)
        found = [(0, 0)] * len(self.prefix)
        for start, end in encoded.offsets:
            own = [place for place in places[start:end] if place is not None]
            last = found[-1][1] if found else 0
            found.append((own[0], own[-1] + 1) if own else (last, last))
        return found

    def to_json(self) -> Any:
        """Return the arguments."""
        return {**super().to_json(), "frames": self.frames}


class Kind(NamedTuple):
    """A kind of tokeniser.

    Attributes:
        load: makes its codec from what `Codec.to_json` returned, which is checked elsewhere.
        train: trains its codec, if that needs no more than texts.
        metrics: of targets that it cuts, the main one first: single symbols are judged by how many
            are wrong and how many words are right, running text by its n-grams.
        decides: the metric that chooses between checkpoints, if it is not the main one.
    """

    load: Callable[[Any], Codec]
    train: Callable[[Iterable[str], int, int], Codec] | None
    metrics: tuple[str, ...] = ("bleu", "chrf")
    decides: str = ""


#: what a kind of tokeniser is: a further kind is a further line
KINDS: Final[dict[str, Kind]] = {
    "char": Kind(CharCodec, CharCodec.train, ("cer", "exact"), "exact"),
    "space": Kind(SpaceCodec, SpaceCodec.train, ("per", "exact")),
    "word": Kind(WordCodec, WordCodec.train),
    "bpe": Kind(from_json, train_bpe),
    "unigram": Kind(from_json, train_unigram),
    "imported": Kind(lambda model: ImportedCodec(**model), None),
    "prompt": Kind(lambda model: PromptCodec(**model), None),
    "label": Kind(LabelCodec, LabelCodec.train, ("accuracy", "macro-f1")),
    "labels": Kind(
        lambda model: LabelSetCodec(**model), None, ("micro-f1", "macro-f1", "subset-accuracy")
    ),
}
