"""Scores of forecasts against hand calculations, baselines, and calibrated quantiles."""

import numpy as np
import pytest
import torch

from regard.evaluation.forecasts import (
    ForecastSums,
    LinearBaseline,
    conformal_offsets,
    pinball,
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
    assert np.isnan(ForecastSums().scores()["coverage"])


def test_the_quantile_loss_is_least_at_the_quantile():
    values = torch.randn(4001, generator=torch.Generator().manual_seed(1))
    guesses = torch.linspace(-2, 2, 81)
    losses = [float(pinball(g.expand(4001, 1), values, (0.9,)).mean()) for g in guesses]
    assert float(guesses[int(np.argmin(losses))]) == pytest.approx(
        float(values.quantile(0.9)), abs=0.06
    )


def test_the_linear_baseline_finds_a_linear_rule():
    chance = torch.Generator().manual_seed(1)
    history = torch.randn(300, 7, 3, generator=chance)
    weight = torch.randn(7, 2, generator=chance)
    last = history[:, -1:, :2]
    future = ((history[..., :2] - last).transpose(1, 2) @ weight).transpose(1, 2) + last + 0.5
    batches = [(history[:100], future[:100]), (history[100:], future[100:])]
    found = LinearBaseline.fit(batches).forecast(history, 2)
    assert torch.allclose(found, future, atol=0.05)


def test_calibrated_quantiles_are_exceeded_as_often_as_they_say():
    chance = torch.Generator().manual_seed(1)
    levels = (0.1, 0.5, 0.9)
    right = torch.randn(2000, 1, 1, generator=chance) * 3 + 1
    wrong = torch.tensor([-1.0, 0.0, 1.0]).expand(2000, 1, 1, 3)
    offsets = conformal_offsets(right[:1000, ..., None] - wrong[:1000], levels)
    below = (right[1000:, ..., None] <= wrong[1000:] + offsets).float().mean(dim=(0, 1, 2))
    assert below.tolist() == pytest.approx(list(levels), abs=0.04)


def test_few_windows_calibrate_outwards():
    errors = torch.tensor([3.0, 1.0, 2.0]).view(3, 1, 1, 1).expand(3, 1, 1, 2)
    assert conformal_offsets(errors, (0.1, 0.9)).ravel().tolist() == [1.0, 3.0]
