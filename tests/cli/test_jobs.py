"""`regard predict -o` through the command line."""

import json

import pytest

from cli.tools import done, regard, sentence, words
from jobs.toys import rows_in

# decodes with real models: not part of `make check`
pytestmark = pytest.mark.slow


@pytest.fixture
def shards(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    sources = words(90, seed=3)
    (folder / "a.txt").write_text("".join(f"{word}\n" for word in sources[:70]))
    rows = ({"text": word, "key": f"k{i}"} for i, word in enumerate(sources[70:]))
    (folder / "b.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder, sources


def test_shards_are_answered_as_lines_are(run, shards, tmp_path, plain_steps):
    folder, sources = shards
    result = regard("predict", run, folder, "-o", tmp_path / "out")
    assert done(result) == ""
    assert "2 answered now, 0 before, 0 failed" in result.stderr
    assert "90 rows, 0 with errors" in result.stderr
    rows = rows_in(tmp_path / "out")
    (tmp_path / "all.txt").write_text("".join(f"{word}\n" for word in sources))
    lines = done(regard("predict", run, tmp_path / "all.txt")).splitlines()
    assert [row["text"] for row in rows.values()] == lines
    assert list(rows)[69:71] == ["a.txt:70", "b.jsonl:1"]
    again = regard("predict", run, folder, "-o", tmp_path / "out")
    assert "0 answered now, 2 before" in again.stderr


def test_several_answers(run, shards, tmp_path):
    folder, _ = shards
    out = tmp_path / "out"
    options = ("--nbest", 2, "--columns", "text")
    done(regard("predict", run, folder / "*.jsonl", "-o", out, *options))
    rows = rows_in(out)
    assert list(rows) == [f"b.jsonl:{i + 1}" for i in range(20)]
    first = rows["b.jsonl:1"]
    assert [first["text"]] != [first["alternatives"][0]["text"]]
    assert first["score"] >= first["alternatives"][0]["score"]


def test_what_shards_exclude(run, tagged, shards, tmp_path):
    folder, _ = shards
    out = ("-o", tmp_path / "out")
    for options, reason in (
        ((*out, "--prefix", "a"), "--prefix must be left out where -o names a folder"),
        (("--workers", 2), "--workers must stand beside -o"),
        ((*out, "--nbest", 9), "nbest must be at most beam"),
        (("--ray", "local"), "--ray must stand beside -o"),
        ((*out, "--ray", "ray://head:1"), "--ray must be HOST:PORT or auto"),
        ((*out, "--ray", "127.0.0.1:9"), "--ray must name a Ray cluster that answers"),
    ):
        found = regard("predict", run, folder, *options)
        assert reason in sentence(found, 1 if "answers" in reason else 2)
    assert sentence(regard("predict", run, *out), 2).startswith("INPUT must follow the runs")
    assert not (tmp_path / "out").exists()
