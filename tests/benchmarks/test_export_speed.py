"""The table of the guide to exported models is that of the results."""

import runpy
from pathlib import Path

import pytest

pytest.importorskip("ctranslate2")
pytest.importorskip("onnxruntime")

ROOT = Path(__file__).resolve().parents[2]


def test_the_guide_has_the_measured_figures(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    script = runpy.run_path(str(ROOT / "benchmarks" / "export_speed.py"))
    text = (ROOT / "docs" / "export.md").read_text(encoding="utf-8")
    first, last = script["MARKS"]
    assert text.partition(first)[2].partition(last)[0] == "\n" + script["table"]()
