"""Several processes under torchrun give what one gives for the same global batch."""

import multiprocessing

import pytest
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from cli.tools import done, regard
from regard.cli import app
from regard.training import RunFolder
from training.tools import SETTINGS, weights, write_pairs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning"),
]


def call(command):
    """Call the command line in a process of torchrun, which takes SystemExit for a failure."""
    with pytest.raises(SystemExit) as end:
        app(command)
    assert end.value.code == 0


def launch(processes, command):
    """Start processes as `torchrun --standalone` does, but as forks, which need not import."""
    place = {"rdzv_backend": "c10d", "rdzv_endpoint": "localhost:0", "run_id": "ddp"}
    config = LaunchConfig(1, 1, processes, **place, max_restarts=0, start_method="fork")
    elastic_launch(config, call)(command)


def train(data, output, processes, extra):
    """Train by the command, under torchrun if there are several processes."""
    settings = {**SETTINGS, "dropout": 0.0, "steps": 8, "eval_every": 2, "batch_sentences": 15}
    settings |= extra
    words = [f"{key}={value}" for key, value in settings.items()]
    command = ["train", str(data), "-o", str(output), "-q", *words]
    if processes == 1:
        done(regard(*command))
        return RunFolder(output).read_metrics()
    agent = multiprocessing.get_context("fork").Process(target=launch, args=(processes, command))
    agent.start()
    agent.join(300)
    assert agent.exitcode == 0
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
