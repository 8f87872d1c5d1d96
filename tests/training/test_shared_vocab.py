"""One vocabulary for both sides, and models whose tables are one."""

import pytest

from regard.errors import ArgumentError
from regard.training import make_config
from regard.training.setup import check_settings


def test_one_tokeniser_is_saved_for_both_sides(make_task):
    task = make_task(shared_vocab=True)
    files = [task.folder.src_tokenizer_file, task.folder.tgt_tokenizer_file]
    assert files[0].read_bytes() == files[1].read_bytes()
    assert task.evaluator.task.encoders.source.fingerprint == task.evaluator.task.target.fingerprint
    # it knows what either side has: words of letters, and letters with spaces between them
    assert 3 not in task.evaluator.task.encoders.source.encode("abcdefgh")
    assert 3 not in task.evaluator.task.target.encode("h g f e d c b a")


@pytest.mark.plain
@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tied": "all"}, r"'all' without shared_vocab: add shared_vocab=true"),
        (
            {"shared_vocab": True, "src_tokenizer": "bpe", "tgt_tokenizer": "char"},
            "must be the same with shared_vocab, but it is bpe and char",
        ),
        ({"shared_vocab": True, "src_case": "lower"}, "src_case must be keep where one tokeniser"),
        (
            {"bpe_dropout": 0.1, "src_tokenizer": "char", "tgt_tokenizer": "word"},
            "bpe_dropout must be 0 where no side is cut by bpe, but it is 0.1 with char and word",
        ),
        ({"word_dropout": 1.0}, "word_dropout must be at least 0 and less than 1"),
    ],
)
def test_settings_that_contradict_each_other(settings, words):
    with pytest.raises(ArgumentError, match=words):
        check_settings(make_config(settings))


def test_merges_are_left_out_of_training_pairs_alone(make_task):
    task = make_task(shared_vocab=True, src_tokenizer="bpe", bpe_dropout=0.3, vocab_size=60)
    first, second = (task.batches.epochs[number].pairs.src_lengths.copy() for number in (0, 1))
    assert first.tolist() != second.tolist()
    assert (first >= task.batches.epochs.corpus.src_lengths).mean() > 0.9
    dev = task.evaluator.dev
    first = dev.corpus.src(int(dev.rows[0])).tolist()
    assert first[:-1] == task.evaluator.task.encoders.source.encode(dev.sources[0])
