"""Words that are cut in another way in each epoch."""

from random import Random

import numpy as np
import pytest

from regard.data import Pair, Tokenizer, build_corpus, collate
from regard.data.encode_corpus import BPEDropout, Resegmenter
from regard.symbols import EOS, UNK

WORDS = "low lower lowest new newer newest wide wider widest slow slower, (slowest) 1984 it's"


def texts(count=400, seed=1):
    draw = Random(seed)
    return [" ".join(draw.choices(WORDS.split(), k=draw.randint(1, 9))) for _ in range(count)]


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train("bpe", texts(), vocab_size=80, features=["PST", "PRS"])


def never():
    return 1.0


def recutter(corpus, dropout, **changes):
    options = {"max_src_len": 99, "max_tgt_len": 99, "seed": 3} | changes
    return Resegmenter(corpus, dropout, dropout, **options)


@pytest.fixture
def corpus(tokenizer, tmp_path):
    pairs = [
        Pair(text, text[::-1], i, features=("PST",) if i % 2 else ())
        for i, text in enumerate(texts(60))
    ]
    pairs.append(Pair("low", "", 61))  # an empty target has no words
    path = tmp_path / "pairs.arrow"
    return build_corpus(pairs, tokenizer, tokenizer, path, max_src_len=99, max_tgt_len=99)


def spelled(tokenizer, ids):
    return tokenizer.decode([number for number in ids if number != EOS])


def words(tokenizer, dropout, text):
    """The ids of each word of a text, cut without chance."""
    cut = []
    for number in tokenizer.encode(text):
        if dropout.begins[number] or not cut:
            cut.append([])
        cut[-1].append(number)
    return cut


@pytest.mark.parametrize("text", [*texts(40, seed=2), "lowly newt 7x", "low ü lowü", "a-b wid."])
def test_without_chance_it_cuts_as_the_tokeniser_does(tokenizer, text):
    dropout = BPEDropout(tokenizer, 0.0)
    cut = words(tokenizer, dropout, text)
    assert len(cut) == len(text.split())
    assert [dropout.cut(word, never) for word in cut] == cut


def test_merges_by_hand():
    tokenizer = Tokenizer.train("bpe", ["abab abab abab"], vocab_size=12)
    assert tokenizer.merges == [("a", "b"), ("▁", "ab"), ("▁ab", "ab")]
    dropout, word = BPEDropout(tokenizer, 0.5), tokenizer.encode("abab")

    def cut(*numbers):
        drawn = iter(numbers)
        found = tokenizer.tokens(dropout.cut(word, lambda: next(drawn)))
        assert next(drawn, None) is None, "all were needed"
        return found

    # the first a-b; then ▁-ab could be made, but the other a-b comes before it; ▁-ab; ▁ab-ab
    assert cut(0.9, 0.9, 0.9, 0.9, 0.9) == ["▁abab"]
    # the first a-b is left out, the second made; then the first one is left out again
    assert cut(0.1, 0.9, 0.1) == ["▁", "a", "b", "ab"]
    # and then it is made, and what follows is left out
    assert cut(0.1, 0.9, 0.9, 0.1) == ["▁", "ab", "ab"]
    assert cut(0.1, 0.1) == ["▁", "a", "b", "a", "b"]


def test_every_epoch_says_the_same_in_other_pieces(tokenizer, corpus):
    cutter = recutter(corpus, BPEDropout(tokenizer, 0.3))
    first, second = cutter.epoch(0), cutter.epoch(1)
    assert first.src.values.tolist() != second.src.values.tolist()
    for row in range(len(corpus)):
        for side, plain in (("src", corpus.src(row)), ("tgt", corpus.tgt(row))):
            for epoch in (first, second):
                (start,), (length,), ids = epoch.gather(side, np.array([row]))
                found = ids[start : start + length].tolist()
                assert spelled(tokenizer, found) == spelled(tokenizer, plain.tolist())
                special = [n for n in found if n <= UNK or n >= tokenizer.vocab_size - 2]
                assert special == [
                    n for n in plain.tolist() if n <= UNK or n >= tokenizer.vocab_size - 2
                ]
    assert first.src_lengths.sum() > 1.1 * corpus.src_lengths.sum()


def test_an_epoch_is_a_function_of_seed_and_number(tokenizer, corpus):
    dropout = BPEDropout(tokenizer, 0.3)
    one, again = recutter(corpus, dropout), recutter(corpus, dropout)
    one.epoch(0)
    assert one.epoch(7).src.values.tolist() == again.epoch(7).src.values.tolist()
    assert one.epoch(7).tgt.values.tolist() == again.epoch(7).tgt.values.tolist()
    other = recutter(corpus, dropout, seed=4)
    assert one.epoch(7).src.values.tolist() != other.epoch(7).src.values.tolist()


def test_what_would_be_too_long_stays_as_it_was(tokenizer, corpus):
    longest = int(corpus.src_lengths.max())
    dropout = BPEDropout(tokenizer, 0.9)
    epoch = recutter(corpus, dropout, max_src_len=longest - 1).epoch(0)
    assert epoch.src_lengths.max() <= longest
    row = int(corpus.src_lengths.argmax())
    (start,), (length,), ids = epoch.gather("src", np.array([row]))
    assert ids[start : start + length].tolist() == corpus.src(row).tolist()


def test_a_side_may_be_left_alone(tokenizer, corpus):
    options = {"max_src_len": 99, "max_tgt_len": 99, "seed": 3}
    epoch = Resegmenter(corpus, None, BPEDropout(tokenizer, 0.3), **options).epoch(0)
    assert epoch.src_lengths.tolist() == corpus.src_lengths.tolist()
    assert epoch.tgt_lengths.tolist() != corpus.tgt_lengths.tolist()
    assert collate(epoch, np.array([3])).src.tolist() == [corpus.src(3).tolist()]
