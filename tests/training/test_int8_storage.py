"""Weights stored in int8: how far rounding changes them, and what a damaged file is told by."""

import pytest
import torch
from safetensors.torch import save_file

from benchmarks.tools.pack_model import quantize_rows
from regard.training.weights_file import (
    SCALES,
    UnusableWeightsError,
    dequantize_rows,
    read_shapes,
    read_weights,
)


@pytest.fixture
def weights():
    torch.manual_seed(5)
    scales = torch.logspace(-4, 2, 67)[:, None]
    return {
        "matrix": scales * torch.randn(67, 89),
        "kernel": torch.randn(31, 17, 11),
        "bias": torch.randn(101),
        "small": torch.randn(3, 5),
        "narrow": torch.randn(1009, 7),
        "zero": torch.cat([torch.zeros(1, 4099), torch.ones(1, 4099)]),
        "count": torch.tensor([70_000]),
    }


def test_rounding_is_half_a_step_of_each_row_at_most(weights):
    found = dequantize_rows(quantize_rows(weights))
    assert found.keys() == weights.keys()
    for name in ("matrix", "kernel", "zero"):
        before, after = weights[name].double().flatten(1), found[name].double().flatten(1)
        step = before.abs().amax(dim=1, keepdim=True) / 127
        error = (after - before).abs()
        assert after.shape == before.shape
        assert (error <= 0.5 * step * (1 + 1e-5)).all()
        assert found[name].dtype == torch.float32
    # a row of small weights keeps its own scale: one scale for all would lose it
    assert (found["matrix"][0] - weights["matrix"][0]).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("tensors", "said"),
    [
        ({"a": torch.ones(3, 5, dtype=torch.int8)}, "'a' is in int8 and lacks a scale"),
        (
            {"a": torch.ones(3, 5, dtype=torch.int8), "a" + SCALES: torch.ones(2)},
            "'a' is in int8 and lacks a scale",
        ),
        ({"a": torch.tensor(1, dtype=torch.int8), "a" + SCALES: torch.ones(1)}, "lacks a scale"),
        ({"a": torch.ones(3, 5), "a" + SCALES: torch.ones(3)}, "scales of no tensor in int8"),
        ({"b" + SCALES: torch.ones(3)}, "scales of no tensor in int8"),
    ],
)
def test_int8_without_its_scales_is_refused(tensors, said, tmp_path):
    file = tmp_path / "a.safetensors"
    save_file(tensors, file)
    with pytest.raises(UnusableWeightsError, match=said):
        read_shapes(file, inside=tmp_path)
    with pytest.raises(UnusableWeightsError, match=said):
        read_weights(file)
