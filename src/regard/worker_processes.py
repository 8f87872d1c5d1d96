"""Work on many items in processes of this machine.

An item is work that may be done again: it writes a file, whole or not at all, under a name that
follows from the item. So a worker that dies is replaced, and its item done by another. These are
not processes of `multiprocessing`, which would run a user's script again in each of them.
"""

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe
from typing import Any, Final, Protocol, runtime_checkable

from regard.errors import RegardError

#: does an item, and returns what was done; it can be pickled, and may load what it needs once
Work = Callable[[Any], Any]
#: result of an item, or the error that it has ended with
Answer = tuple[Any, Exception | None]
#: processes that may die one after another before any of them has begun
MAX_START_DEATHS: Final = 3
#: workers that may die on one item before the work ends with an error
MAX_DEATHS: Final = 4


@runtime_checkable
class Executor(Protocol):
    """Does the items of some work.

    Attributes:
        at_work: workers that the last call of `run` had.
    """

    at_work: int

    def run(self, work: Work, items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Yield the number and the result of each item, in the order in which they end.

        The first error ends the work and is raised. What was done until then stays done.
        """
        ...


@dataclass
class LocalExecutor:
    """Does items in this process, or in several others of this machine.

    Attributes:
        workers: number of processes; with one, this one does the work.
    """

    workers: int = 1
    at_work: int = field(default=0, init=False)

    def run(self, work: Work, items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Yield the number and the result of each item."""
        self.at_work = min(self.workers, len(items))
        if self.at_work <= 1:
            yield from ((number, work(item)) for number, item in enumerate(items))
            return
        pool = _ProcessPool(work)
        with ThreadPoolExecutor(self.at_work) as threads:
            running = {threads.submit(pool.do, item): n for n, item in enumerate(items)}
            try:
                for future in as_completed(running):
                    yield running[future], result_of(future.result())
            finally:
                threads.shutdown(wait=False, cancel_futures=True)
                pool.stop()


class _ProcessPool:
    """A process for each thread that asks for one."""

    def __init__(self, work: Work) -> None:
        self._work, self._mine = work, threading.local()
        self._processes: list[subprocess.Popen[bytes]] = []
        self._stopped = False

    def do(self, item: Any) -> Answer:
        """Do an item in the process of this thread, or of others if that one dies."""
        for _ in range(MAX_DEATHS):
            if self._stopped:
                return None, None
            try:
                channel = getattr(self._mine, "channel", None) or self._start()
                channel.send(item)
                answer: Answer = channel.recv()
                return answer
            except (EOFError, OSError):
                self._mine.channel = None
        name = getattr(item, "name", item)
        return None, RegardError(
            f"a worker must finish each item, but {MAX_DEATHS} died on {name}: check the memory, "
            f"or leave it out."
        )

    def _start(self) -> "Connection[Any, Any]":
        """Start a process; raises RegardError if several die before they have begun."""
        # each does one thing at a time, so that all together use each core once
        env = {**os.environ, "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
        for _ in range(MAX_START_DEATHS):
            channel, others = Pipe()
            number = others.fileno()
            command = [sys.executable, "-m", "regard.worker_processes", str(number)]
            # what libraries print there must not mix with the output of the command
            process = subprocess.Popen(command, pass_fds=[number], env=env, stdout=sys.__stderr__)
            others.close()
            self._processes.append(process)
            if self._stopped:
                process.kill()
                process.wait()
            try:
                channel.send(self._work)
                channel.recv()
            except (EOFError, OSError):
                continue
            self._mine.channel = channel
            return channel
        raise RegardError(
            f"a worker process must start, but {MAX_START_DEATHS} of them ended before they had "
            f"begun, the last with status {process.wait()}: check the memory, or use fewer."
        )

    def stop(self) -> None:
        """End all processes; a file that one of them writes is not there yet, or whole."""
        self._stopped = True
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()


def answer(work: Work, item: Any) -> Answer:
    """Do an item; returns its result, or an error that another process can raise."""
    try:
        return work(item), None
    except RegardError as error:
        return None, error
    except Exception:
        return None, RuntimeError(traceback.format_exc())


def result_of(answer: Answer) -> Any:
    """Return the result in what `answer` has returned, or raise its error."""
    result, error = answer
    if error is not None:
        raise error
    return result


def end_with_parent() -> None:
    """Have this process end within a second of the one that has started it, however that ends."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1.0)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Do the items that come through a pipe, whose number is the argument, until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all: the first process decides
    end_with_parent()
    channel: Connection[Any, Any] = Connection(int(sys.argv[1]))
    try:
        work = channel.recv()
        channel.send(None)
        while True:
            channel.send(answer(work, channel.recv()))
    except (EOFError, OSError):  # nobody asks any more
        return


if __name__ == "__main__":
    main()
