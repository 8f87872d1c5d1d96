"""Shards encoded on a Ray cluster are those that this machine encodes."""

import os
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace

import pytest

from regard.errors import ArgumentError, DataError
from regard.jobs import JobError, RayShardRunner, ray_encoding
from regard.training import encode_run, make_config
from training.tools import SETTINGS, write_pairs


class LostWorkerError(Exception):
    """What Ray raises for a worker that has died too often."""


class ToyCluster:
    """Does each task when its result is waited for, in a folder of its own, as Ray does.

    Args:
        dies_on: part of the name of a shard whose workers die.
    """

    def __init__(self, folder, dies_on=None):
        self.folder, self.dies_on = folder, dies_on
        self.most_running, self.cancelled, self.retries = 0, [], None
        self.exceptions = SimpleNamespace(RayTaskError=KeyError, RayError=LostWorkerError)

    @contextmanager
    def connected(self, address, workers):
        self.address = address
        yield self

    def cluster_resources(self):
        return {"CPU": 3.0}

    def remote(self, function):
        def options(num_cpus, max_retries):
            self.retries = max_retries
            return SimpleNamespace(remote=lambda *args: partial(function, *args))

        return SimpleNamespace(options=options)

    def wait(self, handles, num_returns):
        self.most_running = max(self.most_running, len(handles))
        return handles[-1:], handles[:-1]  # not in the order of the jobs

    def get(self, handle):
        if self.dies_on is not None and self.dies_on in handle.args[0]["name"]:
            raise LostWorkerError
        before = os.getcwd()
        os.chdir(self.folder)
        try:
            return handle()
        finally:
            os.chdir(before)

    def cancel(self, handle, force):
        self.cancelled.append(handle)


@pytest.fixture
def shards(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "elsewhere").mkdir()
    for seed in range(5):
        write_pairs(tmp_path / "in" / f"{seed}.tsv", count=60, seed=seed)
    return tmp_path


@pytest.fixture
def cluster(shards, monkeypatch):
    toy = ToyCluster(shards / "elsewhere")
    monkeypatch.setattr(ray_encoding, "connected", toy.connected)
    return toy


def encoded(name, **options):
    """Encode the shards; returns the content of the files."""
    config = make_config({"data": "in", **SETTINGS, "deduplicate": True})
    run = encode_run(config, name, quiet=True, **options)
    return {path.name: path.read_bytes() for path in run.shards.glob("*.arrow")}


def test_a_cluster_encodes_what_this_machine_does(cluster):
    found = encoded("there", runner=RayShardRunner("head:6379", workers=2))
    assert found == encoded("here")
    assert len(found) == 5
    assert (cluster.address, cluster.most_running, cluster.cancelled) == ("head:6379", 2, [])
    assert cluster.retries == ray_encoding.MAX_DEATHS


def test_without_a_number_of_workers_there_is_one_per_core(cluster):
    encoded("there", runner=RayShardRunner())
    assert cluster.most_running == 3


def test_a_shard_that_kills_its_workers_is_named_and_the_others_are_kept(cluster, shards):
    cluster.dies_on = "4.tsv"
    with pytest.raises(JobError, match=r"11 workers, but as many have died on .*4\.tsv"):
        encoded("there", runner=RayShardRunner(workers=1))
    cluster.dies_on = None
    config = None  # go on with what is there
    run = encode_run(config, "there", quiet=True, runner=RayShardRunner(workers=1))
    assert {path.name: path.read_bytes() for path in run.shards.glob("*.arrow")} == encoded("here")


def test_the_error_of_a_job_is_raised_here_and_what_runs_is_cancelled(cluster, monkeypatch):
    problem = {"file": "b.tsv", "line": 61, "reason": "it is bad", "fix": "mend it", "kind": ""}
    monkeypatch.setattr(ray_encoding, "answer_job", lambda job: {"data_error": problem})
    jobs = [{"name": name, "folder": "in", "path": name} for name in ("a.tsv", "b.tsv", "c.tsv")]
    with pytest.raises(DataError, match=r"b\.tsv, line 61: it is bad"):
        RayShardRunner(workers=2)(jobs, print)
    assert len(cluster.cancelled) == 1


def test_nodes_must_see_the_folder_and_have_one_version(tmp_path, monkeypatch):
    job = {"folder": str(tmp_path / "nowhere"), "name": "a.tsv", "path": "a.arrow"}
    monkeypatch.setattr(ray_encoding, "__version__", "9")
    assert "one has 9 and the driver 8" in ray_encoding._answer(job, "8")["error"]
    assert "does not see" in ray_encoding._answer(job, "9")["error"]


def test_data_in_one_file_or_in_memory_need_no_cluster(cluster, shards):
    config = make_config({"data": "in/1.tsv", **SETTINGS})
    with pytest.raises(ArgumentError, match=r"--ray must be given for data in shards alone"):
        encode_run(config, "one", quiet=True, runner=RayShardRunner())
    with pytest.raises(ArgumentError, match="data that all nodes see"):
        RayShardRunner()([{"name": "memory://a.tsv"}], print)


@pytest.mark.long
@pytest.mark.system
@pytest.mark.timeout(600)
def test_a_real_cluster(shards):
    pytest.importorskip("ray")
    words = ("encode", "in", "-o", "there", "deduplicate=true", "--ray", "--workers", "2")
    command = [sys.executable, "-m", "regard", *words]
    done = subprocess.run(command, capture_output=True, text=True, cwd=shards)
    assert not done.returncode, done.stderr
    assert done.stdout == "there\n"
    found = {path.name: path.read_bytes() for path in (shards / "there").rglob("*.arrow")}
    command[4:7] = ["in", "-o", "here"]
    subprocess.run(command[:-3], check=True, cwd=shards)
    here = {path.name: path.read_bytes() for path in (shards / "here").rglob("*.arrow")}
    assert found == here
