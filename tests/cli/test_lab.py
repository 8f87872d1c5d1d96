import json

import pytest

from cli.tools import done, regard, sentence
from lab.tools import install, stop


@pytest.fixture(autouse=True)
def small_lab(monkeypatch):
    install(monkeypatch, one={}, two={})


def lab(folder, *words):
    return regard("lab", *words, "-o", folder / "out", "--seeds", 2, "--device", "cpu")


def test_verdicts_and_the_report_on_stdout(tmp_path):
    out = done(lab(tmp_path)).splitlines()
    assert out[0].split() == ["verdict", "document", "claim"]
    assert [line.split()[0] for line in out[1:3]] == ["holds", "holds"]
    assert out[3] == f"report: {tmp_path / 'out' / 'report.md'}"
    assert (tmp_path / "out" / "report.md").is_file()


def test_list_names_the_questions_and_runs_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = done(regard("lab", "--list")).splitlines()
    assert [line.split(maxsplit=1) for line in out[1:]] == [
        ["one", "Is <half> less?"],
        ["two", "Is <half> less?"],
    ]
    assert not list(tmp_path.iterdir())


def test_an_interrupt_keeps_what_is_finished_and_begins_nothing_more(tmp_path, monkeypatch):
    install(monkeypatch, one={}, two={"measure": stop}, three={})
    result = lab(tmp_path, "--json")
    assert result.exit_code == 130
    found = json.loads(result.stdout)
    assert [(one["experiment"], one["verdict"]) for one in found["claims"]] == [("one", "holds")]
    assert found["report"] == str(tmp_path / "out" / "report.md")
    assert "two: stopped" in result.stderr
    assert "three" not in result.stderr
    assert "name the others to go on" in result.stderr


def test_an_unknown_name_is_bad_usage_and_writes_nothing(tmp_path):
    said = sentence(lab(tmp_path, "oen"), 2)
    assert "'oen'" in said
    assert "try one" in said
    assert not (tmp_path / "out").exists()
