"""Jobs on a Ray cluster: an actor with a model on each GPU or core, replaced if it dies.

Plain actors rather than Ray Data: a unit of work is named before it starts, so that a retry
replaces the same output shard instead of adding to it, and a later job knows what is left to do.
Only numbers pass through the driver; rows go from the worker to the shared file system.
"""

import io
import logging
import os
import re
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from regard import extras
from regard.errors import ArgumentError, RegardError
from regard.jobs.executors import ExecutorEvent
from regard.jobs.input_shards import WorkUnit
from regard.jobs.job_folder import JobError
from regard.jobs.tasks import JobTask, LoadedTask
from regard.jobs.unit_worker import DeathRecord, UnitEvent, UnitFailure, UnitProgress, work_on
from regard.version import __version__

#: names of addresses: a cluster of its own, and the one that runs on this machine
LOCAL: Final = "local"
AUTO: Final = "auto"
ADDRESS: Final = re.compile(r"(?P<host>[\w.-]+|\[[\da-fA-F:]+\]):(?P<port>\d{1,5})")
CONNECT_S: Final = 5.0
#: what a client of HTTP/2, which Ray speaks, sends first, and the type of the answer's first frame
HELLO: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
SETTINGS_FRAME: Final = 4
#: Ray gives up on its own processes after half a minute, which is short on a busy machine
START_TRIES: Final = 6
#: part of Ray's error for that
SLOW_START: Final = "timed out during startup"
#: part of Ray's error for a missing or wrong token
BAD_TOKEN: Final = "InvalidAuthToken"
#: deaths of workers that never got ready, and of workers on one unit, after which a job gives up
MAX_START_DEATHS: Final = 5
MAX_UNIT_DEATHS: Final = 40
#: bytes of Ray's object store, through which only numbers pass
STORE_BYTES: Final = 128 << 20


class UnitActor:
    """A worker process with a loaded model."""

    def __init__(self) -> None:
        self.loaded: LoadedTask | None = None
        self.events: Iterator[UnitEvent] = iter(())

    def load(self, task: JobTask, version: str, checksum: str, threads: int) -> str:
        """Load the model; returns a sentence if that fails, else an empty string."""
        try:
            if version != __version__:
                raise JobError(
                    f"all nodes must have the same regard, but one has {__version__} and the "
                    f"driver {version}: install one version on all of them."
                )
            if threads:
                import torch

                torch.set_num_threads(threads)
            if task.checksum() != checksum:
                raise JobError(
                    "all nodes must see the same model, but on one its files differ: keep it on a "
                    "file system that all nodes share."
                )
            self.loaded = task.load()
        except RegardError as error:
            return str(error)
        except OSError as error:
            return f"the model cannot be read on a node ({error}): keep it where all nodes see it."
        return ""

    def begin(self, unit: WorkUnit, folder: Path, deaths: DeathRecord) -> int:
        """Begin with a unit; returns the number of records of a block."""
        assert self.loaded is not None
        self.events = work_on(self.loaded, unit, folder, deaths)
        return self.loaded.block

    def advance(self) -> UnitEvent:
        """Answer the next block of the unit.

        One call for each block: the driver knows at which block a worker has died.
        """
        return next(self.events)


@dataclass
class _Slot:
    """A worker, and the unit that it is at work on.

    Attributes:
        actor: the worker.
        unit: None while the model is loaded.
        block: number of records of a block; None before the unit has begun.
        place: records that are answered.
    """

    actor: Any
    unit: WorkUnit | None = None
    block: int | None = None
    place: int = 0


@dataclass
class RayExecutor:
    """Runs units on the workers of a Ray cluster.

    Attributes:
        address: HOST:PORT of a running cluster, `auto` for the one on this machine, or `local` to
            start one that ends with the job.
        workers: number of workers; None for one per GPU of the cluster or, without any, per core.
        gpus: whether workers may take GPUs.
    """

    address: str = LOCAL
    workers: int | None = None
    gpus: bool = True
    restarts: int = field(default=0, init=False)

    def run(
        self, task: JobTask, units: Sequence[WorkUnit], folder: Path
    ) -> Iterator[ExecutorEvent]:
        """Yield the events of all units, in the order in which they happen."""
        if not units:
            return
        with connected(self.address, self.workers) as ray:
            yield from _Run(self, ray, task, units, folder.absolute()).events()


@contextmanager
def connected(address: str, workers: int | None) -> Iterator[Any]:
    """Connect to a cluster, or start one; yields the module `ray`."""
    check_cluster(address)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    if address == LOCAL:
        settings |= {"include_dashboard": False, "object_store_memory": STORE_BYTES}
        settings |= {} if workers is None else {"num_cpus": max(workers, os.cpu_count() or 1)}
    _init(ray, address, settings)
    try:
        with redirect_stdout(_OwnOutput(sys.stdout)):
            yield ray
    finally:
        ray.shutdown()


def _init(ray: Any, address: str, settings: dict[str, Any]) -> None:
    """Connect to a cluster or start one, which takes some tries on a busy machine."""
    for attempt in range(1, START_TRIES + 1):
        try:
            ray.init(address=address, **settings)
            return
        except Exception as error:  # Ray has no type of its own for some of them
            ray.shutdown()
            _end_half_started(error)
            if BAD_TOKEN in str(error):
                raise JobError(
                    f"the cluster at {address} must get its token, but RAY_AUTH_TOKEN is missing "
                    f"or another one: set it to that of the head node, and RAY_AUTH_MODE=token."
                ) from None
            if attempt == START_TRIES or SLOW_START not in str(error):
                reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
                raise _no_cluster(address, reason.rstrip(".")) from None


def _end_half_started(error: Exception) -> None:
    """End the processes of a cluster that has failed to start.

    Ray ends them with this process, and the next try would have to start beside them. Only the
    traceback still has the object that knows them.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        end = getattr(frame.f_locals.get("self"), "kill_all_processes", None)
        if end is not None:
            end(check_alive=False, wait=True)


class _OwnOutput(io.TextIOBase):
    """stdout without what Ray's threads print on it, such as a paragraph for each dead worker."""

    def __init__(self, stdout: Any) -> None:
        self._stdout = stdout

    def write(self, text: str) -> int:
        """Write, unless a thread of Ray does."""
        if threading.current_thread().name.startswith("ray_"):
            return len(text)
        return int(self._stdout.write(text))

    def flush(self) -> None:
        """Flush stdout."""
        self._stdout.flush()


def check_cluster(address: str) -> None:
    """Raise if Ray is not installed, or nothing at an address answers as Ray does."""
    extras.require("ray", extra="ray", for_="`--ray`")
    if address in (LOCAL, AUTO):
        return
    match = ADDRESS.fullmatch(address)
    if match is None:
        fix = "write that of the head node, as in --ray 10.0.0.1:6379; --ray alone starts its own"
        raise ArgumentError("--ray", "be HOST:PORT or auto", repr(address), fix)
    try:
        host = match["host"].strip("[]")
        with socket.create_connection((host, int(match["port"])), CONNECT_S) as server:
            server.settimeout(CONNECT_S)
            server.sendall(HELLO)
            head = server.recv(4)
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, getattr(error, "strerror", None) or str(error)) from None
    if len(head) < 4 or head[3] != SETTINGS_FRAME:
        raise _no_cluster(address, "something else listens there")


def _no_cluster(address: str, reason: str) -> JobError:
    if address == LOCAL:
        return JobError(
            f"--ray must be able to start Ray on this machine, but it does not start ({reason}): "
            f"free memory and processor time, or name a running cluster, as in --ray HOST:PORT."
        )
    return JobError(
        f"--ray must name a Ray cluster that answers, but {address} does not ({reason}): check the "
        f"address with `ray status`, or leave it out to start a cluster on this machine."
    )


class _Run:
    """One job on a connected cluster.

    Args:
        executor: with the number of workers.
        ray: the module.
        task: what workers do.
        units: to work on.
        folder: of the output shards.
    """

    def __init__(
        self,
        executor: RayExecutor,
        ray: Any,
        task: JobTask,
        units: Sequence[WorkUnit],
        folder: Path,
    ) -> None:
        self.executor, self.ray, self.folder = executor, ray, folder
        self.waiting, self.deaths = deque(units), {unit: DeathRecord() for unit in units}
        self.total_deaths = dict.fromkeys(units, 0)
        self.slots: dict[Any, _Slot] = {}
        self.start_deaths = 0
        resources = ray.cluster_resources()
        gpus = int(resources.get("GPU", 0)) if executor.gpus else 0
        most = gpus or max(1, int(resources.get("CPU", 1)))
        self.workers = min(executor.workers or most, len(units))
        needs = {"num_gpus": 1, "num_cpus": 0} if gpus else {"num_cpus": 1}
        self.actor_class = ray.remote(UnitActor).options(max_restarts=0, **needs)
        self.task = ray.put(task)
        self.load = (__version__, task.checksum(), 0 if gpus else 1)

    def events(self) -> Iterator[ExecutorEvent]:
        """Start workers and yield events until all units have ended."""
        try:
            for _ in range(self.workers):
                self._start()
            while self.slots:
                ready, _ = self.ray.wait(list(self.slots), num_returns=1, timeout=10)
                for handle in ready:
                    yield from self._receive(handle)
        finally:
            for slot in self.slots.values():
                self.ray.kill(slot.actor)

    def _start(self) -> None:
        """Start a worker; its slot waits for the model to be loaded."""
        actor = self.actor_class.remote()
        self.slots[actor.load.remote(self.task, *self.load)] = _Slot(actor)

    def _receive(self, handle: Any) -> Iterator[ExecutorEvent]:
        """Take what a worker has sent, and give it more to do."""
        slot = self.slots.pop(handle)
        errors = self.ray.exceptions
        try:
            found = self.ray.get(handle)
        except errors.RayTaskError as error:
            # a mistake in regard itself: another worker would make it, too
            raise error.cause from None
        except errors.RayError:
            yield from self._replace(slot)
        else:
            if slot.unit is None:
                yield from self._loaded(slot, found)
            elif slot.block is None:
                slot.block = found
                self.slots[slot.actor.advance.remote()] = slot
            elif isinstance(found, UnitProgress):
                slot.place = found.records
                self.slots[slot.actor.advance.remote()] = slot
                yield self._event(slot.unit, found)
            else:
                self._assign(slot.actor)
                yield self._event(slot.unit, found)

    def _loaded(self, slot: _Slot, problem: str) -> Iterator[ExecutorEvent]:
        if problem:
            self.ray.kill(slot.actor)
            raise JobError(problem)
        self.start_deaths = 0
        self._assign(slot.actor)
        yield self._event(None, None)

    def _assign(self, actor: Any) -> None:
        """Give a worker the next unit, or end it if none is left."""
        if not self.waiting:
            self.ray.kill(actor)
            return
        unit = self.waiting.popleft()
        handle = actor.begin.remote(unit, self.folder, self.deaths[unit])
        self.slots[handle] = _Slot(actor, unit)

    def _replace(self, slot: _Slot) -> Iterator[ExecutorEvent]:
        """Start a worker for one that has died, and have its unit done again first."""
        self.executor.restarts += 1
        self.ray.kill(slot.actor)  # it may only be out of reach
        unit = slot.unit
        if unit is None:
            self.start_deaths += 1
            if self.start_deaths >= MAX_START_DEATHS:
                raise JobError(
                    f"a worker must get as far as its first source, but {MAX_START_DEATHS} died "
                    f"while they loaded the model: check the memory of the nodes."
                )
        elif self.total_deaths[unit] + 1 >= MAX_UNIT_DEATHS:
            reason = f"{unit.output}: {MAX_UNIT_DEATHS} workers died on this shard: check its rows."
            yield self._event(unit, UnitFailure(reason, stops_job=False))
        else:
            self.total_deaths[unit] += 1
            if slot.block is not None:
                self.deaths[unit].add(slot.place, slot.block)
            self.waiting.appendleft(unit)
            yield self._event(unit, UnitProgress(0))
        if self.waiting or unit is None:
            self._start()

    def _event(self, unit: WorkUnit | None, event: UnitEvent | None) -> ExecutorEvent:
        return ExecutorEvent(unit, event, self.executor.restarts, len(self.slots))
