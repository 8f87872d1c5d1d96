import json

import pytest

from cli.tools import done, regard, sentence
from lab.tools import fail, install, stop
from regard.cli.console import INTERRUPTED


@pytest.fixture(autouse=True)
def small_lab(monkeypatch):
    install(monkeypatch, one={}, two={})


def lab(folder, *words):
    return regard("lab", *words, "-o", folder / "out", "--seeds", 2, "--device", "cpu")


def test_verdicts_and_the_report_on_stdout(tmp_path):
    out = done(lab(tmp_path)).splitlines()
    assert out[0].split() == ["verdict", "document", "claim"]
    assert [line.split()[0] for line in out[1:3]] == ["holds", "holds"]
    assert out[3] == f"report: {tmp_path / 'out' / 'report.html'}"
    assert (tmp_path / "out" / "report.html").is_file()
    assert (tmp_path / "out" / "cache").is_dir()


def test_list_names_the_questions_and_runs_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = done(regard("lab", "--list")).splitlines()
    assert [line.split(maxsplit=1) for line in out[1:]] == [
        ["one", "Is <half> less?"],
        ["two", "Is <half> less?"],
    ]
    assert not list(tmp_path.iterdir())


def test_verdicts_as_json(tmp_path, monkeypatch):
    install(monkeypatch, one={}, two={"measure": fail})
    result = lab(tmp_path, "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert [(one["experiment"], one["verdict"]) for one in found["claims"]] == [("one", "holds")]
    assert list(found["failed"]) == ["two"]
    assert found["report"] == str(tmp_path / "out" / "report.html")
    assert "its traceback is in" in result.stderr


def test_an_unknown_name_is_bad_usage_and_writes_nothing(tmp_path):
    said = sentence(lab(tmp_path, "oen"), 2)
    assert "'oen'" in said
    assert "try one" in said
    assert not (tmp_path / "out").exists()


def test_a_failure_is_told_and_the_others_go_on(tmp_path, monkeypatch):
    install(monkeypatch, one={"measure": fail}, two={})
    result = lab(tmp_path)
    assert result.exit_code == 1
    assert "holds" in result.stdout
    told = result.stderr.splitlines()[-1]
    assert told.startswith("one failed (ValueError: the wire is cut): its traceback is in ")
    assert told.endswith("one.log.")
    assert "Traceback" not in result.output


def test_an_interrupt_reports_what_is_there(tmp_path, monkeypatch):
    install(monkeypatch, one={}, two={"measure": stop})
    result = lab(tmp_path)
    assert result.exit_code == INTERRUPTED
    assert "the same command goes on there, without --fresh" in result.stderr
    assert 'id="one"' in (tmp_path / "out" / "report.html").read_text()


def test_fresh_measures_again(tmp_path):
    lab(tmp_path, "one")
    for kept in (tmp_path / "out" / "cache").iterdir():
        kept.write_text("7")
    assert "does not hold" in done(lab(tmp_path, "one"))
    assert "does not hold" not in done(lab(tmp_path, "one", "--fresh"))
