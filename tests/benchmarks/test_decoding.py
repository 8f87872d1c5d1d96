"""The benchmark of decoding: engines take turns, and wrong outputs get no time."""

from typing import Any

import pytest

from benchmarks import harness
from benchmarks.speed import decoding, engines
from benchmarks.speed.engines import Cell, Worker

CELL = Cell("transformer", "tiny", "32", 2, 1)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes with which a search takes no time."""
    monkeypatch.setattr(engines, "VOCAB", 31)
    monkeypatch.setattr(engines, "LENGTH", 3)
    monkeypatch.setattr(engines, "ROUND_SECONDS", 0)
    monkeypatch.setattr(engines, "TRANSFORMER", {"tiny": (16, 2, 32, 1)})


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
    [answer] = harness.answers(worker, ['["open", ["transformer", "tiny", "32", 2, 1]]'])
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
    assert hf["sentences_per_s"] == pytest.approx(3 / 0.8)
    assert before["error"] == "broke"
    assert "sentences_per_s" not in before


def test_on_a_busy_machine_the_time_of_the_processor_counts() -> None:
    rounds = [{"searches": 2, "seconds": 1.0, "cpu_seconds": 0.5}]
    cell = Cell("transformer", "small", "32", 5, 32)
    assert decoding.rates(cell, rounds)["sentences_per_s"] == 64
    assert decoding.rates(cell, rounds, "cpu")["sentences_per_s"] == 128
