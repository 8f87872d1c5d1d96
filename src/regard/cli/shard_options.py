"""Options of commands that work on shards: which names stand for shards, and who does the work."""

import glob
import os

from regard.errors import ArgumentError
from regard.worker_processes import Executor, LocalExecutor


def names_shards(file: str, ray: str | None, workers: int | None) -> bool:
    """Return whether a file name stands for shards: a pattern, or anything with workers."""
    pattern = glob.has_magic(file) and not os.path.exists(file)
    return ray is not None or workers is not None or pattern


def executor_of(ray: str | None, workers: int | None, *, gpus: bool) -> Executor:
    """Return the executor that a user asks for; raises JobError if no cluster answers."""
    if ray is None:
        return LocalExecutor(workers or 1)
    from regard.jobs import RayExecutor, check_cluster  # not above: it loads what reads Parquet

    check_cluster(ray)  # before anything that takes long
    return RayExecutor(ray, workers, gpus=gpus)


def refuse(reason: str, **given: object) -> None:
    """Raise for an option that a job over shards does not have."""
    for name, value in given.items():
        if value not in (None, False):
            option = name if name.isupper() else f"--{name.replace('_', '-')}"
            raise ArgumentError(option, f"be left out {reason}", value, "leave it out")
