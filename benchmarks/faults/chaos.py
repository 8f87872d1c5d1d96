"""Kill workers of training runs at random moments, and compare the results with undisturbed runs.

    python -m benchmarks.faults.chaos --kills 30 --out benchmarks/results/chaos.json

A tiny model is trained under `torchrun --max-restarts`. Random workers get SIGKILL at random
moments, every third while a checkpoint is being written. The weights, the best weights, the last
checkpoint and the metrics of the run must be those of a run that nothing has disturbed, bit for
bit. A third run has another number of processes: the examples of each step must be the same.

`python -m benchmarks.faults.chaos worker FOLDER train ...` is `regard train ...` with a log of
examples.
"""

import argparse
import faulthandler
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks import harness

SETTINGS: Final = {
    "size": "tiny",
    "hidden": 8,
    "embed": 4,
    "batch_sentences": 8,
    "dropout": 0.2,
    "warmup": 2,
    "average": 2,
    "precision": "32",
    "device": "cpu",
    "max_tgt_len": 8,
    "patience": 1000,
}
#: seconds of training until a kill, at most
LONGEST_WAIT: Final = 4.0
#: seconds without a sign of life after which the script gives up
GIVE_UP: Final = 600.0


def worker(folder: Path, words: list[str]) -> None:
    """Run `regard` with a log of the examples of each batch."""
    from regard.cli import main as regard
    from regard.training.epochs import TrainingBatches

    rank, take = os.environ["RANK"], TrainingBatches.take

    def logged(batches: TrainingBatches, epoch: int, batch: int) -> Any:
        shares, *after = take(batches, epoch, batch)
        rows = [share.rows.tolist() if share.weight else [] for share in shares]
        with open(folder / f"steps-{rank}.jsonl", "a") as file:
            file.write(json.dumps([epoch, batch, rows]) + "\n")
        return shares, *after

    faulthandler.register(signal.SIGUSR1)  # to see where a run hangs
    TrainingBatches.take = logged  # type: ignore[method-assign]
    (folder / f"pid-{rank}.part").write_text(str(os.getpid()))
    os.replace(folder / f"pid-{rank}.part", folder / f"pid-{rank}")
    sys.argv = ["regard", *words]
    regard()


def launch(
    folder: Path, processes: int, restarts: int, settings: dict[str, Any]
) -> subprocess.Popen[bytes]:
    """Start a run in a folder under torchrun."""
    folder.mkdir(parents=True)
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    launcher += [f"--nproc-per-node={processes}", f"--max-restarts={restarts}"]
    words = [f"{name}={value}" for name, value in settings.items()]
    data = str(folder.parent / "pairs.tsv")
    command = [
        *launcher,
        "-m",
        "benchmarks.faults.chaos",
        "worker",
        str(folder),
        "train",
        data,
        *words,
    ]
    with open(folder / "log.txt", "wb") as log:
        return subprocess.Popen(
            [*command, "-o", str(folder / "run"), "-q"],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )


def workers(folder: Path, processes: int, before: set[int]) -> list[int]:
    """Return the workers, if all have started since the processes `before`."""
    found = []
    for rank in range(processes):
        file = folder / f"pid-{rank}"
        found.append(int(file.read_text()) if file.exists() else -1)
    return [] if -1 in found or before & set(found) else found


def disturb(
    torchrun: subprocess.Popen[bytes], folder: Path, processes: int, kills: int, seed: int
) -> Iterator[dict[str, Any]]:
    """Kill random workers until the run ends or all kills are done; yields each kill."""
    draw, before = random.Random(seed), set[int]()
    checkpoints = folder / "run" / "checkpoints"
    for number in range(kills):
        began = time.monotonic()
        while not (alive := workers(folder, processes, before)):
            if torchrun.poll() is not None or time.monotonic() - began > GIVE_UP:
                return
            time.sleep(0.02)
        during_write = number % 3 == 2
        # the last of the workers has just begun to import; what follows is start and training
        wait_for(draw.uniform(0.0, LONGEST_WAIT), folder, number)
        if during_write and not seen(checkpoints, draw):
            during_write = False
        if torchrun.poll() is not None:
            return
        victim = draw.randrange(processes)
        step = newest(checkpoints)
        os.kill(alive[victim], signal.SIGKILL)
        before = set(alive)
        yield {"rank": victim, "during_write": during_write, "checkpoint": step}


def wait_for(seconds: float, folder: Path, number: int) -> None:
    """Wait some seconds of training, or of its start for every fifth kill."""
    steps, began = folder / "steps-0.jsonl", time.monotonic()
    size = steps.stat().st_size if steps.exists() else 0
    while number % 5 and time.monotonic() - began < GIVE_UP:
        if steps.exists() and steps.stat().st_size > size:
            break
        time.sleep(0.01)
    time.sleep(seconds)


def seen(checkpoints: Path, draw: random.Random) -> bool:
    """Wait until a checkpoint is being written, and a little longer; return whether one was."""
    began = time.monotonic()
    while time.monotonic() - began < 30:
        if any(checkpoints.glob(".step-*.part")):
            time.sleep(draw.uniform(0.0, 0.02))
            return True
        time.sleep(0.001)
    return False


def newest(checkpoints: Path) -> int:
    """Return the step of the newest finished checkpoint, or -1."""
    return max((int(path.stem[5:]) for path in checkpoints.glob("step-*.json")), default=-1)


def result(folder: Path) -> dict[str, Any]:
    """Return all of a run that must be the same, but for the clock."""
    from safetensors.torch import load_file

    from regard.training.checkpoint import load_checkpoint
    from regard.training.run_folder import RunFolder

    run = RunFolder(folder / "run")
    assert run.finished, (folder / "log.txt").read_text()[-2000:]
    found = load_checkpoint(run.checkpoints).checkpoint
    assert found is not None
    best = {path.name: load_file(path) for path in sorted(run.best.glob("*.safetensors"))}
    metrics = [{k: v for k, v in row.items() if k != "seconds"} for row in run.read_metrics()]
    return {
        "model": load_file(run.model_file),
        "last": found.tensors,
        "best": best,
        "metrics": metrics,
    }


def same(a: Any, b: Any) -> bool:
    """Return whether two results are equal, tensors bit for bit."""
    import torch

    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    return bool(a == b)


def examples(folder: Path, processes: int) -> dict[tuple[int, int], list[list[int]]]:
    """Return the examples of each step, by its place in the data.

    Raises AssertionError if a process got other examples when it came to a step again.
    """
    steps: dict[tuple[int, int], list[list[int]]] = {}
    for rank in range(processes):
        mine: dict[tuple[int, int], list[list[int]]] = {}
        for line in (folder / f"steps-{rank}.jsonl").read_text().splitlines():
            try:
                epoch, batch, rows = json.loads(line)
            except ValueError:  # cut off by a kill
                continue
            assert mine.setdefault((epoch, batch), rows) == rows, (epoch, batch, rank)
        for place, rows in mine.items():
            joined = steps.setdefault(place, [[] for _ in rows])
            for batch_rows, more in zip(joined, rows, strict=True):
                batch_rows += more
    return {place: [sorted(rows) for rows in steps[place]] for place in sorted(steps)}


def main() -> None:
    """Run the three runs, and print what came of them as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--others", type=int, default=3, help="processes of the third run")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--preset", default="bahdanau")
    parser.add_argument("--strategy", choices=["ddp", "fsdp"], default="fsdp")
    parser.add_argument("--seed", type=int, default=1, help="of the kills")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write to FILE too")
    args = parser.parse_args()
    import torch

    settings = {**SETTINGS, "preset": args.preset, "strategy": args.strategy, "steps": args.steps}
    settings |= {"eval_every": max(1, args.steps // 6), "save_every": 5}
    with tempfile.TemporaryDirectory() as name:
        home, draw = Path(name), random.Random(1)
        words = ["".join(draw.choices("abcdefgh", k=draw.randint(2, 7))) for _ in range(60)]
        lines = (f"{word}\t{' '.join(reversed(word))}\n" for word in words)
        (home / "pairs.tsv").write_text("".join(lines))
        began = time.monotonic()
        quiet = launch(home / "undisturbed", args.processes, 0, settings)
        assert quiet.wait() == 0, (home / "undisturbed" / "log.txt").read_text()[-2000:]
        undisturbed_seconds, began = time.monotonic() - began, time.monotonic()
        torchrun = launch(home / "disturbed", args.processes, args.kills, settings)
        kills = []
        for kill in disturb(torchrun, home / "disturbed", args.processes, args.kills, args.seed):
            kills.append(kill)
            print(f"kill {len(kills)}: {kill}", file=sys.stderr, flush=True)
        code = torchrun.wait()
        disturbed_seconds = time.monotonic() - began
        expected, found = result(home / "undisturbed"), result(home / "disturbed")
        other = launch(home / "others", args.others, 0, settings)
        assert other.wait() == 0, (home / "others" / "log.txt").read_text()[-2000:]
        steps = examples(home / "undisturbed", args.processes)
        report = {
            **harness.provenance(torch=torch.__version__),
            "settings": settings,
            "processes": args.processes,
            "kills": len(kills),
            "kills_during_write": sum(kill["during_write"] for kill in kills),
            "exit_code": code,
            "same_bits": {name: same(expected[name], found[name]) for name in expected},
            "steps": args.steps,
            "same_examples_after_kills": examples(home / "disturbed", args.processes) == steps,
            "other_processes": args.others,
            "same_examples_with_other_processes": examples(home / "others", args.others) == steps,
            "seconds": {
                "undisturbed": round(undisturbed_seconds, 1),
                "disturbed": round(disturbed_seconds, 1),
            },
            "each_kill": kills,
        }
    print(json.dumps(report, indent=2))
    harness.write(args.out, report)


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        worker(Path(sys.argv[2]), sys.argv[3:])
    else:
        main()
