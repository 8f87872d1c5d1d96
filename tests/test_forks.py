"""Tests in forks: each runs once, whatever becomes of the others."""

import os
import subprocess
import sys
from pathlib import Path

CONFTEST = """
import forks

def pytest_addoption(parser):
    forks.add_option(parser)

def pytest_runtestloop(session):
    return forks.run_all(session)
"""
GOOD = "import os\n" + "".join(
    f"def test_{i}(): open('ran', 'a').write('{i} ' + str(os.getpid()) + chr(10))\n"
    for i in range(9)
)
BAD = """
import os, time

def test_it_passes():
    # long enough for the other process to begin with the other file
    time.sleep(0.3)

def test_it_fails():
    assert "one" == "other"

def test_it_ends_the_process():
    os._exit(7)

def test_another_process_does_the_rest():
    pass
"""


def test_a_process_that_ends_fails_one_test_and_another_does_the_rest(tmp_path):
    for name, content in (("conftest", CONFTEST), ("test_good", GOOD), ("test_bad", BAD)):
        (tmp_path / f"{name}.py").write_text(content)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), "PYTEST_ADDOPTS": ""}
    options = ["-n", "2", "-p", "no:xdist", "-p", "no:randomly", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *options],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 failed, 11 passed" in done.stdout
    assert "test_it_fails - AssertionError: assert 'one' == 'other'" in done.stdout
    assert "its process ended with exit code 7\n" in done.stdout
    ran = [line.split() for line in (tmp_path / "ran").read_text().splitlines()]
    assert [number for number, _ in ran] == [str(i) for i in range(9)]
    assert len({process for _, process in ran}) == 1, "tests of a file stay together"
