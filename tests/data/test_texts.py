import gzip

import pytest

from regard.data import Pair, read_texts
from regard.errors import DataError


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
