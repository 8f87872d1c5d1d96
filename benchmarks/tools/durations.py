"""Seconds of the tests: of `make test` or another target, of its parts, files and slowest tests.

    python -m benchmarks.tools.durations --out benchmarks/results/tests.json
    python -m benchmarks.tools.durations check --out benchmarks/results/tests-check.json

Seconds are those of the processor, of the tests and of all processes that they start, beside those
of the clock. Runs a fresh clone of the last commit, without any cache, in the environment of this
checkout. The module is also the plugin of pytest that takes the times.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from benchmarks import harness

FOLDER = "REGARD_DURATIONS"
TICK = os.sysconf("SC_CLK_TCK")
#: tests that are named
SLOWEST = 60
#: seconds of a parameter set from which on `make check` leaves a test out: tests/thinning.py
NOT_QUICK = 0.2


def seconds_so_far() -> float:
    """Return the processor's seconds of this process and of all that it has started."""
    seconds = sum(os.times()[:4])
    started = children(os.getpid())
    while started:
        pid = started.pop()
        with suppress(OSError, IndexError):  # it may end meanwhile
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            seconds += sum(map(int, fields[11:15])) / TICK
            started += children(pid)
    return seconds


def children(pid: int) -> list[str]:
    """Return the processes that a process has started and not yet waited for."""
    found = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(OSError):  # of a thread that ends meanwhile
            found += (task / "children").read_text().split()
    return found


class Durations:
    """Writes the seconds of each test, and of finding them all, into a file that forks share."""

    def __init__(self, folder: Path) -> None:
        self.file = open(folder / f"{os.getpid()}.jsonl", "w", encoding="utf-8")  # noqa: SIM115

    def write(self, name: str, seconds: float) -> None:
        """Write one line, at once: other processes may be killed."""
        print(json.dumps([name, round(seconds, 3)]), file=self.file, flush=True)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Time a test with its fixtures."""
        before = seconds_so_far()
        result = yield
        self.write(item.nodeid, seconds_so_far() - before)
        return result

    def pytest_collection_finish(self) -> None:
        """Take the time until the first test."""
        self.write("imports and collection", seconds_so_far())

    def pytest_unconfigure(self) -> None:
        """Close the file, of which Python would complain."""
        self.file.close()


def pytest_configure(config: pytest.Config) -> None:
    """Take times where the command below asks for it."""
    if FOLDER in os.environ:
        config.pluginmanager.register(Durations(Path(os.environ[FOLDER])))


def measured(target: str, jobs: Path) -> dict[str, Any]:
    """Run a target on a clone, and return its seconds."""
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary) / "regard"
        subprocess.run(["git", "clone", "-q", "--shared", harness.ROOT, copy], check=True)
        for name in ("pyproject.toml", "constraints.txt"):  # or make would install everything
            os.utime(copy / name, (0, 0))
        (copy / ".venv").symlink_to(harness.ROOT / ".venv")
        environment = {
            **os.environ,
            "PYTHONPATH": f"{copy / 'src'}:{copy}",
            "NUMBA_CACHE_DIR": f"{temporary}/numba",
            "PYTEST_ADDOPTS": "-p benchmarks.tools.durations",
            FOLDER: str(jobs),
        }
        began, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
        code = subprocess.run(["make", target], cwd=copy, env=environment, check=False).returncode
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        tests = [path.read_text(encoding="utf-8") for path in (copy / "tests").rglob("*.py")]
        return {
            "target": target,
            "passed": code == 0,
            "seconds": round(time.perf_counter() - began, 1),
            "processor_seconds": round(
                after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 1
            ),
            "lines_of_tests": sum(text.count("\n") for text in tests),
        }


def summary(jobs: Path) -> dict[str, Any]:
    """Return the processor's seconds of files and of the slowest tests."""
    lines = [json.loads(row) for file in jobs.glob("*.jsonl") for row in file.open()]
    files: dict[str, list[float]] = defaultdict(list)
    names: dict[str, list[float]] = defaultdict(list)
    for name, seconds in lines:
        files[name.partition("::")[0]].append(seconds)
        if "::" in name:
            names[name.partition("[")[0]].append(seconds)
    slowest = sorted(names.items(), key=lambda row: -sum(row[1]))
    return {
        "tests": sum("::" in name for name, _ in lines),
        "files": {
            name: round(sum(found), 1)
            for name, found in sorted(files.items(), key=lambda row: -sum(row[1]))
        },
        "slowest": {name: round(sum(found), 1) for name, found in slowest[:SLOWEST]},
        "not_quick": sorted(n for n, found in names.items() if mean(found) >= NOT_QUICK),
    }


def main() -> int:
    """Read the command line, run, and write what was measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("target", nargs="?", default="test", help="of the Makefile")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as jobs:
        found = measured(arguments.target, Path(jobs))
        harness.write(arguments.out, harness.provenance() | found | summary(Path(jobs)))
    print(json.dumps(found), file=sys.stderr)
    return not found["passed"]


if __name__ == "__main__":
    raise SystemExit(main())
