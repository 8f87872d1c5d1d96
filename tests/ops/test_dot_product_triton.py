"""The kernel for decoding steps: its rule, and the calls that it refuses."""

from pathlib import Path

import pytest
import torch

from interpreter import check_kept
from regard.ops import backend, dot_product_attention, use_backend
from regard.ops.backend import HAS_TRITON
from regard.ops.dot_product_attention import _refuse_triton

STEP = (torch.zeros(2, 4, 1, 8), torch.zeros(2, 2, 7, 8), torch.zeros(2, 2, 7, 8))


@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRITON, reason="needs triton")
def test_the_kernel_keeps_the_rule_in_the_interpreter():
    check_kept(Path(__file__).with_name("interpreted_dot_product.py"), 13)


def refusal(*tensors, mask=None, causal=False, **options):
    return _refuse_triton(*tensors, mask, None, causal, False, **options)


def test_the_path_says_what_it_refuses(monkeypatch):
    assert "on cpu" in refusal(*STEP) or not HAS_TRITON
    monkeypatch.setattr(backend, "HAS_TRITON", True)
    monkeypatch.setattr(backend, "INTERPRETED", True)
    query, key, value = STEP
    assert refusal(*STEP) is None
    assert "bias" in refusal(*STEP, bias=torch.zeros(1))
    assert "dropout" in refusal(*STEP, dropout=0.1)
    assert "at most 4 queries" in refusal(query.expand(2, 4, 5, 8), key, value)
    assert "decoding steps" in refusal(query, key[:, :, :0], value[:, :, :0])
    assert "256 features" in refusal(torch.zeros(2, 4, 1, 257), torch.zeros(2, 2, 7, 257), value)
    assert "no backward" in refusal(query.clone().requires_grad_(), key, value)
    assert "one dtype" in refusal(query, key, value.half())
    assert "float64" in refusal(*(x.double() for x in STEP))
    with torch.no_grad():
        assert refusal(query.clone().requires_grad_(), key, value) is None


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kv_len", [1, 31, 64, 65, 500])
def test_a_step_on_a_gpu_keeps_the_rule(kv_len, dtype):
    generator = torch.Generator().manual_seed(kv_len)
    drawn = [torch.randn(37, 6, n, 40, generator=generator) for n in (1, kv_len, kv_len)]
    tensors = [x.to("cuda", dtype) for x in drawn]
    lengths = torch.randint(0, kv_len + 1, (37,), generator=generator)
    mask = (torch.arange(kv_len) < lengths[:, None])[:, None, None].to("cuda")

    def by(path, *parts):
        with use_backend(path):
            return dot_product_attention(*parts, mask, need_weights=True)

    exact = by("reference", *(x.double() for x in tensors))
    for ours, theirs, truth in zip(
        by("triton", *tensors), by("reference", *tensors), exact, strict=True
    ):
        bound = 2 * (theirs.double() - truth).abs().max() + 1e-6
        assert (ours.double() - truth).abs().max() <= bound
