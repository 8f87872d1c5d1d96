"""Subword codec: byte pair encoding and unigram models of Hugging Face's `tokenizers`.

It is called once for each distinct word: on running text that is many times faster than passing
whole lines.
"""

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from tokenizers import Tokenizer as HFTokenizer
from tokenizers import models, pre_tokenizers, trainers

from regard.data.lookup_codecs import Chunks, Codec
from regard.data.normalization import Span
from regard.symbols import SYMBOLS, UNK

WORD_START: Final = "▁"
# what a vocabulary is learned from: more adds time and memory, and changes little
MAX_TYPES: Final = 2_000_000
MAX_WORDS: Final = 5_000_000


class SubwordCodec(Codec):
    """Parts of words, learned by byte pair encoding or as a unigram language model.

    Words are what stands between spaces, and begin with `▁`. Marks and digits stand alone.
    """

    def __init__(self, model: HFTokenizer) -> None:
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
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SYMBOLS),
        unk_token=SYMBOLS[UNK],
        show_progress=False,
    )
    return _train(models.Unigram(), trainer, texts, vocab_size)


def _train(model: Any, trainer: Any, texts: Iterable[str], vocab_size: int) -> SubwordCodec:
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
    try:
        return SubwordCodec(HFTokenizer.from_str(json.dumps(learned)))
    except Exception as error:  # tokenizers raises no narrower kind
        raise ValueError(str(error)[:200]) from None
