"""Runs from their start to their end, and what stops them on the way."""

import errno
import io
import signal
import time
from unittest.mock import Mock

import pytest
from rich.console import Console
from safetensors.torch import load_file

from regard.errors import DataError
from regard.training import RunError, RunFolder, loop, make_config, resume_run, run, start_run
from training.tools import SETTINGS, assert_same, weights

# trains or decodes with real models: not part of `make check`
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("default_signals")]


@pytest.fixture
def begin(data, tmp_path):
    def start(name="run", console=None, quiet=True, **settings):
        brief = {"steps": 6, "eval_every": 100, "save_every": 6, "max_tgt_len": 10}
        config = make_config({"data": str(data), **SETTINGS, **brief, **settings})
        return start_run(config, tmp_path / name, console=console, quiet=quiet)

    return start


def steps(folder):
    return [row["step"] for row in folder.read_metrics()]


@pytest.mark.parametrize("ema", [0.0, 0.5])
def test_stopped_before_it_is_judged_a_run_leaves_its_newest_weights(
    begin, data, tmp_path, monkeypatch, ema
):
    whole = begin("whole", ema=ema, save_every=100)
    stop_after(4, monkeypatch)
    with open(tmp_path / "log", "w") as log:
        folder = begin(ema=ema, save_every=100, console=Console(file=log, width=400), quiet=False)
    assert not folder.finished
    said = (tmp_path / "log").read_text().splitlines()[-2:]
    kept = "the weights of step 4 are kept as the model, but they have not been evaluated on dev."
    assert said[0] == kept
    assert said[1].startswith("stopped and saved; go on with: regard train --resume ")
    saved = load_file(folder.checkpoints / "step-00000004.safetensors")
    part = "ema." if ema else "model."
    newest = {k.removeprefix(part): w for k, w in saved.items() if k.startswith(part)}
    assert_same(newest, weights(folder.path))
    assert folder.load().model is not None
    monkeypatch.undo()
    resume_run(folder.path, quiet=True)
    assert_same(weights(whole.path), weights(folder.path))


@pytest.mark.parametrize("seconds", [0.0, 0.01])
def test_a_signal_that_comes_twice_at_once_is_one(begin, monkeypatch, seconds):
    """From a terminal under torchrun each process gets Ctrl-C, and then from torchrun again."""
    stop_after(4, monkeypatch, signal.SIGINT, seconds, signal.SIGINT)
    folder = begin(save_every=100)
    assert (folder.checkpoints / "step-00000004.json").exists()


def test_a_second_signal_stops_at_once(begin, monkeypatch):
    monkeypatch.setattr(loop, "SIGNAL_WINDOW_S", 0.01)
    stop_after(4, monkeypatch, signal.SIGINT, 0.02, signal.SIGINT)
    file = io.StringIO()
    with pytest.raises(KeyboardInterrupt):
        begin(save_every=100, console=Console(file=file, width=400), quiet=False)
    resume = "go on from the last checkpoint: regard train --resume "
    assert file.getvalue().splitlines()[-1].startswith(f"stopped at once; {resume}")


class Dead(io.StringIO):
    """A terminal that is gone once the run has begun."""

    def write(self, text):
        if "step" in text or "stopped" in text:
            raise OSError(errno.EIO, "Input/output error")
        return super().write(text)


def test_a_terminal_that_is_gone_does_not_keep_a_run_from_saving(begin, monkeypatch):
    monkeypatch.setattr("sys.stderr", Dead())
    stop_after(4, monkeypatch, signal.SIGHUP)
    folder = begin(save_every=100, eval_every=2, quiet=False)
    assert (folder.checkpoints / "step-00000004.json").exists()


def stop_after(step, monkeypatch, *signals):
    """Signals during this step, with seconds between them; Ctrl-C if none are given."""
    take = loop._step

    def stopping(parts, progress):
        loss = take(parts, progress)
        for number in signals or (signal.SIGINT,) if progress.step == step else ():
            time.sleep(number) if isinstance(number, float) else signal.raise_signal(number)
        return loss

    monkeypatch.setattr(loop, "_step", stopping)


def test_a_start_that_fails_leaves_the_folder_free(begin, tmp_path, data):
    with pytest.raises(DataError, match="no such file"):
        begin(data="missing.tsv")
    assert not (tmp_path / "run").exists()
    begin()
    with pytest.raises(RunError, match="must be new"):
        begin()


def test_a_run_that_was_killed_before_its_first_step_chooses_its_network(tmp_path, monkeypatch):
    lines = (f"word {'good' if i % 2 else 'bad'} {i}\t{'yn'[i % 2]}\n" for i in range(60))
    (tmp_path / "x.tsv").write_text("".join(lines))
    config = make_config({"data": str(tmp_path / "x.tsv"), "steps": 1})
    with monkeypatch.context() as killed:
        killed.setattr(RunFolder, "discard", lambda folder: None)
        killed.setattr(run, "prepare", Mock(side_effect=DataError("x", 1, "gone", "go on")))
        with pytest.raises(DataError, match="gone"):
            start_run(config, tmp_path / "run")
    resume_run(tmp_path / "run", quiet=True)
    assert RunFolder(tmp_path / "run").read_config().preset == "classifier-rnn"
