import json

import pytest
import torch

from lab.tools import fail, install, stop
from regard.errors import ArgumentError
from regard.lab import ExperimentContext, runner

CPU = torch.device("cpu")


class Heard:
    def __init__(self):
        self.told = []

    def on_start(self, name):
        self.told.append(("starts", name))

    def on_piece(self, name, label):
        self.told.append((name, label))

    def on_end(self, name, status):
        self.told.append(("ends", name, status.split()[0]))


def run(names, folder, **settings):
    heard = Heard()
    settings = {"seeds": (0, 1)} | settings
    return runner.run(names, ExperimentContext(CPU, **settings), folder, heard), heard.told


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
    outcome, told = run(["one"], tmp_path, quick=False)
    assert outcome == runner.RunOutcome(["one"], {}, interrupted=False)
    assert told == [
        ("starts", "one"),
        ("one", "piece 0"),
        ("one", "piece 1"),
        ("ends", "one", "done"),
    ]
    kept = json.loads((tmp_path / "results" / "one.json").read_text())
    assert kept["data"] == {"halves": [0.0, 0.5], "pair": [1, None]}
    facts = kept["facts"]
    assert facts["command"] == "regard lab one --full --seeds 2 --device cpu"
    assert facts["mode"] == "full"
    assert facts["seeds"] == [0, 1]
    assert facts["versions"]["torch"] == torch.__version__
    assert facts["seconds"] >= 0
    assert runner.load(tmp_path, "one").data == kept["data"]


def test_one_that_fails_leaves_the_others_alone(monkeypatch, tmp_path):
    install(monkeypatch, one={"measure": fail}, two={})
    outcome, told = run(["one", "two"], tmp_path)
    assert outcome.done == ["two"]
    assert outcome.failed == {"one": "one failed (ValueError: the wire is cut)"}
    assert ("ends", "one", "failed") in told
    log = (tmp_path / "one.log").read_text()
    assert log.startswith("one failed (ValueError: the wire is cut)\n")
    assert "Traceback" in log
    assert not (tmp_path / "results" / "one.json").exists()


def test_an_interrupt_keeps_what_is_finished_and_begins_nothing_more(monkeypatch, tmp_path):
    install(monkeypatch, one={}, two={"measure": stop}, three={})
    outcome, told = run(["one", "two", "three"], tmp_path)
    assert outcome == runner.RunOutcome(["one"], {}, interrupted=True)
    assert ("starts", "three") not in told
    assert runner.load(tmp_path, "one") is not None


@pytest.mark.parametrize("content", ["", "{", "[]", '{"name": "one"}'])
def test_a_broken_result_is_none(tmp_path, content):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "one.json").write_text(content)
    assert runner.load(tmp_path, "one") is None
