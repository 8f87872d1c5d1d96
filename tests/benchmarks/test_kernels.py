"""The benchmark of the operators: a path that is wrong gets no time."""

import pytest
import torch

from benchmarks.speed import kernels


@pytest.mark.long
def test_every_operator_is_timed_or_refused(monkeypatch):
    tiny = {"batch": 2, "q_len": 3, "kv_len": 3, "length": 3, "hidden": 8, "heads": 2}
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    for make, sizes in kernels.cases("cpu"):
        small = {name: tiny.get(name, size) for name, size in sizes.items()}
        for record in kernels.measure(make, small, "cpu", torch.float32, 0.0):
            assert "refused" in record or record["both_ms"] > 0.0
            assert record["path"] != "reference" or "refused" not in record
