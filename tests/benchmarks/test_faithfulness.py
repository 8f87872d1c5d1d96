"""The figures of attribution methods, and the page that shows them."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    spec = importlib.util.spec_from_file_location("bench", BENCHMARKS / "faithfulness.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "bench", module)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def result(bench):
    return json.loads(bench.RESULTS.read_text())


def test_the_page_is_what_the_results_give(bench, result):
    before = bench.PAGE.read_text(encoding="utf-8")
    assert bench.page(before, result) == before


def test_the_planted_method_is_no_better_than_chance(bench, result):
    for model in result["models"]:
        for kind in ("plain", "contrast"):
            rows, planted = model[kind], model[kind][bench.SHUFFLED]
            assert planted["gain_low"] < 0.01
            assert planted["gain_high"] < rows["ablation"]["gain_low"]
            # others, such as the attention of the reader to words before the last, are no better
            real = [r for name, r in rows.items() if name in bench.METHODS and r["gain_low"] > 0]
            assert len(real) >= 2
            assert planted["comprehensiveness"] < min(row["comprehensiveness"] for row in real)
            assert planted["sufficiency"] > max(row["sufficiency"] for row in real)


def test_questions_are_about_the_two_likeliest_tokens(bench):
    about, scorers = bench.words(1)
    assert about["model"] == "g2p"
    scorer = next(scorers)
    asked = bench.likeliest(scorer)
    assert [question.output for question in asked] == list(range(len(scorer.written)))
    # the model has written its likeliest tokens
    assert [question.token for question in asked] == list(scorer.written)
    assert all(question.token != question.versus for question in asked)


def test_findings_are_put_in_words(bench):
    def row(gain, low, high):
        return {"gain": gain, "gain_low": low, "gain_high": high}

    table = {
        "ablation": row(0.5, 0.45, 0.55),
        "norms": row(0.46, 0.4, 0.52),
        "gradient": row(0.1, -0.02, 0.2),
        "random": row(0.01, -0.01, 0.02),
        "shuffled": row(0.0, -0.01, 0.01),
    }
    said = bench._found({"plain": table, "unavailable": {"rollout": "there is none"}})
    assert "method is ablation; intervals that overlap its own: value norms." in said
    assert "of the others, value norms is best" in said
    assert "Clearly less faithful: gradient norm." in said
    assert "No better than a random order: gradient norm." in said
    assert "comes out worst" in said
    assert "No rollout: there is none." in said
    table["shuffled"] = row(0.1, 0.0, 0.2)
    said = bench._found({"plain": table, "unavailable": {}})
    assert "not above the planted wrong method: gradient norm." in said
