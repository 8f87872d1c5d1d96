"""The tokenisers of decode.py cut and join as those of the package do."""

import io

import pytest

from regard.data import Tokenizer, source_ids
from regard.data.pairs import parse_features
from regard.data.text_codec import TokenCodec, one_line, read_lines
from regard.symbols import BOS, EOS, PAD, UNK

TEXTS = [
    '"So", he said: well-known!!  It\'s £5.',
    "Caf\u0065\u0301 na\u00efve İstanbul ΣΑΣ",
    "",
    "  spaces   here ",
    "نمی\u200cخواهم 3.14 </s> <unk>",
    "￭ ￭￭ a￭b ▁x y▁",
    "plain\tV;PST; 3 ;;nobody",
]
SYMBOLS = {"pad": PAD, "bos": BOS, "eos": EOS, "unk": UNK}


@pytest.mark.parametrize(("nfc", "case"), [(True, "lower"), (False, "upper")])
@pytest.mark.parametrize("kind", ["char", "space", "word", "bpe", "unigram"])
def test_ids_and_texts_are_those_of_the_package(kind, nfc, case, tmp_path):
    plain = [text.partition("\t")[0] for text in TEXTS]
    ours = Tokenizer.train(
        kind, plain * 3, nfc=nfc, case=case, vocab_size=90, features=["V", "PST", "3"]
    )
    ours.save(tmp_path / "tokenizer.json")
    theirs = TokenCodec(tmp_path / "tokenizer.json", {"symbols": SYMBOLS})
    for text in [*TEXTS, "quite new: words?"]:
        words, _, features = text.partition("\t")
        (expected,) = source_ids(ours, [words], [parse_features(features)])
        assert theirs.encode(text) == expected
        assert theirs.decode(expected[:-1]) == ours.decode(expected)
    ids = [*range(ours.vocab_size - 1, UNK, -1)]
    assert theirs.decode(ids) == ours.decode(ids)


@pytest.mark.plain  # the run-time checks do not take bytes in memory for a file
def test_each_line_has_one_answer_whatever_stands_in_it():
    source = io.BytesIO(b"\xef\xbb\xbfa\r\n\nb\rc\n\xc3\xa4")
    assert list(read_lines(source)) == ["a", "", "b\rc", "\u00e4"]
    answers = b"".join(map(one_line, ["one", "", "two\nlines", "\u00e4"]))
    assert answers == b"one\n\ntwo lines\n\xc3\xa4\n"
