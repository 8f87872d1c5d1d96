"""The committed report of the lab says what the committed results give."""

import json
import sys
from pathlib import Path

import pytest
from matplotlib.figure import Figure

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import lab_report  # noqa: E402
from regard.lab import EXPERIMENTS, plots  # noqa: E402


def draw(figure: Figure, folder: Path, stem: str) -> str:
    """All of a figure but its files, of which the page has only the names."""
    figure.draw_without_rendering()
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("drawn", [False, pytest.param(True, marks=pytest.mark.long)])
def test_the_report_is_what_the_results_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drawn: bool
) -> None:
    monkeypatch.setattr(plots, "save", draw if drawn else lambda *figure: "")
    lab_report.write(tmp_path, pictures=False)
    page = (tmp_path / "README.md").read_text()
    assert (lab_report.PAGE / "README.md").read_text() == page
    for line in page.splitlines():
        if line.startswith("!["):
            assert (lab_report.PAGE / line.rpartition("(")[2].rstrip(")")).is_file()


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_has_a_full_result(name: str) -> None:
    found = json.loads((lab_report.RESULTS / f"{name}.json").read_text())
    facts = found["facts"]
    assert (facts["mode"], facts["device"]) == ("full", "NVIDIA H200")
    assert f"## {name}\n" in (lab_report.PAGE / "README.md").read_text()
