import gzip

import numpy as np
import pytest

from regard.data import Pair, Tokenizer, build_corpus, read_texts
from regard.data.running_text import RunningText
from regard.errors import DataError
from regard.symbols import EOS


def test_a_line_is_a_target_without_a_source(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("a b\n\n  \nc\n", encoding="utf-8")
    assert list(read_texts(path)) == [Pair("", "a b", 1), Pair("", "c", 4)]
    with gzip.open(tmp_path / "text.gz", "wt") as file:
        file.write("a b\n")
    assert [pair.tgt for pair in read_texts(tmp_path / "text.gz")] == ["a b"]
    assert [pair.tgt for pair in read_texts(["x", " ", "y z"])] == ["x", "y z"]
    code = "for i in x:\n\tprint(i)\nx\n"  # few lines have tabs: these are no columns
    path.write_text(code, encoding="utf-8")
    assert "\n".join(pair.tgt for pair in read_texts(path)) == code.strip()


@pytest.mark.parametrize("longest", [1, 5, 7, 1000])
def test_windows_of_running_text_have_each_line_once_with_eos_between(tmp_path, longest):
    lines = ["ab", "c", "abcab", "a", "b", "cc", "abcabca"]
    tokenizer = Tokenizer.train("char", lines)
    pairs = [Pair("", line, number) for number, line in enumerate(lines, start=1)]
    limits = {"max_src_len": 9, "max_tgt_len": 9, "texts": True}
    corpus = build_corpus(pairs, tokenizer, tokenizer, tmp_path / "train.arrow", **limits)
    windows = RunningText(corpus, longest)
    rows = np.arange(len(windows.tgt_lengths))
    starts, lengths, ids = windows.gather("tgt", rows)
    texts = [ids[start : start + n].tolist() for start, n in zip(starts, lengths, strict=True)]
    joined = [token for text in texts for token in (*text, EOS)]
    assert joined == [token for line in lines for token in (*tokenizer.encode(line), EOS)]
    for text, after in zip(texts, [*texts[1:], None], strict=True):
        assert len(text) <= longest or EOS not in text
        if after is not None:  # another line would not have had room
            assert len(text) + 1 + len([*after, EOS][: [*after, EOS].index(EOS)]) > longest
    assert lengths.tolist() == windows.tgt_lengths.tolist() == [len(text) for text in texts]
    assert windows.gather("src", rows).lengths.tolist() == [1] * len(rows)
    dev = windows.dev_set()
    assert sorted(dev.scored.tolist()) == rows.tolist()
    assert len(dev.sources) == len(lines)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("text.txt", b"a\nb\tc\td\n", ["line 2", "tabs cut the line in 3 columns", "pairs"]),
        ("text.txt", b"a\n\xff\n", ["line 2", "invalid UTF-8"]),
        ("text.txt", b"a\n123456\n", ["line 2", "6 characters, and the limit is 5"]),
        ("text.txt", b"\n \n", ["there are no texts in it"]),
        ("text.jsonl", b"{}\n", ["plain files", ".jsonl"]),
    ],
)
def test_what_is_no_text_is_named(tmp_path, name, content, words):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError) as caught:
        list(read_texts(tmp_path / name, max_chars=5))
    assert all(word in str(caught.value) for word in words), str(caught.value)
