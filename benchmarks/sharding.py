"""Train with sharded weights in several processes, and compare losses and memory with one process.

    python benchmarks/sharding.py --json benchmarks/results/sharding.json

Processes run on the CPU with gloo. Each preset takes the same steps, without dropout, in 1, 2 and 4
processes. Printed are the largest difference of a loss from that of one process, and the bytes of
weights and optimiser state that a process holds.
"""

import argparse
import json
import multiprocessing
import os
import random
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks"))

import provenance  # noqa: E402
from regard.training import RunFolder, make_config  # noqa: E402
from regard.training.optimization import pack_optimizer  # noqa: E402
from regard.training.progress import Progress  # noqa: E402
from regard.training.setup import prepare  # noqa: E402
from regard.training.sharding import own_part  # noqa: E402

PRESETS: Final = ("bahdanau", "self-attentive", "transformer")
SETTINGS: Final = {
    "size": "tiny",
    "dropout": 0.0,
    "batch_sentences": 13,
    "accumulate": 2,
    "warmup": 5,
    "precision": "32",
    "device": "cpu",
}


def train(
    place: dict[str, Any], home: Path, settings: dict[str, Any], results: Any, steps: int
) -> None:
    """Take the steps of one process, and send its losses and bytes."""
    os.environ |= {name: str(value) for name, value in place.items()}
    torch.set_num_threads(1)
    folder = RunFolder(home / "run")
    folder.create()
    data = str(home.parent / "pairs.tsv")
    config = make_config({"data": data, "steps": steps, **settings})
    run = prepare(config, folder, Console(quiet=True))
    learner, losses, progress = run.learner, [], Progress()
    for _ in range(steps):
        shares, progress.epoch, progress.batch = run.batches.take(progress.epoch, progress.batch)
        losses.append(float(learner.processes.total(learner.backward(shares))))
        progress.step += 1
        learner.clip()
        learner.step(progress.step, run.learning_rate(progress))
    weights = list(learner.module.parameters())
    state = list(pack_optimizer(learner.optimizer).values())
    report = {
        "losses": losses,
        "weight_bytes": sum(own_part(weight).nbytes for weight in weights),
        "optimizer_bytes": sum(own_part(tensor).nbytes for tensor in state),
    }
    results.put((int(place["RANK"]), report))


def measure(processes: int, home: Path, settings: dict[str, Any], steps: int) -> dict[str, Any]:
    """Return the losses, and the bytes of each process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    results, started = context.Queue(), []
    home.mkdir(parents=True)
    for rank in range(processes):
        place = {"RANK": rank, "LOCAL_RANK": rank, "GROUP_RANK": 0, "MASTER_PORT": port}
        place |= {"WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
        place |= {"MASTER_ADDR": "127.0.0.1", "TORCHELASTIC_RUN_ID": "none"}
        given = (place, home, settings, results, steps)
        started.append(context.Process(target=train, args=given))
        started[-1].start()
    found = dict(results.get(timeout=600) for _ in started)
    for process in started:
        process.join()
    losses = [found[rank]["losses"] for rank in range(processes)]
    assert all(each == losses[0] for each in losses), "processes disagree"
    sizes = ("weight_bytes", "optimizer_bytes")
    return {"losses": losses[0]} | {
        name: [found[rank][name] for rank in range(processes)] for name in sizes
    }


def compare(preset: str, counts: list[int], home: Path, steps: int) -> list[dict[str, Any]]:
    """Return a row for each number of processes; the first is one process.

    Replicated weights (ddp) are measured too: their losses differ by the order of sums alone.
    """
    rows: list[dict[str, Any]] = []
    for count, strategy in [(1, "auto"), *((n, s) for n in counts for s in ("ddp", "fsdp"))]:
        settings = {**SETTINGS, "preset": preset, "strategy": strategy}
        found = measure(count, home / f"{preset}-{strategy}-{count}", settings, steps)
        first = rows[0] if rows else {**found, "bytes": 0}
        apart = [abs(a - b) for a, b in zip(found["losses"], first["losses"], strict=True)]
        held = [a + b for a, b in zip(found["weight_bytes"], found["optimizer_bytes"], strict=True)]
        whole = first["bytes"] or max(held)
        row = {"preset": preset, "strategy": strategy, "processes": count}
        row |= {"loss_difference": max(apart)}
        row |= {"bytes": max(held), "share_of_one": round(max(held) / whole, 4)}
        rows.append({**row, "losses": found["losses"]})
        print(json.dumps({k: v for k, v in row.items() if k != "losses"}), flush=True)
    return rows


def main() -> None:
    """Compare all presets."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--presets", nargs="+", default=list(PRESETS))
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write to FILE too")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        home, draw = Path(name), random.Random(1)
        words = ["".join(draw.choices("abcdefgh", k=draw.randint(2, 7))) for _ in range(120)]
        lines = (f"{word}\t{' '.join(reversed(word))}\n" for word in words)
        (home / "pairs.tsv").write_text("".join(lines))
        given = (args.processes, home, args.steps)
        rows = [row for preset in args.presets for row in compare(preset, *given)]
    provenance.write(
        args.json,
        {
            "command": " ".join(["python", "benchmarks/sharding.py", *sys.argv[1:]]),
            "machine": provenance.machine() | {"torch": torch.__version__},
            "source": provenance.source(),
            "settings": SETTINGS,
            "steps": args.steps,
            "rows": rows,
        },
    )


if __name__ == "__main__":
    main()
