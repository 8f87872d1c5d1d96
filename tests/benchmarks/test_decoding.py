"""The benchmark of decoding: engines take turns, and its page is generated."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from regard.decoding import Hypothesis
from regard.ops import warm_up

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"

with mock.patch.object(sys, "path", [str(FOLDER), *sys.path]):
    import decoding_check
    import decoding_engines
    import decoding_page
    from decoding_engines import Cell, Worker, device_work

    # by another name: `decoding` is a folder of tests
    spec = importlib.util.spec_from_file_location("decoding_benchmark", FOLDER / "decoding.py")
    assert spec is not None
    assert spec.loader is not None
    decoding = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(decoding)

CELL = Cell("transformer", "tiny", "32", 2, 1)


def test_the_page_is_what_the_records_give() -> None:
    assert decoding.PAGE.read_text(encoding="utf-8") == decoding_page.page(decoding.RESULTS)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes with which a search takes no time."""
    monkeypatch.setattr(warm_up, "_decoded", 0)  # what a benchmark warms up is cold again after it
    monkeypatch.setattr(decoding_engines, "VOCAB", 31)
    monkeypatch.setattr(decoding_engines, "LENGTH", 3)
    monkeypatch.setattr(decoding_engines, "ROUND_SECONDS", 0)
    monkeypatch.setattr(decoding_engines, "TRANSFORMER", {"tiny": (16, 2, 32, 1)})


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("precision", ["32", "bf16"])
def test_regard_is_timed_on_outputs_of_the_length(precision: str) -> None:
    worker = Worker("regard", "cpu", 1)
    opened = worker.open([*CELL._replace(precision=precision, batch=5)])
    assert opened["path"] == ("plain" if precision == "bf16" else "compiled steps")
    assert opened["weights"] > 0
    assert worker.round()["seconds"] > 0
    assert worker.close()["peak_mib"] > 0


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_hugging_face_has_outputs_of_the_length() -> None:
    pytest.importorskip("transformers")
    worker = Worker("hf", "cpu", 1)
    assert worker.open([*CELL])["path"] == "generate"
    assert worker.round()["seconds"] > 0


@pytest.mark.usefixtures("small")
def test_an_engine_with_shorter_outputs_gets_no_time() -> None:
    class Short:
        path, model = "short", None

        def __init__(self, *_: Any) -> None:
            pass

        def search(self, batch: int, length: int) -> list[Any]:
            return [[7] * (length - 1)]

    worker = Worker("regard", "cpu", 1)
    worker.build = Short
    [answer] = decoding_engines.answers(worker, ['["open", ["transformer", "tiny", "32", 2, 1]]'])
    assert answer == {"error": "ValueError: 1 outputs of [2] tokens, not 1 of 3"}


class FakeProcess:
    """An engine that answers from a script, and writes down when it was asked."""

    def __init__(self, name: str, seconds: list[float], asked: list[str]) -> None:
        self.name, self.seconds, self.asked = name, iter(seconds), asked

    def ask(self, request: str, *values: Any) -> dict[str, Any]:
        self.asked.append(f"{self.name} {request}")
        if request == "round":
            second = next(self.seconds)
            return {"searches": 3, "seconds": second} if second else {"error": "broke"}
        return {"open": {"path": "x", "weights": 1}, "close": {"peak_mib": 8.0}}[request]


def test_engines_take_turns_and_are_compared_in_the_median_round() -> None:
    asked: list[str] = []
    scripts = {"regard": [0.3, 0.1, 0.2], "hf": [0.8, 0.9, 0.1], "before": [0.4, 0.0]}
    fakes: Any = {name: FakeProcess(name, script, asked) for name, script in scripts.items()}
    cell = Cell("transformer", "small", "bf16", 5, 1)
    regard, hf, before = decoding.measured(cell, list(scripts), fakes, rounds=3)
    rounds = [line.split()[0] for line in asked if line.endswith("round")]
    # the third one ends with an error in its second round
    assert rounds == ["regard", "hf", "before"] * 2 + ["regard", "hf"]
    # three searches a round, of one sentence with 20 tokens each
    assert regard["sentences_per_s"] == pytest.approx(15)
    assert regard["ms_per_token"] == pytest.approx(200 / 60)
    assert hf["against_hf"] == 1.0
    assert regard["against_hf"] == pytest.approx(4.0)
    assert before["error"] == "broke"
    assert "sentences_per_s" not in before


def test_on_a_busy_machine_the_time_of_the_processor_counts() -> None:
    rounds = [{"searches": 2, "seconds": 1.0, "cpu_seconds": 0.5}]
    cell = Cell("transformer", "small", "32", 5, 32)
    assert decoding.rates(cell, rounds)["sentences_per_s"] == 64
    assert decoding.rates(cell, rounds, "cpu")["sentences_per_s"] == 128


def test_overlapping_kernels_are_counted_once() -> None:
    # 0..4 and 2..5 overlap, 8..9 is alone: busy 5 + 1 of 9
    kernels = [("b", 2.0, 5.0), ("a", 0.0, 4.0), ("a", 8.0, 9.0)]
    host = ["cudaLaunchKernel", "cudaGraphLaunch", "aten::add", "cudaStreamSynchronize"]
    assert device_work(kernels, host) == {
        "kernels": 3,
        "launches": 2,
        "waits": 1,
        "busy_us": 6.0,
        "top": {"a": (2, 5.0), "b": (1, 3.0)},
    }


def test_plain_search_and_that_of_the_graphs_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding_check, "VOCAB", 13)
    monkeypatch.setattr(decoding_check, "SIZE", "tiny")
    monkeypatch.setattr(decoding_check, "LONGEST", 5)
    monkeypatch.setattr(decoding_check, "HALVINGS", 1)
    full, half = decoding_check.compare_preset("rnn-dot", 3, "cpu")
    assert full["equal"] == full["with_maps"]["equal"] == half["equal"] == 3
    assert full["with_maps"]["maps"] > 0
    assert max(full["score_difference"], full["with_maps"]["map_difference"]) < 1e-5


def test_differences_of_answers_scores_and_maps_are_found() -> None:
    def hypothesis(tokens: list[int], score: float, weight: float) -> Hypothesis:
        return Hypothesis(tokens, score, score, [], {"cross": [torch.full((1, 2, 3), weight)]})

    plain = [[hypothesis([5], -2.0, 0.5)], [hypothesis([6], -8.0, 0.5)]]
    other = [[hypothesis([5], -2.5, 0.25)], [hypothesis([7], -9.0, 0.0)]]
    # relative to scores of 2 and 8; the second answer differs, and so its map does not count
    assert decoding_check.differences(plain, other) == {
        "equal": 1,
        "score_difference": 0.25,
        "map_difference": 0.25,
        "maps": 1,
    }


def test_a_preset_that_fails_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(preset: str, count: int, device: str) -> Any:
        raise ValueError("first\nsecond")

    monkeypatch.setattr(decoding_check, "compare_preset", broken)
    found = list(decoding_check.compare_presets(1, "cpu", ["rnn", "conv"]))
    assert [record["preset"] for record in found] == ["rnn", "conv"]
    assert {record["error"] for record in found} == {"ValueError: first"}


def result(kind: str, records: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "kind": kind,
        "command": "python decoding.py",
        "machine": {"device": "cuda", "gpu": "G", "cpu": "C", "threads": 1, "torch": "2"},
        "commit": "c" * 40,
        "changed_since": None,
        "before": "b" * 40,
        "settings": {"vocab": 8000, "length": 20, "rounds": 7, "clock": "wall"},
        "records": records,
        "complete": True,
        **more,
    }


def lines(folder: Path, *results: dict[str, Any]) -> list[str]:
    for i, each in enumerate(results):
        (folder / f"{i}.json").write_text(json.dumps(each))
    return decoding_page.page(folder).splitlines()


def test_a_profile_is_a_row_of_a_table(tmp_path: Path) -> None:
    counted = {"kernels": 101.5, "launches": 0.25, "waits": 0.25}
    times = {"busy_us": 150.0, "wall_us": 200.0, "gap_us": 50.0}
    records = [
        {**CELL._asdict(), "engine": "before", **counted, **times},
        {**CELL._asdict(), "engine": "hf", "error": "broke"},
    ]
    page = lines(tmp_path, result("profile", records))
    start = "| transformer tiny | 1 | 2 | float32 |"
    assert f"{start} regard at bbbbbbb | 101.50 | 0.25 | 0.25 | 150 | 200 | 50 | 75% |" in page
    assert f"{start} Hugging Face | broke |  |  |  |  |  |  |" in page


def test_a_check_shows_the_worst_of_both_passes(tmp_path: Path) -> None:
    worse = {"equal": 7, "score_difference": 2e-6, "map_difference": 3e-7, "maps": 20}
    full = {"preset": "rnn", "precision": "32", "sources": 8, "ended": 2, "equal": 8}
    half = {"preset": "rnn", "precision": "bf16", "sources": 8, "equal": 6, "equal_to_32": 4}
    moved = {"equal": 5, "score_difference": 1e-6}
    records = [
        {**full, "score_difference": 1e-6, "with_maps": worse, "moved": moved},
        {**half, "score_difference": 0.1},
        {"preset": "conv", "error": "broke"},
    ]
    settings = {"sources": 8, "beam": 5, "nbest": 2, "max_len_ratio": 1.0, "max_len_extra": 5}
    page = lines(tmp_path, result("check", records, settings=settings, complete=False))
    assert "| rnn | 25% | 7 of 8 | 2.0e-06 | 3.0e-07 | 5 | 75.0% | 50.0% |" in page
    assert "| conv: broke |  |  |  |  |  |  |  |" in page
    assert "The run was cut short by its limit of time: some rows are missing." in page


def test_speeds_stand_beside_each_other(tmp_path: Path) -> None:
    rates = {"regard": 120.0, "hf": 10.0, "before": 8.0}
    cell = CELL._asdict()
    records = [
        {**cell, "engine": name, "sentences_per_s": rate, "ms_per_token": 50 / rate, "peak_mib": 2}
        for name, rate in rates.items()
    ]
    page = lines(tmp_path, result("speed", records))
    assert "| transformer tiny | 1 | 120 | 10.0 | 8.0 | 12.00x | 15.00x |" in page
    assert "| transformer tiny | 1 | 2 | float32 | 0.42 | 5.00 | 6.25 |" in page
    assert "| transformer tiny | 1 | 2 | float32 | 2 | 2 | 2 |" in page
