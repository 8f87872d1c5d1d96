"""Predict shards on a real Ray cluster of two nodes while its workers are killed.

    python benchmarks/ray_predict.py --out benchmarks/results/ray-predict.json

Two `ray start` processes on this machine, one core each, are the nodes. The sources are random
words for the bundled model. Every answer is compared with those of `regard predict` on the same
sources, in one process. Then: one worker against two, an address without a cluster, a source that
kills each worker that reads it, and a disk that is full.
"""

import argparse
import json
import os
import random
import re
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.harness import command, machine, source, write
from regard.jobs import JobTask, ModelSpec, RayExecutor, find_shards, read_shard, run_job

MODEL: Final = "g2p"
BATCH: Final = 128
#: a block: what a killed worker loses at most
UNIT_ROWS: Final = 16 * BATCH
OPTIONS: Final = ("--beam", "1", "--batch", str(BATCH))
REGARD: Final = (sys.executable, "-m", "regard")
POISON: Final = "poison"
Record = dict[str, Any]


def write_sources(folder: Path, count: int, shards: int) -> Path:
    """Write random words to shards, and all of them to one file, which is returned."""
    draw = random.Random(1)
    letters = "abcdefghiklmnoprstuwy"
    words = ["".join(draw.choices(letters, k=draw.randint(2, 4))) for _ in range(count)]
    (folder / "in").mkdir()
    for i in range(shards):
        part = words[i * count // shards : (i + 1) * count // shards]
        (folder / "in" / f"{i:03d}.txt").write_text("".join(f"{word}\n" for word in part))
    everything = folder / "all.txt"
    everything.write_text("".join(f"{word}\n" for word in words))
    return everything


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextmanager
def cluster(folder: Path, nodes: int, cores: int) -> Iterator[str]:
    """Run a cluster of nodes with some workers each; yields its address."""
    from ray.util import get_node_ip_address

    # below the ports of Ray's workers
    port, started = next(p for p in range(6379, 9999) if not _listens(p)), []
    address = f"{get_node_ip_address()}:{port}"
    ray = str(Path(sys.executable).with_name("ray"))
    common = [f"--num-cpus={cores}", "--num-gpus=0", "--block", "--object-store-memory=100000000"]
    head = ["--head", f"--port={port}", "--include-dashboard=false"]
    # workers that are as nice as Ray has them get no time on a busy machine
    env = {**os.environ, "RAY_USAGE_STATS_ENABLED": "0", "RAY_worker_niceness": "0"}
    try:
        for i in range(nodes):
            place = [*head, f"--temp-dir={folder / 'ray'}"] if i == 0 else [f"--address={address}"]
            words = [ray, "start", *place, *common]
            started.append(start_node(words, folder / f"node-{i}.log", env))
        yield address
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGTERM)
        for process in started:
            process.wait(60)


def start_node(words: list[str], log: Path, env: dict[str, str]) -> subprocess.Popen[bytes]:
    """Start a node; Ray gives up after half a minute, which is too short on a busy machine."""
    for _ in range(5):
        with log.open("w") as file:
            node = subprocess.Popen(words, stdout=file, stderr=file, env=env)
        while node.poll() is None:
            if "Ray runtime started" in log.read_text():
                return node
            time.sleep(0.5)
    raise SystemExit(f"a node does not start: {log.read_text()[-500:]}")


def _listens(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def processes() -> Iterator[tuple[int, int, str]]:
    """Yield number, parent and command line of each process."""
    for path in Path("/proc").glob("[0-9]*"):
        try:
            stat = (path / "stat").read_text()
            words = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        yield int(path.name), int(stat.rpartition(")")[2].split()[1]), words


def raylets(folder: Path) -> list[int]:
    """Return the processes that start workers on the nodes of our cluster."""
    mine = str(folder / "ray")
    return [n for n, _, words in processes() if "/raylet/raylet " in words and mine in words]


def workers(folder: Path) -> list[int]:
    """Return the worker processes of our cluster that have a model."""
    parents = set(raylets(folder))
    return [n for n, parent, words in processes() if parent in parents and "RayWorker" in words]


def predict(out: Path, inputs: str, *more: str) -> Record:
    """Run `regard predict -o`; returns its exit code, seconds and last line."""
    started = time.monotonic()
    words = [*REGARD, "predict", MODEL, inputs, "-o", str(out), *OPTIONS, *more]
    words += ["--rows-per-shard", str(UNIT_ROWS)]
    done = subprocess.run(words, capture_output=True, text=True)
    lines = done.stderr.strip().splitlines()
    found = {"code": done.returncode, "seconds": time.monotonic() - started}
    return {**found, "said": lines[-1].removeprefix("regard: ") if lines else ""}


def summary(out: Path) -> Record:
    found: Record = json.loads((out / "_summary.json").read_text())
    return found


class Killer(threading.Thread):
    """Kills a worker now and then, as long as there are two and some are left to kill.

    Args:
        folder: of the cluster.
        out: where output shards appear, so that work goes on between two kills.
        kills: how many.
    """

    def __init__(self, folder: Path, out: Path, kills: int) -> None:
        super().__init__(daemon=True)
        self.folder, self.out, self.left = folder, out, kills
        self.killed: list[float] = []
        self.stopped = threading.Event()

    def run(self) -> None:
        """Kill at random moments."""
        draw, began, seen = random.Random(2), time.monotonic(), -1
        while self.left and not self.stopped.wait(0.5):
            there, shards = workers(self.folder), len(list(self.out.glob("*.parquet")))
            if len(there) < 2 or shards == seen:
                continue
            if self.stopped.wait(draw.uniform(0, 3)):
                return
            seen = shards
            os.kill(draw.choice(there), signal.SIGKILL)
            self.killed.append(time.monotonic() - began)
            self.left -= 1


def rows_of(out: Path) -> list[Record]:
    """Return all rows, those of each input shard in order."""
    rows = [row for path in sorted(out.glob("*.parquet")) for row in read_shard(path)]
    return sorted(rows, key=lambda row: (row["shard"], row["row"]))


def killed_job(folder: Path, address: str, everything: Path, kills: int, count: int) -> Record:
    """Predict all sources while workers are killed, and compare with one process beside it."""
    killer = Killer(folder, folder / "out", kills)
    killer.start()
    words = [*REGARD, "predict", MODEL, str(everything), *OPTIONS]
    with (
        (folder / "alone.txt").open("w") as file,
        subprocess.Popen(words, stdout=file, stderr=subprocess.DEVNULL) as process,
    ):
        inputs = str(folder / "in" / "*.txt")
        done = predict(folder / "out", inputs, "--ray", address, "--workers", str(count))
        killer.stopped.set()
        killer.join()
        if done["code"] or process.wait():
            raise SystemExit(done["said"])
    alone = (folder / "alone.txt").read_text().splitlines()
    rows, found = rows_of(folder / "out"), summary(folder / "out")
    expected = [
        f"{path.name}:{number}"
        for path in sorted((folder / "in").glob("*.txt"))
        for number in range(1, len(path.read_text().splitlines()) + 1)
    ]
    ids = [row["id"] for row in rows]
    return {
        "sources": len(alone),
        "rows": len(rows),
        "ids_answered_once": len(set(ids)) if sorted(ids) == sorted(expected) else "no",
        "different_answers": sum(a["text"] != b for a, b in zip(rows, alone, strict=True)),
        "errors": sum(bool(row["error"]) for row in rows),
        "kills": len(killer.killed),
        "killed_at_s": [round(at, 1) for at in killer.killed],
        "restarts": found["restarts"],
        "seconds": found["seconds"],
        "rows_per_second": found["rows_per_second"],
        "workers": count,
    }


def throughput(folder: Path, address: str, shards: Sequence[Path], turns: int) -> Record:
    """Predict the same shards with one worker and with two, in turns."""
    rates: dict[str, list[float]] = {"1": [], "2": []}
    place = folder / "few"
    place.mkdir()
    for path in shards:
        (place / path.name).write_bytes(path.read_bytes())
    for turn in range(turns):
        for count in rates:
            out = folder / f"rate-{count}-{turn}"
            done = predict(out, str(place), "--ray", address, "--workers", count)
            if done["code"]:
                raise SystemExit(done["said"])
            rates[count].append(summary(out)["rows_per_second"])
    best = {count: max(found) for count, found in rates.items()}
    return {"rows_per_second": rates, "two_over_one": best["2"] / best["1"]}


@dataclass(frozen=True)
class PoisonTask:
    """`JobTask`, but one source ends the process, as a lack of memory would."""

    task: JobTask

    def describe(self) -> Record:
        """Return the options."""
        return {**self.task.describe(), "task": "poisoned"}

    def checksum(self) -> str:
        """Return the checksum of the model."""
        return self.task.checksum()

    def load(self) -> Any:
        """Load the model, and poison it."""
        loaded = self.task.load()

        def answer(unit: Any, block: Sequence[Any]) -> Any:
            if any(record.value == POISON and not record.error for record in block):
                os.kill(os.getpid(), signal.SIGKILL)
            return loaded.answer(unit, block)

        return loaded._replace(answer=answer)


def poisoned(folder: Path, address: str) -> Record:
    """Run a job in which one source kills each worker that reads it."""
    place = folder / "poisoned"
    place.mkdir()
    lines = [f"ab{chr(97 + i % 26)}" for i in range(40)]
    lines[23] = POISON
    (place / "a.txt").write_text("".join(f"{line}\n" for line in lines))
    options = {"beam": 1}
    task = PoisonTask(JobTask(ModelSpec((MODEL,), "cpu"), batch=1, options=options))
    out = folder / "poisoned-out"
    found = run_job(task, find_shards([str(place)]), out, RayExecutor(address, 1, gpus=False))
    bad = [row for row in read_shard(out / "a.txt.parquet") if row["error"]]
    return {
        "rows": found.now.rows,
        "rows_with_errors": len(bad),
        "error": bad[0]["error"] if bad else None,
        "is_the_poisoned_one": [row["row"] for row in bad] == [24],
        "restarts": found.restarts,
    }


def full_disk(folder: Path, address: str, shards: Sequence[Path]) -> Record:
    """Fill a small disk with shards, ask a silent address, make room, and go on.

    Needs the right to mount a file system.
    """
    disk, place = folder / "disk", folder / "for-disk"
    disk.mkdir()
    place.mkdir()
    for path in shards:
        (place / path.name).write_bytes(path.read_bytes())
    # less than half of what the answers take, which is about 25 bytes for each row
    size = sum(path.read_bytes().count(b"\n") for path in shards) * 10 // 1024
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True).returncode:
        return {"skipped": "a file system of its own cannot be mounted here"}
    try:
        full = predict(disk / "out", str(place), "--ray", address, "--workers", "1")
        kept = len(list((disk / "out").glob("*.parquet")))
        silent = predict(disk / "out", str(place), "--ray", f"127.0.0.1:{free_port()}")
        kept_by_silent = len(list((disk / "out").glob("*.parquet")))
        subprocess.run(["mount", "-o", "remount,size=64m", str(disk)], check=True)
        after = predict(disk / "out", str(place), "--ray", address, "--workers", "1")
        rows, found = rows_of(disk / "out"), summary(disk / "out")
        return {
            "code": full["code"],
            "said": full["said"].replace(str(folder), "FOLDER"),
            "shards_kept": kept,
            "code_at_silent_address": silent["code"],
            "shards_kept_by_silent_address": kept_by_silent,
            "code_with_room": after["code"],
            "shards_of_before": found["shards"]["before"],
            "rows": len(rows),
            "ids": len({row["id"] for row in rows}),
        }
    finally:
        subprocess.run(["umount", str(disk)], check=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sources", type=int, default=200_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--workers", type=int, default=2, help="of the job with kills")
    parser.add_argument("--only", default="killed,throughput,full_disk,poisoned")
    parser.add_argument("--turns", type=int, default=2, help="of one worker and two")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the result to FILE, too")
    args = parser.parse_args()
    # nodes and drivers share a token of their own: nobody else can send work to the cluster
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    os.environ["OMP_NUM_THREADS"] = "1"
    about = {"command": command(), **source()}
    result: Record = {"machine": machine(), "model": MODEL, "options": [*OPTIONS]}
    result["rows_per_shard"] = UNIT_ROWS
    if args.out is not None and args.out.exists():  # parts that are not measured now are kept
        result = json.loads(args.out.read_text()) | result
    # a short path: Ray puts sockets there
    with tempfile.TemporaryDirectory(prefix="rp", dir="/tmp") as name:
        folder = Path(name)
        everything = write_sources(folder, args.sources, shards=10)
        silent = predict(folder / "silent", str(folder / "in"), "--ray", f"127.0.0.1:{free_port()}")
        silent["said"] = re.sub(r":\d+ ", ":PORT ", silent["said"])
        result["no_cluster"] = silent | about
        with cluster(folder, nodes=2, cores=max(1, args.workers // 2)) as address:
            few = sorted((folder / "in").glob("*.txt"))[:2]
            parts = {
                "killed": lambda: killed_job(folder, address, everything, args.kills, args.workers),
                "throughput": lambda: throughput(folder, address, few, args.turns),
                "full_disk": lambda: full_disk(folder, address, few),
                "poisoned": lambda: poisoned(folder, address),
            }
            for name in args.only.split(","):
                load = os.getloadavg()[0]  # of other programs, which use the same cores
                result[name] = parts[name]() | {"load_average_before": load} | about
                print(name, result[name], flush=True)
                write(args.out, result)


if __name__ == "__main__":
    main()
