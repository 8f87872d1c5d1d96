"""The benchmark of the losses says so where it cannot run, and shows no time for a wrong kernel."""

import runpy
import sys
from pathlib import Path
from unittest import mock

import pytest
import torch

SCRIPT = str(Path(__file__).resolve().parents[2] / "benchmarks" / "losses.py")


def script(name: str = "losses") -> dict[str, object]:
    with mock.patch("sys.argv", [SCRIPT]), mock.patch("sys.path", [*sys.path]):
        return runpy.run_path(SCRIPT, run_name=name)


def test_without_a_gpu_it_ends_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(SystemExit, match="torch sees none"):
        script("__main__")


def test_a_kernel_that_breaks_the_rule_gets_no_time() -> None:
    record = {"loss": "R-Drop", "tokens": 7, "vocab": 5, "dtype": "float32", "path": "triton"}
    row = script()["row"]
    assert row(record | {"both_ms": 0.25, "gb_per_s": 12.3}) == (  # type: ignore[operator]
        "| R-Drop | 7 | 5 | float32 | triton | 0.2500 | 12 |"
    )
    assert "breaks the rule: off" in row(record | {"breaches": ["off"]})  # type: ignore[operator]
