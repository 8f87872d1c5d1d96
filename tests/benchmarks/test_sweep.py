"""A sweep runs its trials, and its log is whole whenever it is killed."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import pytest

from recipes import made
from regard.recipes import read
from regard.training import make_config, parse_overrides
from regard.training.config import check_model

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = (
    'preset = "bahdanau"\nhidden = 16\nembed = 8\nbatch_sentences = 16\nmax_tgt_len = 8\n'
    'eval_every = 1\nsteps = 2\n[recipe]\ntask = "cmudict"\ndev_words = 7\n'
)


@pytest.fixture
def sweep(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    spec = importlib.util.spec_from_file_location("sweep", ROOT / "benchmarks" / "sweep.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "sweep", module)
    spec.loader.exec_module(module)
    return module


def test_each_trial_has_a_folder_of_its_own(sweep):
    text = "a lr=1\n\n# nothing\na lr=2 # more\na seed=2 'x=[\"b c\"]'\na lr=3\nab\n"
    trials = sweep.read_trials(text, Path("w"))
    assert [t.folder.name for t in trials] == ["a-1", "a-1.2", "a-2", "a-1.3", "ab-1"]
    assert trials[1].changes == ["lr=2"]
    assert trials[2].changes == ["seed=2", 'x=["b c"]']


def test_the_best_evaluation_is_that_of_the_metric(sweep, tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert sweep.best(path) is None
    rows = [
        {"step": step, "epoch": 0, "seconds": 1.0, "dev_loss": loss, "dev_per": per, "dev_exact": 0}
        for step, loss, per in ((1, 0.5, 0.30), (2, 0.7, 0.10), (3, 0.6, 0.20))
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path.write_text(f'{text}{{"step": 4, "dev')  # a line that is being written
    found = sweep.best(path)
    assert (found["metric"], found["value"], found["step"]) == ("dev_per", 0.10, 2)
    path.write_text(text.replace("dev_per", "dev_bleu"))
    assert sweep.best(path)["step"] == 1


def begin(folder, trials, *words):
    made.cmudict(folder / "data")
    (folder / "small.toml").write_text(SETTINGS)
    (folder / "trials.txt").write_text(trials)
    script = [sys.executable, ROOT / "benchmarks" / "sweep.py", "trials.txt"]
    return subprocess.Popen(
        [*script, "--data", "data", "--recipes", ".", "--out", "out", *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.long
def test_trials_that_fail_do_not_stop_the_others(tmp_path):
    trials = "small hiden=8\nsmall seed=2\n"
    process = begin(tmp_path, trials, "--jobs", "2", "--keep", "--test")
    printed, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    log = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert [trial["state"] for trial in log["trials"]] == ["failed", "done"]
    assert "'hidden' is meant" in log["trials"][0]["error"]
    assert set(log["trials"][1]["result"]["scores"]) == {"dev", "test"}
    assert "test wer" in printed
    kept = tmp_path / "out" / "runs" / "small-2"
    assert {"model.safetensors", "config.json", "result.json"} <= {p.name for p in kept.iterdir()}


@pytest.mark.long
@pytest.mark.slow
def test_a_sweep_that_is_ended_keeps_what_it_has_found(tmp_path):
    process = begin(tmp_path, "small steps=1000000 patience=1000000\nsmall\n", "--jobs", "1")
    metrics = tmp_path / "out" / "work" / "small-1" / "metrics.jsonl"
    until = time.monotonic() + 240
    while time.monotonic() < until and not metrics.exists():
        time.sleep(0.2)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=240)
    log = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert [trial["state"] for trial in log["trials"]] == ["stopped", "waiting"]
    assert log["trials"][0]["best"]["metric"] == "dev_per"


@pytest.mark.long
def test_a_sweep_goes_on_where_it_was(tmp_path):
    begin(tmp_path, "small\n").communicate(timeout=240)
    metrics = tmp_path / "out" / "work" / "small-1" / "metrics.jsonl"
    learned = metrics.stat().st_mtime_ns
    again = begin(tmp_path, "small\nsmall seed=2\n", "--test")
    again.communicate(timeout=240)
    assert again.returncode == 0
    log = json.loads((tmp_path / "out" / "sweep.json").read_text())
    assert [set(t["result"]["scores"]) for t in log["trials"]] == [{"dev", "test"}] * 2
    assert metrics.stat().st_mtime_ns == learned


def test_what_was_learned_is_gone_on_with(sweep, tmp_path):
    args = Namespace(recipes=Path("r"), data=Path("d"), minutes=None)
    (trial,) = sweep.read_trials("a lr=1\n", tmp_path)
    trial.folder.mkdir()
    assert sweep._words(trial, args)[0] == str(Path("r") / "a")
    assert not trial.folder.exists()  # there was nothing in it to go on from
    (trial.folder / "checkpoints").mkdir(parents=True)
    (trial.folder / "checkpoints" / "step-00000500.json").touch()
    assert sweep._words(trial, args) == ["--resume", str(trial.folder)]


@pytest.mark.parametrize(
    ("names", "dev", "test"), [((), 0, 0), (("dev",), 1, 0), (("dev", "test"), 1, 1)]
)
def test_a_trial_is_done_when_all_that_is_asked_for_is_scored(sweep, tmp_path, names, dev, test):
    (tmp_path / "result.json").write_text(json.dumps({"scores": dict.fromkeys(names)}))
    assert sweep.is_scored(tmp_path, test=False) == dev
    assert sweep.is_scored(tmp_path, test=True) == test


@pytest.mark.parametrize(
    "path", sorted((ROOT / "benchmarks" / "sweeps").glob("*.txt")), ids=lambda path: path.stem
)
def test_every_trial_of_a_list_fits_its_recipe(sweep, path):
    for trial in sweep.read_trials(path.read_text(), Path("work")):
        recipe = read(ROOT / "recipes" / f"{trial.recipe}.toml")
        changed = recipe.changed(parse_overrides(trial.changes))
        if not recipe.members:
            check_model(make_config(changed.settings))
        if path.stem.startswith("final-"):
            assert all(word.startswith("seed=") for word in trial.changes)
