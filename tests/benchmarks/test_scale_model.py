"""The cost model: its formulas by hand, and a page that is up to date."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import scale_model  # noqa: E402
from scale_model import predicted, ring_bytes, scenario, step_seconds  # noqa: E402


def test_bytes_of_a_ring():
    # two processes: each sends half of the gradients twice; four: three quarters, twice
    assert ring_bytes(1000, 1) == 0
    assert ring_bytes(1000, 2) == 4000
    assert ring_bytes(1000, 4) == 6000
    # all weights of the others are gathered twice, and gradients scattered once
    assert ring_bytes(1000, 4, sharded=True) == 9000


def test_seconds_of_a_step(monkeypatch):
    monkeypatch.setattr(scale_model, "HOP_S", 0.5)
    assert step_seconds(3.0, 20.0, 10.0, 4) == 3 + 2 + 6 * 0.5
    assert step_seconds(3.0, 0.0, 10.0, 1) == 3


def test_a_prediction_beside_its_measurement():
    seconds = {"alone": [1.0, 1.0, 9.0], "apart": [1.5], "together": [2.5], "all_reduce": [0.5]}
    found = predicted({"seconds": seconds, "weights": 100, "loopback_bytes_per_step": 900})
    assert (found["expected"], found["together"]) == (2.0, 2.5)
    assert found["expected_ratio"] == 1.0
    assert found["ratio"] == pytest.approx(0.8)
    assert (found["expected_bytes"], found["bytes"]) == (800, 900)


def test_a_scenario(monkeypatch):
    monkeypatch.setattr(scale_model, "HOP_S", 0.0)
    eager = {"step_ms": 100.0, "tokens_per_step": 5000}
    # 2 · 63/64 · 4 · 8e6 bytes at 0.63e9 a second are as long as the computation
    found = scenario({"eager": eager, "weights": 8e6, "encoding": 1000.0}, 64, 0.63e9)
    assert found["efficiency"] == pytest.approx(0.5)
    assert found["rate"] == pytest.approx(64 * 5000 / 0.2)
    assert found["epoch_h"] == pytest.approx(1e9 * 50 / 1.6e6 / 3600)
    assert found["cores"] == pytest.approx(1.6e6 / 50 / 1000)


def test_the_pages_are_up_to_date():
    script = str(ROOT / "benchmarks" / "scale_model.py")
    subprocess.run([sys.executable, script, "render", "--check"], check=True)


@pytest.mark.parametrize(
    ("name", "part", "cell"),
    [("scale.md", "constants", "GPUs |"), ("shards.md", "shards", "| yes")],
)
def test_a_page_with_other_numbers_is_out_of_date(monkeypatch, tmp_path, name, part, cell):
    page, tables = tmp_path / name, scale_model.page_tables()[name]
    content = (ROOT / "docs" / name).read_text()
    assert cell in content
    page.write_text(content.replace(cell, "| other", 1))
    monkeypatch.setattr(scale_model, "DOCS", tmp_path)
    assert scale_model.render(name, tables) == content
    page.write_text("no places for tables")
    with pytest.raises(SystemExit, match=f"must have one place for '{part}', but it has 0"):
        scale_model.render(name, tables)


def test_encoding_beyond_the_stated_memory_is_said(monkeypatch):
    assert "within 2,048 MiB | yes" in scale_model.shards_table()
    monkeypatch.setattr(scale_model, "ENCODING_MB", 100)
    assert "within 100 MiB | no" in scale_model.shards_table()


@pytest.mark.long
@pytest.mark.slow
def test_constants_are_measured(tmp_path):
    script = str(ROOT / "benchmarks" / "scale_model.py")
    words = f"measure --rounds 1 --steps 2 --out {tmp_path / 'found.json'}"
    subprocess.run([sys.executable, script, *words.split()], check=True)
    assert (tmp_path / "found.json").exists()
