import json

import pytest
import torch

from lab.tools import install
from regard.errors import ArgumentError
from regard.lab import ExperimentContext, runner

CPU = torch.device("cpu")


def test_all_experiments_in_their_order_and_named_ones_too(monkeypatch):
    install(monkeypatch, cost={}, worked_example={}, heads={})
    assert runner.pick([]) == ["cost", "worked-example", "heads"]
    assert runner.pick(["heads", "cost", "heads"]) == ["cost", "heads"]


@pytest.mark.parametrize(
    ("wrong", "meant"), [("cots", "cost"), ("worked_example", "worked-example"), ("w", "worked")]
)
def test_an_unknown_name_gets_the_near_ones(monkeypatch, wrong, meant):
    install(monkeypatch, cost={}, worked_example={}, heads={})
    with pytest.raises(ArgumentError, match=rf"'{wrong}': try {meant}"):
        runner.pick([wrong])


def test_a_result_is_written_with_its_facts(monkeypatch, tmp_path):
    install(monkeypatch, one={})
    told = []
    context = ExperimentContext(CPU, quick=False, seeds=(0, 1), on_piece=told.append)
    seconds = runner.measure("one", context, tmp_path)
    assert told == ["piece 0", "piece 1"]
    kept = json.loads((tmp_path / "results" / "one.json").read_text())
    assert kept["data"] == {"halves": [0.0, 0.5], "pair": [1, None]}
    facts = kept["facts"]
    assert facts["command"] == "regard lab one --full --seeds 2 --device cpu"
    assert facts["mode"] == "full"
    assert facts["seeds"] == [0, 1]
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["seconds"] == pytest.approx(seconds, abs=0.01)
    assert runner.load(tmp_path, "one")["data"] == kept["data"]


@pytest.mark.parametrize("content", ["", "{", "[]", '{"name": "one"}'])
def test_a_broken_result_is_none(tmp_path, content):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "one.json").write_text(content)
    assert runner.load(tmp_path, "one") is None
