"""Workers that are killed: each row is answered once, by processes of this machine and by Ray."""

import fcntl
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from forked_python import forked_python
from jobs.toys import ShoutTask, fail, rows_in
from regard import worker_processes
from regard.errors import DataError, RegardError
from regard.jobs import LocalExecutor, check_cluster, find_shards, ray_executor, run_job
from regard.jobs.runner import JobError

PROGRAM = """
import sys
from jobs.toys import ShoutTask
from regard.jobs import LocalExecutor, RayExecutor, find_shards, run_job
inputs, marker, out, executor = sys.argv[1:]
run_job(ShoutTask(marker), find_shards([inputs]), out, eval(executor))
"""


@pytest.fixture(autouse=True)
def importable(monkeypatch):
    """Let workers import the toys, and Ray's be as nice as others, for which they would wait."""
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, paths)))
    monkeypatch.setenv("RAY_worker_niceness", "0")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "executor",
    [
        "LocalExecutor(2)",
        pytest.param("RayExecutor(workers=2, gpus=False)", marks=pytest.mark.long),
    ],
)
def test_each_row_is_answered_once_though_workers_die(tmp_path, executor, monkeypatch):
    if "Ray" in executor:
        pytest.importorskip("ray")
    (tmp_path / "in").mkdir()
    good = {}
    for shard, names in {"a": 17, "b": 23, "c": 9}.items():
        lines = [f"{shard}{i}" for i in range(names)]
        if shard == "b":
            lines[11:11] = ["once", "raise"]
        (tmp_path / "in" / f"{shard}.txt").write_text("".join(f"{line}\n" for line in lines))
        good |= {f"{shard}.txt:{i}": line.upper() for i, line in enumerate(lines, start=1)}
    out, marker = tmp_path / "out", str(tmp_path / "marker")
    task, shards = ShoutTask(marker), find_shards([str(tmp_path / "in")])
    if "Ray" in executor:
        words = [sys.executable, "-c", PROGRAM, tmp_path / "in", marker, out, executor]
        done = subprocess.run(words, capture_output=True, text=True)
        assert not done.returncode, done.stderr
    else:
        monkeypatch.setattr(sys, "executable", forked_python())
        found = run_job(task, shards, out, LocalExecutor(2))
        assert (found.workers, found.errors) == (2, {"model failed": 1})
    rows = rows_in(out)
    bad = {id for id, row in rows.items() if row["error"]}
    assert rows.keys() == good.keys()
    assert all(rows[id]["text"] == text for id, text in good.items() if id not in bad)
    assert {good[id] for id in bad} == {"RAISE"}
    assert not list(out.rglob("*.part"))
    assert run_job(task, shards, out, LocalExecutor()).now == 0, "another executor knows it is done"


@pytest.mark.slow
def test_a_shard_that_kills_each_worker_ends_the_job(tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    for name in ("poison", "fine"):
        (tmp_path / "in" / f"{name}.txt").write_text(f"{name}\n")
    monkeypatch.setattr(sys, "executable", forked_python())
    task, shards = ShoutTask(str(tmp_path / "marker")), find_shards([str(tmp_path / "in")])
    with pytest.raises(JobError, match="a worker must finish each item, but 4 died on"):
        run_job(task, shards, tmp_path / "out", LocalExecutor(2))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize(
    ("item", "error", "said"),
    [
        ("data", DataError, "a.tsv, line 3: broken: mend"),
        ("bug", RuntimeError, "ZeroDivisionError"),
    ],
)
def test_the_first_error_of_a_process_is_raised_here(item, error, said):
    with pytest.raises(error, match=said):
        list(LocalExecutor(2).run(fail, ["fine", item]))


@pytest.mark.slow
def test_processes_that_do_not_start_are_told_of(monkeypatch):
    monkeypatch.setattr(worker_processes.sys, "executable", "/bin/false")
    with pytest.raises(RegardError, match="3 of them ended before they had begun, the last with"):
        list(LocalExecutor(2).run(fail, ["fine", "fine"]))


class BusyRay:
    """Stands in for Ray on a machine on which its first tries to start take too long."""

    def __init__(self, slow, message="The current node timed out during startup. This could"):
        self.slow, self.message, self.tries = slow, message, 0

    def init(self, **settings):
        self.tries += 1
        if self.tries <= self.slow:
            raise RuntimeError(self.message)

    def shutdown(self):
        pass


def test_ray_that_starts_slowly_is_started_again():
    ray = BusyRay(slow=2)
    ray_executor._init(ray, "local", {})
    assert ray.tries == 3
    for ray, tries in ((BusyRay(99), ray_executor.START_TRIES), (BusyRay(99, "no disk"), 1)):
        with pytest.raises(JobError, match=rf"it does not start \({ray.message}\): free"):
            ray_executor._init(ray, "local", {})
        assert ray.tries == tries
    with pytest.raises(JobError, match="RAY_AUTH_TOKEN is missing"):
        ray_executor._init(BusyRay(1, "InvalidAuthToken"), "head:1", {})


def test_workers_of_another_version_refuse_to_work(tmp_path):
    worker = ray_executor.RayWorker(fail, ["fine"], str(tmp_path / "nowhere"), "0.0")
    _, error = worker({"id": 0})["answer"]
    assert "install one version on all of them" in str(error)


def test_an_address_where_nothing_listens():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(JobError, match=rf"127\.0\.0\.1:{port} does not \(Connection refused\)"):
        check_cluster(f"127.0.0.1:{port}")


ITEM = """
import fcntl, time
file = open({!r}, "a")
fcntl.flock(file, fcntl.LOCK_SH)
print(end="x", file=file, flush=True)
time.sleep(60)
"""


@pytest.mark.slow
def test_workers_end_with_what_has_started_them(tmp_path):
    lock = tmp_path / "lock"
    lock.touch()
    items = [ITEM.format(str(lock))] * 2
    program = f"from regard.jobs import LocalExecutor\nlist(LocalExecutor(2).run(exec, {items}))"
    process = subprocess.Popen([sys.executable, "-c", program])
    while lock.read_text() != "xx":
        time.sleep(0.1)
    process.kill()
    process.wait()
    ends = time.monotonic() + 30
    with open(lock) as file:
        while True:
            try:
                return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                assert time.monotonic() < ends, "a worker has outlived its process"
            time.sleep(0.1)
