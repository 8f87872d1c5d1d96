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
        ({"word_dropout": 1.0}, "word_dropout must be at least 0 and less than 1"),
    ],
)
def test_settings_that_contradict_each_other(settings, words):
    with pytest.raises(ArgumentError, match=words):
        check_settings(make_config(settings))
