"""Texts, tags and spans: nearest neighbours, n-gram counts and words in common."""

from typing import Any, Final, NamedTuple, cast

import numpy as np
import torch
from jaxtyping import Float64, Int64, UInt64

from regard.data import EncodedPairs, Tokenizer
from regard.data.corpus import Ids
from regard.evaluation.metrics import score
from regard.models.encoder_only import NgramBag
from regard.symbols import BOS, EOS, SYMBOLS
from regard.tasks.baselines.base import Baseline, BaselineData, Rows
from regard.tasks.baselines.ngrams import features

#: source tokens that a second is enough to count, or to compare with the dev sources
COUNTED, COMPARED = 400_000, 50_000
#: dev sources that are compared with those of training, at most, and at once
ASKED, AT_ONCE = 1000, 64
#: training examples by which one of two baselines is chosen
TRIED: Final = 200
#: discount of Kneser-Ney smoothing, and the factor of hashes
DISCOUNT: Final = 0.75
FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)

Keys = UInt64[np.ndarray, " tokens"]


def fit_tokens(data: BaselineData) -> Baseline:
    """Answer as the training example with the nearest source does, or with the source itself.

    Which of the two is better is found out on training examples.
    """
    rows = data.sample(COMPARED * data.seconds)
    bag, encoder = NgramBag(data.task.input.vocab_size, 1), data.task.input.encoder
    features(bag, data.train, rows, learn=True)
    tried = rows[:: max(5, len(rows) // TRIED)]
    others = np.setdiff1d(rows, tried)
    if isinstance(encoder, Tokenizer) and len(others):
        right = _decoded(data.task.target, data.train, "tgt", tried)
        near = _nearest(bag, data, others, data.train, tried)
        copied = _decoded(encoder, data.train, "src", tried)
        if score("chrf", copied, right).value > score("chrf", near, right).value:
            return Baseline("copying the source", data.dev.sources)
    near = _nearest(bag, data, rows, data.dev.corpus, data.dev.rows[:ASKED])
    return Baseline("the answer of the nearest source", near)


def _nearest(
    bag: NgramBag, data: BaselineData, rows: Rows, corpus: EncodedPairs, asked: Rows
) -> list[str]:
    """Return the target of the training row whose source is nearest to each that is asked for."""
    known, places = features(bag, data.train, rows), []
    for start in range(0, len(asked), AT_ONCE):
        index, offsets, weights = features(bag, corpus, asked[start : start + AT_ONCE])
        column = torch.repeat_interleave(
            torch.arange(len(offsets)), torch.diff(offsets, append=torch.tensor([len(index)]))
        )
        table = torch.zeros(len(bag.idf), len(offsets))
        table.index_put_((index, column), weights, accumulate=True)
        places += known.sums(table).argmax(dim=0).tolist()
    return _decoded(data.task.target, data.train, "tgt", rows[places])


def _decoded(tokenizer: Tokenizer, corpus: EncodedPairs, side: str, rows: Rows) -> list[str]:
    return [tokenizer.decode(ids) for ids in _ids(corpus, side, rows)]


def _ids(corpus: EncodedPairs, side: str, rows: Rows) -> list[Any]:
    """Return the ids of some sources or targets, without `eos`."""
    starts, lengths, values = cast(Ids, corpus.gather(side, rows))
    ends = starts + lengths - (side == "src")
    return [values[start:end] for start, end in zip(starts, ends, strict=True)]


class _Counts(NamedTuple):
    """Counts by key."""

    keys: Keys
    counts: Int64[np.ndarray, " keys"]

    @staticmethod
    def of(keys: Keys) -> "_Counts":
        return _Counts(*np.unique(keys, return_counts=True))

    def __call__(self, keys: Keys) -> Int64[np.ndarray, " tokens"]:
        """Return the count of each key, or 0."""
        place = np.searchsorted(self.keys, keys).clip(max=len(self.keys) - 1)
        return np.where(self.keys[place] == keys, self.counts[place], 0)


def _grams(tokens: Int64[np.ndarray, " tokens"], length: int) -> Keys:
    """Return the hash of the n-gram that ends at each token; those of the first tokens wrap."""
    keys = np.zeros(len(tokens), np.uint64)
    for back in range(length - 1, -1, -1):
        keys = (keys + np.roll(tokens, back).astype(np.uint64) + np.uint64(1)) * FACTOR
        keys ^= keys >> np.uint64(29)
    return keys


def fit_language(data: BaselineData) -> Baseline:
    """Count n-grams, with interpolated Kneser-Ney smoothing (Chen and Goodman, 1998)."""
    order = 6 if data.task.target.kind == "char" else 3
    lengths = data.train.tgt_lengths
    drawn = np.random.default_rng(0).permutation(len(lengths))
    room = np.searchsorted(lengths[drawn].cumsum(), COUNTED * data.seconds * 3 / order)
    train = _joined(data.train, "tgt", drawn[: max(1, room)], order - 1)
    dev = _joined(data.dev.scored_pairs, "tgt", data.dev.scored, order - 1)
    prob: Float64[np.ndarray, " tokens"] = np.full(len(dev), 1 / data.task.output.size)
    # of all but the longest n-grams, those count that differ by the token before them
    counted = [np.flatnonzero(train != BOS)]
    for length in range(order, 1, -1):
        _, first = np.unique(_grams(train, length)[counted[-1]], return_index=True)
        counted.append(counted[-1][first])
    for length in range(1, order + 1):
        at = counted[order - length]
        whole, context = _grams(train, length)[at], np.roll(_grams(train, length - 1), 1)[at]
        grams, contexts = _Counts.of(whole), _Counts.of(context)
        kinds = _Counts.of(context[np.unique(whole, return_index=True)[1]])
        asked = np.roll(_grams(dev, length - 1), 1)
        seen, total = grams(_grams(dev, length)), contexts(asked)
        lower = np.where(total > 0, DISCOUNT * kinds(asked) / np.maximum(total, 1), 1.0)
        prob = (seen - DISCOUNT).clip(min=0) / np.maximum(total, 1) + lower * prob
    loss = -np.log(prob[dev != BOS])
    return Baseline(f"{order}-grams with Kneser-Ney smoothing", loss=float(loss.mean()))


def fit_tags(data: BaselineData) -> Baseline:
    """Take the most frequent tag of a token between its neighbours, or beside one, or alone."""
    rows, kinds = data.sample(COUNTED * data.seconds), data.task.output.size
    tokens, tags = _joined(data.train, "src", rows), _joined(data.train, "tgt", rows)
    asked = _joined(data.dev.corpus, "src", data.dev.rows)
    found = np.full(len(asked), np.bincount(tags[tags >= len(SYMBOLS)]).argmax())
    for length, after in ((1, 0), (2, 0), (2, 1), (3, 1)):
        keys, key = np.unique(np.roll(_grams(tokens, length), -after), return_inverse=True)
        both, counts = np.unique(key * kinds + tags, return_counts=True)
        order = np.lexsort((counts, both // kinds))  # of each key, the most frequent comes last
        last = np.searchsorted(both[order] // kinds, np.arange(len(keys)), side="right") - 1
        best, often = both[order][last] % kinds, counts[order][last]
        wanted = np.roll(_grams(asked, length), -after)
        place = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
        known = (keys[place] == wanted) & (often[place] >= min(length, 2))
        found = np.where(known, best[place], found)
    ends = np.flatnonzero(asked == EOS)
    outputs = [data.task.target.decode(row) for row in np.split(found, ends + 1)[:-1]]
    return Baseline("the most frequent tag of a word and its neighbours", outputs)


def _joined(
    corpus: EncodedPairs, side: str, rows: Rows, before: int = 0
) -> Int64[np.ndarray, " tokens"]:
    """Return sources or targets one after another: `bos` so many times before each, then `eos`."""
    each = _ids(corpus, side, rows)
    parts = [part for ids in each for part in ([BOS] * before, ids, [EOS])]
    return np.concatenate(parts).astype(np.int64)


def _sums(values: np.ndarray, width: int) -> np.ndarray:
    """Return the sum of so many values around each; `same` of numpy would be as long as these."""
    first = (width - 1) // 2
    return np.convolve(values, np.ones(width))[first : first + len(values)]


def fit_span(data: BaselineData) -> Baseline:
    """Answer with the tokens of the passage that have most words of the question around them."""
    encoder, near = data.task.input.encoder, 5
    rows = data.sample(COUNTED * data.seconds)
    often = np.bincount(_joined(data.train, "src", rows), minlength=encoder.vocab_size)
    rare = 1 / np.log(2 + often)
    length = max(1, round(float(np.median(data.train.tgt_lengths[rows]))))
    outputs = []
    for row in _ids(data.dev.corpus, "src", data.dev.rows):
        mark = int(np.flatnonzero(row == encoder.marks[1])[0])
        passage, question = row[:mark], row[mark + 1 :]
        hits = rare[passage] * np.isin(passage, question)
        around, inside = _sums(hits, 2 * near + length), _sums(hits, length)
        start = max(0, int((around - 2 * near * inside).argmax()) - (length - 1) // 2)
        outputs.append(data.task.target.decode(passage[start : start + length]))
    return Baseline("the window with most words of the question around it", outputs)
