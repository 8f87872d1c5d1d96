"""Training of small models on made-up tasks, and widths that give them equal parameter counts."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar, final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Generator, Tensor, nn

from regard.errors import ArgumentError
from regard.lab.statistics import Interval
from regard.lab.tasks import IGNORED, Draw
from regard.training.optimization import learning_rate

Built = TypeVar("Built", bound=nn.Module)

TOLERANCE: Final = 0.05
"""Counts of parameters that differ by less than this share count as equal."""

WARMUP: Final = 0.1
"""The share of the steps in which the learning rate rises."""

CLIP: Final = 1.0
"""The largest norm of a gradient: plain RNNs explode without it."""

HELD_OUT: Final = 1_000_003
"""Added to the seed of an evaluation, whose examples no training of the lab has drawn."""


@final
class TokenModel(nn.Module):
    """Tokens in, scores of classes out: an embedding, a layer over sequences, a linear map.

    Args:
        vocab: how many different tokens there are.
        classes: how many different answers there are.
        width: of the vectors that `body` takes and returns.
        body: any module over (batch, length, width).
        answers: how many answers every position gives.
    """

    def __init__(
        self, vocab: int, classes: int, width: int, body: nn.Module, *, answers: int = 1
    ) -> None:
        super().__init__()
        self.classes = classes
        self.embedding = nn.Embedding(vocab, width)
        self.body = body
        self.output = nn.Linear(width, answers * classes)

    def forward(
        self, tokens: Int[Tensor, "batch length"]
    ) -> Float[Tensor, "batch answers classes"]:
        """The scores, `answers` of them per token side by side."""
        return self.read(self.embedding(tokens))

    def read(
        self, x: Float[Tensor, "batch length width"]
    ) -> Float[Tensor, "batch answers classes"]:
        """The scores, of vectors rather than of tokens."""
        scores: Tensor = self.output(self.body(x))
        return scores.reshape(len(x), -1, self.classes)


def train(
    model: nn.Module,
    draw: Draw,
    *,
    steps: int,
    lr: float,
    seed: int,
    device: torch.device,
) -> list[float]:
    """Trains a model on batches that are made as they are needed; returns the loss of each step.

    AdamW, a rate that rises over the first tenth of the steps and then falls along a cosine,
    gradients clipped, cross entropy over the positions that are asked about.

    Args:
        model: called with the inputs of a batch, it returns scores (batch, positions, classes).
        draw: makes one batch.
        steps: how many batches.
        lr: the highest rate.
        seed: of the batches alone; seed the model where it is built.
        device: where to train; the model is moved there.
    """
    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=device.type == "cuda")
    chance, losses = Generator().manual_seed(seed), []
    for step in range(1, steps + 1):
        batch = draw(chance).to(device)
        loss = masked_loss(model(*batch.inputs), batch.targets)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.param_groups[0]["lr"] = _rate(lr, step, steps)
        optimizer.step()
        losses.append(loss.detach())
    return [float(loss) for loss in torch.stack(losses).cpu()] if losses else []


def masked_loss(
    logits: Float[Tensor, "batch positions classes"], targets: Int[Tensor, "batch positions"]
) -> Float[Tensor, ""]:
    """Cross entropy per position that is asked about."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


@torch.no_grad()
def accuracy(
    model: nn.Module, draw: Draw, *, batches: int, seed: int, device: torch.device
) -> float:
    """The share of right answers on fresh examples, over the positions that are asked about."""
    model.to(device).eval()
    chance, right, asked = Generator().manual_seed(HELD_OUT + seed), 0, 0
    for _ in range(batches):
        batch = draw(chance).to(device)
        wanted = batch.targets != IGNORED
        right += int(((model(*batch.inputs).argmax(-1) == batch.targets) & wanted).sum())
        asked += int(wanted.sum())
    return right / asked


def percent(share: Interval) -> str:
    """A share of right answers with its interval, which cannot leave the range of a share."""
    low, high = max(0.0, share.low), min(1.0, share.high)
    return f"{share.mean:.0%} ({low:.0%} to {high:.0%})"


def seeded(seed: int, build: Callable[..., Built], *arguments: Any) -> Built:
    """A model whose first weights follow from the seed, whatever was drawn before."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(*arguments)


def best_rate(scores: Mapping[float, float]) -> float:
    """The learning rate of the highest score; the first of equals."""
    return max(scores, key=scores.__getitem__)


class Matched(NamedTuple):
    """A width, and how many parameters the model has with it."""

    width: int
    parameters: int


def match_width(
    build: Callable[[int], nn.Module], parameters: int, *, name: str = "the model"
) -> Matched:
    """The width whose model comes nearest to a number of parameters, within `TOLERANCE`.

    Widths that `build` refuses, as one that the heads do not divide, are passed over.

    Args:
        build: makes the model of a width; more width must mean more parameters.
        parameters: how many to come near to.
        name: what an error calls the model.
    """
    best, width = Matched(0, 0), 1
    while best.parameters < parameters and width <= parameters:
        try:
            count = count_parameters(build, width)
        except ArgumentError:
            count = -1
        if abs(count - parameters) < abs(best.parameters - parameters):
            best = Matched(width, count)
        if count > parameters:
            break
        width += 1
    if abs(best.parameters - parameters) > TOLERANCE * parameters:
        raise ArgumentError(
            name,
            f"come within {TOLERANCE:.0%} of {parameters:,} parameters at some width",
            f"{best.parameters:,} at width {best.width}, the nearest",
            "compare at a larger number of parameters, where widths are finer",
        )
    return best


def count_parameters(build: Callable[[int], nn.Module], width: int) -> int:
    """How many parameters the model of a width has, without making room for them."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build(width).parameters())


def _rate(highest: float, step: int, steps: int) -> float:
    warmup = math.ceil(WARMUP * steps)
    return learning_rate("cosine", highest, step=step, warmup=warmup, spent=step / steps)
