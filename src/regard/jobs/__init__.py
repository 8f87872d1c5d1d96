"""Jobs over shards of data: `regard predict -o`, on this machine or on a Ray cluster.

Each input shard becomes output shards of the same name, written whole or not at all. The output
folder holds a manifest and a journal, by which an interrupted job goes on where it was.
"""

from regard.jobs.executors import Executor, LocalExecutor
from regard.jobs.input_shards import InputShard, find_shards
from regard.jobs.job_folder import JobError, JobFolder
from regard.jobs.output_shards import read_shard
from regard.jobs.ray_cluster import RayExecutor, check_cluster
from regard.jobs.ray_encoding import RayShardRunner
from regard.jobs.runner import UNIT_ROWS, JobProgress, JobSummary, run_job
from regard.jobs.tasks import JobTask, ModelSpec, PairTask, PredictTask

__all__ = [
    "UNIT_ROWS",
    "Executor",
    "InputShard",
    "JobError",
    "JobFolder",
    "JobProgress",
    "JobSummary",
    "JobTask",
    "LocalExecutor",
    "ModelSpec",
    "PairTask",
    "PredictTask",
    "RayExecutor",
    "RayShardRunner",
    "check_cluster",
    "find_shards",
    "read_shard",
    "run_job",
]
