"""Test `regard serve` under attack: honest clients must still be answered, and nothing lost.

Each part starts a server in a process of its own, on loopback: `fairness` (an honest client beside
two that loop long checks), `connections` (requests that are never sent whole), `memory` (requests
that do not fit), `shutdown` (SIGTERM while requests wait), `mixed` (many requests of all kinds).
The clients need the standard library alone. One JSON object goes to stdout.
"""

import argparse
import asyncio
import json
import os
import random
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import harness

LETTERS = "abcdefghijklmnopqrstuvwxyz"
COMMAND = [sys.executable, "-c", "from regard.cli import main; main()", "serve"]
TIMEOUT = 120.0


class Answer(NamedTuple):
    """Response to a client: status (0 if the connection was closed), body, seconds."""

    status: int
    body: bytes
    seconds: float

    @property
    def code(self) -> str:
        """The error code of the API; empty if there is none."""
        try:
            return str(json.loads(self.body)["error"]["code"])
        except (ValueError, KeyError, TypeError):
            return ""


class Served(NamedTuple):
    """A server process with its port and its log file."""

    port: int
    process: subprocess.Popen[bytes]
    printed: Path

    def rss_mb(self) -> float:
        """The current memory of the process."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * resource.getpagesize() / 1e6


@asynccontextmanager
async def served(
    folder: Path, run: str, *options: object, limit: Callable[[], None] | None = None
) -> AsyncIterator[Served]:
    """Start a server and wait until it takes connections."""
    printed = folder / f"printed-{time.monotonic_ns()}.txt"
    with open(printed, "wb") as file:
        process = subprocess.Popen(
            [*COMMAND, run, "--port", "0", "--device", "cpu", *map(str, options)],
            stderr=file,
            preexec_fn=limit,
        )
    try:
        while " at http" not in (said := printed.read_text()):
            if process.poll() is not None:
                raise SystemExit(f"the server did not start: {said}")
            await asyncio.sleep(0.1)
        port = int(said.split(" at http://127.0.0.1:")[1].split()[0])
        yield Served(port, process, printed)
    finally:
        process.terminate()
        process.wait(30)


def request(path: str, body: object = None) -> bytes:
    """Return the bytes of a request on its own connection."""
    content = (
        b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    )
    method = "GET" if body is None else "POST"
    return (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    ).encode() + content


async def send(port: int, content: bytes) -> Answer:
    """Send bytes and read until the server closes the connection."""
    start = time.perf_counter()
    try:
        async with asyncio.timeout(TIMEOUT):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(content)
                await writer.drain()
                found = await reader.read(-1)
            finally:
                writer.close()
    except (OSError, TimeoutError):
        return Answer(0, b"", time.perf_counter() - start)
    head, _, rest = found.partition(b"\r\n\r\n")
    status = int(head.split()[1]) if head else 0
    return Answer(status, rest, time.perf_counter() - start)


def ask(port: int, path: str, body: object = None) -> Awaitable[Answer]:
    return send(port, request(path, body))


def words(count: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return ["".join(rng.choices(LETTERS, k=rng.randint(3, 12))) for _ in range(count)]


def percentiles(seconds: Sequence[float]) -> dict[str, float]:
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return {f"p{p}_ms": round(1000 * cuts[p - 1], 1) for p in (50, 95, 99)}


async def fairness(folder: Path, run: str, rounds: int, each: int) -> dict[str, Any]:
    """Measure latencies of an honest client, alone and beside two that repeat long checks."""
    long = {"text": "abcde" * 100, "target": " ".join(["AH"] * 500)}
    quiet: list[float] = []
    attacked: list[float] = []
    honest: Counter[int] = Counter()
    attacks: Counter[str] = Counter()
    after = []

    async def attack(port: int) -> None:
        while True:
            found = await ask(port, "/api/check", long)
            attacks[found.code or str(found.status)] += 1

    async def predict(port: int, seconds: list[float], seed: int) -> None:
        for word in words(each, seed):
            found = await ask(port, "/api/run", {"text": word})
            honest[found.status] += 1
            seconds.append(found.seconds)

    async with served(folder, run) as server:
        await predict(server.port, [], 0)
        honest.clear()
        for i in range(rounds):
            await predict(server.port, quiet, i)
            attackers = [asyncio.ensure_future(attack(server.port)) for _ in range(2)]
            await asyncio.sleep(1)
            await predict(server.port, attacked, i)
            for attacker in attackers:
                attacker.cancel()
            await asyncio.wait(attackers)
            after.append((await ask(server.port, "/api/run", {"text": "abc"})).seconds)
    result = {"quiet": percentiles(quiet), "attacked": percentiles(attacked)}
    return {
        **result,
        "p95_ratio": round(result["attacked"]["p95_ms"] / result["quiet"]["p95_ms"], 2),
        "requests_each": len(quiet),
        "honest_statuses": dict(honest),
        "attack_answers": dict(attacks),
        "slowest_first_answer_after_attack_ms": round(1000 * max(after), 1),
    }


async def connections(folder: Path, run: str) -> dict[str, Any]:
    """Send incomplete requests, with few file handles and with the usual number."""

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

    async def hold(port: int, count: int, content: bytes) -> list[asyncio.StreamWriter]:
        held = []
        for _ in range(count):
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(content)
                held.append(writer)
            except OSError:
                pass
        return held

    async def still_open(port: int, count: int, content: bytes, seconds: float) -> dict[str, Any]:
        found = await asyncio.gather(
            *(asyncio.open_connection("127.0.0.1", port) for _ in range(count))
        )
        for _, writer in found:
            writer.write(content)

        async def closed(reader: asyncio.StreamReader) -> bytes | None:
            try:
                return await asyncio.wait_for(reader.read(-1), seconds)
            except TimeoutError:
                return None
            except OSError:
                return b""

        answers = await asyncio.gather(*(closed(reader) for reader, _ in found))
        for _, writer in found:
            writer.close()
        return {
            "held": count,
            "open_after_s": seconds,
            "still_open": sum(answer is None for answer in answers),
            "answered_408": sum(b" 408 " in (answer or b"")[:16] for answer in answers),
        }

    half_header = b"POST /api/run HTTP/1.1\r\nHost: localhost\r\nX-Slow: "
    half_body = request("/api/run", {"text": "abc"})[:-5]
    result: dict[str, Any] = {}
    async with served(folder, run, limit=few) as server:
        for name, content in (("half_headers", half_header), ("half_bodies", half_body)):
            held = await hold(server.port, 400, content)
            healthy = [(await ask(server.port, "/healthz")).status for _ in range(5)]
            predicted = [
                (await ask(server.port, "/api/run", {"text": "abc"})).status for _ in range(5)
            ]
            result[f"256_files_400_{name}"] = {"healthz": healthy, "predict": predicted}
            for writer in held:
                writer.close()
        result["printed_bytes"] = server.printed.stat().st_size
        result["alive"] = server.process.poll() is None
    async with served(folder, run, "--read-timeout", "5") as server:
        result["half_headers"] = await still_open(server.port, 1000, half_header, 15)
        result["half_bodies"] = await still_open(server.port, 1000, half_body, 15)
        result["nothing_sent"] = await still_open(server.port, 1000, b"", 15)
    return result


def large_run(folder: Path) -> Path:
    """Write an untrained transformer of size `base`, whose outputs do not end."""
    import torch

    from regard.data import Tokenizer
    from regard.tasks import open_task
    from regard.training import RunFolder, make_config

    config = make_config({"preset": "transformer", "size": "base"})
    run = RunFolder(folder / "large")
    run.create()
    run.write_config(config)
    src = Tokenizer.train("char", [LETTERS])
    tgt = Tokenizer.train("space", [" ".join(LETTERS)])
    src.save(run.src_tokenizer_file)
    tgt.save(run.tgt_tokenizer_file)
    torch.manual_seed(0)
    run.write_model(open_task(config, src, tgt).build_model().state_dict())
    return run.path


async def memory(folder: Path, gigabytes: float) -> dict[str, Any]:
    """Send requests that do not fit into memory together, then small ones."""

    def few() -> None:
        most = int(gigabytes * 2**30)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))

    run = await asyncio.to_thread(large_run, folder)
    long = {"text": "abcde" * 100}
    async with served(folder, str(run), "--timeout", "100", limit=few) as server:
        before = server.rss_mb()
        first = await asyncio.gather(*(ask(server.port, "/api/run", long) for _ in range(16)))
        after = server.rss_mb()
        later = [await ask(server.port, "/api/run", {"text": "abc", "beam": 1}) for _ in range(4)]
    return {
        "limit_gb": gigabytes,
        "long_requests": dict(Counter(found.code or str(found.status) for found in first)),
        "small_requests_after": dict(Counter(found.code or str(found.status) for found in later)),
        "rss_mb": {"before": round(before), "after": round(after)},
    }


async def shutdown(folder: Path, run: str) -> dict[str, Any]:
    """Send SIGTERM while requests wait, run and stream."""
    long = {"text": "abcde" * 100, "target": " ".join(["AH"] * 500)}
    async with served(folder, run) as server:
        jobs = [ask(server.port, "/api/check", long) for _ in range(2)]
        jobs += [
            ask(server.port, "/api/run", {"text": "abcde" * 100, "beam": 5}) for _ in range(10)
        ]
        jobs += [ask(server.port, "/api/stream", {"text": "abcde" * 100}) for _ in range(12)]
        sent = [asyncio.ensure_future(job) for job in jobs]
        await asyncio.sleep(0.5)
        start = time.perf_counter()
        server.process.send_signal(signal.SIGTERM)
        found = await asyncio.gather(*sent)
        code = await asyncio.to_thread(server.process.wait, 30)
        took = time.perf_counter() - start
    waiting, streams = found[:12], found[12:]
    return {
        "waiting": dict(Counter(f"{one.status} {one.code}".strip() for one in waiting)),
        "streams_with_error_event": sum(b"event: error" in one.body for one in streams),
        "streams_done_before": sum(b"event: done" in one.body for one in streams),
        "streams": len(streams),
        "seconds": round(took, 2),
        "exit_code": code,
    }


async def vanish(port: int, content: bytes, seconds: float) -> Answer:
    """Send a request and disconnect."""
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(content)
        await asyncio.sleep(seconds)
        writer.transport.abort()
    except OSError:
        return Answer(0, b"", seconds)
    return Answer(-1, b"", seconds)


async def mixed(folder: Path, run: str, count: int, at_once: int) -> dict[str, Any]:
    """Send many requests of all kinds; each must be answered or refused as documented."""
    rng = random.Random(1)
    texts = words(count, 2)
    documented = {200, 400, 408, 413, 422, 429, 503, 504}
    statuses: dict[str, Counter[str]] = {}
    lost: list[str] = []
    rss: list[tuple[int, float]] = []
    turns = asyncio.Semaphore(at_once)
    done = 0

    async def one(i: int, server: Served) -> None:
        nonlocal done
        text = texts[i]
        kinds: dict[str, Callable[[], Awaitable[Answer]]] = {
            "predict": lambda: ask(server.port, "/api/run", {"text": text}),
            "stream": lambda: ask(server.port, "/api/stream", {"text": text}),
            "check": lambda: ask(server.port, "/api/check", {"text": text[:5], "beam": 1}),
            "bad_json": lambda: ask(server.port, "/api/run", b'{"text": '),
            "bad_http": lambda: send(server.port, b"\x16\x03\x01 nonsense\r\n\r\n"),
            "vanish": lambda: vanish(
                server.port, request("/api/stream", {"text": text * 20}), 0.01
            ),
        }
        kind = rng.choices(list(kinds), weights=[50, 20, 5, 10, 5, 10])[0]
        async with turns:
            found = await kinds[kind]()
        statuses.setdefault(kind, Counter())[str(found.status)] += 1
        ends = (b"event: done", b"event: error")
        whole = kind != "stream" or found.status != 200 or any(end in found.body for end in ends)
        if kind != "vanish" and (found.status not in documented or not whole):
            lost.append(f"{kind} {found.status}")
        done += 1
        if done % max(1, count // 60) == 0:
            rss.append((done, server.rss_mb()))

    async with served(folder, run) as server:
        start = time.perf_counter()
        await asyncio.gather(*(one(i, server) for i in range(count)))
        took = time.perf_counter() - start
        load = json.loads((await ask(server.port, "/api/info")).body)["load"]
        printed = server.printed.stat().st_size
    third = len(rss) // 3
    first, last = rss[:third], rss[-third:]
    return {
        "requests": count,
        "at_once": at_once,
        "seconds": round(took, 1),
        "statuses": {kind: dict(found) for kind, found in sorted(statuses.items())},
        "accounted_for": sum(found.total() for found in statuses.values()),
        "lost": dict(Counter(lost)),
        "load_after": load,
        "printed_bytes": printed,
        "rss_mb": {
            "first_third": round(statistics.mean(mb for _, mb in first), 1),
            "last_third": round(statistics.mean(mb for _, mb in last), 1),
            "most": round(max(mb for _, mb in rss), 1),
        },
    }


async def measured(folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    parts: dict[str, Callable[[], Awaitable[dict[str, Any]]]] = {
        "fairness": lambda: fairness(folder, args.run, args.rounds, args.each),
        "connections": lambda: connections(folder, args.run),
        "memory": lambda: memory(folder, args.gigabytes),
        "shutdown": lambda: shutdown(folder, args.run),
        "mixed": lambda: mixed(folder, args.run, args.requests, args.at_once),
    }
    found = {}
    for name in args.parts or parts:
        found[name] = await parts[name]()
        print(f"{name}: {json.dumps(found[name])}", file=sys.stderr)
    return found


def main() -> None:
    import torch

    import regard

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", help="fairness, connections, memory, shutdown, mixed")
    parser.add_argument("--run", default="g2p", help="a run that reads letters, or a bundled model")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--each", type=int, default=40, help="requests of a round, quiet or not")
    parser.add_argument("--gigabytes", type=float, default=6.0, help="memory of the server")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--at-once", type=int, default=50)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the result to FILE, too")
    args = parser.parse_args()
    # a client per connection, and both ends of it
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    with tempfile.TemporaryDirectory() as folder:
        found = {
            **harness.provenance(threads=os.environ.get("OMP_NUM_THREADS")),
            "versions": {"regard": regard.__version__, "torch": torch.__version__},
            **asyncio.run(measured(Path(folder), args)),
        }
    print(json.dumps(found))
    harness.write(args.out, found)


if __name__ == "__main__":
    main()
