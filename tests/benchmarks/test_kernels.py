"""The page of the kernels holds the records that were measured, and no time for a wrong kernel."""

import json
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "benchmarks" / "results" / "kernels-h200.json"


def rendered(file: Path) -> str:
    return subprocess.run(
        [sys.executable, ROOT / "benchmarks" / "kernels.py", "--render", file],
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_the_page_is_what_the_records_give(tmp_path: Path) -> None:
    script = ROOT / "benchmarks" / "render_kernels.py"
    subprocess.run([sys.executable, script, "--docs", tmp_path], check=True)
    page = (tmp_path / "kernels.md").read_text()
    assert (ROOT / "docs" / "kernels.md").read_text() == page
    for figure in re.findall(r"\]\((figures/.*?)\)", page):
        assert (tmp_path / figure).is_file()
        assert (ROOT / "docs" / figure).is_file()


def test_sections_do_not_overwrite_each_other(tmp_path: Path) -> None:
    result = json.loads(RESULT.read_text())
    sweep = [swept(path, n) for n in (64, 128) for path in ("eager", "compile", "triton")]
    sweep[3] = {"path": "eager", "shape": [8, 128, 128, 512], "skipped": "it would not fit"}
    for name in ("kernels", "recurrence"):
        records = result["records"] if name == "kernels" else []
        text = json.dumps(result | {"records": records, "sweep": sweep})
        (tmp_path / f"{name}-h200.json").write_text(text)
    script = ROOT / "benchmarks" / "render_kernels.py"
    words = ["--results", tmp_path, "--docs", tmp_path]
    subprocess.run([sys.executable, script, *words], check=True)
    page = (tmp_path / "kernels.md").read_text()
    assert re.findall("^## (.*)", page, re.MULTILINE) == ["Additive attention", "The recurrences"]
    assert "Not measured, for want of memory or of the rule: eager at 128." in page
    for figure in ("kernels-time", "kernels-memory"):
        drawn = (tmp_path / "figures" / f"{figure}.svg").read_text()
        assert all(word in drawn for word in ("eager", "torch.compile", "kernels", ">128<"))


def swept(path: str, length: int) -> dict[str, object]:
    numbers = {"forward_row_ms": 1.0, "both_row_ms": 3.0, "both_device_ms": 2.0}
    return {"path": path, "shape": [8, length, length, 512], "both_peak_mib": 9.0, **numbers}


def test_a_kernel_that_breaks_the_rule_gets_no_time(tmp_path: Path) -> None:
    result = json.loads(RESULT.read_text())
    wrong = {"path": "triton", "shape": [2, 3, 5, 7], "breaches": ["output 0 is 1.0 off"]}
    (tmp_path / "wrong.json").write_text(json.dumps(result | {"records": [wrong]}))
    lines = [line for line in rendered(tmp_path / "wrong.json").splitlines() if "2, 3, 5" in line]
    assert lines == ["| 2, 3, 5, 7 | triton | breaks the rule: output 0 is 1.0 off |  |  |  |  |"]
