"""Steps of a Transformer decoder by kernels are those of its modules."""

from pathlib import Path

import pytest
import torch

from interpreter import check_kept
from layers.step_cases import CASES, compare
from regard.attention import ALiBi
from regard.layers import LayerOptions, TransformerDecoder
from regard.ops import backend
from regard.ops.backend import HAS_TRITON, refuse_step, steps_by_kernels

pytestmark = pytest.mark.skipif(not HAS_TRITON, reason="needs triton")


@pytest.mark.long
@pytest.mark.slow
def test_steps_are_those_of_the_modules_in_the_interpreter():
    check_kept(Path(__file__).with_name("interpreted_step.py"), len(CASES) + 1)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 5, 20, 70])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", CASES)
def test_steps_on_a_gpu_are_those_of_the_modules(case, dtype, rows):
    compare(case, dtype, "cuda", rows, steps=40)


def test_steps_that_kernels_do_not_take_are_named(monkeypatch):
    monkeypatch.setattr(backend, "INTERPRETED", True)
    x = torch.randn(3, 1, 8)
    assert "watch" in refuse_step(x)
    with steps_by_kernels():
        assert "gradients" in refuse_step(x)
        with torch.no_grad():
            assert refuse_step(x) is None
            assert "one vector" in refuse_step(x.expand(3, 2, 8))
            assert "float64" in refuse_step(x.double())


def test_decoders_that_kernels_do_not_know_are_named():
    from regard.layers.decoder_step import refuse_decoder

    decoder = TransformerDecoder(8, 2, 16, 1, LayerOptions(), memory_size=None)
    assert "training" in refuse_decoder(decoder)
    assert refuse_decoder(decoder.eval()) is None
    decoder.layers[0].feed_forward.inner = torch.nn.Sequential(torch.nn.Linear(8, 16))
    assert "Sequential" in refuse_decoder(decoder)
    biased = LayerOptions(position_bias=lambda: ALiBi(2))
    decoder = TransformerDecoder(8, 2, 16, 1, biased, memory_size=None)
    assert "positions" in refuse_decoder(decoder.eval())
