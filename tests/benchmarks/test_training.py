"""The benchmark of training runs, on a CPU too, and keeps its records when it is stopped."""

import json
import os
import signal
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks.speed import training

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = [sys.executable, "-m", "benchmarks.speed.training"]
TINY = "--device cpu --pairs 120 --vocab 60 --sizes tiny --batch-tokens 200 --precision 32"


def start(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*SCRIPT, *words],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.long
def test_a_run_that_is_told_to_stop_keeps_its_records(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    more = f"--steps 3 --seconds 0 --warm-up 0 --budget 900 --out {file}"
    with start(*TINY.split(), *more.split()) as run:
        assert run.stdout is not None
        first = json.loads(run.stdout.readline())
        run.send_signal(signal.SIGTERM)
        _, said = run.communicate(timeout=240)
    assert said.endswith("told to stop: the records so far are kept.\n")
    result = json.loads(file.read_text())
    assert not result["complete"]
    assert result["records"][0] == first
    assert not any(str(folder) in file.read_text() for folder in (ROOT, tmp_path))


@pytest.mark.slow
def test_a_folder_without_the_data_is_one_sentence(tmp_path: Path) -> None:
    with start("--data", str(tmp_path)) as run:
        _, said = run.communicate()
    assert run.returncode == 2
    assert "--data must hold multi30k/train" in said.strip().splitlines()[-1]


def test_steps_are_timed_on_a_cpu(tmp_path: Path) -> None:
    limits = {"steps": 2, "seconds": 0.0, "warm_up": 0.0, "precision": "32", "vocab": 60}
    cells = {"presets": ["bahdanau"], "sizes": ["tiny"], "batch_tokens": [200]}
    args = Namespace(data=None, pairs=60, device="cpu", backends=["auto"], **limits, **cells)
    ((record,),) = training.speeds(training.Bench(args, str(tmp_path / "run")))
    assert record["timed_steps"] == 2
    assert record["tokens_per_s"] > 0


def test_the_definition_is_timed_where_loops_are_slow() -> None:
    presets, backends = list(training.PRESETS), ["auto", "reference", "torch"]
    sizes = {"batch_tokens": [4096, 16384], "sizes": ["small", "base"], "device": "cpu"}
    args = Namespace(backends=[*backends, "graphs"], presets=presets, **sizes)
    every = training.cells(args)
    assert [c[:3] for c in every[:12:4]] == [(4096, "small", backend) for backend in backends]
    assert [c[3] for c in every[:4]] == presets
    slow = [c for c in every if c[2] == "reference"]
    assert len(slow) == 7
    assert (4096, "small", "reference", "transformer") in slow
    assert (4096, "base", "reference", "transformer") not in slow
    assert len(every) == 2 * 2 * 2 * 4 + 7
