"""Jobs on a Ray cluster: workers that die, sources that kill them, and addresses without one."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from jobs.toys import ShoutTask, rows_in
from regard.errors import ArgumentError
from regard.extras import MissingExtraError
from regard.jobs import JobError, LocalExecutor, check_cluster, find_shards, ray_cluster, run_job

#: Ray leaves threads and processes behind that would disturb the tests after it
PROGRAM = """
import json, os, sys
from jobs.toys import ShoutTask
from regard.jobs import RayExecutor, find_shards, run_job

folder, marker, out = sys.argv[1:]
found = run_job(ShoutTask(marker), find_shards([folder]), out, RayExecutor(workers=2), unit_rows=20)
print(json.dumps([found.as_dict(), os.environ["RAY_USAGE_STATS_ENABLED"]]))
"""


def shout_on_ray(tmp_path, special):
    """Run a job of three shards on a cluster of its own, with some special sources in the second.

    Returns its summary, and the sources whose rows have an error.
    """
    pytest.importorskip("ray")
    (tmp_path / "in").mkdir()
    good = {}
    for shard, names in {"a": 17, "b": 23, "c": 9}.items():
        lines = [f"{shard}{i}" for i in range(names)]
        if shard == "b":
            lines[11:11] = special
        (tmp_path / "in" / f"{shard}.txt").write_text("".join(f"{line}\n" for line in lines))
        good |= {f"{shard}.txt:{i}": line.upper() for i, line in enumerate(lines, start=1)}
    out, marker = tmp_path / "out", tmp_path / "marker"
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *map(str, (tmp_path / "in", marker, out))],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "RAY_worker_niceness": "0",  # as nice as Ray has them, they wait for other tests
        },
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stderr
    (line,) = done.stdout.splitlines()  # Ray prints nothing there
    found, usage = json.loads(line)
    assert usage == "0"
    rows = rows_in(out)
    bad = {id for id, row in rows.items() if row["error"]}
    assert rows.keys() == good.keys()
    assert all(rows[id]["text"] == text for id, text in good.items() if id not in bad)
    assert found["workers"] == 2
    assert not list(out.glob(".*.part"))
    # another executor knows what is done
    task, shards = ShoutTask(str(marker)), find_shards([str(tmp_path / "in")])
    again = run_job(task, shards, out, LocalExecutor(), unit_rows=20)
    assert (again.before.rows, again.now.rows) == (len(good), 0)
    return found, {good[id] for id in bad}


@pytest.mark.system
@pytest.mark.timeout(600)
def test_a_worker_that_dies_is_replaced_and_each_row_is_answered_once(tmp_path):
    found, bad = shout_on_ray(tmp_path, ["once", "raise"])
    assert bad == {"RAISE"}
    assert found["restarts"] == 1


@pytest.mark.long
@pytest.mark.system
@pytest.mark.timeout(600)
def test_a_source_that_kills_each_worker_becomes_a_row_with_an_error(tmp_path):
    found, bad = shout_on_ray(tmp_path, ["once", "poison", "raise"])
    assert bad == {"POISON", "RAISE"}
    assert found["errors"] == {"worker died": 1, "model failed": 1}
    # `once` and `poison` are of one block: a death by the one and one by the other make that block
    # careful, and two more by `poison` leave it out
    assert found["restarts"] == 4


class BusyRay:
    """Stands in for Ray on a machine on which its first tries to start take too long."""

    def __init__(self, slow, message="The current node timed out during startup. This could"):
        self.slow, self.message = slow, message
        self.tries, self.running = 0, 0

    def init(self, **settings):
        self.tries += 1
        self.running += 1
        if self.tries <= self.slow:
            _Node(self).start()

    def shutdown(self):
        pass  # knows nothing of a node that has not started


class _Node:
    def __init__(self, ray):
        self.ray = ray

    def start(self):
        raise RuntimeError(self.ray.message)

    def kill_all_processes(self, check_alive, wait):
        assert wait
        self.ray.running -= 1


def test_ray_that_starts_slowly_is_ended_before_it_is_started_again():
    ray = BusyRay(slow=2)
    ray_cluster._init(ray, "local", {})
    assert (ray.tries, ray.running) == (3, 1)


@pytest.mark.parametrize(
    ("ray", "tries"), [(BusyRay(99), ray_cluster.START_TRIES), (BusyRay(99, "no disk"), 1)]
)
def test_ray_that_does_not_start_is_told_in_one_sentence(ray, tries):
    with pytest.raises(JobError, match=rf"it does not start \({ray.message}\): free"):
        ray_cluster._init(ray, "local", {})
    assert (ray.tries, ray.running) == (tries, 0)


def test_an_address_where_nothing_listens():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(JobError, match=rf"127\.0\.0\.1:{port} does not \(Connection refused\)"):
        check_cluster(f"127.0.0.1:{port}")


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
def test_an_address_where_something_else_listens(said):
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(said)

        thread = threading.Thread(target=answer)
        thread.start()
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(JobError, match=re.escape(f"{address} does not (")):
            check_cluster(address)
        thread.join()


def test_an_address_that_keeps_silent(monkeypatch):
    monkeypatch.setattr("regard.jobs.ray_cluster.CONNECT_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(JobError, match=r"does not \(timed out\)"):
            check_cluster(address)


def test_a_server_of_http_2_is_taken_for_a_cluster():
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer():
            connection, _ = server.accept()
            with connection:
                connection.recv(100)
                connection.sendall(bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]))

        thread = threading.Thread(target=answer)
        thread.start()
        check_cluster(f"127.0.0.1:{server.getsockname()[1]}")
        thread.join()


@pytest.mark.parametrize("address", ["ray://head:10001", "head", "head:port", "a/b:1"])
def test_what_is_no_address(address):
    with pytest.raises(ArgumentError, match=r"--ray must be HOST:PORT or auto"):
        check_cluster(address)


def test_without_ray_the_install_command_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=re.escape("pip install 'regard[ray]'")):
        check_cluster("local")


def test_the_journal_names_files_that_are_whole(tmp_path):
    """A worker on a machine with another disk writes where the driver finds nothing."""
    (tmp_path / "a.txt").write_text("a\n")

    class Elsewhere(LocalExecutor):
        def run(self, task, units, folder):
            for event in super().run(task, units, folder):
                (folder / "a.txt.parquet").unlink(missing_ok=True)
                yield event

    shards = find_shards([str(tmp_path / "a.txt")])
    with pytest.raises(JobError, match=r"-o must lie on a file system that all nodes share"):
        run_job(ShoutTask(), shards, tmp_path / "out", Elsewhere())
    assert not (tmp_path / "out" / "_done.jsonl").exists()
    assert json.loads((tmp_path / "out" / "_job.json").read_text())["inputs"].keys() == {"a.txt"}
