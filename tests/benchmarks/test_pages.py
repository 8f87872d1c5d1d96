"""Figures of guides are those of the results that they name."""

import json
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS, DOCS = ROOT / "benchmarks" / "results", ROOT / "docs"
sys.path.insert(0, str(ROOT / "benchmarks"))

import cpu_decoding  # noqa: E402


def test_the_tables_of_prediction_are_those_of_the_result(capsys):
    cpu_decoding.table(RESULTS / "cpu-decoding.json")
    written = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert len(written) > 10
    assert [line for line in written if line not in (DOCS / "prediction.md").read_text()] == []


def test_the_table_of_a_billion_weights_is_that_of_the_results():
    page = (DOCS / "distributed.md").read_text()
    for name in ("billion-h200", "billion-h200-stored"):
        result = json.loads((RESULTS / f"{name}.json").read_text())
        row = f"{result['tokens_per_second']:,.0f} | {result['peak_gib']:.2f} GiB |"
        assert f"results/{name}.json)) | {row}" in page
        assert f"{result['weights']:,} weights" in page
        assert f"{result['tokens_per_step']:,} tokens" in page
