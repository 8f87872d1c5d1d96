"""Files as people have them: each is read as it was written, or refused in one sentence."""

import csv
import gzip
import io
import json

import pyarrow
import pytest
from pyarrow import parquet

from regard.api.read_pairs import check_pairs
from regard.data import read_pairs
from regard.errors import DataError

TEXTS = ["a fine film", "dull, and long", 'he said "no"', "über; naïve", "not\nfor me", "so so"]
ROWS = [(f"{text} {i}", ("good", "bad")[i % 2]) for i, text in enumerate(TEXTS * 2)]
PLAIN = [(text.replace("\n", " ").replace('"', "'"), label) for text, label in ROWS]
BILINGUAL = [(f"你好，世界{i}", f"مرحبا {i}") for i in range(7)]
LABELS = [(text, str(i % 2)) for i, (text, _) in enumerate(ROWS)]
NUMBERS = [(text, f"{i / 4}") for i, (text, _) in enumerate(ROWS)]
RAGGED = "line 3: the line has 4 columns where the first one has 3: add what is missing, or put"
PASSAGE, ASKED = "Ada wrote it in 1843.", "Who wrote it?"


def delimited(rows, header=(), delimiter=",", **how):
    """The bytes that Python's writer makes of rows, as pandas does."""
    file = io.StringIO()
    writer = csv.writer(file, delimiter=delimiter, lineterminator="\n", **how)
    writer.writerows([header] * bool(header) + [*rows])
    return file.getvalue().encode()


def lines(rows, *header):
    """Tab-separated lines without quotes."""
    return "".join("\t".join(row) + "\n" for row in [header] * bool(header) + [*rows]).encode()


def objects(rows, *names, **more):
    return "".join(json.dumps({**dict(zip(names, r, strict=True)), **more}) + "\n" for r in rows)


def table(**columns):
    file = io.BytesIO()
    parquet.write_table(pyarrow.table(columns), file)
    return file.getvalue()


def squad(answers):
    asked = [{"id": "7", "question": ASKED, "answers": answers}]
    part = {"title": "Ada", "paragraphs": [{"context": PASSAGE, "qas": asked}]}
    return {"version": "1.1", "data": [part]}


with_id = [(str(i), *row) for i, row in enumerate(ROWS)]
HEADER = ("text", "label")
#: name of the file, its content, and what is read, or a part of the sentence that refuses it
FILES = {
    "tsv": ("x.tsv", lines(PLAIN), PLAIN),
    "tsv with names": ("x.tsv", lines(PLAIN, *HEADER), PLAIN),
    "tsv, target first": ("x.tsv", lines([r[::-1] for r in PLAIN], "label", "text"), PLAIN),
    "tsv with other names": ("x.tsv", lines(LABELS[:4], "Satz", "Wert"), LABELS[:4]),
    "tsv of words and names": ("x.txt", lines(PLAIN, "Satz", "Label"), PLAIN),
    "tsv with ids": ("x.tsv", lines([r for r in with_id if "\n" not in r[1]], "id", *HEADER),
                     [r for r in ROWS if "\n" not in r[0]]),
    "tsv of languages": ("x.tsv", lines(BILINGUAL, "zh", "ar"), BILINGUAL),
    "tsv with a bom": ("x.tsv", b"\xef\xbb\xbf" + lines(PLAIN, *HEADER), PLAIN),
    "tsv with crlf": ("x.tsv", lines(PLAIN, *HEADER).replace(b"\n", b"\r\n"), PLAIN),
    "tsv, empty lines at the end": ("x.tsv", lines(PLAIN, *HEADER) + b"\n\n", PLAIN),
    "tsv, empty line": ("x.tsv", b"a\tb\n\nc\td\n", "line 2: the line is empty"),
    "tsv, three columns": ("x.tsv", lines(with_id[:2]), "3 columns where 2 are expected"),
    "tsv in utf-16": ("x.tsv", lines(PLAIN).decode().encode("utf-16"), "the file is in UTF-16"),
    "tsv in latin-1": ("x.tsv", "a\tb\nübel\tx\n".encode("latin-1"), "line 2: invalid UTF-8"),
    "tsv without tabs": ("x.txt", b"one text\nand another\n", "there is no tab between source"),
    "csv": ("x.csv", delimited(ROWS), ROWS),
    "csv with names": ("x.csv", delimited(ROWS, HEADER), ROWS),
    "csv, all quoted": ("x.csv", delimited(ROWS, HEADER, quoting=csv.QUOTE_ALL), ROWS),
    "csv, compressed": ("x.csv.gz", gzip.compress(delimited(ROWS, HEADER)), ROWS),
    "csv with a bom and crlf": (
        "x.csv", b"\xef\xbb\xbf" + delimited(PLAIN, HEADER).replace(b"\n", b"\r\n"), PLAIN),
    "csv with ids": ("x.csv", delimited(with_id, ("id", *HEADER)), ROWS),
    "csv of pandas with its index": ("x.csv", delimited(with_id, ("", *HEADER)), ROWS),
    "csv with numbers": ("x.csv", delimited(NUMBERS, ("Satz", "Wert")), NUMBERS),
    "csv with integer labels": ("x.csv", delimited(LABELS, HEADER), LABELS),
    "csv in Chinese and Arabic": ("x.csv", delimited(BILINGUAL), BILINGUAL),
    "semicolons": ("x.csv", delimited(ROWS, HEADER, delimiter=";"), ROWS),
    "semicolons of Excel": ("x.csv", b"sep=;\n" + delimited(ROWS, HEADER, delimiter=";"), ROWS),
    "tabs in a csv file": ("x.csv", delimited(ROWS, HEADER, delimiter="\t"), ROWS),
    "csv, ragged": ("x.csv", b"id,text,label\n1,a,x\n2,b, c,y\n", RAGGED),
    "csv, comma without quotes": ("x.csv", b"a,x\nb, c,y\n", "line 2: the line has 3 columns"),
    "csv, quote left open": ("x.csv", b'a,x\n"b,y\nc,z\n', "line 2: the row is no CSV"),
    "csv in latin-1": ("x.csv", "a,b\nübel,x\n".encode("latin-1"), "line 2: invalid UTF-8"),
    "csv in utf-16": ("x.csv", "a,b\n".encode("utf-16"), "the file is in UTF-16"),
    "csv, two ways to cut": ("x.csv", b"a,b;x\nc,d;y\n", "',' and ';' cut its lines equally well"),
    "csv of two texts": (
        "x.csv", delimited([(f"p {t}", t, n) for t, n in ROWS], ("premise", "with", "label")),
        "its columns are premise, with, label, and which are source and target is not clear"),
    "csv of two texts with ids": (
        "x.csv", b"id,text,sentence,label\n1,a,b,x\n2,c,d,y\n3,c,d,y\n",
        "its columns are id, text, sentence, label, and which are source and target is not clear"),
    "csv of one column": ("x.csv", b"a text\nanother\n", "the line has 1 columns, and column 2"),
    "jsonl": ("x.jsonl", objects(ROWS, *HEADER, id=7).encode(), ROWS),
    "jsonl with integer labels": (
        "x.jsonl", objects([(t, int(n)) for t, n in LABELS], *HEADER).encode(), LABELS),
    "jsonl with booleans": (
        "x.jsonl", objects([("a", True), ("b", False)], *HEADER).encode(),
        [("a", "true"), ("b", "false")]),
    "jsonl, unknown names": ("x.jsonl", objects(ROWS, "u", "v").encode(), "the names are u, v"),
    "json array": ("x.json", json.dumps([{"text": t, "label": n} for t, n in ROWS]).encode(), ROWS),
    "json array, indented": (
        "x.json", json.dumps([{"text": t, "label": n} for t, n in ROWS], indent=1).encode(), ROWS),
    "json array of pairs": ("x.json", json.dumps(ROWS).encode(), ROWS),
    "json, cut off": ("x.json", b'[{"text": "a", ', "the file must hold JSON"),
    "SQuAD": ("x.json", json.dumps(squad([{"text": "Ada", "answer_start": 0}])).encode(),
              [(f"{PASSAGE}\t{ASKED}", "Ada")]),
    "SQuAD, indented": (
        "x.json", json.dumps(squad([{"text": "Ada", "answer_start": 0}]), indent=1).encode(),
        [(f"{PASSAGE}\t{ASKED}", "Ada")]),
    "SQuAD without an answer": (
        "x.json", json.dumps(squad([])).encode(), "line 1: the target side is empty"),
    "parquet": ("x.parquet", table(text=[r[0] for r in ROWS], label=[r[1] for r in ROWS]), ROWS),
    "parquet with ids, label first": (
        "x.parquet", table(label=[0, 1], id=[7, 8], text=["a", "b"]), [("a", "0"), ("b", "1")]),
}  # fmt: skip


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_read_as_it_was_written_or_refused(tmp_path, name):
    file, content, expected = FILES[name]
    (tmp_path / file).write_bytes(content)
    if isinstance(expected, str):
        with pytest.raises(DataError) as caught:
            list(read_pairs(tmp_path / file))
        said = str(caught.value)
        assert expected in said
        assert said.endswith(".")
        assert "\n" not in said
    else:
        assert [(pair.src, pair.tgt) for pair in read_pairs(tmp_path / file)] == expected


#: files that may be meant in two ways: read in one, with a sentence about the other
NOTED = {
    "names?": (lines(PLAIN, "Satz", "Urteil"), "columns=('Satz', 'Urteil') takes it as such"),
    "label first": (
        lines([(label, f"{text} {i}") for i, (text, label) in enumerate(PLAIN * 2)]),
        "labels of the second, say columns=(1, 0)"),
    "quotes": (delimited(ROWS[2:4] * 3, delimiter="\t"), "quotes are read as part of the text"),
}  # fmt: skip


@pytest.mark.parametrize("name", NOTED)
def test_what_may_be_meant_otherwise_is_noted(tmp_path, name):
    content, said = NOTED[name]
    (tmp_path / "x.tsv").write_bytes(content)
    assert said in read_pairs(tmp_path / "x.tsv").note
    assert read_pairs(tmp_path / "x.tsv", columns=(0, 1)).note == ""


def test_names_are_announced_with_the_columns_that_are_left_out(tmp_path):
    (tmp_path / "x.csv").write_bytes(delimited(with_id, ("id", *HEADER)))
    reader = read_pairs(tmp_path / "x.csv")
    assert "line 1 has the names of columns: the source is text, the target is label" in reader.note
    assert reader.note.endswith("Columns that are left out: 'id'.")
    chosen = read_pairs(tmp_path / "x.csv", columns=("text", "id"))
    assert next(chosen)[:2] == (ROWS[0][0], "0")


def test_bad_rows_of_csv_can_be_left_out(tmp_path):
    (tmp_path / "x.csv").write_bytes(b'text,label\na,x\n"b" c,y\n\nd,z,z\n\xff,w\ne,"x\ny"\n')
    reader = read_pairs(tmp_path / "x.csv", skip_bad=True)
    assert [pair[:3] for pair in reader] == [("a", "x", 2), ("e", "x\ny", 7)]
    assert reader.bad.counts.keys() == {
        "invalid CSV", "empty line", "other number of columns", "invalid UTF-8",
    }  # fmt: skip


class Polars:
    """A table with the interface of polars."""

    columns = ("text", "label")

    def to_dicts(self):
        return [{"text": text, "label": int(label)} for text, label in LABELS]


def tables_of_python():
    columns = {"id": list(range(len(LABELS))), "text": [text for text, _ in LABELS]}
    columns["label"] = [int(label) for _, label in LABELS]
    yield pyarrow.table(columns)
    yield Polars()
    yield [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    pandas = pytest.importorskip("pandas")
    yield pandas.DataFrame(columns)
    yield pandas.DataFrame({"Satz": columns["text"], "Wert": columns["label"]})


def test_tables_of_other_libraries_are_pairs():
    for given in tables_of_python():
        assert [pair[:2] for pair in read_pairs(check_pairs(given))] == LABELS
    with pytest.raises(DataError, match="the names are a, b, c: rename them, or choose two"):
        list(read_pairs(check_pairs(pyarrow.table({"a": [1], "b": [2], "c": [3]}))))
