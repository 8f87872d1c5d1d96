import json
from dataclasses import replace

import pytest
import torch

from regard.lab import ExperimentContext, small_models
from regard.lab.experiment import Data
from regard.lab.experiments import recall
from regard.lab.layers import RNN, Family, RecurrentLayer

CPU = torch.device("cpu")
PLAIN = (RNN.name, recall.LSTM.name)
BACK = (recall.SELF_ATTENTIVE.name, recall.SELF_ATTENTIVE_LSTM.name)
ALL = (*PLAIN, *BACK, recall.TRANSFORMER.name)


def made_up(**accuracy: list[float]) -> Data:
    """Every family is always right, unless said otherwise by its name without blanks."""
    setting = {"size": 2, "steps": 5, "batch": 7, "distances": [0, 8], "farther": [16, 32]}
    gradients = {"before": [1.0, 1e-5], "after": [1.0, 0.5]}
    runs, sizes = [], []
    for task in recall.TASKS:
        for name in ALL:
            right = accuracy.get(name.replace(" ", "_").replace("-", "_"), [1.0] * 4)
            sizes.append({"family": name, "task": task, "width": 13, "parameters": 1234})
            runs += [
                {"family": name, "task": task, "seed": seed, "rate": 0.01, "validation": 1.0,
                 "accuracy": right, **gradients}
                for seed in (0, 1)
            ]  # fmt: skip
    data = {"setting": setting, "rates": [0.01], "families": list(ALL), "sizes": sizes}
    return json.loads(json.dumps({**data, "runs": runs}))


def verdicts(data: Data) -> list[str]:
    return [claim.verdict for claim in recall.judge(data)]


def test_models_that_know_everything_forget_nothing():
    assert verdicts(made_up()) == ["does not hold", "does not hold", "holds", "holds"]


def test_an_rnn_that_falls_forgets_and_its_gradient_has_vanished():
    lost = [1.0, 0.3, 0.3, 0.3]
    claims = recall.judge(made_up(RNN=lost))
    assert [claim.verdict for claim in claims[:2]] == ["holds with limits", "holds with limits"]
    assert "100% and 30%" in claims[0].evidence
    assert verdicts(made_up(RNN=lost, LSTM=lost))[:2] == ["holds", "holds"]


def test_a_model_that_never_learned_has_not_forgotten():
    claims = recall.judge(made_up(RNN=[0.3] * 4, LSTM=[0.3] * 4))
    assert claims[0].verdict == "does not hold"
    assert "not learned rather than forgotten" in claims[0].evidence


def test_failing_with_a_gradient_that_is_there_is_not_for_want_of_a_gradient():
    data = made_up(RNN=[1.0, 0.3, 0.3, 0.3], LSTM=[1.0, 0.3, 0.3, 0.3])
    for run in data["runs"]:
        run["before"] = [1.0, 0.5]
    assert verdicts(data)[1] == "does not hold"


def test_looking_back_in_training_alone_holds_with_limits():
    data = made_up(self_attentive_RNN=[1.0, 1.0, 0.4, 0.4], Transformer=[1.0, 0.4, 0.4, 0.4])
    assert verdicts(data)[2:] == ["holds with limits", "does not hold"]


def test_families_that_were_not_measured_have_no_claims():
    data = made_up() | {"families": [RNN.name, "my own"]}
    data["runs"] += [run | {"family": "my own"} for run in data["runs"] if run["family"] == "RNN"]
    data["sizes"] = [size for size in data["sizes"] if size["family"] == RNN.name]
    assert [claim.source for claim in recall.judge(data)] == [
        "document 1, section 1",
        "document 2, section 1.1; document 5, section 1",
    ]
    figure = recall.draw(data)[0].figure
    assert [line.get_label() for line in figure.axes[0].lines[:2]] == [RNN.name, "my own"]


@pytest.mark.parametrize("family", recall.FAMILIES, ids=lambda family: family.name)
def test_no_family_sees_the_future(family: Family):
    task = recall.TASKS["copy"](2)
    learner = small_models.seeded(1, recall.build, family.spec(), task, 12).eval()
    tokens = torch.randint(task.vocab, (3, 11), generator=torch.Generator().manual_seed(2))
    changed = tokens.clone()
    changed[:, 7:] = (tokens[:, 7:] + 1) % task.vocab
    before, after = learner(tokens), learner(changed)
    torch.testing.assert_close(before[:, :7], after[:, :7])
    assert not torch.allclose(before[:, 7:], after[:, 7:])


def test_a_run_says_what_is_right_and_what_is_left_at_every_distance():
    result = recall.learn(
        family=RNN.spec(), task="recall", size=2, width=8, rate=0.01, seed=1, steps=2, batch=3,
        distances=[0, 5], farther=[11], device=CPU,
    )  # fmt: skip
    assert len(result["accuracy"]) == 3
    assert all(0 <= share <= 1 for share in result["accuracy"])
    assert len(result["before"]) == len(result["after"]) == 2
    assert result["before"][1] < result["before"][0]


def test_the_better_rate_of_the_first_seed_is_used_for_all(monkeypatch):
    asked = []

    def learn(*, family: dict[str, str], rate: float, seed: int, **others: object) -> Data:
        asked.append((rate, seed))
        return {"validation": rate if seed == 3 else -rate, "was": [rate, seed]}

    monkeypatch.setattr(recall, "learn", learn)
    monkeypatch.setattr(recall, "TASKS", {"copy": recall.TASKS["copy"]})
    data = recall.measure(replace(ExperimentContext(CPU), seeds=(3, 4)), [RNN])
    assert asked == [(0.003, 3), (0.01, 3), (0.01, 4)]
    assert [(run["rate"], run["seed"], run["was"]) for run in data["runs"]] == [
        (0.01, 3, [0.01, 3]),
        (0.01, 4, [0.01, 4]),
    ]


def test_of_equally_good_rates_the_first_is_used(monkeypatch):
    monkeypatch.setattr(recall, "learn", lambda **case: {"validation": 0.5})
    (best,) = recall._choose_rates(ExperimentContext(CPU), [("", {})], [0.1, 0.2])
    assert best == ({"rate": 0.1, "seed": 0}, {"validation": 0.5})


@pytest.mark.long
def test_a_plain_rnn_in_place_of_the_self_attentive_one_changes_the_verdict(monkeypatch):
    monkeypatch.setitem(recall.QUICK, "distances", [0, 4, 12])
    context = replace(ExperimentContext(CPU), seeds=(0,))

    def verdict(family: Family) -> str:
        (claim,) = recall.judge(recall.measure(context, families=[family]))
        return claim.verdict

    assert verdict(recall.SELF_ATTENTIVE) != "does not hold"
    assert verdict(Family(recall.SELF_ATTENTIVE.name, RecurrentLayer)) == "does not hold"
