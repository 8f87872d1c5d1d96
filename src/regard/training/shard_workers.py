"""Worker processes that do the jobs of shards.

`python -m regard.training.shard_workers` reads one job per line from stdin and writes one result
per line to stdout. These are not processes of `multiprocessing`, which would run a user's script
again in each of them.
"""

import gc
import json
import os
import queue
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, final

from regard.data.shards import are_shared
from regard.errors import ArgumentError, DataError, RegardError
from regard.training.shard_jobs import Job, run_job

#: bytes of data below which starting processes takes longer than encoding in this one
WORTH_PROCESSES: Final = 1 << 26
#: called with a sort of job, how many are done, how many there are, and the pairs done so far
Watch = Callable[[str, int, int, int], None]
#: does jobs and returns their results in order; calls a function with each result as it comes
JobRunner = Callable[[Sequence[Job], Callable[[dict[str, Any]], None]], list[dict[str, Any]]]


def worker_count(asked: int | None, names: Sequence[str], size: int) -> int:
    """Return how many processes work on shards.

    Args:
        asked: by the user; None leaves it to the size and the number of cores.
        names: of the shards.
        size: bytes of all shards.
    """
    shared = are_shared(names)
    if asked is not None and asked > 1 and not shared:
        raise ArgumentError(
            "encode_processes",
            "be 1 for memory:// URLs, which only one process sees",
            asked,
            "leave it out",
        )
    if asked is None:
        asked = _cores() if size >= WORTH_PROCESSES and shared else 1
    return max(1, min(asked, len(names)))


def _cores() -> int:
    available = getattr(os, "sched_getaffinity", None)
    return len(available(0)) if available is not None else os.cpu_count() or 1


def run_jobs(
    jobs: Sequence[Job], processes: int, watch: Callable[[dict[str, Any]], None]
) -> list[dict[str, Any]]:
    """Do jobs in several processes; returns the results in the order of the jobs.

    The first error stops all processes and is raised. What was done until then stays done.

    Args:
        jobs: all with a `task` of `shard_jobs.TASKS`.
        processes: how many; with one, jobs are done in this process.
        watch: called with each result, in the order in which jobs end.
    """
    results: dict[int, dict[str, Any]] = {}
    for number, result in _results(jobs, min(processes, len(jobs))):
        watch(result)
        results[number] = result
    return [results[number] for number in range(len(jobs))]


def _results(jobs: Sequence[Job], processes: int) -> Iterator[tuple[int, dict[str, Any]]]:
    if processes <= 1:
        yield from ((number, run_job(job)) for number, job in enumerate(jobs))
        return
    waiting: queue.SimpleQueue[tuple[int, Job] | None] = queue.SimpleQueue()
    for item in (*enumerate(jobs), *[None] * processes):
        waiting.put(item)
    done: queue.SimpleQueue[tuple[int, dict[str, Any]] | BaseException] = queue.SimpleQueue()
    workers = [_Worker() for _ in range(processes)]

    def work(worker: _Worker) -> None:
        try:
            while (item := waiting.get()) is not None:
                done.put((item[0], worker.do(item[1])))
        except BaseException as error:
            done.put(error)

    with ThreadPoolExecutor(processes) as threads:
        try:
            for worker in workers:
                threads.submit(work, worker)
            for _ in jobs:
                found = done.get()
                if isinstance(found, BaseException):
                    raise found
                yield found
        finally:
            for worker in workers:
                worker.stop()


@final
class _Worker:
    """A process that does one job after another."""

    def __init__(self) -> None:
        # each does one thing at a time, so that all together use each core once
        env = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "regard.training.shard_workers"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=env)

    def do(self, job: Job) -> dict[str, Any]:
        """Do a job; raises the error that it ends with."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError:
            line = b""
        if not line:
            raise RegardError(
                f"a process that encodes shards must end by itself, but that of {job['name']} was "
                f"ended with status {self._process.wait()}: check the memory, or lower "
                "encode_processes."
            )
        return result_of(json.loads(line))

    def stop(self) -> None:
        """End the process; the file that it writes is not there yet, or whole."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


def result_of(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the result in what `answer_job` has returned; raises the error that it has instead."""
    if "data_error" in answer:
        raise DataError(**answer["data_error"])
    if "error" in answer:
        raise RegardError(answer["error"])
    if "bug" in answer:
        raise RuntimeError(answer["bug"])
    result: dict[str, Any] = answer["result"]
    return result


def answer_job(job: Job) -> dict[str, Any]:
    """Do a job; returns its result, or its error, as JSON can have it."""
    try:
        return {"result": run_job(job)}
    except DataError as error:
        names = ("file", "line", "reason", "fix", "kind")
        return {"data_error": {name: getattr(error, name) for name in names}}
    except RegardError as error:
        return {"error": str(error)}
    except Exception:
        return {"bug": traceback.format_exc()}


def main() -> None:
    """Do the jobs of stdin until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all: the first process decides
    gc.disable()  # pairs and their ids form no cycles; to search them takes a third of the time
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not be taken for a result
    for line in sys.stdin.buffer:
        try:
            results.write(json.dumps(answer_job(json.loads(line))).encode() + b"\n")
            results.flush()
            gc.collect()
        except BrokenPipeError:  # nobody waits for it any more
            return


if __name__ == "__main__":
    main()
