"""Tables of documents are what the results give."""

import json
import re
from pathlib import Path

import pytest

from benchmarks.harness import RESULTS, ROOT
from benchmarks.pages import render, tables
from regard.lab import EXPERIMENTS, plots

RECORDS = [
    {"model": "m", "engine": "b", "rate": 5.25},
    {"model": "m", "engine": "a", "rate": 1234.5},
    {"model": "n", "engine": "a", "error": "broke"},
]


@pytest.mark.parametrize("path", render.documents(), ids=lambda path: path.stem)
def test_documents_are_what_the_results_give(path):
    text = path.read_text(encoding="utf-8")
    assert render.rendered(text) == text, "run `python -m benchmarks.pages.render`"


def test_a_block_is_replaced_and_nothing_else(monkeypatch):
    monkeypatch.setitem(render.TABLES, "models", lambda: "| new |")
    text = "a\n<!-- table models -->\n| old |\n<!-- /table -->\nb\n"
    expected = "a\n<!-- table models -->\n\n| new |\n\n<!-- /table -->\nb\n"
    assert render.rendered(text) == render.rendered(expected) == expected


def test_records_are_pivoted_with_ratios():
    ratio = {"a / b": tables.ratio("a", "b", "rate")}
    titles = {"a": "A", "b": "B", "c": "C"}
    found = tables.pivot(RECORDS, {"model": "{model}"}, "{engine}", "{rate:auto}", titles, ratio)
    assert found.splitlines()[2:] == ["| m | 1,234 | 5.2 | 235.14x |", "| n |  |  |  |"]
    assert found.startswith("| model | A | B | a / b |\n| --- | --: |")


def test_toolkits_are_compared_with_the_fastest_peer():
    def record(system, precision, rate, seconds=1.0):
        more = {"version": "1", "threads": 2, "torch": "2", "seconds": seconds, "mode": "train"}
        more |= {"system": system, "precision": precision, "tokens_per_s": rate}
        return {"case": "a", **more}

    records = [record("regard", "32", 30.0), record("regard", "32", 60.0, 2.0)]
    records += [record("joeynmt", "32", 20.0), record("eole", "32", 25.0)]
    machine = {"cpu": "C", "cores": 2}
    report = {"records": records, "machine": machine, "commit": None, "changed_since": None}
    row = tables.toolkits([report]).splitlines()[2]
    # the two runs of regard are weighted by their seconds: 150 tokens in 3 of them
    assert row == "| (a) train | 20.0 | 25.0 | 50.0 | 2.00x |  |"


@pytest.mark.slow
@pytest.mark.parametrize("drawn", [False, pytest.param(True, marks=pytest.mark.long)])
def test_the_report_of_the_lab_is_what_its_results_give(tmp_path, monkeypatch, drawn):
    def draw(figure, folder, stem):
        if drawn:  # all of a figure but its files, of which the page has only the names
            figure.draw_without_rendering()
        return ""

    monkeypatch.setattr(plots, "save", draw)
    render.lab_report(tmp_path, figures=False)
    page, kept = (tmp_path / "README.md").read_text(), ROOT / "docs" / "results" / "lab-report"
    assert (kept / "README.md").read_text() == page
    assert all((kept / name).is_file() for name in re.findall(r"^!\[.*\((.*)\)$", page, re.M))


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_has_a_full_result(name):
    facts = json.loads((RESULTS / "lab" / f"{name}.json").read_text())["facts"]
    assert (facts["mode"], facts["device"]) == ("full", "NVIDIA H200")


def test_every_script_has_a_line_in_the_readme():
    folder = ROOT / "benchmarks"
    text = (folder / "README.md").read_text()
    scripts = [p for p in folder.rglob("*.py") if 'if __name__ == "__main__"' in p.read_text()]
    assert len(scripts) > 15
    assert [p.stem for p in scripts if f"`{p.stem}`" not in text and p.stem != "engines"] == []


def test_commands_of_the_documents_name_scripts_that_exist():
    files = [*Path(ROOT / "docs").rglob("*.md"), ROOT / "CONTRIBUTING.md", ROOT / "Makefile"]
    named = {n for f in files for n in re.findall(r"-m\s+(benchmarks\.\w+\.\w+)", f.read_text())}
    assert len(named) > 8
    assert [n for n in named if not (ROOT / f"{n.replace('.', '/')}.py").exists()] == []
