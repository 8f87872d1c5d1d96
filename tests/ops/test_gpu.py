"""The kernels inside of what users put around them: a compiler, and other processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import ops.test_additive_attention as additive
import ops.test_attentive_rnn as attentive
import ops.test_self_attentive_rnn as self_attentive
from ops.rule import accept, outputs_and_gradients, where

on_gpu = pytest.mark.parametrize(("backend", "device"), where("triton"))


def additive_attention(backend, device):
    tensors = additive.inputs(device=device)
    mask = additive.mask_of("padding", additive.BATCH, 1, additive.Q_LEN, additive.KV_LEN, device)
    return additive.by(backend, mask), tensors


def self_attentive_rnn(backend, device):
    tensors = self_attentive.tensors_of("lstm", "additive", dtype=torch.float32, device=device)
    lengths = torch.tensor([3, 5], device=device)

    def op(**tensors):
        out = self_attentive.run(backend, "lstm", "additive", tensors, lengths=lengths)
        return [out.hidden, out.context]

    return op, tensors


def attentive_rnn(backend, device):
    tensors = attentive.tensors_of("gru", "additive", dtype=torch.float32, device=device)
    return attentive.by(backend, "gru", "additive", attentive.mask_of("padding", device)), tensors


OPERATORS = (additive_attention, self_attentive_rnn, attentive_rnn)


@pytest.mark.compile
@pytest.mark.filterwarnings("ignore")  # what a compiler warns of is its own affair
@pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.__name__)
@on_gpu
def test_inductor_takes_the_kernels_in(operator, backend, device):
    (op, tensors), (definition, _) = operator(backend, device), operator("reference", device)

    def surrounded(by):
        # with something before and after it that the compiler may fuse
        def run(**tensors):
            return [y.sin() for y in by(**{name: x.tanh() for name, x in tensors.items()})]

        return run

    compiled = torch.compile(surrounded(op), fullgraph=True)
    accept(compiled, surrounded(definition), tensors)
    eager = outputs_and_gradients(surrounded(op), tensors, torch.float32)
    found = outputs_and_gradients(compiled, tensors, torch.float32)
    for name, tensor in eager.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-4, atol=1e-5, msg=name)


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
