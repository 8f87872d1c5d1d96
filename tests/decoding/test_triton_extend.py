"""The kernels of a step of beam search are its definition."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from interpreter import check_kept
from regard.decoding import DecodingOptions
from regard.decoding.beam_state import BeamState, SearchPlan, refuse_kernels
from regard.decoding.candidates import Constraints
from regard.ops import backend
from regard.ops.backend import HAS_TRITON

pytestmark = pytest.mark.skipif(not HAS_TRITON, reason="needs triton")


@pytest.mark.long
@pytest.mark.slow
def test_the_kernels_are_the_definition_in_the_interpreter():
    check_kept(Path(__file__).with_name("interpreted_extend.py"), 5)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("case", ["beam", "nbest", "greedy", "rules"])
def test_a_step_on_a_gpu_is_its_definition(case, dtype):
    from decoding.extend_cases import CASES, compare

    options, vocab = CASES[case]
    compare(options, vocab, dtype, "cuda", rows=37, steps=9)
    compare(options, 16 * vocab + 5, dtype, "cuda", rows=5, steps=4)


@pytest.mark.parametrize(
    ("options", "vocab", "reason"),
    [
        (DecodingOptions(beam=3), 100, None),
        (DecodingOptions(beam=3, no_repeat_ngram=2), 100, "constraints"),
        (DecodingOptions(beam=3, prefix=[[5]]), 100, "constraints"),
        (DecodingOptions(beam=17), 1000, "at most 16"),
        (DecodingOptions(beam=9), 40, "hardly larger"),
        (DecodingOptions(beam=16), 300_000, None),
        (DecodingOptions(beam=2), 1_100_000, "at most 1048576"),
    ],
)
def test_steps_that_the_kernels_refuse_are_named(monkeypatch, options, vocab, reason):
    monkeypatch.setattr(backend, "INTERPRETED", True)
    lengths = torch.full((1,), 5)
    beams = BeamState.start(1, Constraints.of(options, lengths), options)
    plan = SearchPlan.of(options)
    several = {name: getattr(beams, name) for name in ("tokens", "scores", "over")}
    wider = {name: x.expand(1, options.beam) for name, x in several.items()}
    if beams.history is not None:
        wider["history"] = beams.history.expand(1, options.beam, -1)
    wide = replace(beams, **wider)
    found = refuse_kernels(wide, torch.zeros(options.beam, vocab), 0, plan)
    assert found is None if reason is None else reason in found
    if reason is None:
        double = torch.zeros(3, vocab).double()
        assert "float64" in refuse_kernels(wide, double, 0, plan)
        drawn = plan._replace(best=0)
        assert refuse_kernels(wide, torch.zeros(3, vocab), 0, drawn) is not None
