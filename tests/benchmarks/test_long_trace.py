"""The table of the guide to any model is that of the results."""

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_the_guide_has_the_measured_figures(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    script = runpy.run_path(str(ROOT / "benchmarks" / "long_trace.py"))
    text = (ROOT / "docs" / "any-model.md").read_text(encoding="utf-8")
    first, last = script["MARKS"]
    assert text.partition(first)[2].partition(last)[0] == "\n" + script["table"]()
