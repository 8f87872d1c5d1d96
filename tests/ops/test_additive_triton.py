from pathlib import Path

import pytest
import torch

from interpreter import check_kept
from regard.ops import backend
from regard.ops.additive_attention import _refuse_triton
from regard.ops.backend import HAS_TRITON

CALL = (torch.zeros(2, 3, 5), torch.zeros(2, 7, 5), torch.zeros(5), torch.zeros(2, 7, 11))
CASES = 21  # of interpreted_additive.py


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.skipif(not HAS_TRITON, reason="needs triton")
def test_the_kernels_keep_the_rule_in_the_interpreter():
    check_kept(Path(__file__).with_name("interpreted_additive.py"), CASES)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (CALL, "the query is on cpu"),
        ([x.to("meta") for x in CALL], "the query is on meta"),
    ],
)
def test_the_path_says_what_it_refuses(monkeypatch, call, reason):
    monkeypatch.setattr(backend, "HAS_TRITON", True)
    assert reason in _refuse_triton(*call, None, False)


def test_the_path_refuses_what_its_kernels_cannot_hold(monkeypatch):
    monkeypatch.setattr(backend, "HAS_TRITON", True)
    monkeypatch.setattr(backend, "INTERPRETED", True)
    assert _refuse_triton(*CALL, None, False) is None
    assert "float64" in _refuse_triton(*(x.double() for x in CALL), None, False)
    query, key, v, value = (x.to("meta") for x in CALL)
    many = [x[:1].expand(65_536, -1, -1) for x in (query, key, value)]
    assert "65536" in _refuse_triton(many[0], many[1], v, many[2], None, False)
