"""The kernels in several processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ops.rule import where

on_gpu = pytest.mark.parametrize(("backend", "device"), where("triton"))


@pytest.mark.slow
@on_gpu
def test_processes_share_a_step(backend, device):
    script = Path(__file__).with_name("shared_step.py")
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    done = subprocess.run(
        [sys.executable, *launcher, script, "auto", device],
        # the name of the computer need not be known to any network
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = dict(line.split() for line in done.stdout.splitlines())
    assert found.keys() == {"bahdanau", "gnmt", "self-attentive"}
    assert all(float(share) < 1e-4 for share in found.values()), found
