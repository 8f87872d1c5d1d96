"""`regard predict -o answers.csv`: one table of sources, answers, confidences and alternatives."""

import csv
import json

import pyarrow.parquet as pq
import pytest

import regard as package
from api.test_tables import GOOD, SMALL, TEXTS
from cli.tools import done, regard, sentence
from regard.cli.predict import _write_table

WORDS = ["attention", "=cat", "regard"]


@pytest.fixture
def words(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("".join(f"{word}\n" for word in WORDS))
    return path


def rows_of(path):
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    if path.suffix == ".parquet":
        return pq.read_table(path).to_pylist()
    with path.open(newline="", encoding="utf-8") as file:
        names, *rows = csv.reader(file, delimiter="\t" if path.suffix == ".tsv" else ",")
    found = [dict(zip(names, row, strict=True)) for row in rows]
    for row in found:
        row["confidence"] = float(row["confidence"])
        row["alternatives"] = json.loads(row["alternatives"])
    return found


@pytest.mark.sample(3)
@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["csv", "tsv", "jsonl", "parquet"])
def test_each_format_has_the_same_rows(words, tmp_path, suffix):
    path = tmp_path / f"answers.{suffix}"
    result = regard("predict", "g2p", words, "--nbest", 3, "-o", path, "--device", "cpu")
    assert done(result) == ""
    assert f"rows written to {path}: 3." in result.stderr.replace("\n", " ")
    found = rows_of(path)
    assert [row["source"] for row in found] == WORDS
    expected = package.load("g2p", device="cpu")(WORDS, nbest=3)
    assert [row["answer"] for row in found] == [out.text for out in expected]
    assert [len(row["alternatives"]) for row in found] == [2, 2, 2]
    shares = [[row, *row["alternatives"]] for row in found]
    for row, out in zip(shares, expected, strict=True):
        assert [one["confidence"] for one in row] == sorted(o["confidence"] for o in row)[::-1]
        assert [one["answer"] for one in row] == [out.text, *(o.text for o in out.alternatives)]


def test_rows_may_lack_columns_and_differ_in_type(tmp_path):
    bad = {"source": None, "answer": None}
    rows = [bad, *({"source": "a", "answer": one, "confidence": 0.5} for one in (1, "b"))]
    _write_table(tmp_path / "x.parquet", rows)
    texts = [{**row, "answer": f"{row['answer']}"} for row in rows[1:]]
    assert rows_of(tmp_path / "x.parquet") == [{**bad, "confidence": None}, *texts]


@pytest.mark.slow
def test_labels_of_integers_have_alternatives_and_a_bad_line_an_empty_row(tmp_path):
    model = package.fit(TEXTS, list(map(int, GOOD)), **SMALL)
    (tmp_path / "texts.txt").write_text("the film was superb\nso\tbad\nthe film was awful\n")
    answers = tmp_path / "answers.jsonl"
    done(regard("predict", model.path, tmp_path / "texts.txt", "--skip-bad", "-o", answers))
    first, second, third = rows_of(answers)
    assert (first["answer"], third["answer"]) == (1, 0)
    assert first["alternatives"] == [{"answer": 0, "confidence": pytest.approx(0.5, abs=0.5)}]
    assert second == {"source": None, "answer": None}


def test_what_cannot_be_written_is_refused_in_a_sentence(words, tmp_path):
    said = sentence(regard("predict", "g2p", words, "-o", tmp_path / "a.csv", "--jsonl"), 2)
    assert "--jsonl" in said
    said = sentence(regard("predict", "g2p", words, "-o", tmp_path / "a.xlsx"), 2)
    assert "-o must end in .csv, .tsv, .jsonl, .parquet, but it is" in said
    assert not (tmp_path / "a.xlsx").exists()
    said = sentence(regard("predict", "g2p", words, "-o", tmp_path / "a.csv", "--workers", 2), 2)
    assert "--workers" in said
