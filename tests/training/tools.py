"""A small task, and runs that can be killed."""

import functools
import multiprocessing
import os
import random
import signal
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from rich.console import Console
from safetensors.torch import load_file

from regard.training import RunFolder, loop, make_config, resume_run, start_run
from regard.training.reporting import ConsoleReporter
from regard.training.schedule import Progress
from regard.training.setup import prepare

SETTINGS = {
    "size": "tiny",
    "hidden": 32,
    "embed": 16,
    "dropout": 0.2,
    "batch_sentences": 16,
    "steps": 24,
    "eval_every": 8,
    "save_every": 3,
    "warmup": 5,
    "precision": "32",
    "device": "cpu",
}


def write_pairs(path: Path, count: int = 200, seed: int = 1) -> Path:
    """Words and their letters from the end."""
    draw = random.Random(seed)
    words = ["".join(draw.choices("abcdefgh", k=draw.randint(2, 7))) for _ in range(count)]
    path.write_text("".join(f"{word}\t{' '.join(reversed(word))}\n" for word in words))
    return path


def run(data: Path, output: Path, **settings: object) -> None:
    """Starts a run, or goes on with it if it has begun."""
    torch.set_num_threads(1)
    if RunFolder(output).started:
        resume_run(output, quiet=True)
    else:
        start_run(make_config({"data": str(data), **SETTINGS, **settings}), output, quiet=True)


def begin(config, output: Path) -> None:
    """Begin a run up to its encoded data, which `resume_run` trains on."""
    run = RunFolder(output)
    run.create()
    run.write_config(config)
    prepare(config, run, Console(quiet=True))


@functools.cache
def import_all() -> None:
    """Train for a moment, so that no fork has to import what a run needs beside torch."""
    with tempfile.TemporaryDirectory() as home:
        data = write_pairs(Path(home) / "pairs.tsv", count=60)
        run(data, Path(home) / "run", hidden=8, embed=4, steps=1, eval_every=1, max_tgt_len=10)


def run_aside(data: Path, output: Path, **settings: object) -> multiprocessing.Process:
    """The same in a process of its own, which shares what is imported already."""
    context = multiprocessing.get_context("fork")
    process = context.Process(target=run, args=(data, output), kwargs=settings)
    process.start()
    return process


def run_processes(count: int, work: Callable[[], object], **env: object) -> list[int | None]:
    """Do some work in several processes, as torchrun would; returns their exit codes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    together = []
    for rank in range(count):
        place = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "MASTER_PORT": port}
        place |= {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1"}
        place |= {"TORCHELASTIC_RUN_ID": "none", **env}
        together.append(context.Process(target=_as_rank, args=(place, work)))
        together[-1].start()
    for process in together:
        process.join(300)
    return [process.exitcode for process in together]


def _as_rank(place: dict[str, object], work: Callable[[], object]) -> None:
    os.environ |= {name: str(value) for name, value in place.items()}
    torch.set_num_threads(1)
    work()


def stop_at(step: int, number: signal.Signals, monkeypatch, data: Path, output: Path, **settings):
    """Run aside until a checkpoint of a step is written: there the run sends itself a signal."""
    replace, sent = os.replace, []

    def deadly(source, target):
        replace(source, target)
        name = Path(target)
        if name.match("checkpoints/step-*.json") and int(name.stem[5:]) >= step and not sent:
            sent.append(number)
            os.kill(os.getpid(), number)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", deadly)
        process = run_aside(data, output, **settings)
        process.join(300)
    return process.exitcode


def kill_after(process: multiprocessing.Process, seconds: float) -> bool:
    """Kills a process, unless it ends before; whether it was killed."""
    process.join(timeout=seconds)
    if not process.is_alive():
        return False
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    return True


def finish(process: multiprocessing.Process, limit: float = 120.0) -> None:
    process.join(timeout=limit)
    assert process.exitcode == 0, process.exitcode


def weights(output: Path) -> dict[str, torch.Tensor]:
    return load_file(output / "model.safetensors")


def last_checkpoint(output: Path) -> dict[str, torch.Tensor]:
    return load_file(max((output / "checkpoints").glob("step-*.safetensors")))


def assert_same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> None:
    assert a.keys() == b.keys()
    different = [name for name in a if not torch.equal(a[name], b[name])]
    assert different == []


def train_prepared(run, progress=None):
    """Train a prepared run in silence, with its metrics recorded; returns its progress."""
    progress = Progress() if progress is None else progress
    reporter = ConsoleReporter(Console(quiet=True), run.budget.spent, quiet=True)
    run.train(progress, reporter)
    return progress


def take_step(run, progress):
    """Take one optimiser step of a prepared run."""
    return loop._step(run, progress)
