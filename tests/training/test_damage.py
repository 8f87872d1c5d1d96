"""A run that is finished, damaged or not its own: what goes on, what is refused, what is kept."""

import io
import json
import shutil

import pytest
import torch
from rich.console import Console

from regard.errors import DataError
from regard.training import (
    RunError,
    RunFolder,
    make_config,
    resume_run,
    start_run,
)
from regard.training.weights_file import UnusableWeightsError, read_weights, write_weights
from training.tools import SETTINGS, assert_same, weights

# trains real models
pytestmark = pytest.mark.slow

# an average of all evaluations: which of them are the best does not matter
BRIEF = {**SETTINGS, "steps": 6, "eval_every": 2, "save_every": 2, "max_tgt_len": 10, "average": 5}


@pytest.fixture(scope="module")
def made(data, tmp_path_factory):
    """A finished run."""
    config = make_config({"data": str(data), **BRIEF, "lr": 1e-3})
    return start_run(config, tmp_path_factory.mktemp("made") / "six", quiet=True).path


@pytest.fixture
def run(made, tmp_path):
    """A copy of the finished run."""
    shutil.copytree(made, tmp_path / "run")
    return RunFolder(tmp_path / "run")


def content(folder):
    """Every file with its bytes and the time of its last change."""
    files = [path for path in folder.path.rglob("*") if path.is_file()]
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def go_on(folder):
    """Takes four more steps; what was said."""
    said = io.StringIO()
    resume_run(folder.path, {"steps": 10}, console=Console(file=said, width=1000))
    return said.getvalue()


def check_refused(folder, *words, error=RunError):
    """Refused in one sentence that names the trouble, and not a byte is changed."""
    before = content(folder)
    with pytest.raises(error) as caught:
        resume_run(folder.path, {"steps": 10}, quiet=True)
    said = str(caught.value)
    assert all(word in said for word in words), said
    assert "\n" not in said
    assert content(folder) == before


def flip(path, place=0.6):
    raw = bytearray(path.read_bytes())
    raw[int(place * len(raw))] ^= 4
    path.write_bytes(raw)


def steps(folder):
    return [row["step"] for row in folder.read_metrics()]


def test_a_finished_run_is_left_alone(run):
    before, said = content(run), io.StringIO()
    resume_run(run.path, console=Console(file=said, width=1000))
    assert content(run) == before
    assert said.getvalue().splitlines() == [
        f"{run.path} is finished, and stays as it is.",
        f"steps=6 is reached: give more, as in `regard train --resume {run.path} steps=12`.",
    ]


@pytest.mark.parametrize("name", ["tokenizer.src.json", "tokenizer.tgt.json"])
def test_a_finished_run_with_a_damaged_tokeniser_is_not_called_whole(run, name):
    flip(run.path / name)
    before = content(run)
    with pytest.raises(DataError, match=f"{name}: it"):
        resume_run(run.path, quiet=True)
    assert content(run) == before


def test_what_nothing_else_holds_is_asked_for(run):
    for path in (run.model_file, *run.best.iterdir()):
        flip(path)
    check_refused(run, "model.safetensors is damaged", "the best weights so far are gone", "--from")
    shutil.rmtree(run.checkpoints)
    check_refused(run, "checkpoints has no checkpoint", "restore that from a copy")


def test_weights_of_an_evaluation_that_are_gone_are_forgotten(run):
    other = sorted(run.best.iterdir())[0]
    best = weights(run.path)
    flip(other)
    assert f"{other} is damaged" in go_on(run)
    assert steps(run) == [2, 4, 6, 8, 10]
    assert weights(run.path).keys() == best.keys()


def test_a_damaged_checkpoint_after_which_evaluations_are_known(run):
    flip(max(run.checkpoints.glob("*.safetensors")))
    said = go_on(run)
    assert "checkpoint step-00000006 is damaged" in said
    assert "going on from step 4" in said
    assert steps(run) == [2, 4, 6, 8, 10]


@pytest.mark.parametrize("damage", ["flip", "missing"])
def test_the_model_is_written_again_from_the_best_weights(run, damage):
    before = read_weights(run.model_file)
    flip(run.model_file) if damage == "flip" else run.model_file.unlink()
    with pytest.raises(RunError, match=r"model\.safetensors.* (removed|cannot be used)"):
        run.load()
    said = io.StringIO()
    resume_run(run.path, console=Console(file=said, width=1000))
    assert f"{run.model_file} is " in said.getvalue()
    assert f"and is written again from {run.best}" in said.getvalue()
    assert_same(weights(run.path), before)
    assert run.finished


@pytest.mark.parametrize(
    ("log", "damage"), [("metrics.jsonl", "a line"), ("report.jsonl", "a figure")]
)
def test_damaged_rows(run, log, damage):
    path = run.path / log
    lines = path.read_text().splitlines(keepends=True)
    lines[1] = {
        "a line": lines[1].replace('"step"', "'step'", 1),
        "a figure": lines[1].replace('"tokens": ', '"tokens": 1', 1),
    }[damage]
    path.write_text("".join(lines))
    assert f"{path} is damaged: " + "line 2 is not a row" * (damage == "a line") in go_on(run)
    kept = [2, 4, 6] if damage == "a figure" else [2, 6]
    rows = run.metrics.rows() if log == "metrics.jsonl" else [r["row"] for r in run.report.rows()]
    assert [row["step"] for row in rows] == [*kept, 8, 10]


def test_settings_of_another_model(run):
    record = json.loads(run.config_file.read_text())
    record["config"]["model"]["hidden"] = 64
    del record["checksum"]
    run.config_file.write_text(json.dumps(record))
    check_refused(run, "a checkpoint must be of the model of its run")


LINKS = ("checkpoints", "best", "data", "metrics.jsonl")


@pytest.mark.parametrize("name", LINKS)
def test_a_link_out_of_the_run(run, tmp_path, name):
    part, away = run.path / name, tmp_path / "of somebody else"
    part.rename(away)
    part.symlink_to(away)
    before = content(RunFolder(tmp_path))
    with pytest.raises(RunError, match=f"{name} is a link to {away}"):
        resume_run(run.path, {"steps": 10}, quiet=True)
    assert content(RunFolder(tmp_path)) == before


def test_weights_know_their_checksum(tmp_path):
    path = tmp_path / "weights.safetensors"
    write_weights(path, {"a": torch.arange(7.0), "b": torch.ones(3, 5).T})
    whole = path.read_bytes()
    assert_same(read_weights(path), {"a": torch.arange(7.0), "b": torch.ones(5, 3)})
    for place in range(len(whole)):  # of every byte one bit
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        with pytest.raises(UnusableWeightsError):
            read_weights(path)
