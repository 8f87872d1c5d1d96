"""Which losses run as kernels, and that the kernels are right, as far as a CPU can tell."""

from pathlib import Path

import pytest
import torch

from interpreter import check_kept
from regard.errors import ArgumentError
from regard.ops import use_backend
from regard.training import losses

CASES = 53  # of interpreted_loss.py
LOGITS, TARGET = torch.zeros(4, 7), torch.tensor([1, 2, 3, 4])


class Cuda(torch.Tensor):
    """Stands for logits on a GPU, where there is none."""

    device = torch.device("cuda:0")


def on_gpu(logits=LOGITS):
    return logits.as_subclass(Cuda)


@pytest.fixture
def gpu(monkeypatch):
    """What the kernels ask of a GPU; the row on which they are tried stays on the CPU."""
    monkeypatch.setattr(losses, "HAS_TRITON", True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    zeros = torch.zeros
    monkeypatch.setattr(torch, "zeros", lambda *shape, device, **kind: zeros(*shape, **kind))
    losses._works.cache_clear()
    yield
    losses._works.cache_clear()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(not losses.HAS_TRITON, reason="needs triton")
def test_the_kernels_keep_the_rule_in_the_interpreter():
    check_kept(Path(__file__).with_name("interpreted_loss.py"), CASES)


def test_a_cpu_has_no_use_for_the_kernels(monkeypatch):
    monkeypatch.setattr(losses, "HAS_TRITON", True)
    assert not losses.takes_kernels(LOGITS)


@pytest.mark.usefixtures("gpu")
def test_a_gpu_has(monkeypatch):
    tried = []
    monkeypatch.setattr(losses, "triton_cross_entropy", lambda *given: tried.append(given))
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        assert losses.takes_kernels(on_gpu(LOGITS.to(dtype)))
    assert len(tried) == 1
    for name, taken in (("torch", False), ("reference", False), ("cpu", False), ("triton", True)):
        with use_backend(name):
            assert losses.takes_kernels(on_gpu()) == taken
    assert not losses.takes_kernels(on_gpu(LOGITS.double()))
    assert not losses.takes_kernels(on_gpu(LOGITS.T))
    monkeypatch.setattr(losses, "HAS_TRITON", False)
    assert not losses.takes_kernels(on_gpu())


@pytest.mark.usefixtures("gpu")
def test_kernels_that_do_not_compile_are_left_to_torch_with_a_warning(monkeypatch):
    def fail(*given):
        raise RuntimeError("Failed to find C compiler.\nPlease")

    monkeypatch.setattr(losses, "triton_cross_entropy", fail)
    with pytest.warns(UserWarning, match=r"without their kernels, slower: Failed to find C comp"):
        assert not losses.takes_kernels(on_gpu())
    assert not losses.takes_kernels(on_gpu())  # and no second warning


@pytest.mark.plain
@pytest.mark.parametrize("real", [None, torch.tensor([True])])
def test_what_is_too_short_is_refused(real):
    short = TARGET[:3] if real is None else TARGET
    with pytest.raises(ArgumentError, match="have one row for each target token"):
        losses.triton_cross_entropy(LOGITS, short, 0.1, real)
