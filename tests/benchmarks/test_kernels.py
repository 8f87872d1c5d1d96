"""The page of the kernels holds the records that were measured, and no time for a wrong kernel."""

import json
import re
import runpy
import sys
from pathlib import Path
from unittest import mock

import pytest

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "benchmarks" / "results" / "kernels-h200.json"


def start(script: str, *words: object) -> None:
    """A script as it would be run by its name, but for the time that it takes to import torch."""
    file = str(ROOT / "benchmarks" / script)
    with mock.patch("sys.argv", [file, *map(str, words)]), mock.patch("sys.path", [*sys.path]):
        runpy.run_path(file, run_name="__main__")


@pytest.mark.slow
def test_the_page_is_what_the_records_give(tmp_path: Path) -> None:
    start("kernels_page.py", "--docs", tmp_path)
    page = (tmp_path / "kernels.md").read_text()
    assert (ROOT / "docs" / "kernels.md").read_text() == page
    for figure in re.findall(r"\]\((figures/.*?)\)", page):
        assert (tmp_path / figure).is_file()
        assert (ROOT / "docs" / figure).is_file()


@pytest.mark.slow
def test_sections_do_not_overwrite_each_other(tmp_path: Path) -> None:
    result = json.loads(RESULT.read_text())
    sweep = [swept(path, n) for n in (64, 128) for path in ("eager", "compile", "triton")]
    sweep[3] = {"path": "eager", "shape": [8, 128, 128, 512], "skipped": "it would not fit"}
    for name in ("kernels", "recurrence"):
        records = result["records"] if name == "kernels" else []
        text = json.dumps(result | {"records": records, "sweep": sweep})
        (tmp_path / f"{name}-h200.json").write_text(text)
    start("kernels_page.py", "--results", tmp_path, "--docs", tmp_path)
    page = (tmp_path / "kernels.md").read_text()
    assert re.findall("^## (.*)", page, re.MULTILINE) == ["Additive attention", "The recurrences"]
    assert "Not measured, for want of memory or of the rule: eager at 128." in page
    for figure in ("kernels-time", "kernels-memory"):
        drawn = (tmp_path / "figures" / f"{figure}.svg").read_text()
        assert all(word in drawn for word in ("eager", "torch.compile", "kernels", ">128<"))


def swept(path: str, length: int) -> dict[str, object]:
    numbers = {"forward_row_ms": 1.0, "both_row_ms": 3.0, "both_device_ms": 2.0}
    return {"path": path, "shape": [8, length, length, 512], "both_peak_mib": 9.0, **numbers}


def test_a_kernel_that_breaks_the_rule_gets_no_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = json.loads(RESULT.read_text())
    wrong = {"path": "triton", "shape": [2, 3, 5, 7], "breaches": ["output 0 is 1.0 off"]}
    (tmp_path / "wrong.json").write_text(json.dumps(result | {"records": [wrong]}))
    start("kernels.py", "--render", tmp_path / "wrong.json")
    lines = [line for line in capsys.readouterr().out.splitlines() if "2, 3, 5" in line]
    assert lines == ["| 2, 3, 5, 7 | triton | breaks the rule: output 0 is 1.0 off |  |  |  |  |"]


def test_bars_show_the_ratio_to_cudnn(tmp_path: Path) -> None:
    machine = {"gpu": "a GPU", "torch": "2", "triton": "3", "cuda": "13"}
    time = {"both_device_ms": 0.25, "both_row_ms": 0.75}
    shapes = {"additive": ([16, 1000, 37, 300], [64, 64, 64, 512]), "multiplication": ([1],)}
    records: list[dict[str, object]] = [
        {"case": case, "shape": shape, "path": path, **time}
        for case in shapes
        for shape in shapes[case]
        for path in ("eager", "triton")
    ]
    for path, ms in (("triton", 3.0), ("cuDNN", 2.0)):
        records.append({"case": "lstm", "path": path, "forward_ms": ms, "both_ms": 2 * ms**2})
    result = {"command": "", "machine": machine, "commit": None, "records": records}
    (tmp_path / "kernel-bars-h200.json").write_text(json.dumps(result))
    start("kernels_page.py", "--results", tmp_path, "--docs", tmp_path)
    page = (tmp_path / "kernels.md").read_text()
    assert "| ratio (bar: 1.3) | 1.50 | 2.25 |" in page
    assert "| additive attention, few keys | 0.250 | 0.750 | 0.5 |" in page
