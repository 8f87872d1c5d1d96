"""Searches for settings: killed and resumed as never killed, the defaults first, and the rungs."""

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from regard.training import RunFolder, make_config
from regard.training.defaults import peak_rate
from regard.training.search import (
    best_settings,
    falls_behind,
    full_runs,
    is_open,
    read_trials,
    resume_training,
    start_search,
)
from training.tools import SETTINGS, assert_same, import_all, weights, write_pairs

BRIEF = {**SETTINGS, "hidden": 8, "embed": 4, "steps": 8, "eval_every": 2, "save_every": 1}
TRIALS = 4


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_pairs(tmp_path_factory.mktemp("data") / "pairs.tsv", count=60)


@pytest.fixture(scope="module")
def searched(data, tmp_path_factory):
    """A search that nothing interrupts."""
    pytest.importorskip("optuna")
    output = tmp_path_factory.mktemp("search") / "run"
    search(data, output)
    return RunFolder(output)


def search(data, output):
    if RunFolder(output).started:
        resume_training(output, {}, quiet=True)
    else:
        start_search(make_config({"data": str(data), **BRIEF}), output, TRIALS, quiet=True)


def timeless(folder):
    return [{**row, "seconds": 0} for row in read_trials(folder)]


def test_the_first_trial_has_the_defaults_and_the_best_becomes_the_run(searched):
    rows = read_trials(searched)
    assert len(rows) == TRIALS
    expected = {"lr": 3e-3, "dropout": 0.2, "hidden": 8, "embed": 4, "batch_sentences": 16}
    assert rows[0]["settings"] == {**expected, "label_smoothing": 0.1}
    assert [step for _, step, _, _ in rows[0]["curve"]] == [2, 4, 6, 8]
    (best,) = [row for row in rows if row["state"] == "best"]
    assert best["score"] == min(
        row["score"] for row in rows if row["state"] in ("best", "complete")
    )
    assert best_settings(searched) == best["settings"]
    config = searched.read_config()
    assert peak_rate(config) == best["settings"]["lr"]
    assert config.model["hidden"] == best["settings"]["hidden"]
    assert min(row["dev_per"] for row in searched.read_metrics()) == best["score"]
    assert searched.finished
    assert not is_open(searched)
    searched.load()
    page = (searched.path / "search" / "trials.html").read_text()
    assert page.count("<svg viewBox") == 1 + len(best["settings"])
    assert page.count("<circle") == page.count("<svg viewBox") * TRIALS
    assert sorted(os.listdir(searched.path / "search")) == ["trials.html", "trials.jsonl"]


#: targets and sources of renames, by which files are written and moved, before which it is killed
KILLS = {
    "in a trial": ("checkpoints/step-00000006.json", ""),
    "while the best is kept": ("search/trial-{best}/checkpoints", ""),
    "while the best is moved": ("run/checkpoints", "search/trial-{best}/checkpoints"),
}


@pytest.mark.slow
@pytest.mark.usefixtures("default_signals")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
@pytest.mark.sample(2)
@pytest.mark.parametrize("when", KILLS)
def test_a_search_that_is_killed_and_resumed_has_the_same_trials(
    when, searched, data, tmp_path, monkeypatch
):
    import_all()
    output, replace = tmp_path / "run", os.replace
    (best,) = [row["trial"] for row in read_trials(searched) if row["state"] == "best"]
    to, of = (pattern.format(best=best) for pattern in KILLS[when])

    def deadly(source, target):
        if Path(target).match(to) and (not of or Path(source).match(of)):
            os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", deadly)
        process = multiprocessing.get_context("fork").Process(target=search, args=(data, output))
        process.start()
        process.join(300)
    assert process.exitcode == -signal.SIGKILL
    search(data, output)
    assert timeless(RunFolder(output)) == timeless(searched)
    assert_same(weights(output), weights(searched.path))
    assert sorted(os.listdir(output / "search")) == ["trials.html", "trials.jsonl"]


def test_pruned_trials_are_told(data, tmp_path, capfd, monkeypatch):
    pytest.importorskip("optuna")
    monkeypatch.setattr("regard.training.search.falls_behind", lambda rows, curve, sign: True)
    start_search(make_config({"data": str(data), **BRIEF}), tmp_path / "run", 2)
    *_, first, second, best = capfd.readouterr().err.splitlines()
    assert first.startswith("trial 1 of 2: dev per ")
    assert second.startswith("trial 2 of 2: stopped at 25% of its budget with dev per ")
    assert best.startswith("the best is trial 1, ")
    assert [row["state"] for row in read_trials(RunFolder(tmp_path / "run"))] == ["best", "pruned"]


def test_a_trial_whose_model_diverges_fails_alone(data, tmp_path, monkeypatch):
    pytest.importorskip("optuna")
    monkeypatch.setattr("regard.training.search.propose", lambda *args: {"lr": 3e38})
    config = make_config({"data": str(data), **BRIEF, "warmup": 0, "eval_every": 1})
    _, failed = read_trials(start_search(config, tmp_path / "run", 2, quiet=True))
    assert "check that its training did not diverge" in failed["reason"]


def test_the_last_trial_has_the_minutes_that_are_left(data, tmp_path, monkeypatch):
    pytest.importorskip("optuna")
    left = iter([8.0, 2.0, 0.9])
    monkeypatch.setattr("regard.training.search._Search._minutes_left", lambda search: next(left))
    monkeypatch.setattr("regard.training.search.full_runs", lambda trials: 2)
    monkeypatch.setattr("regard.training.search.falls_behind", lambda rows, curve, sign: False)
    config = make_config({"data": str(data), **BRIEF, "minutes": 8.0})
    start_search(config, tmp_path / "run", 3)
    rows = read_trials(RunFolder(tmp_path / "run"))
    assert [row.get("settings", {}).get("minutes") for row in rows] == [4.0, 2.0, None]
    assert rows[2]["state"] == "skipped"


def test_the_worse_half_at_a_rung_falls_behind():
    rows = [{"curve": [[0.2, 5, score, 1.0]]} for score in (0.5, 0.7, 0.6)] + [{"trial": 4}]
    assert not falls_behind(rows, [[0.2, 5, 0.61, 1.0]], 1)
    assert falls_behind(rows, [[0.2, 5, 0.59, 1.0]], 1)
    assert not falls_behind(rows, [[0.2, 5, 0.59, 1.0]], -1)
    assert not falls_behind(rows, [[0.2, 5, 0.6, 0.9]], 1)  # of equal scores, the loss decides
    assert falls_behind(rows, [[0.2, 5, 0.6, 1.0]], 1)
    assert falls_behind(rows, [[0.2, 5, float("nan"), 1.0]], 1)
    assert not falls_behind(rows, [[0.1, 3, 0.1, 1.0]], 1)  # no rung yet
    assert not falls_behind(rows, [[0.2, 5, 0.7, 1.0], [0.22, 6, 0.1, 1.0]], 1)  # between two
    assert not falls_behind([], [[0.2, 5, 0.1, 1.0]], 1)


def test_all_trials_take_the_minutes_of_the_search():
    assert full_runs(1) == pytest.approx(1)
    # two at the first rung, 1.5 after it, which count as two
    assert full_runs(2) == pytest.approx(2 * 0.2 + 1.5 * 0.1 + 1.5 * 0.2 + 1.5 * 0.5)
    assert full_runs(20) < 10
