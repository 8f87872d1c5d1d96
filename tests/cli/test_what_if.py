"""`regard what-if`, on a run that was never trained."""

import json

import pytest

from cli.tools import done, regard
from regard.seeing.trace.storage import from_json
from serve.conftest import run_folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return run_folder(tmp_path_factory.mktemp("runs") / "run", "transformer")


def test_both_answers_and_the_heads_that_change_most_are_printed(run, tmp_path):
    page = tmp_path / "page.html"
    words = ("--replace", "1=h", "--set", "cross:0:all:0:2=0.9", "--max-len", 6, "-o", page)
    shown = done(regard("what-if", run, "abcd", *words))
    assert "What if 'b', token 1 of the source, becomes 'h'?" in shown
    assert "row 0, column 2 of cross, layer 0, all heads, has weight 0.9" in shown
    assert "Heads whose maps change most" in shown
    assert "<figure" in page.read_text(encoding="utf-8")


def test_json_has_both_traces(run):
    words = ("--prefix", "c b", "--off", "cross:1:2", "--max-len", 6, "--beam", 1, "--json")
    found = json.loads(done(regard("what-if", run, "abcd", *words)))
    before, after = map(from_json, found["traces"])
    assert found["answers"] == [before.target.text, after.target.text]
    assert after.target.text.startswith("c b")
    assert len(found["changes"]) == 2
