"""`regard train --search`: of data and of recipes, and what it says when it cannot."""

import json
import sys

import pytest

from cli.tools import SMALL, done, regard, reversed_pairs, sentence
from recipes import made
from recipes.test_runner import RECIPE
from regard.training import RunFolder
from regard.training.defaults import peak_rate
from regard.training.search import read_trials

pytestmark = pytest.mark.slow


@pytest.fixture
def pairs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "pairs.tsv"
    path.write_text(reversed_pairs(60))
    return path


REFUSED = {
    "no trial": (["--search", "0"], ["search must be at least 1, but it is 0: 20 is usual"]),
    "a start": (["--search", "2", "--from", "g2p"], ["search", "starts from a model", "leave one"]),
    "a dry run": (["--search", "2", "--dry-run"], ["--search", "where nothing is trained"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_usage(pairs, case):
    args, fragments = REFUSED[case]
    said = sentence(regard("train", pairs, *args), 2)
    assert all(fragment in said for fragment in fragments), said
    assert list(pairs.parent.iterdir()) == [pairs], "nothing is made"


def test_trials_are_not_given_again_to_resume(pairs):
    said = sentence(regard("train", "--resume", "run", "--search", "2"), 2)
    assert said.startswith("--search must be left out when a run goes on")


def test_several_processes_are_refused(pairs, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    said = sentence(regard("train", pairs, "--search", "2"), 2)
    assert said == "a search must run in one process, but it is in 2: run it without torchrun."


def test_without_optuna_it_says_what_to_install(pairs, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    said = sentence(regard("train", pairs, "--search", "2"), 1)
    assert "`regard train --search` needs optuna" in said
    assert "pip install 'regard[search]'" in said
    assert list(pairs.parent.iterdir()) == [pairs], "nothing is made"


def test_data_that_cannot_be_read_leave_nothing(pairs):
    pytest.importorskip("optuna")
    pairs.write_text("")
    assert "no pairs" in sentence(regard("train", pairs, "--search", "2", "-o", "out"), 1)
    assert list(pairs.parent.iterdir()) == [pairs]


def test_during_a_search_settings_stay(pairs):
    pytest.importorskip("optuna")
    done(regard("train", pairs, "--search", "2", "-o", "out", "-q", *SMALL, "steps=2"))
    table = RunFolder("out").path / "search" / "trials.jsonl"
    first = read_trials(RunFolder("out"))[0]
    waiting = [{**first, "state": "complete"}, {"trial": 2, "state": "waiting"}]
    table.write_text("".join(f"{json.dumps(row)}\n" for row in waiting))
    said = sentence(regard("train", "--resume", "out", "lr=0.1"), 2)
    assert said.startswith("lr must stay as it is during a search, but it is 0.1")


def test_a_recipe_is_searched_and_records_what_was_found(pairs):
    pytest.importorskip("optuna")
    made.cmudict(pairs.parent / "data")
    (pairs.parent / "small.toml").write_text(RECIPE)
    output = regard(
        "train", "small", "--data-dir", "data", "--search", "2", "device=cpu", "-o", "out"
    )
    assert done(output) == "out\n"
    rows = read_trials(RunFolder("out"))
    (best,) = [row for row in rows if row["state"] == "best"]
    result = json.loads((pairs.parent / "out" / "result.json").read_text())
    assert set(result["scores"]) == {"dev", "test"}
    assert best["settings"].items() <= result["settings"].items()
    assert result["command"].endswith(" ".join(f"{n}={v}" for n, v in best["settings"].items()))
    assert peak_rate(RunFolder("out").read_config()) == best["settings"]["lr"]
    lines = [line for line in output.stderr.splitlines() if line.startswith("trial ")]
    assert [line.split(":")[0] for line in lines] == ["trial 1 of 2", "trial 2 of 2"]


def test_an_ensemble_is_not_searched(pairs):
    recipe = pairs.parent / "together.toml"
    recipe.write_text('[recipe]\ntask = "cmudict"\nmembers = ["a:1", "b:1"]\n')
    said = sentence(regard("train", recipe, "--search", "2"), 2)
    assert "search must be left out of a recipe that trains nothing" in said
