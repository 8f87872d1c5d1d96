"""The losses as kernels, on the GPU that they are for."""

from functools import partial

import pytest
import torch

from regard.ops import use_backend
from regard.training import losses
from regard.training.losses import cross_entropy, rdrop_loss
from training.losses import ALPHA, breaches, cross_entropies, made, rdrops

pytestmark = [
    pytest.mark.gpu,
    # the thread of the first backward pass finds no context, and makes one
    pytest.mark.filterwarnings("ignore:Attempting to run cuBLAS:UserWarning"),
]

TYPES = [torch.float32, torch.bfloat16, torch.float16]
LOSSES = pytest.mark.parametrize(("loss", "passes"), [(cross_entropies, 1), (rdrops, 2)])
KERNELS = {
    cross_entropies: cross_entropy,
    rdrops: lambda logits, target, smoothing, real: rdrop_loss(
        logits, target, smoothing, ALPHA, real
    ),
}


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("vocab", [1, 45, 300, 10_000, 10_007])
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@LOSSES
def test_the_kernels_keep_the_rule(loss, passes, dtype, vocab, smoothing):
    logits, target, real = made(300, vocab, passes, dtype, "cuda")
    assert losses.takes_kernels(logits)
    for counts in (real, None):
        assert not breaches(loss, logits, target, smoothing, counts, -0.13)


@LOSSES
def test_any_number_of_rows_runs_by_the_same_kernel(loss, passes):
    for rows in (1, 16, 33, 0):
        logits, target, real = made(rows, 45, passes, device="cuda")
        if rows:
            assert not breaches(loss, logits, target, 0.1, real, 1.0)
        else:
            assert loss("triton", logits, target, 0.1, real, 1.0)[0] == 0


@pytest.mark.parametrize("alpha", [5.0, 1e4])
def test_passes_that_nearly_agree_keep_the_rule(alpha):
    logits, target, real = made(300, 10_007, 2, device="cuda")
    logits[300:] = logits[:300] + 1e-3 * torch.randn_like(logits[:300])
    assert not breaches(partial(rdrops, alpha=alpha), logits, target, 0.1, real, 1.0)


@LOSSES
def test_two_runs_agree_to_the_bit(loss, passes):
    logits, target, real = made(300, 10_007, passes, torch.bfloat16, "cuda")
    first, second = (loss("triton", logits, target, 0.1, real, 1.0) for _ in range(2))
    assert all(torch.equal(x, y) for x, y in zip(first, second, strict=True))


@pytest.mark.parametrize("vocab", [45, 10_007])
@LOSSES
def test_a_recorded_graph_gives_the_same(loss, passes, vocab):
    logits, target, real = made(300, vocab, passes, torch.bfloat16, "cuda")
    held = torch.zeros_like(logits).requires_grad_()

    def step():
        with use_backend("triton"):
            found = KERNELS[loss](held * 1, target, 0.1, real)
        return found.detach(), *torch.autograd.grad(found, held)

    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph):
        recorded = step()
    with torch.no_grad():
        held.copy_(logits)
    expected = loss("triton", logits, target, 0.1, real, 1.0)
    for _ in range(2):
        graph.replay()
        assert all(torch.equal(x, y) for x, y in zip(recorded, expected, strict=True))
