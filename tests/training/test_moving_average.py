"""The moving average of the weights."""

import pytest
import torch
from torch import nn

from regard.training.optimization import ExponentialMovingAverage
from regard.training.schedule import Progress
from training.tools import assert_same, take_step, train_prepared, weights


def test_by_hand():
    module = nn.Linear(1, 1, bias=False)
    nn.init.constant_(module.weight, 4.0)
    ema = ExponentialMovingAverage(module, 0.25)
    nn.init.constant_(module.weight, 8.0)
    ema.update(1)  # (1 + 1) / (10 + 1) is less than the decay
    assert ema.average[0].item() == pytest.approx(2 / 11 * 4 + 9 / 11 * 8)
    before = ema.average[0].item()
    ema.update(50)
    assert ema.average[0].item() == pytest.approx(0.25 * before + 0.75 * 8)


def test_the_average_is_judged_and_written_and_the_weights_go_on(make_task):
    plain, progress = make_task(steps=3), Progress()
    for _ in range(3):
        take_step(plain, progress)
    averaged = make_task(steps=3, ema=0.5)
    expected = [weight.detach().clone() for weight in averaged.learner.module.parameters()]
    progress = Progress()
    for t in (1, 2, 3):
        take_step(averaged, progress)
        decay = min(0.5, (1 + t) / (10 + t))
        for mean, weight in zip(expected, averaged.learner.module.parameters(), strict=True):
            mean.mul_(decay).add_(weight.detach(), alpha=1 - decay)
    # the average is no part of the training
    assert_same(dict(plain.learner.module.state_dict()), dict(averaged.learner.module.state_dict()))
    train_prepared(averaged, progress)
    written = weights(averaged.folder.path)
    for (name, _), mean in zip(averaged.learner.module.named_parameters(), expected, strict=True):
        torch.testing.assert_close(written[name], mean)
