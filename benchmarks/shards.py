"""Measure data in shards: memory and time of encoding, a kill in its midst, and the reader's speed.

The pairs are made of random words, so that no data is needed. `regard encode` is killed once half
of the shards are encoded, and goes on; then batches are read in their shuffled order,
beside the steps of trainers on the same machine. One JSON object goes to stdout.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from provenance import command, machine, peak_rss_mb, source, write

#: seconds between looks at the processes
INTERVAL = 0.25


def write_shards(folder: Path, pairs: int, shards: int, repeated: float) -> int:
    """Write shards of short pairs, some of which repeat earlier ones; returns their bytes."""
    rng = random.Random(0)
    letters = "abcdefghijklmnopqrstuvwxyz"
    vocabulary = ["".join(rng.choices(letters, k=rng.randint(2, 9))) for _ in range(50_000)]
    weights = [1 / (rank + 10) for rank in range(len(vocabulary))]
    pool = rng.choices(vocabulary, weights, k=1_000_000)  # drawing from it is fast
    texts = [" ".join(pool[i : i + rng.randint(2, 8)]) for i in range(len(pool) - 8)]
    folder.mkdir(parents=True, exist_ok=True)
    size, earlier = 0, [f"{texts[0]}\t{texts[1]}\n"]
    for shard in range(shards):
        count = (pairs * (shard + 1)) // shards - (pairs * shard) // shards
        sides = (rng.choices(texts, k=count), rng.choices(texts, k=count))
        lines = [f"{src}\t{tgt}\n" for src, tgt in zip(*sides, strict=True)]
        for place in rng.sample(range(count), int(repeated * count)):
            lines[place] = rng.choice(earlier)
        earlier = [*earlier[-10_000:], *lines[:: max(1, count // 1000)]]
        content = "".join(lines).encode()
        (folder / f"{shard:05}.tsv").write_bytes(content)
        size += len(content)
    return size


class Memory:
    """Peaks of the resident memory of processes: of all together, and of the largest."""

    def __init__(self) -> None:
        self.together = self.largest = 0.0
        self.processes = 0

    def look(self, group: int) -> None:
        """Add up the processes of a group; pages that they share count in each."""
        sizes = []
        for place in Path("/proc").glob("[0-9]*"):
            try:
                fields = (place / "stat").read_text().rsplit(")", 1)[1].split()
                if int(fields[2]) == group:
                    sizes.append(int(fields[21]) * os.sysconf("SC_PAGE_SIZE") / 2**20)
            except (OSError, IndexError):  # it has ended
                continue
        self.together = max(self.together, sum(sizes))
        self.largest = max([self.largest, *sizes])
        self.processes = max(self.processes, len(sizes))


def watched(words: list[str], stop: Callable[[], bool] = lambda: False) -> dict[str, Any]:
    """Run a command in a process group of its own, and kill the group when `stop` says so."""
    memory, started = Memory(), time.perf_counter()
    with subprocess.Popen(words, start_new_session=True, stdout=subprocess.DEVNULL) as process:
        killed = False
        while process.poll() is None:
            memory.look(process.pid)
            if not killed and stop():
                os.killpg(process.pid, signal.SIGKILL)
                killed = True
            time.sleep(INTERVAL)
    if not killed and process.returncode:
        raise SystemExit(f"{words} ended with status {process.returncode}")
    return {
        "seconds": time.perf_counter() - started,
        "killed": killed,
        "processes": memory.processes,
        "peak_rss_mb_of_all": memory.together,
        "peak_rss_mb_of_largest": memory.largest,
    }


def encoded(run: Path) -> dict[str, tuple[int, int]]:
    """Return the encoded shards that are whole, with inode and time of each file."""
    notes = (run / "data" / "shards").glob("*.arrow.json")
    files = (note.with_suffix("") for note in notes)
    return {file.name: (file.stat().st_ino, file.stat().st_mtime_ns) for file in files}


def encode(data: Path, run: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Encode shards, killed when half of them are done, and once more to the end."""
    regard = [sys.executable, "-m", "regard", "encode"]
    settings = [f"{side}_tokenizer={args.tokenizer}" for side in ("src", "tgt")]
    settings += [f"encode_processes={args.processes}", "vocab_size=8000", "threads=1"]
    settings += ["deduplicate=true"] if args.repeated else []
    half = args.shards // 2
    first = watched(
        [*regard, str(data), "-o", str(run), *settings], lambda: len(encoded(run)) >= half
    )
    before = encoded(run)
    second = watched([*regard, "--resume", str(run)])
    after = encoded(run)
    kept = [name for name, file in before.items() if after.get(name) == file]
    manifest = json.loads((run / "data" / "manifest.json").read_text())
    rows = [shard["encoded"] for shard in manifest["shards"]]
    return {
        "until_killed": first,
        "resumed": second,
        "shards_when_killed": len(before),
        "shards_kept_as_they_were": len(kept),
        "shards": len(after),
        "training_pairs": sum(row["pairs"] for row in rows),
        "duplicates": sum(row["duplicates"] for row in rows),
        "encoded_mb": sum(row["bytes"] for row in rows) / 2**20,
        "pairs_per_second": sum(row["pairs"] for row in rows)
        / (first["seconds"] + second["seconds"]),
    }


def read(run: Path, batches: int, steps: int) -> dict[str, Any]:
    """Read shuffled batches of an encoded run, and take steps of trainers on them."""
    from rich.console import Console

    from regard.data import collate
    from regard.training import RunFolder
    from regard.training.setup import prepare

    folder, quiet = RunFolder(run), Console(quiet=True)
    config = folder.read_config().model_copy(update={"batch_tokens": 4096, "size": "small"})
    started = time.perf_counter()
    prepared = prepare(config, folder, quiet)
    found: dict[str, Any] = {"seconds_to_first_batch": time.perf_counter() - started}
    found["peak_rss_mb"] = peak_rss_mb()
    started = time.perf_counter()
    prepared.batches.in_epoch(1)
    found["seconds_to_plan_a_pass"] = time.perf_counter() - started
    found["batches_in_a_pass"] = prepared.batches.in_epoch(1)
    tokens, number, epoch, started = 0, 0, 1, time.perf_counter()
    for _ in range(min(batches, prepared.batches.in_epoch(1))):
        shares, epoch, number = prepared.batches.take(epoch, number)
        tokens += collate(shares[0].pairs, shares[0].rows).tokens
    seconds = time.perf_counter() - started
    found["reader"] = {
        "batches": number,
        "batches_per_second": number / seconds,
        "tokens_per_second": tokens / seconds,
        "peak_rss_mb": peak_rss_mb(),
    }
    found["trainers"] = {}
    for preset in ("bahdanau", "transformer"):
        other = prepare(config.model_copy(update={"preset": preset}), folder, quiet)
        found["trainers"][preset] = train(other, steps)
    return found


def train(prepared: Any, steps: int) -> dict[str, float]:
    """Take some steps, the first of which is not counted."""
    epoch = batch = tokens = 0
    started = time.perf_counter()
    prepared.learner.objective.train()
    for step in range(steps + 1):
        if step == 1:
            tokens, started = 0, time.perf_counter()
        shares, epoch, batch = prepared.batches.take(epoch, batch)
        prepared.learner.backward(shares)
        prepared.learner.clip()
        prepared.learner.step(step + 1, 1e-4)
        tokens += shares[0].global_tokens
    seconds = time.perf_counter() - started
    return {"batches_per_second": steps / seconds, "tokens_per_second": tokens / seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=20_000_000)
    parser.add_argument("--shards", type=int, default=200)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--tokenizer", default="word", help="char, space, word, bpe or unigram")
    parser.add_argument(
        "--repeated", type=float, default=0.0, help="share of repeated pairs, to be left out"
    )
    parser.add_argument("--batches", type=int, default=5000, help="batches that the reader reads")
    parser.add_argument("--steps", type=int, default=10, help="steps of each trainer")
    parser.add_argument("--folder", type=Path, help="for the data, which stay there")
    parser.add_argument("--read", type=Path, metavar="RUN", help="only read an encoded run")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the result to FILE, too")
    args = parser.parse_args()
    if args.read is not None:
        print(json.dumps(read(args.read, args.batches, args.steps)))
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        started = time.perf_counter()
        size = write_shards(folder / "pairs", args.pairs, args.shards, args.repeated)
        found = {
            "command": command(["python", *sys.argv]),
            "machine": machine(),
            **source(),
            "pairs": args.pairs,
            "shards": args.shards,
            "tokenizer": args.tokenizer,
            "data_mb": size / 2**20,
            "seconds_to_write_data": time.perf_counter() - started,
            "encoding": encode(folder / "pairs", folder / "run", args),
        }
        # in a process of its own, whose memory is that of reading alone
        words = [sys.executable, __file__, "--read", str(folder / "run")]
        words += ["--batches", str(args.batches), "--steps", str(args.steps)]
        done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
        found["reading"] = json.loads(done.stdout)
    print(json.dumps(found))
    write(args.out, found)


if __name__ == "__main__":
    main()
