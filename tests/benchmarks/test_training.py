"""The benchmark of training runs, on a CPU too, and its page says what it has measured."""

import json
import os
import runpy
import signal
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from training_page import distances, draw, render, smoothed  # noqa: E402

TINY = "--device cpu --pairs 120 --vocab 60 --sizes tiny --batch-tokens 200 --precisions 32"
FEW = "--curve-steps 7 --steps 2 --seconds 0 --presets bahdanau --backends auto,reference"


def training(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "training.py"), *words],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )


@pytest.mark.long
@pytest.mark.slow
def test_a_run_that_is_told_to_stop_keeps_its_records(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    script = str(ROOT / "benchmarks" / "training.py")
    more = f"--curve-steps 50000 --curve-seconds 2 --json {file}"
    with subprocess.Popen(
        [sys.executable, script, *TINY.split(), *more.split()],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as run:
        assert run.stdout is not None
        first = run.stdout.readline()
        run.send_signal(signal.SIGTERM)
        _, said = run.communicate(timeout=240)
    assert first.startswith("curves"), said
    assert run.returncode == 0, said
    assert said.endswith("told to stop: the records so far are kept.\n")
    result = json.loads(file.read_text())
    assert not result["complete"]
    assert len(result["curves"]) == 1
    # it was cut off by its seconds, and not by its steps
    assert 3 < len(result["curves"][0]["losses"]) < 50000


@pytest.mark.long
def test_it_runs_on_a_cpu_and_writes_what_it_prints(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    done = training(*TINY.split(), *FEW.split(), "--json", str(file))
    assert done.returncode == 0, done.stderr
    result = json.loads(file.read_text())
    assert result["complete"]
    assert [(c["backend"], c["seed"]) for c in result["curves"]] == [
        ("auto", 1),
        ("auto", 1),
        ("auto", 2),
        ("torch", 1),
        ("reference", 1),
    ]
    assert all(len(c["losses"]) == 7 for c in result["curves"])
    auto, again, other, _, reference = result["curves"]
    assert auto["losses"] == again["losses"]
    assert distances(auto, reference)[1] < 1e-4 < distances(auto, other)[1]
    assert [r["backend"] for r in result["speed"]] == ["auto", "reference"]
    assert all(r["tokens_per_s"] > 0 and r["timed_steps"] == 2 for r in result["speed"])
    assert len(done.stdout.splitlines()) == 7
    assert not any(str(folder) in file.read_text() for folder in (ROOT, tmp_path))
    assert "| bahdanau | tiny | 200 |" in render(result)


@pytest.mark.slow
def test_a_folder_without_the_data_is_one_sentence(tmp_path: Path) -> None:
    done = training("--data", str(tmp_path))
    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert "--data" in last
    assert "multi30k/train" in last


def test_smoothed_curves_by_hand() -> None:
    assert smoothed([1.0, 3.0, 5.0, 1.0], window=2) == [2.0, 4.0, 3.0]
    assert smoothed([1.0, 3.0], window=20) == [2.0]
    a, b = {"losses": [1.0] * 20 + [2.0]}, {"losses": [1.5] + [1.0] * 19 + [0.0]}
    assert distances(a, b) == (0.5, pytest.approx(2 / 20))


def test_a_curve_that_was_cut_is_compared_as_far_as_it_goes() -> None:
    a, b = {"losses": [1.0, 3.0, 9.0]}, {"losses": [1.0, 2.0]}
    assert distances(a, b) == distances(b, a) == (0.0, 0.5)


def test_the_definition_is_timed_where_loops_are_slow() -> None:
    # not imported: `training` is also a folder of tests
    script = runpy.run_path(str(ROOT / "benchmarks" / "training.py"))
    presets, backends = list(script["PRESETS"]), ["auto", "reference", "torch"]
    args = Namespace(
        batch_tokens=[4096, 16384],
        sizes=["small", "base"],
        backends=[*backends, "graphs"],
        presets=presets,
        device="cpu",
    )
    every = script["cells"](args)
    assert [c[:3] for c in every[:12:4]] == [(4096, "small", backend) for backend in backends]
    assert [c[3] for c in every[:4]] == presets
    slow = [c for c in every if c[2] == "reference"]
    assert len(slow) == 7
    assert (4096, "small", "reference", "transformer") in slow
    assert (4096, "base", "reference", "transformer") not in slow
    assert len(every) == 2 * 2 * 2 * 4 + 7


def curve(backend: str, seed: int, losses: list[float], ms: float) -> dict[str, object]:
    sizes = {"preset": "bahdanau", "size": "small", "batch_tokens": 4096, "precision": "bf16"}
    return {**sizes, "backend": backend, "seed": seed, "losses": losses, "step_ms": ms}


def test_backends_are_set_beside_seeds() -> None:
    curves = [
        curve("auto", 1, [4.0, 2.0], 10.0),
        curve("auto", 1, [4.0, 2.0], 10.0),
        curve("auto", 2, [5.0, 2.0], 10.0),
        curve("reference", 1, [4.0, 2.1], 35.0),
    ]
    cell = {"preset": "gnmt", "size": "small", "batch_tokens": 4096, "precision": "bf16"}
    speed = [
        {**cell, "backend": "auto", "tokens_per_s": 30_000.0, "warm_up_s": 6.0},
        {**cell, "backend": "torch", "tokens_per_s": 20_000.0, "warm_up_s": 6.0},
        {**cell, "preset": "luong", "backend": "auto", "tokens_per_s": 10.0},
        {**cell, "backend": "reference", "error": "OutOfMemoryError: no"},
    ]
    machine = {"cpu": "a CPU", "torch": "2.13"}
    page = render(
        {
            "command": "python training.py",
            "machine": machine,
            "commit": "abc",
            "data": "Multi30k en-de",
            "vocab": 8000,
            "curves": curves,
            "speed": speed,
            "complete": False,
        }
    )
    # 0.05 of a mean of two steps, where two seeds part by 0.5
    assert "part by 5.0e-02 at most, which is\n10% of what parts two seeds" in page
    assert "3.5 times as fast as `reference`" in page
    assert "| gnmt | small | 4096 | 30,000 | 20,000 |  | 1.50 |  |" in page
    assert "OutOfMemoryError" in page
    assert "1 records of speed are left out" in page
    assert "luong" not in page
    assert "cut short" in page


def test_a_run_looks_the_same_in_all_panels() -> None:
    first = [curve(name, 1, [4.0, 2.0], 10.0) for name in ("auto", "auto", "torch")]
    second = [{**curve(name, 1, [4.0, 2.0], 10.0), "precision": "32"} for name in ("auto", "torch")]
    drawn = draw({"curves": [*first, *second]})
    looks = [{line.get_label(): line.get_color() for line in ax.lines} for ax in drawn.axes]
    assert list(looks[1]) == ["auto", "torch"]
    assert looks[1].items() <= looks[0].items()
    assert len(set(looks[0].values())) == 3
