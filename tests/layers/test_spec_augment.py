"""Augmentation of frames: what it changes, and what it leaves."""

import pytest
import torch

from regard.layers import SpecAugment
from regard.layers.spec_augment import resample

BATCH, FRAMES, BANDS = 3, 53, 17


@pytest.fixture
def frames():
    torch.manual_seed(0)
    return torch.rand(BATCH, FRAMES, BANDS) + 1, torch.tensor([53, 31, 7])


def test_nothing_changes_outside_training(frames):
    src, lengths = frames
    found = SpecAugment(time_masks=2, band_masks=2, speed=0.2).eval()(src, lengths)
    assert found.frames is src
    assert found.lengths is lengths


def test_masks_are_whole_frames_or_whole_bands(frames):
    src, lengths = frames
    masked = SpecAugment(time_masks=2, time_width=6).train()(src, lengths)
    zeros = masked.frames == 0
    assert (zeros.all(dim=2) == zeros.any(dim=2)).all()
    assert zeros.any()
    assert not zeros[1, 31:].any()  # nothing beyond the end
    assert (zeros.any(dim=2).sum(dim=1) <= torch.tensor([12, 12, 2])).all()  # a fifth of 7 is 1
    masked = SpecAugment(band_masks=3, band_width=2).train()(src, lengths)
    zeros = masked.frames == 0
    assert (zeros.all(dim=1) == zeros.any(dim=1)).all()
    assert 1 <= int(zeros.any(dim=1).sum(dim=1).max()) <= 6


def test_speed_changes_lengths_and_keeps_the_order():
    line = torch.arange(40.0)[None, :, None].repeat(2, 1, 3)
    factors = torch.tensor([0.8, 1.25])
    found = resample(line, torch.tensor([40, 30]), factors, longest=1.25)
    assert found.lengths.tolist() == [50, 24]
    for row, length, last in zip(found.frames, (50, 24), (39, 29), strict=True):
        real = row[:length, 0]
        assert (real.diff() >= 0).all()
        torch.testing.assert_close(
            real[1:-1].diff(), torch.full((length - 3,), (last + 1) / length)
        )
        assert real[0] >= 0
        assert real[-1] <= last
        assert not row[length:].any()


def test_an_empty_and_a_short_source_stay_finite():
    src = torch.full((2, 5, 3), float("nan"))
    src[1, :1] = 1.0
    layer = SpecAugment(time_masks=2, band_masks=1, speed=0.5).train()
    found = layer(src, torch.tensor([0, 1]))
    assert (found.lengths >= 1).all()
    assert found.frames[1].isfinite().all()
