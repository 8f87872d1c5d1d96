"""Work on a Ray cluster: Ray Data has a pool of workers, replaces those that die, and tries again.

An item is a row of a dataset, and the work is a map over it. What an item writes has its name
before it starts, so that a retry replaces a file instead of adding one, and a later job knows what
is left to do. Only numbers and errors pass through the driver.
"""

import io
import logging
import os
import re
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, field
from typing import Any, Final

from regard import extras
from regard.errors import ArgumentError
from regard.jobs.runner import JobError
from regard.version import __version__
from regard.worker_processes import Answer, Work, answer, result_of

#: names of addresses: a cluster of its own, and the one that runs on this machine
LOCAL: Final = "local"
AUTO: Final = "auto"
ADDRESS: Final = re.compile(r"(?P<host>[\w.-]+|\[[\da-fA-F:]+\]):(?P<port>\d{1,5})")
CONNECT_S: Final = 5.0
#: Ray gives up on its own processes after half a minute, which is short on a busy machine
START_TRIES: Final = 3
#: parts of Ray's errors for that, and for a missing or wrong token
SLOW_START: Final = "timed out during startup"
BAD_TOKEN: Final = "InvalidAuthToken"
#: bytes of Ray's object store, through which only numbers pass
STORE_BYTES: Final = 128 << 20


class RayWorker:
    """A worker process of a cluster."""

    def __init__(self, work: Work, items: Sequence[Any], folder: str, version: str) -> None:
        self.work, self.items, self.version = work, items, version
        with suppress(OSError):  # names of files are relative to it, if the nodes share it
            os.chdir(folder)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Do the item with the number of a row."""
        number = int(row["id"])
        if self.version == __version__:
            return {"number": number, "answer": answer(self.work, self.items[number])}
        error = JobError(
            f"all nodes must have the same regard, but one has {__version__} and the driver "
            f"{self.version}: install one version on all of them."
        )
        return {"number": number, "answer": (None, error)}


@dataclass
class RayExecutor:
    """Does items on the workers of a Ray cluster.

    Attributes:
        address: HOST:PORT of a running cluster, `auto` for the one on this machine, or `local` to
            start one that ends with the job.
        workers: number of workers; None for one per GPU of the cluster or, without any, per core.
        gpus: whether workers may take GPUs.

    Examples:
        >>> RayExecutor(workers=2).address
        'local'
    """

    address: str = LOCAL
    workers: int | None = None
    gpus: bool = True
    at_work: int = field(default=0, init=False)

    def run(self, work: Work, items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        """Yield the number and the result of each item, in the order in which they end."""
        if not items:
            return
        with connected(self.address, self.workers) as ray:
            resources = ray.cluster_resources()
            gpus = int(resources.get("GPU", 0)) if self.gpus else 0
            most = self.workers or gpus or max(1, int(resources.get("CPU", 1)))
            self.at_work = min(most, len(items))
            pool = ray.data.ActorPoolStrategy(size=self.at_work, max_tasks_in_flight_per_actor=1)
            needs = {"num_gpus": 1, "num_cpus": 0} if gpus else {"num_cpus": 1}
            told = (work, list(items), os.getcwd(), __version__)
            numbers = ray.data.range(len(items), override_num_blocks=len(items))
            done = numbers.map(RayWorker, fn_constructor_args=told, compute=pool, **needs)
            for row in done.iter_rows():
                found: Answer = row["answer"]
                yield row["number"], result_of(found)


@contextmanager
def connected(address: str, workers: int | None) -> Iterator[Any]:
    """Connect to a cluster, or start one; yields the module `ray`."""
    check_cluster(address)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")  # which goes to stderr otherwise
    import ray
    import ray.data

    settings: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.CRITICAL}
    if address == LOCAL:
        settings |= {"include_dashboard": False, "object_store_memory": STORE_BYTES}
        settings |= {} if workers is None else {"num_cpus": max(workers, os.cpu_count() or 1)}
    _init(ray, address, settings)
    try:
        ray.data.DataContext.get_current().enable_progress_bars = False
        logging.getLogger("ray.data").setLevel(logging.CRITICAL)
        with redirect_stdout(io.StringIO()):  # a paragraph of Ray's for each dead worker
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
            if BAD_TOKEN in str(error):
                raise JobError(
                    f"the cluster at {address} must get its token, but RAY_AUTH_TOKEN is missing "
                    f"or another one: set it to that of the head node, and RAY_AUTH_MODE=token."
                ) from None
            if attempt == START_TRIES or SLOW_START not in str(error):
                reason = (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
                raise _no_cluster(address, reason.rstrip(".")) from None


def check_cluster(address: str) -> None:
    """Raise if Ray is not installed, or nothing listens at an address."""
    extras.require("ray", extra="ray", for_="`--ray`")
    if address in (LOCAL, AUTO):
        return
    match = ADDRESS.fullmatch(address)
    if match is None:
        fix = "write that of the head node, as in --ray 10.0.0.1:6379; --ray alone starts its own"
        raise ArgumentError("--ray", "be HOST:PORT or auto", repr(address), fix)
    try:
        place = match["host"].strip("[]"), int(match["port"])
        socket.create_connection(place, CONNECT_S).close()  # Ray itself would try for minutes
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, getattr(error, "strerror", None) or str(error)) from None


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
