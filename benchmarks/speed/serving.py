"""Measure `regard serve` under load: many clients at once against requests one by one.

A small model learns to reverse words, and a server of its own process answers for it on loopback.
Every answer is compared with the one that its request gets alone. One JSON object goes to stdout.
"""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx2
import numpy as np

from benchmarks import harness
from regard.seeing import Trace
from regard.seeing.trace.storage import from_json

#: bytes of an answer that is read at once
LIMIT = 1 << 24
#: to a server
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]

LETTERS = "abcdefghijklmnopqrstuvwxyz"
TRAINING = ("--preset", "luong", "size=tiny", "lr=5e-3", "warmup=20")
SIDES = ("src_tokenizer=char", "tgt_tokenizer=space")
#: how far log-probabilities and weights of one answer may be apart in two batches
CLOSE = {"log_prob": 1e-3, "weight": 2e-3}


class Asked(NamedTuple):
    """Response to a request, and its seconds."""

    status: int
    retry_after: str | None
    body: dict[str, Any]
    seconds: float


def words(count: int, seed: int, shortest: int = 3, longest: int = 15) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices(LETTERS, k=rng.randint(shortest, longest))) for _ in range(count)]


def train(folder: Path, steps: int) -> Path:
    """Train a run that reverses words."""
    pairs, run = folder / "pairs.tsv", folder / "run"
    rows = (f"{word}\t{' '.join(reversed(word))}\n" for word in words(4000, seed=0))
    pairs.write_text("".join(rows))
    subprocess.run(
        [
            sys.executable,
            "-m",
            "regard",
            "train",
            pairs,
            "-o",
            run,
            *TRAINING,
            *SIDES,
            f"steps={steps}",
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    return run


@contextmanager
def served(run: str | Path, *options: str, tree: Path = harness.ROOT) -> Iterator[tuple[str, int]]:
    """Start the server of a checkout; yield its address and its process id."""
    words = [sys.executable, "-m", "regard", "serve", str(run), "--port", "0", *options]
    places = [str(tree / "src"), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(places)}
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env=env) as process:
        try:
            assert process.stderr is not None
            said = ""
            while " at http" not in said:
                line = process.stderr.readline()
                if not line:
                    raise SystemExit(f"the server did not start: {said}")
                said += line
            yield said.split(" at ")[-1].split()[0], process.pid
        finally:
            process.terminate()
            process.wait(20)


def client(url: str, connections: int = 1) -> httpx2.AsyncClient:
    limits = httpx2.Limits(max_connections=connections, max_keepalive_connections=connections)
    return httpx2.AsyncClient(base_url=url, trust_env=False, timeout=300, limits=limits)


async def ask(http: httpx2.AsyncClient, text: str, **options: Any) -> Asked:
    start = time.perf_counter()
    answer = await http.post("/api/run", json={"text": text, **options})
    took = time.perf_counter() - start
    return Asked(answer.status_code, answer.headers.get("retry-after"), answer.json(), took)


async def load(http: httpx2.AsyncClient) -> dict[str, int]:
    found: dict[str, int] = (await http.get("/api/info")).json()["load"]
    return found


async def one_by_one(url: str, texts: Sequence[str]) -> tuple[list[Asked], float]:
    async with client(url) as http:
        await ask(http, "warm")
        start = time.perf_counter()
        return [await ask(http, text) for text in texts], time.perf_counter() - start


async def together(url: str, texts: Sequence[str]) -> tuple[list[Asked], float, dict[str, int]]:
    """Send all requests at once, each on a connection opened before."""
    async with client(url, len(texts)) as http:
        await asyncio.gather(*(http.get("/healthz") for _ in texts))
        await ask(http, "warm")
        before = await load(http)
        start = time.perf_counter()
        found = await asyncio.gather(*(ask(http, text) for text in texts))
        took = time.perf_counter() - start
        after = await load(http)
    return list(found), took, {name: after[name] - before[name] for name in after}


def summary(found: Sequence[Asked], took: float) -> dict[str, Any]:
    """Return throughput and latencies."""
    milliseconds = np.array([1000 * answer.seconds for answer in found])
    p50, p95, p99 = np.percentile(milliseconds, [50, 95, 99]).tolist()
    return {
        "requests": len(found),
        "answered": sum(answer.status == 200 for answer in found),
        "seconds": took,
        "requests_per_s": len(found) / took,
        "latency_ms": {"p50": p50, "p95": p95, "p99": p99},
    }


def differing(found: Sequence[Asked], alone: Sequence[Asked]) -> list[str]:
    """Return the texts whose predictions differ from those of single requests."""
    pairs = zip(found, alone, strict=True)
    return [
        one.body["source"]["text"]
        for own, one in pairs
        if not same(from_json(own.body), from_json(one.body))
    ]


def same(found: Trace, other: Trace) -> bool:
    if found.source.text != other.source.text or found.target.labels != other.target.labels:
        return False
    scores = [trace.decoded.log_prob for trace in (found, other) if trace.decoded is not None]
    return abs(scores[0] - scores[1]) <= CLOSE["log_prob"] and all(
        np.abs(one.weights - two.weights).max() <= CLOSE["weight"]
        for one, two in zip(found.maps, other.maps, strict=True)
    )


async def refused(url: str, texts: Sequence[str], most_chars: int) -> dict[str, Any]:
    """Return the responses to requests beyond the queue, and whether a retry succeeds."""
    async with client(url, len(texts)) as http:
        await asyncio.gather(*(http.get("/healthz") for _ in texts))
        found = await asyncio.gather(*(ask(http, text) for text in texts))
        again = [
            await ask(http, text) for text, own in zip(texts, found, strict=True) if own[0] != 200
        ]
        long = await ask(http, "a" * (most_chars + 1))
    busy = [own for own in found if own.status == 429]
    return {
        "statuses": dict(Counter(str(own.status) for own in found)),
        "retry_after": sorted({own.retry_after for own in busy if own.retry_after}),
        "answered_when_asked_again": sum(own.status == 200 for own in again),
        "too_long": {"status": long.status, "code": long.body["error"]["code"]},
    }


async def cancelled(url: str, length: int, beam: int) -> dict[str, Any]:
    """Measure the wait behind a long request, finished and cancelled."""
    text = "".join(random.Random(1).choices(LETTERS, k=length))
    async with client(url, 3) as http:
        await ask(http, "warm")
        whole = await ask(http, text, beam=beam)
        before = await load(http)
        task = asyncio.ensure_future(ask(http, text, beam=beam))
        await asyncio.sleep(whole.seconds / 5)
        task.cancel()
        await asyncio.wait([task])
        after_it = await ask(http, "abc")
        after = await load(http)
    return {
        "source_tokens": length,
        "beam": beam,
        "whole_seconds": whole.seconds,
        "left_after_seconds": whole.seconds / 5,
        "next_answer_after_seconds": after_it.seconds,
        "counted": {name: after[name] - before[name] for name in ("left", "stopped")},
    }


async def burst(url: str, texts: Sequence[str], path: str) -> tuple[list[float], float]:
    """Return the milliseconds of each request, sent at once, and the seconds of all.

    Requests are written to sockets and bodies are not parsed, since the client shares the
    processor with the server: a client with all features would take half as long as the server.
    """
    address = urlsplit(url)
    host, port = str(address.hostname), address.port
    opened = [await asyncio.open_connection(host, port, limit=LIMIT) for _ in texts]

    async def one(connection: Connection, text: str) -> float:
        reader, writer = connection
        start = time.perf_counter()
        body = json.dumps({"text": text}).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert answer.startswith(b"http/1.1 200"), answer
        if b"transfer-encoding: chunked" in answer:
            found = await reader.readuntil(b"\r\n0\r\n\r\n")
            assert b"event: done" in found, found
        else:
            await reader.readexactly(int(answer.partition(b"content-length:")[2].split()[0]))
        return 1000 * (time.perf_counter() - start)

    start = time.perf_counter()
    taken = await asyncio.gather(*map(one, opened, texts))
    took = time.perf_counter() - start
    for _, writer in opened:
        writer.close()
    return list(taken), took


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def compared(
    trees: dict[str, Path], run: str, count: int, rounds: int, path: str
) -> dict[str, Any]:
    """Compare the servers of several checkouts, by turns; the median of all rounds counts."""
    texts = words(count, seed=7)
    found: dict[str, list[tuple[float, ...]]] = {name: [] for name in trees}
    with ExitStack() as stack:
        servers = {
            name: stack.enter_context(served(run, "--timeout", "300", tree=tree))
            for name, tree in trees.items()
        }
        for i in range(rounds + 2):
            for name, (url, pid) in servers.items():
                before = cpu_seconds(pid)
                latencies, took = asyncio.run(burst(url, texts, path))
                p50, p95 = np.percentile(latencies, [50, 95]).tolist()
                spent = 1000 * (cpu_seconds(pid) - before) / count
                if i >= 2:  # compiled kernels are loaded by the first requests
                    found[name].append((count / took, p50, p95, spent))
    names = ("requests_per_s", "p50_ms", "p95_ms", "cpu_ms_per_request")
    return {
        name: dict(zip(names, np.median(rows, axis=0).tolist(), strict=True)) | {"rounds": rows}
        for name, rows in found.items()
    }


class Round(NamedTuple):
    """Send the same requests one by one and together."""

    alone: list[Asked]
    alone_seconds: float
    batched: list[Asked]
    batched_seconds: float
    batches: int


async def one_round(url: str, texts: Sequence[str]) -> Round:
    alone, slow = await one_by_one(url, texts)
    batched, fast, counted = await together(url, texts)
    return Round(alone, slow, batched, fast, counted["batches"])


def fastest(rounds: Sequence[Round], without: str = "") -> dict[str, Any]:
    """Return the fastest round of each mode, since other work can only slow it down."""
    slow = min(rounds, key=lambda one: one.alone_seconds)
    fast = min(rounds, key=lambda one: one.batched_seconds)
    return {
        f"one_by_one{without}": summary(slow.alone, slow.alone_seconds)
        | {"seconds_of_rounds": [one.alone_seconds for one in rounds]},
        f"together{without}": summary(fast.batched, fast.batched_seconds)
        | {"seconds_of_rounds": [one.batched_seconds for one in rounds], "batches": fast.batches},
    }


async def measured(run: Path, count: int, rounds: int) -> dict[str, Any]:
    texts = words(count, seed=7)
    with served(run) as (url, _), served(run, "--batch", "1", "--wait-ms", "0") as (plain, _):
        with_it, without = [], []
        for _ in range(rounds):  # by turns, so that other work of the machine meets both
            with_it.append(await one_round(url, texts))
            without.append(await one_round(plain, texts))
        found = fastest(with_it) | fastest(without, "_without_batching")
        found["cancelled"] = await cancelled(url, length=500, beam=16)
    with served(run, "--queue", "50", "--max-chars", "100") as (url, _):
        found["refused"] = await refused(url, texts, 100)
    alone = with_it[0].alone
    right = sum(
        own.body["target"]["text"] == " ".join(reversed(text))
        for own, text in zip(alone, texts, strict=True)
    )
    speeds = {
        name: part["requests_per_s"] for name, part in found.items() if "requests_per_s" in part
    }
    return {
        "reversed_right": right / count,
        "differ_from_alone": [text for one in with_it for text in differing(one.batched, alone)],
        "times_faster": {
            name: speeds["together"] / speed for name, speed in speeds.items() if name != "together"
        },
        **found,
    }


def compare(trees: dict[str, Path], args: argparse.Namespace) -> None:
    """Print a comparison, and put it into the results under `compared`."""
    given = ["--compare", *(f"{name}=CHECKOUT" for name in trees)]
    found = {
        "command": harness.command([*given, "--model", Path(args.model).name]),
        "machine": harness.machine(),
        "commits": {
            name: harness.git("rev-parse", "HEAD", tree=tree) for name, tree in trees.items()
        },
        "model": Path(args.model).name,
        "requests": args.requests,
        "path": args.path,
        **compared(trees, args.model, args.requests, args.rounds, args.path),
    }
    print(json.dumps(found, indent=2))
    if args.out:
        whole = json.loads(args.out.read_text()) if args.out.exists() else {}
        args.out.write_text(json.dumps(whole | {args.section: found}, indent=2) + "\n")


def main() -> None:
    import torch

    import regard

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3, help="the fastest of so many counts")
    parser.add_argument("--steps", type=int, default=600, help="of training, if no run is given")
    parser.add_argument("--run", type=Path, help="serve this run that reverses words")
    parser.add_argument(
        "--compare",
        nargs="+",
        metavar="NAME=TREE",
        help="compare the servers of checkouts instead; --model names the bundled model or run",
    )
    parser.add_argument("--model", default="g2p")
    parser.add_argument("--path", default="/api/run", help="that is compared; or /api/stream")
    parser.add_argument("--section", default="compared", help="of FILE that gets the comparison")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the result to FILE, too")
    args = parser.parse_args()
    if args.compare:
        trees = {name: Path(tree) for name, _, tree in (one.partition("=") for one in args.compare)}
        compare(trees, args)
        return
    with tempfile.TemporaryDirectory() as folder:
        run = args.run or train(Path(folder), args.steps)
        found = {
            **harness.provenance(),
            "versions": {"regard": regard.__version__, "torch": torch.__version__},
            **asyncio.run(measured(run, args.requests, args.rounds)),
        }
    print(json.dumps(found))
    harness.write(args.out, found)


if __name__ == "__main__":
    main()
