"""The trainings of the experiment `recall`: one family, one task, one seed at a time."""

from collections.abc import Callable, Sequence
from typing import Final

import torch
from torch import Generator

from regard.lab import families, learning
from regard.lab.experiment import Data
from regard.lab.tasks import Batch, Copy, Recall

#: examples that a number in the report is made of, per distance and seed
EXAMPLES: Final = 256
#: seed of the examples that choose a learning rate, which no number in the report is made of
VALIDATION: Final = 77

TASKS: Final[dict[str, Callable[[int], Recall | Copy]]] = {
    "recall": lambda size: Recall(size, 2 * size, 2 * size, 2 * size),
    "copy": lambda size: Copy(size, 2 * size, 2 * size),
}


def model(told: dict[str, str], task: Recall | Copy, width: int) -> learning.TokenModel:
    """A family's layer between an embedding and a linear map."""
    return learning.TokenModel(task.vocab, task.classes, width, families.build(told, width))


def run(
    *,
    family: dict[str, str],
    task: str,
    size: int,
    width: int,
    rate: float,
    seed: int,
    steps: int,
    batch: int,
    distances: Sequence[int],
    farther: Sequence[int],
    device: torch.device,
) -> Data:
    """One training at random distances: right answers and gradients at each, seen and farther."""
    asks = TASKS[task](size)
    learner = learning.seeded(seed, model, family, asks, width).to(device)
    before = [gradient_left(learner, asks, distance, device) for distance in distances]

    def draw(chance: Generator) -> Batch:
        place = int(torch.randint(len(distances), (1,), generator=chance))
        return asks.draw(batch, distances[place], chance)

    learning.train(learner, draw, steps=steps, lr=rate, seed=seed, device=device)

    def right(distance: int, examples: int) -> float:
        def draw(chance: Generator) -> Batch:
            return asks.draw(EXAMPLES, distance, chance)

        return learning.accuracy(learner, draw, batches=1, seed=examples, device=device)

    return {
        "accuracy": [right(distance, seed) for distance in [*distances, *farther]],
        "validation": sum(right(d, VALIDATION) for d in distances) / len(distances),
        "before": before,
        "after": [gradient_left(learner, asks, distance, device) for distance in distances],
    }


def gradient_left(
    learner: learning.TokenModel, task: Recall | Copy, distance: int, device: torch.device
) -> float:
    """The gradient of the loss at the first token, as a share of that at the last one."""
    batch = task.draw(64, distance, Generator().manual_seed(VALIDATION)).to(device)
    learner.train()  # cuDNN has no gradient of an RNN otherwise; nothing here drops anything
    vectors = learner.embedding(batch.inputs[0]).detach().requires_grad_()
    loss = learning.masked_loss(learner.read(vectors)[:, -1:], batch.targets[:, -1:])
    (gradient,) = torch.autograd.grad(loss, vectors)
    first, last = (gradient[:, place].norm(dim=-1).mean() for place in (0, -1))
    return float(first / last.clamp(min=torch.finfo(last.dtype).tiny))
