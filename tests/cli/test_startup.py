"""What `regard show` in the terminal loads: nothing that another verb alone needs."""

import json
import subprocess
import sys

import pytest

from api.test_tracing import run_folder

PROGRAM = """
import json, sys
from regard.cli import app
try:
    app(["show", sys.argv[1], "abc"])
except SystemExit as end:
    code = end.code
print(json.dumps([code, sorted(sys.modules)]))
"""
HEAVY = (
    "fastapi",
    "lightning_fabric",
    "matplotlib",
    "numba",
    "pyarrow",
    "regard.lab",
    "torch._dynamo",
    "triton",
)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    folder = run_folder(tmp_path_factory.mktemp("runs") / "run", "bahdanau")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)], capture_output=True, text=True, check=True
    )
    code, modules = json.loads(done.stdout.splitlines()[-1])
    assert code == 0, done.stderr
    return modules


@pytest.mark.parametrize("module", HEAVY)
def test_show_does_without(loaded, module):
    assert "regard.cli.show" in loaded
    assert module not in loaded
