"""A run that is killed, at any moment, ends as one that is not: bit for bit."""

import json
import os
import random
import shutil
import signal
import time

import pytest

from regard.training import RunFolder, checkpoint
from training import tools
from training.tools import (
    assert_same,
    finish,
    import_all,
    kill_after,
    last_checkpoint,
    run_aside,
    stop_at,
    weights,
    write_pairs,
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("default_signals"),
    # the runs are forked so that twenty of them need not import torch twenty times
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning"),
]

KILLS = int(os.environ.get("REGARD_KILLS", "3"))


#: two epochs, as few steps as that takes
BRIEF = {"batch_sentences": 32, "steps": 12, "eval_every": 4, "save_every": 2}


@pytest.fixture(scope="module", autouse=True)
def imports():
    import_all()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in BRIEF.items():
            patch.setitem(tools.SETTINGS, name, value)
        yield


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_pairs(tmp_path_factory.mktemp("data") / "pairs.tsv")


@pytest.fixture(scope="module")
def timed(data, tmp_path_factory):
    """The run that nothing interrupts, and its seconds."""
    output, began = tmp_path_factory.mktemp("whole") / "run", time.monotonic()
    finish(run_aside(data, output))
    return output, time.monotonic() - began


@pytest.fixture(scope="module")
def whole(timed):
    return timed[0]


def scores(output):
    rows = RunFolder(output).read_metrics()
    return [{k: v for k, v in row.items() if k != "seconds"} for row in rows]


def assert_same_run(a, b):
    """The best weights may be those of a step before the kill, so compare the last state too."""
    assert_same(weights(a), weights(b))
    assert_same(last_checkpoint(a), last_checkpoint(b))


@pytest.mark.long
def test_killed_at_random_moments(data, timed, tmp_path):
    whole, seconds = timed
    draw, output, kills, tries = random.Random(7), tmp_path / "run", 0, 0
    while kills < KILLS and tries < 4 * KILLS:
        tries += 1
        before = last_step(output)
        kills += kill_after(run_aside(data, output), draw.uniform(0.0, 1.1) * seconds)
        if (
            before >= tools.SETTINGS["steps"] - 4
        ):  # near the end: begin anew, so that kills fall into all of the run
            finish(run_aside(data, output))
            assert_same_run(whole, output)
            output = tmp_path / f"run{tries}"
    finish(run_aside(data, output))
    print(f"{kills} kills")
    assert kills == KILLS
    assert_same_run(whole, output)
    assert scores(whole) == scores(output)


def last_step(output):
    steps = [int(p.stem[5:]) for p in (output / "checkpoints").glob("step-*.json")]
    return max(steps, default=0)


@pytest.mark.sample(2)
@pytest.mark.parametrize("at", ["before the rename", "between the two files", "after both"])
@pytest.mark.parametrize("which", [1, 3])
def test_killed_while_a_checkpoint_is_written(data, whole, tmp_path, which, at, monkeypatch):
    replace, seen, last = os.replace, [], 2 * which - 1 + (at == "after both")

    def deadly(source, target):
        if "checkpoints" in str(target):
            seen.append(target)
            if len(seen) == last and at == "before the rename":
                os.kill(os.getpid(), signal.SIGKILL)
        replace(source, target)
        if "checkpoints" in str(target) and len(seen) == last:
            os.kill(os.getpid(), signal.SIGKILL)

    monkeypatch.setattr(os, "replace", deadly)
    process = run_aside(data, tmp_path / "run")
    process.join(240)
    assert process.exitcode == -signal.SIGKILL
    monkeypatch.undo()
    finish(run_aside(data, tmp_path / "run"))
    assert_same_run(whole, tmp_path / "run")


def test_killed_between_a_score_and_the_first_checkpoint_after_it(data, tmp_path, monkeypatch):
    """The run goes on from step 0, and nothing is told of what it had reached before."""
    every = {"eval_every": 5, "save_every": 1000}
    finish(run_aside(data, tmp_path / "whole", **every))
    save, saved = checkpoint.save, []

    def deadly(tensors):
        saved.append(1)
        if len(saved) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return save(tensors)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save", deadly)
        process = run_aside(data, tmp_path / "run", **every)
        process.join(240)
    assert process.exitcode == -signal.SIGKILL
    assert scores(tmp_path / "run")
    finish(run_aside(data, tmp_path / "run"))
    assert scores(tmp_path / "run") == scores(tmp_path / "whole")
    assert_same_run(tmp_path / "run", tmp_path / "whole")


@pytest.fixture(scope="module")
def stopped(data, tmp_path_factory):
    """A run that was killed half-way."""
    output = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.MonkeyPatch.context() as patch:
        assert stop_at(7, signal.SIGKILL, patch, data, output) == -signal.SIGKILL
    return output


@pytest.mark.long
@pytest.mark.sample(2)
@pytest.mark.parametrize("damage", ["cut", "flip", "flip the record", "no record"])
def test_a_damaged_checkpoint_is_noticed_and_the_one_before_is_used(
    data, whole, stopped, tmp_path, damage, capfd
):
    output = shutil.copytree(stopped, tmp_path / "run")
    newest = max((output / "checkpoints").glob("step-*.json")).with_suffix(".safetensors")
    record = newest.with_suffix(".json")
    content = bytearray(newest.read_bytes())
    if damage == "cut":
        newest.write_bytes(content[: len(content) // 2])
    elif damage == "flip":
        content[len(content) // 2] ^= 1
        newest.write_bytes(content)
    elif damage == "flip the record":
        sealed = json.loads(record.read_text())
        sealed["record"]["numbers"]["progress"]["batch"] += 1
        record.write_text(json.dumps(sealed))
    else:
        record.unlink()
    found, complaints, _ = checkpoint.load_checkpoint(output / "checkpoints")
    assert found is not None
    assert found.numbers["progress"]["step"] < int(newest.stem[5:])
    assert any(newest.stem in sentence for sentence in complaints)
    finish(run_aside(data, output))
    assert_same_run(whole, output)


@pytest.mark.long
@pytest.mark.sample(1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_saves_and_the_run_goes_on(data, whole, tmp_path, number, monkeypatch):
    output = tmp_path / "run"
    assert stop_at(4, number, monkeypatch, data, output) == 0
    assert last_step(output) < tools.SETTINGS["steps"]
    finish(run_aside(data, output))
    assert_same_run(whole, output)


#: all that can be asked for at once, for both families of models
EVERYTHING = {
    "ema": 0.9,
    "rdrop": 1.0,
    "shared_vocab": True,
    "tied": "all",
    "word_dropout": 0.1,
    "src_tokenizer": "bpe",
    "vocab_size": 60,
}
SIZES = {"dim": 16, "heads": 2, "feed_forward": 32, "layers": 1, "attention_dropout": 0.3}
EXTRAS = {
    "bahdanau": EVERYTHING,
    "transformer": {**EVERYTHING, "preset": "transformer", **SIZES},
}


@pytest.mark.long
@pytest.mark.sample(1)
@pytest.mark.parametrize("extra", EXTRAS)
def test_extras_resume_exactly_too(data, tmp_path, extra, monkeypatch):
    if "dim" in EXTRAS[extra]:
        monkeypatch.delitem(tools.SETTINGS, "hidden")
        monkeypatch.delitem(tools.SETTINGS, "embed")
    finish(run_aside(data, tmp_path / "a", **EXTRAS[extra]))
    code = stop_at(5, signal.SIGKILL, monkeypatch, data, tmp_path / "b", **EXTRAS[extra])
    assert code == -signal.SIGKILL
    finish(run_aside(data, tmp_path / "b"))
    assert_same_run(tmp_path / "a", tmp_path / "b")
    assert scores(tmp_path / "a") == scores(tmp_path / "b")
