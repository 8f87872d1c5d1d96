import math

import pytest
import torch
from torch import Tensor, nn

from regard.errors import ArgumentError
from regard.lab import small_models
from regard.lab.small_models import IGNORED, Copy, DrawBatch, TaskBatch

CPU = torch.device("cpu")


def model() -> small_models.TokenModel:
    return small_models.TokenModel(20, 8, 13, nn.Identity())


def same_token(count: int = 17) -> DrawBatch:
    """Asks for the token itself, in every other place."""

    def draw(chance: torch.Generator) -> TaskBatch:
        tokens = torch.randint(8, (count, 6), generator=chance)
        targets = tokens.clone()
        targets[:, ::2] = IGNORED
        return TaskBatch((tokens,), targets)

    return draw


def test_a_model_learns_what_it_is_shown():
    learner = small_models.seeded(1, model)
    losses = small_models.train(learner, same_token(), steps=60, lr=0.05, seed=3, device=CPU)
    assert len(losses) == 60
    assert losses[-1] < 0.1 < losses[0]
    assert small_models.accuracy(learner, same_token(), seed=3, device=CPU) == 1.0


def test_only_positions_that_are_asked_count():
    logits = torch.tensor([[[0.0, 0.0], [5.0, -5.0]]])
    loss = small_models.masked_loss(logits, torch.tensor([[1, IGNORED]]))
    assert loss.item() == pytest.approx(math.log(2))


class Always(nn.Module):
    """Says the same class everywhere."""

    def forward(self, tokens: Tensor) -> Tensor:
        return nn.functional.one_hot(torch.full_like(tokens, 3), 8).float()


def test_accuracy_counts_asked_positions_alone():
    def draw(chance: torch.Generator) -> TaskBatch:
        targets = torch.tensor([[3, 1, IGNORED], [3, 3, IGNORED]])
        return TaskBatch((torch.zeros(2, 3, dtype=torch.int64),), targets)

    assert small_models.accuracy(Always(), draw, seed=0, device=CPU) == 0.75


def test_evaluation_draws_other_examples_than_training():
    drawn = []

    def draw(chance: torch.Generator) -> TaskBatch:
        drawn.append(torch.rand(1, generator=chance).item())
        return Copy().draw(1, 1, chance)

    learner = small_models.seeded(1, model)
    small_models.train(learner, draw, steps=2, lr=0.01, seed=0, device=CPU)
    small_models.accuracy(learner, draw, seed=0, device=CPU)
    assert len(set(drawn)) == 3


def test_widths_are_matched_by_parameters():
    # a linear map of width w to itself has w * w + w parameters: 110 at 10
    matched = small_models.match_width(lambda width: nn.Linear(width, width), 112)
    assert matched == (10, 110)


def test_a_count_that_no_width_reaches_is_an_error():
    with pytest.raises(ArgumentError, match="come within 5% of 100 parameters"):
        small_models.match_width(lambda width: nn.Linear(width, width), 100)
