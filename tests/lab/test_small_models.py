import math

import pytest
import torch
from torch import Tensor, nn

from regard.errors import ArgumentError
from regard.lab import small_models
from regard.lab.small_models import IGNORED, Offsets, TaskBatch

CPU = torch.device("cpu")


def model() -> small_models.TokenModel:
    return small_models.TokenModel(20, 8, 13, nn.Identity())


class Drawn:
    """A task that notes what it draws, and asks for the token itself in every other place."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def draw(self, count: int, size: int, generator: torch.Generator) -> TaskBatch:
        tokens = torch.randint(8, (count, size), generator=generator)
        self.seen.append(hash(tuple(tokens.flatten().tolist())))
        targets = tokens.clone()
        targets[:, ::2] = IGNORED
        return TaskBatch((tokens,), targets)


def test_a_model_learns_what_it_is_shown_and_is_judged_on_other_examples():
    learner, task = small_models.seeded(1, model), Drawn()
    before = small_models.accuracy(learner, task, 6, seed=3, device=CPU)
    settings = {"steps": 60, "batch": 17, "rate": 0.05, "seed": 3, "device": CPU}
    small_models.train_on_sizes(learner, task, [6], **settings)
    assert before < 0.5
    assert small_models.accuracy(learner, task, 6, seed=3, device=CPU) == 1.0
    assert len(set(task.seen)) == 61


def test_sizes_are_drawn_anew_for_each_batch():
    shapes = []

    class Noted:
        def draw(self, count, size, generator):
            shapes.append((count, size))
            return Offsets((1,)).draw(count, size, generator)

    settings = {"steps": 30, "batch": 3, "rate": 0.01, "seed": 0, "device": CPU}
    small_models.train_on_sizes(small_models.seeded(1, model), Noted(), range(5, 8), **settings)
    assert {*shapes} == {(3, 5), (3, 6), (3, 7)}


def test_only_positions_that_are_asked_count():
    logits = torch.tensor([[[0.0, 0.0], [5.0, -5.0]]])
    loss = small_models.masked_loss(logits, torch.tensor([[1, IGNORED]]))
    assert loss.item() == pytest.approx(math.log(2))


class Always(nn.Module):
    """Says the same class everywhere."""

    def forward(self, tokens: Tensor) -> Tensor:
        return nn.functional.one_hot(torch.full_like(tokens, 3), 8).float()


def test_accuracy_counts_asked_positions_alone():
    class Given:
        def draw(self, count, size, generator):
            targets = torch.tensor([[3, 1, IGNORED], [3, 3, IGNORED]])
            return TaskBatch((torch.zeros(2, 3, dtype=torch.int64),), targets)

    assert small_models.accuracy(Always(), Given(), 3, seed=0, device=CPU) == 0.75


def test_widths_are_matched_by_parameters():
    # a linear map of width w to itself has w * w + w parameters: 110 at 10
    matched = small_models.match_width(lambda width: nn.Linear(width, width), 112)
    assert matched == (10, 110)


def test_a_count_that_no_width_reaches_is_an_error():
    with pytest.raises(ArgumentError, match="come within 5% of 100 parameters"):
        small_models.match_width(lambda width: nn.Linear(width, width), 100)
