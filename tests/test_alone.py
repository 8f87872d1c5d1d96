"""Tests do not depend on each other: what one changes is undone before the next."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = """
import os, random, torch

def test_one(tmp_path):
    torch.set_num_threads(2)
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    torch._C._set_mkldnn_enabled(False)
    os.environ["LEFT_BEHIND"] = "1"
    os.chdir(tmp_path)

def test_two():
    assert torch.get_num_threads() == 1
    assert torch.get_default_dtype() == torch.float32
    assert torch.is_grad_enabled()
    assert torch._C._get_mkldnn_enabled()
    assert "LEFT_BEHIND" not in os.environ
    assert os.getcwd() == FOLDER

def test_three():
    assert draws() == draws.first

def test_four():
    assert draws() == draws.first

def draws():
    return random.random(), torch.rand(1).item()

random.seed(0)
torch.manual_seed(0)
draws.first = draws()
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_test_does_not_see_what_another_has_changed(tmp_path):
    here = Path(__file__).parent
    (tmp_path / "conftest.py").write_text((here / "conftest.py").read_text())
    (tmp_path / "test_some.py").write_text(TESTS.replace("FOLDER", repr(str(tmp_path))))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:randomly"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(here), *sys.path])},
    )
    assert "4 passed" in done.stdout, done.stdout
