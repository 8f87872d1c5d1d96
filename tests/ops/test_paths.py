"""The sizes at which paths are chosen."""

import inspect
import math
import re
import sys
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import pytest
import torch

from regard.ops import DotScore, use_backend
from regard.ops.backend import HAS_NUMBA
from regard.ops.dot_product_attention import _refuse_triton, torch_path
from regard.ops.primitives import scaled_product
from regard.ops.self_attentive_rnn import _refuse_cpu as refuse_recurrence
from regard.ops.self_attentive_rnn import empty_history

RECURRENCE = sys.modules["regard.ops.self_attentive_rnn"]  # the name stands for the function


@pytest.mark.skipif(not HAS_NUMBA, reason="needs numba")
def test_steps_from_which_the_cpu_kernels_are_chosen():
    def refusal(steps, hidden=2):
        inputs, weight = torch.empty(1, steps, hidden), torch.empty(hidden, hidden)
        state = empty_history(inputs, 1, hidden, hidden, with_memory=False)
        return refuse_recurrence(inputs, weight, DotScore(), state)

    assert refusal(16) is None
    assert "so few steps" in refusal(15)
    with use_backend("cpu"):
        assert refusal(1) is None


def queries(q_len=1, kv_len=9, width=8, v_dim=8, **options):
    query = torch.empty(1, 1, q_len, width, **options)
    key, value = torch.empty(1, 1, kv_len, width), torch.empty(1, 1, kv_len, v_dim)
    return query, key, value, None, None, False, False


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (queries(q_len=4), "triton|cuda"),
        (queries(q_len=5), "at most 4 queries"),
        (queries(q_len=3, kv_len=2), "at most 4 queries"),
        (queries(width=256, v_dim=256), "triton|cuda"),
        (queries(width=257), "heads of 1 to 256"),
        (queries(v_dim=257), "heads of 1 to 256"),
        (queries(v_dim=0), "heads of 1 to 256"),
        (queries(requires_grad=True), "no backward pass"),
        (queries(dtype=torch.bfloat16), "of one dtype"),
    ],
)
def test_calls_that_the_kernel_of_steps_cannot_run(call, reason):
    assert re.search(reason, _refuse_triton(*call))
    assert "neither a bias nor dropout" in _refuse_triton(*call, dropout=0.1)
    assert "neither a bias nor dropout" in _refuse_triton(*call, bias=torch.zeros(1, 1, 1, 9))


def test_calls_for_which_the_definition_is_faster():

    def faster(kv_len, dtype=torch.bfloat16, *, grad=True, q_len=9, device="cpu"):
        query = torch.empty(1, 1, q_len, 2, dtype=dtype, device=device, requires_grad=grad)
        return torch_path._definition_is_faster(query, torch.empty(1, 1, kv_len, 2))

    assert faster(128)
    assert not faster(129)
    assert faster(9, torch.float16)
    assert not faster(9, torch.float32)
    assert not faster(9, grad=False)
    with torch.no_grad():
        assert not faster(9)
    with torch.autocast("cpu", torch.bfloat16):
        assert faster(9, torch.float32)
    assert not faster(9, device="meta")


def test_kernels_on_a_gpu():
    """Steps of a decoder run the definition; cuDNN is left to long calls without a mask."""

    def on_cuda(q_len, *, grad=False):
        shape = (1, 1, q_len, 2)
        return SimpleNamespace(device=torch.device("cuda"), shape=shape, requires_grad=grad)

    faster = partial(inspect.unwrap(torch_path._definition_is_faster), key=None)
    assert faster(on_cuda(4))
    assert not faster(on_cuda(5))
    assert not faster(on_cuda(4, grad=True))

    def leaves_all(q_len, mask=None, *, causal=False):
        found = inspect.unwrap(torch_path._kernels)(on_cuda(q_len), mask, causal)
        return isinstance(found, nullcontext)

    assert leaves_all(1024, causal=True)
    assert not leaves_all(1023, causal=True)
    assert not leaves_all(1024, torch.ones(1), causal=True)
    assert not leaves_all(1024), "with gradients"
    with torch.no_grad():
        assert leaves_all(1024)
    assert isinstance(torch_path._kernels(torch.ones(1, 1, 1, 1), None, False), nullcontext)


def test_rows_without_keys_and_biases():
    mask = torch.tensor([[[[True, False], [False, False]]]])
    assert torch_path._rows_without_keys(mask).tolist() == [[[[False], [True]]]]
    assert torch_path._rows_without_keys(None) is None
    bias = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]])
    assert torch_path._biased(bias, None) is bias
    found = torch_path._biased(bias, mask)
    assert found.tolist() == [[[[1.0, -math.inf], [-math.inf, -math.inf]]]]


def test_products_are_scaled_by_powers_of_two_first():
    """16 * 100 * 100 * 0.25 fits into half precision, and twice as much does not."""
    query = torch.full((1, 1, 16), 100.0, dtype=torch.float16)
    for scale in (0.24, 0.25, 0.4):
        found = scaled_product(query, query.mT, scale).item()
        assert found == pytest.approx(160_000 * scale, rel=2e-3)
    wide = torch.randn(2, 3, 5, dtype=torch.float64)
    for scale in (0.3, 1.0, 3.0, 1e-3):
        torch.testing.assert_close(scaled_product(wide, wide.mT, scale), wide @ wide.mT * scale)
