import re
import shutil

import pytest
import torch

from lab.tools import DRAWN, install
from regard.lab import Claim, ExperimentContext, report, runner


def measured(folder, *names, seeds=(0, 1)):
    for name in names:
        runner.measure(name, ExperimentContext(torch.device("cpu"), seeds=seeds), folder)
    return report.write(folder)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as monkeypatch:
        install(monkeypatch, one=DRAWN, two=DRAWN)
        measured(folder, "one", "two")
    return folder


@pytest.fixture
def folder(monkeypatch, tmp_path, made):
    """A folder of its own with the results, figures and the report of two experiments."""
    install(monkeypatch, one={}, two={})
    return shutil.copytree(made, tmp_path / "report")


def test_markdown_has_the_table_and_its_figures(folder):
    text = (folder / "report.md").read_text()
    assert "| claim | document | verdict | measured |" in text
    row = next(line for line in text.splitlines() if line.startswith("| [Halves"))
    assert "a \\| b" in row
    assert "| holds |" in row
    for path in re.findall(r"\]\((figures/[^)]+)\)", text):
        assert (folder / path).is_file()
    assert "figures/one-halves.svg" in text
    assert "| 0 | a\\|b |" in text
    for said in (
        "Is <half> less?",
        "By `halving`.",
        "The halves are [0.0, 0.5] & `more` <b>.",
        "2 claims: 2 hold, 0 hold with limits, 0 do not hold.",
        "regard lab two --quick --seeds 2 --device cpu",
    ):
        assert said in text, said


def test_an_empty_folder_has_an_empty_report(monkeypatch, tmp_path):
    install(monkeypatch, one={})
    assert report.write(tmp_path) == []
    assert "0 claims" in (tmp_path / "report.md").read_text()


def test_verdicts_are_counted():
    claims = [Claim("", "", verdict, "") for verdict in ("holds", "holds", "does not hold")]
    assert report.count_verdicts(claims) == "3 claims: 2 hold, 0 hold with limits, 1 does not hold."
    assert (
        report.count_verdicts(claims[:1]) == "1 claim: 1 holds, 0 hold with limits, 0 do not hold."
    )
