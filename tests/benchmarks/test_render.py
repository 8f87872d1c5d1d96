"""Tables of documents are what the results give."""

import json
import re
from pathlib import Path

import pytest

from benchmarks.harness import RESULTS, ROOT
from benchmarks.pages import render
from regard.lab import EXPERIMENTS, plots


@pytest.mark.parametrize("path", render.documents(), ids=lambda path: path.stem)
def test_documents_are_what_the_results_give(path):
    text = path.read_text(encoding="utf-8")
    assert render.rendered(text) == text, "run `python -m benchmarks.pages.render`"


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
