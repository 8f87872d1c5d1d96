"""The page of the kernels holds the records that were measured, and no time for a wrong kernel."""

import json
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


def test_the_page_is_what_the_records_give() -> None:
    assert (ROOT / "docs" / "kernels.md").read_text() == rendered(RESULT)


def test_a_kernel_that_breaks_the_rule_gets_no_time(tmp_path: Path) -> None:
    result = json.loads(RESULT.read_text())
    wrong = {"path": "triton", "shape": [2, 3, 5, 7], "breaches": ["output 0 is 1.0 off"]}
    (tmp_path / "wrong.json").write_text(json.dumps(result | {"records": [wrong]}))
    lines = [line for line in rendered(tmp_path / "wrong.json").splitlines() if "2, 3, 5" in line]
    assert lines == ["| 2, 3, 5, 7 | triton | breaks the rule: output 0 is 1.0 off |  |  |  |  |"]
