"""The profile of CPU training counts the work of steps and of models."""

import runpy
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    with mock.patch("sys.path", [str(FOLDER), *sys.path]):
        return runpy.run_path(str(FOLDER / "cpu_training_profile.py"), run_name="script")


@pytest.mark.parametrize(
    ("name", "shapes", "expected"),
    [
        ("aten::mm", [[3, 5], [5, 7]], 105),
        ("aten::bmm", [[2, 3, 5], [2, 5, 7]], 210),
        ("aten::addmm", [[7], [3, 5], [5, 7], [], []], 105),
        # 2 steps of 3 rows: 20 gates of an input of 7 and a hidden state of 5, and both ways back
        ("aten::mkldnn_rnn_layer", [[2, 3, 7], [20, 7], [20, 5]], 1440),
        ("aten::mkldnn_rnn_layer_backward", [[2, 3, 7], [20, 7], [20, 5]], 2880),
        ("aten::copy_", [[3, 5], [3, 5]], 0),
    ],
)
def test_products_are_counted_by_their_shapes(
    script: dict[str, Any], name: str, shapes: list[list[int]], expected: int
) -> None:
    assert script["multiply_adds"](name, shapes) == expected


@pytest.mark.parametrize("name", ["a", "b"])
def test_products_of_a_model_are_those_of_its_matrices(script: dict[str, Any], name: str) -> None:
    from regard.models import PRESETS

    case = script["CASES"][name]
    sizes = case.sizes._asdict()
    options = {"layers": 1, "embed": 256, "hidden": 512, "cell": "gru"} if name == "a" else sizes
    preset = "bahdanau" if name == "a" else "transformer"
    with torch.device("meta"):
        model = PRESETS[preset](src_vocab=10_004, tgt_vocab=10_004, **options)
    matrices = {n: p.numel() for n, p in model.named_parameters() if p.ndim == 2}
    tables = sum(count for n, count in matrices.items() if "embedding" in n)
    per_pair = sum(count for n, count in matrices.items() if "bridge" in n)
    assert (
        sum(script["model_products"](case, "regard")) == sum(matrices.values()) - tables - per_pair
    )
