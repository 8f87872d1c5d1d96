"""Several processes under torchrun give what one gives for the same global batch."""

import os
import subprocess

import pytest

from cli.tools import done, regard
from forked_python import forked_python
from regard.training import RunFolder
from training.tools import SETTINGS, weights, write_pairs

pytestmark = pytest.mark.slow


def train(data, output, processes, extra):
    """Train by the command, under torchrun if there are several processes."""
    settings = {**SETTINGS, "dropout": 0.0, "steps": 8, "eval_every": 2, "batch_sentences": 15}
    settings |= extra
    words = [f"{key}={value}" for key, value in settings.items()]
    command = ["train", str(data), "-o", str(output), "-q", *words]
    if processes == 1:
        done(regard(*command))
        return RunFolder(output).read_metrics()
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    ran = subprocess.run(
        [forked_python(), *launcher, "-m", "regard", *command],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHON_EXEC": forked_python()},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    return RunFolder(output).read_metrics()


def test_two_processes_equal_one(tmp_path):
    extra = {"accumulate": 2, "shared_vocab": "true", "tied": "all", "ema": 0.9, "rdrop": 1.0}
    data = write_pairs(tmp_path / "pairs.tsv", count=97)
    one = train(data, tmp_path / "one", 1, extra)
    two = train(data, tmp_path / "two", 2, extra)
    assert len(one) == len(two) == 4
    for a, b in zip(one, two, strict=True):
        print(a["train_loss"], b["train_loss"], a["dev_loss"], b["dev_loss"])
        assert a["train_loss"] == pytest.approx(b["train_loss"], abs=1e-5)
        assert a["dev_loss"] == pytest.approx(b["dev_loss"], abs=1e-5)
        assert a["tokens"] == b["tokens"]
    for name, weight in weights(tmp_path / "one").items():
        assert (weight - weights(tmp_path / "two")[name]).abs().max() < 1e-4
