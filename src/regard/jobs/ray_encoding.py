"""Encoding of shards on a Ray cluster: a task for each shard, done again if its worker dies.

A job and its result are JSON, and what a job writes, it writes atomically into the run folder,
which all nodes must share. A task that is done twice does no harm: Ray's own retries suffice.
"""

import gc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from regard.data.shards import are_shared
from regard.errors import ArgumentError
from regard.jobs.job_folder import JobError
from regard.jobs.ray_cluster import LOCAL, connected
from regard.training.shard_jobs import Job
from regard.training.shard_workers import answer_job, result_of
from regard.version import __version__

#: workers that may die on one shard before the work ends with an error
MAX_DEATHS: Final = 10


@dataclass(frozen=True)
class RayShardRunner:
    """Does the work on the shards of a run on the workers of a Ray cluster.

    Attributes:
        address: HOST:PORT of a running cluster, `auto` for the one on this machine, or `local` to
            start one that ends with the work.
        workers: shards that are worked on at a time; None for one per core of the cluster.

    Examples:
        >>> RayShardRunner(workers=2)
        RayShardRunner(address='local', workers=2)
    """

    address: str = LOCAL
    workers: int | None = None

    def __call__(
        self, jobs: Sequence[Job], watch: Callable[[dict[str, Any]], None]
    ) -> list[dict[str, Any]]:
        """Do jobs, and return their results in order; what is done before an error stays done."""
        names = [job["name"] for job in jobs]
        if not are_shared(names):
            fix = "put the data on a file system that all nodes share"
            raise ArgumentError("--ray", "be given for data that all nodes see", "memory://", fix)
        if not jobs:
            return []
        results: dict[int, dict[str, Any]] = {}
        with connected(self.address, self.workers) as ray:
            cores = max(1, int(ray.cluster_resources().get("CPU", 1)))
            for number, result in _results(ray, jobs, self.workers or cores):
                watch(result)
                results[number] = result
        return [results[number] for number in range(len(jobs))]


def _results(ray: Any, jobs: Sequence[Job], most: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the number and the result of each job, in the order in which jobs end."""
    task = ray.remote(_answer).options(num_cpus=1, max_retries=MAX_DEATHS)
    waiting = iter(enumerate(jobs))
    running: dict[Any, int] = {}
    try:
        while True:
            while len(running) < most and (item := next(waiting, None)) is not None:
                running[task.remote(_absolute(item[1]), __version__)] = item[0]
            if not running:
                return
            (handle,), _ = ray.wait(list(running), num_returns=1)
            number = running.pop(handle)
            try:
                answer = ray.get(handle)
            except ray.exceptions.RayTaskError as error:
                raise error.cause from None
            except ray.exceptions.RayError:
                raise JobError(
                    f"a shard must be encoded by one of {MAX_DEATHS + 1} workers, but as many "
                    f"have died on {jobs[number]['name']}: check the memory of the nodes."
                ) from None
            yield number, result_of(answer)
    finally:
        for handle in running:
            ray.cancel(handle, force=True)


def _absolute(job: Job) -> dict[str, Any]:
    """Return a job whose files have names that are valid in every folder."""
    found = dict(job)
    for key in ("path", "folder", "name"):
        if "://" not in found[key] and not found[key].startswith("hf:"):
            found[key] = str(Path(found[key]).absolute())
    if found.get("flags"):
        found["flags"] = [str(Path(found["flags"][0]).absolute()), *found["flags"][1:]]
    return found


def _answer(job: Job, version: str) -> dict[str, Any]:
    """Do a job on a worker."""
    if version != __version__:
        return {
            "error": f"all nodes must have the same regard, but one has {__version__} and the "
            f"driver {version}: install one version on all of them."
        }
    if not Path(job["folder"]).is_dir():
        return {
            "error": f"all nodes must see the run folder, but one does not see {job['folder']}: "
            "keep it on a file system that they share."
        }
    gc.disable()  # as the processes of one machine do
    try:
        return answer_job(job)
    finally:
        gc.enable()
