import gzip
import io
import lzma
import sys
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from regard.data import Pair, read_lines, read_pairs
from regard.data.pairs import parse_features
from regard.data.text_files import MAX_BYTES
from regard.errors import ArgumentError, DataError

GOOD = b"a b\tx\nc\ty z\n"
PAIRS = [Pair("a b", "x", 1), Pair("c", "y z", 2)]


@pytest.fixture
def write(tmp_path):
    def write(content, name="pairs.tsv"):
        path = tmp_path / name
        path.write_bytes(content)
        return path

    return write


@pytest.fixture
def stdin(monkeypatch):
    def give(content):
        raw = io.BufferedReader(io.BytesIO(content))
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(raw))

    return give


def sentence(source, **options):
    """What is said when the source is read, its folder taken out."""
    with pytest.raises(DataError) as caught:
        list(read_pairs(source, **options))
    text = str(caught.value)
    assert text.endswith(".")
    assert "\n" not in text
    return text.replace(f"{Path(caught.value.file).parent}/", "")


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_stdin(stdin, compress):
    stdin(compress(GOOD))
    assert list(read_pairs("-")) == PAIRS
    assert not sys.stdin.buffer.closed


BAD_LINES = {
    "invalid UTF-8": (
        b"c\xff\td",
        "invalid UTF-8, byte 0xff at offset 1 of the line: save the file as UTF-8",
    ),
    "NUL byte": (
        b"c\td\0",
        "there is a NUL byte at offset 3 of the line: remove it, and check that this is a text "
        "file",
    ),
    "empty source": (b"\td", "the source side is empty: fill it in or delete the line"),
    "empty target": (
        b"c\t \xe3\x80\x80",
        "the target side is empty: fill it in or delete the line",
    ),
    "missing tab": (
        b"c d",
        "there is no tab between source and target: put one there, or name the second of two "
        "parallel files as tgt_file",
    ),
    "too long": (
        b"c\t" + b"d" * 100_000,
        "the target has 100,000 characters, and the limit is 10,000: shorten it, or raise "
        "max_chars",
    ),
}


@pytest.mark.parametrize("kind", BAD_LINES)
def test_the_first_bad_line_has_its_sentence(write, kind):
    content, words = BAD_LINES[kind]
    path = write(b"a\tb\n" + content + b"\nc\td\n")
    expected = f"pairs.tsv, line 2: {words}, or leave bad lines out with skip_bad=True."
    assert sentence(path) == expected
    with pytest.raises(DataError) as caught:
        list(read_pairs(path))
    assert (caught.value.kind, caught.value.line) == (kind, 2)


def test_a_line_that_does_not_end(write, monkeypatch):
    monkeypatch.setattr("regard.data.text_files.MAX_BYTES", 50)
    path = write(b"a\tb\n" + b"x" * 170 + b"\nc\td\n")
    assert "line 2: the line has more than 50 bytes: check that the file has line" in sentence(path)
    reader = read_pairs(path, skip_bad=True)
    assert list(reader) == [Pair("a", "b", 1), Pair("c", "d", 3)]
    assert MAX_BYTES > 100_000


def test_files_that_cannot_be_opened(tmp_path, write):
    missing = "none.tsv: there is no such file: check the name, or the folder you are in."
    assert sentence(tmp_path / "none.tsv") == missing
    assert sentence(write(GOOD), tgt_file=tmp_path / "none.tsv") == missing
    assert "a folder must have a folder for each class" in sentence(tmp_path)
    assert sentence(write(b"")) == (
        "pairs.tsv: there are no pairs in it: check that it is the right one."
    )


@pytest.mark.parametrize(
    ("content", "name", "reason"),
    [
        (GOOD, "pairs.tsv.gz", "not a gzipped file"),
        (gzip.compress(GOOD, mtime=0)[:-9], "pairs.tsv.gz", "compressed file ended before the end"),
        (gzip.compress(GOOD, mtime=0)[:-8] + b"12345678", "pairs.tsv.gz", "CRC check failed"),
        (
            gzip.compress(GOOD, mtime=0)[:10] + b"\xff" * 20,
            "pairs.tsv.gz",
            "error -3 while decompressing",
        ),
        (GOOD, "pairs.tsv.xz", "input format not supported by decoder"),
        (lzma.compress(GOOD)[:-9], "pairs.tsv.xz", "compressed file ended before the end"),
        (GOOD, "pairs.tsv.bz2", "invalid data stream"),
    ],
)
def test_damaged_compression(write, content, name, reason):
    text = sentence(write(content, name))
    assert text.startswith(f"{name}, line ")
    assert f"the file cannot be read on ({reason}".lower() in text.lower()
    assert text.endswith("): it is cut off or damaged, so copy or compress it again.")


def test_marks_of_other_encodings_are_read(write, stdin):
    for encoding in ("UTF-16", "UTF-32"):
        content = "\ufeffa b\tx\nc\ty z\n".encode(f"{encoding}-LE")
        reader = read_pairs(write(content))
        assert list(reader) == PAIRS
        assert f"is not UTF-8 and is read as {encoding.lower()}" in reader.note


@pytest.mark.parametrize(("src", "tgt"), [(b"a\nb\nc\n", b"x\n"), (b"", b"x\ny\nz\n")])
def test_parallel_files_of_different_lengths(write, src, tgt):
    left, right = src.count(b"\n"), tgt.count(b"\n")
    path, tgt_file = write(src, "src.txt"), write(tgt, "tgt.txt")
    expected = (
        f"src.txt: it has {left} lines, and tgt.txt has {right}: "
        "make them line up, one target for each source."
    )
    assert sentence(path, tgt_file=tgt_file) == expected
    assert sentence(path, tgt_file=tgt_file, skip_bad=True) == expected


BAD_JSON = {
    "invalid JSON": (b'{"src": "a", ', "invalid JSON at character 13: write one whole object"),
    "missing key": (b'{"src": "a"}', "there is no key 'tgt' among 'src': add it, or leave"),
    "not a string": (b'{"src": "a", "tgt": {}}', "the target must be a string, but it is {}:"),
    "empty target": (b'{"src": "a", "tgt": null}', "the target side is empty:"),
    "invalid UTF-8": (
        b'{"src": "\\ud800", "tgt": "b"}',
        "character 0 of the source is half of a surrogate pair: write the whole character",
    ),
    "NUL byte": (
        b'{"src": "a", "tgt": "b\\u0000"}',
        "there is a NUL character at position 1 of the target: remove it",
    ),
}


@pytest.mark.parametrize("kind", BAD_JSON)
def test_bad_json(write, kind):
    content, words = BAD_JSON[kind]
    good = b'{"src": "a", "tgt": "b"}\n'
    path = write(good + content + b"\n" + good, "pairs.jsonl")
    assert sentence(path).startswith(f"pairs.jsonl, line 2: {words}")
    reader = read_pairs(path, skip_bad=True)
    assert len(list(reader)) == 2
    assert reader.bad.counts == {kind: 1}


@pytest.fixture
def table(tmp_path):
    def table(**columns):
        parquet.write_table(pyarrow.table(columns), tmp_path / "pairs.parquet")
        return tmp_path / "pairs.parquet"

    return table


def test_bad_parquet(table, write, stdin):
    path = table(en=["a b", "c"], fr=["x", None])
    assert sentence(path).startswith("pairs.parquet, line 2: the target side is empty")
    assert "it cannot be read as Parquet" in sentence(write(path.read_bytes()[:-9], path.name))
    stdin(b"PAR1")
    assert "Parquet cannot be read from a pipe: save it" in sentence("-")


def test_python_pairs():
    assert list(read_pairs([("a b", "x"), ["c", "y z"]])) == PAIRS
    assert list(read_pairs(iter([("a b", "x"), Pair("c", "y z", 7)]))) == PAIRS
    assert list(read_pairs([("a", "x", "V;PST")], features=True)) == [
        Pair("a", "x", 1, (), ("V", "PST"))
    ]
    assert list(read_pairs([("a", "x", "y", "z")], references=True)) == [
        Pair("a", "x", 1, ("y", "z"))
    ]


@pytest.mark.parametrize(
    ("item", "words"),
    [
        ("ab", "an item must be a tuple (source, target), but it is 'ab'"),
        (("a",), "an item must be a tuple (source, target), but it is ('a',)"),
        (("a", b"x"), "the target must be a string, but it is b'x'"),
        (("a", float("nan")), "the target side is empty"),
        (("", "x"), "the source side is empty"),
        (("a", "x\0"), "there is a NUL character at position 1 of the target"),
        (("a", "\udc80"), "character 0 of the target is half of a surrogate pair"),
        (("a", "x", "y"), "the item has 3 parts where 2 are expected"),
        ({"src": "a"}, "there is no key 'tgt' among 'src'"),
        ({"src": "", "tgt": "b"}, "the source side is empty"),
        (("a", "b"), "an item must be a dictionary as the first one is, but it is ('a', 'b')"),
    ],
)
def test_bad_python_pairs(item, words):
    named = isinstance(item, dict) or "dictionary" in words
    assert sentence([{"src": "a", "tgt": "b"} if named else ("a", "b"), item]).startswith(
        f"pairs, line 2: {words}"
    )


@pytest.mark.parametrize(("src", "tgt"), [("src", "tgt"), ("source", "target")])
def test_dictionaries_are_read_by_their_names(src, tgt):
    rows = [{tgt: "x", src: "a b"}, {src: "c", tgt: "y z", "features": "V;PST"}]
    assert list(read_pairs(rows)) == [PAIRS[0], PAIRS[1]._replace(features=("V", "PST"))]


@pytest.mark.parametrize(
    "content",
    [
        b"go\twent\tis gone\n",
        b"go\twent\tV\n",
        b"go\twent\tV;PST\tx\n",
        b"a\tb\tV;\n",
        b"a\tb\tc; d\n",
        b"a\tb\nc\td\tV;PST\n",
    ],
)
def test_other_columns_are_no_features(write, content):
    path = write(content)
    assert "columns where 2 are expected" in sentence(path)
    if content.count(b"\t") == 2 and content.count(b"\n") == 1:
        (pair,) = read_pairs(path, features=True)
        assert pair.features == parse_features(content.decode().split("\t")[2])


def test_columns(write):
    path = write(b"en\tde\tfr\nhouse\tHaus\tmaison\n")
    assert list(read_pairs(path, columns=(0, 2)))[1] == Pair("house", "maison", 2)
    assert list(read_pairs(path, columns=(2, 0)))[1] == Pair("maison", "house", 2)
    assert list(read_pairs(path, columns=("fr", "de"))) == [Pair("maison", "Haus", 2)]
    assert list(read_pairs(path, columns=(0, 2, 1)))[1].features == ("Haus",)
    assert list(read_pairs(path, columns=(0, 1)))[1] == Pair("house", "Haus", 2)
    assert next(read_pairs(write(b"go\twent\tV;PST\n", "tags.tsv"))).features == ("V", "PST")
    assert "has 3 columns, and column 5 is asked for" in sentence(path, columns=(0, 4))
    assert "there is no column 'es' among 'en', 'de', 'fr'" in sentence(path, columns=("en", "es"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"format": "xml"},
            "format must be one of auto, tsv, csv, jsonl, parquet, but it is",
        ),
        ({"columns": "en"}, "columns must name source, target"),
        ({"columns": (1,)}, "columns must name source, target"),
        ({"columns": (0, -1)}, "columns must name source, target"),
        ({"columns": (0, 1), "features": True}, "columns must name source, target"),
        ({"features": True, "references": True}, "references must be left out if there are"),
        ({"tgt_file": "x", "columns": (0, 1)}, "columns must be left out unless the source is one"),
        ({"tgt_file": "x", "format": "tsv"}, "format must be left out unless the source is one"),
        ({"tgt_file": "x", "features": True}, "tgt_file must be left out with features"),
    ],
)
def test_options_that_have_no_meaning(write, options, words):
    with pytest.raises(ArgumentError) as caught:
        read_pairs(write(GOOD), **options)
    assert words in str(caught.value)


BLANK_ENDS = [b"\n", b"\n\n\n", b" \n\t\n", b"\r\n\r\n", b" ", b"\n" * 50]


@pytest.mark.parametrize("end", BLANK_ENDS)
def test_empty_lines_at_the_end_of_a_file_are_passed_over(write, stdin, end):
    reader = read_pairs(write(GOOD + end))
    assert list(reader) == PAIRS
    assert not reader.bad.total
    jsonl = b'{"src": "a b", "tgt": "x"}\n{"src": "c", "tgt": "y z"}\n'
    assert list(read_pairs(write(jsonl + end, "pairs.jsonl"))) == PAIRS
    assert list(read_pairs(write(b"en\tfr\n" + GOOD + end), columns=("en", "fr"))) == [
        pair._replace(line=pair.line + 1) for pair in PAIRS
    ]
    stdin(GOOD + end)
    assert list(read_pairs("-")) == PAIRS


def test_parallel_files_stay_side_by_side_at_empty_lines(write):
    src, tgt = write(b"a\n\nb\nc\n\n", "src.txt"), write(b"x\n\n\nz\n", "tgt.txt")
    assert sentence(src, tgt_file=tgt).startswith("src.txt, line 2: the source side is empty")
    reader = read_pairs(src, tgt_file=tgt, skip_bad=True)
    assert list(reader) == [Pair("a", "x", 1), Pair("c", "z", 4)]
    assert reader.bad.counts == {"empty source": 1, "empty target": 1}


@pytest.mark.parametrize(
    ("first", "columns"),
    [
        (b"source\ttarget", ("source", "target")),
        (b"src\ttgt", ("src", "tgt")),
        (b"Input\tOutput", ("Input", "Output")),
        (b"TARGET\tSOURCE", ("SOURCE", "TARGET")),
    ],
)
def test_a_first_line_of_names_is_used_and_announced(write, first, columns):
    path = write(first + b"\n" + GOOD)
    reader = read_pairs(path)
    places = tuple(first.decode().split("\t").index(name) for name in columns)
    assert reader.note.replace(f"{path.parent}/", "") == (
        f"pairs.tsv, line 1 has the names of columns: the source is {columns[0]}, the target is "
        f"{columns[1]}; columns={places} reads it as an example."
    )
    mended = list(read_pairs(path, columns=columns))
    assert list(reader) == mended
    assert [pair.line for pair in mended] == [2, 3]
    assert len(list(read_pairs(path, columns=places))) == 3


def test_options_that_need_files(write, stdin):
    with pytest.raises(ArgumentError, match="tgt_file must be left out if the source is no file"):
        read_pairs([("a", "b")], tgt_file=write(GOOD))
    with pytest.raises(ArgumentError, match="columns must be left out unless"):
        read_pairs([("a", "b")], columns=(0, 1))
    with pytest.raises(ArgumentError, match="columns must be names where the source is JSON"):
        read_pairs(write(b"{}", "pairs.jsonl"), columns=(0, 1))
    with pytest.raises(ArgumentError, match="tgt_file must be a file if the source is stdin"):
        read_pairs("-", tgt_file="-")


def test_lines_to_predict_from(write, stdin):
    path = write(b"\xef\xbb\xbfa b\r\n\r\n \nc\td\n", "input.txt.gz")
    path.write_bytes(gzip.compress(path.read_bytes()))
    assert list(read_lines(path)) == ["a b", "", " ", "c\td"]
    stdin(b"a\n\nb")
    assert list(read_lines("-")) == ["a", "", "b"]
    assert list(read_lines(["a", ""])) == ["a", ""]
    assert list(read_lines(write(b"", "empty"))) == []
