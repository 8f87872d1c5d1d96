"""Jobs over shards of data: `regard predict -o`, on this machine or on a Ray cluster.

Each input shard becomes an output shard of the same name, written whole or not at all. An
interrupted job goes on with those that are missing.
"""

from regard.jobs.ray_executor import RayExecutor, check_cluster
from regard.jobs.runner import (
    InputShard,
    JobSummary,
    JobTask,
    find_shards,
    run_job,
)
from regard.worker_processes import Executor, LocalExecutor

__all__ = [
    "Executor",
    "InputShard",
    "JobSummary",
    "JobTask",
    "LocalExecutor",
    "RayExecutor",
    "check_cluster",
    "find_shards",
    "run_job",
]
