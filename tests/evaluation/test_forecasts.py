"""Scores of forecasts against hand calculations, baselines, and calibrated quantiles."""

import numpy as np
import pytest
import torch

from regard.evaluation.forecasts import (
    ForecastSums,
    LinearBaseline,
    WindowMoments,
    conformal_offsets,
    repeat_last,
    seasonal_naive,
)

HISTORY = torch.arange(2 * 5 * 3.0).view(2, 5, 3)


def test_naive_forecasts():
    assert repeat_last(HISTORY, 2, 1)[:, :, 0].tolist() == [[12, 12], [27, 27]]
    found = seasonal_naive(HISTORY, 5, 2, 2)
    assert found[0, :, 0].tolist() == [9, 12, 9, 12, 9]
    assert found.shape == (2, 5, 2)


def test_scores_by_hand():
    sums = ForecastSums((0.1, 0.9))
    point, right = torch.tensor([[[1.0], [2.0]]]), torch.tensor([[[2.0], [0.0]]])
    sums.add(point, right, torch.tensor([[[[0.0, 3.0]], [[1.0, 3.0]]]]))
    found = sums.scores()
    assert found["mse"] == 2.5
    assert found["mae"] == 1.5
    # 2 in (0, 3): (0.1 * 2 + 0.1 * 1) / 2; 0 in (1, 3): (0.9 * 1 + 0.1 * 3) / 2
    assert found["quantile loss"] == pytest.approx((0.15 + 0.6) / 2)
    assert found["coverage"] == 0.5
    alone = ForecastSums((0.9,))  # one quantile has nothing on its other side
    alone.add(point, right, torch.ones(1, 2, 1, 1))
    assert np.isnan([alone.scores()["coverage"], ForecastSums().scores()["coverage"]]).all()


def windows(rows, size):
    """All windows of one series each, cut one by one."""
    cut = [rows[i : i + size, j] for j in range(rows.shape[1]) for i in range(len(rows) - size + 1)]
    return np.stack(cut)


def oscillations(rows, seed=1, noise=0.0):
    """Two series in which each row follows from the two rows before it, up to noise."""
    chance = np.random.default_rng(seed)
    found = chance.normal(size=(rows, 2))
    for i in range(2, rows):
        found[i] = 1.9 * found[i - 1] - found[i - 2] + noise * found[i]
    return found


def test_moments_are_those_of_all_windows():
    chance = np.random.default_rng(1)
    stretches = [chance.normal(size=(rows, 3)) for rows in (31, 11, 4)]  # the last has no window
    found = WindowMoments.of(stretches, look_back=5, steps=2)
    every = np.concatenate([windows(rows, 7) for rows in stretches[:2]])
    every = np.insert(every, 5, 1.0, axis=1)
    assert found.windows == len(every) == 3 * (25 + 5)
    assert np.allclose(found.products, every.T @ every)


def test_the_linear_baseline_finds_a_linear_rule():
    rows = oscillations(61) + 5
    scaled = torch.tensor((rows - rows.mean(0)) / rows.std(0), dtype=torch.float32)
    baseline = LinearBaseline.fit(WindowMoments.of([scaled.numpy()], look_back=7, steps=3))
    found = baseline.forecast(scaled[None, 20:27], 2)
    assert torch.allclose(found, scaled[None, 27:30], atol=0.05)


def test_calibrated_quantiles_are_exceeded_as_often_as_they_say():
    chance = torch.Generator().manual_seed(1)
    levels = (0.1, 0.5, 0.9)
    right = torch.randn(2000, 1, 1, generator=chance) * 3 + 1
    wrong = torch.tensor([-1.0, 0.0, 1.0]).expand(2000, 1, 1, 3)
    offsets = conformal_offsets(right[:1000, ..., None] - wrong[:1000], levels)
    below = (right[1000:, ..., None] <= wrong[1000:] + offsets).float().mean(dim=(0, 1, 2))
    assert below.tolist() == pytest.approx(list(levels), abs=0.04)
