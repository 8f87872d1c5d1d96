"""An exported folder that reads vectors: it takes numbers as a user has them."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from export.tools import FRAMES
from regard.data.text_codec import SeriesRows, number_texts
from regard.models import VectorInput
from regard.tasks.inputs.graph_inputs import FrameInputs, ScaledInput

# the run-time shape checks cannot be traced
pytestmark = [pytest.mark.plain, pytest.mark.usefixtures("onnx_registry")]


@pytest.mark.parametrize("stack", [1, 2, 3])
def test_what_a_graph_computes_of_frames_is_what_the_model_reads(stack):
    frames = replace(FRAMES, stack=stack)
    adapter = VectorInput(5, 7, stack=stack)
    lengths = torch.tensor([6, 1, 5])
    src = FrameInputs(frames).draw(lengths, torch.Generator().manual_seed(2))
    assert src[1, 1:].isnan().all()
    expected = adapter(torch.from_numpy(frames.encode(src.numpy())), lengths)
    own = ScaledInput(adapter, frames)
    torch.testing.assert_close(own(src, lengths), expected)
    assert own.lengths(lengths).tolist() == adapter.lengths(lengths).tolist()


@pytest.mark.parametrize("stack", [1, 2, 3])
def test_sources_are_as_long_as_positions_ask_for(stack):
    frames, positions = replace(FRAMES, stack=stack), torch.tensor([5, 1, 11])
    lengths = FrameInputs(frames).lengths(positions)
    assert frames.positions(lengths).tolist() == [5, 1, 11]


def test_exported_programs_take_the_digits_that_training_takes():
    side = {"columns": ["a"], "look_back": 1}
    rows = SeriesRows(Path(), {"tokenizers": {"source": side}})
    assert rows.encode(["a\n", "1.5\n"]).tolist() == [[1.5]]
    shown = number_texts([[1e12 + 1.25, math.nan], [2 / 3]], [2.0, 1.0])
    assert shown == ["1000000000001.25", "nan", "0.666667"]
    with pytest.raises(ValueError, match="line 2: the columns must hold numbers"):
        rows.encode(["a\n", "1_0\n"])
