import pytest
import torch

from regard.lab import ExperimentContext
from regard.lab.context import to_json_types
from regard.lab.experiments import worked_example


@pytest.fixture
def data():
    return to_json_types(worked_example.measure(ExperimentContext(torch.device("cpu"))))


def replaced(data, stage, **fields):
    """The same data with other numbers in one stage."""
    names = worked_example.PrintedNumber._fields
    lines = [dict(zip(names, line, strict=True)) for line in data["lines"]]
    changed = [line | (fields if line["stage"] == stage else {}) for line in lines]
    return {"lines": [list(line.values()) for line in changed]}


def verdicts(data):
    return [claim.verdict for claim in worked_example.judge(data)]


def test_a_verdict_for_each_stage_and_for_what_it_shows(data):
    stages = ["does not hold", "holds with limits", "does not hold", "does not hold"]
    assert verdicts(data) == [*stages, "holds"]


def test_evidence_has_the_right_numbers(data):
    weights = worked_example.judge(data)[2].evidence
    assert "0.2125, 0.2357, 0.2616, 0.2902" in weights
    assert "0 right, 0 carried over, 4 wrong in itself" in weights


@pytest.mark.parametrize(
    ("fields", "verdict"),
    [
        ({"printed": 0.5, "follows": 0.5, "right": 0.5}, "holds"),
        ({"printed": 0.5, "follows": 0.5, "right": 0.6}, "holds with limits"),
        ({"printed": 0.5, "follows": 0.6, "right": 0.5}, "does not hold"),
    ],
)
def test_other_numbers_get_another_verdict(data, fields, verdict):
    assert verdicts(replaced(data, "score", **fields))[0] == verdict


def test_a_query_that_looks_at_nothing_else_is_noticed(data):
    assert verdicts(replaced(data, "weight", right=0.001))[-1] == "does not hold"
