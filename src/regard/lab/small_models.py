"""Train small models on synthetic tasks, with widths that give them equal parameter counts."""

import math
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar, final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Generator, Tensor, nn

from regard.errors import ArgumentError
from regard.lab.synthetic_tasks import IGNORED, DrawBatch
from regard.training.schedule import learning_rate

Built = TypeVar("Built", bound=nn.Module)

#: parameter counts that differ by less than this share count as equal
TOLERANCE: Final = 0.05
#: share of the steps in which the learning rate rises
WARMUP: Final = 0.1
#: largest norm of a gradient: plain RNNs explode without it
CLIP: Final = 1.0
#: offset of the seeds of evaluation, whose examples no training has drawn
HELD_OUT: Final = 1_000_003


@final
class TokenModel(nn.Module):
    """Token ids in, logits of classes out: an embedding, a layer over sequences, a linear map.

    Args:
        vocab: number of different tokens.
        classes: number of different answers.
        width: width of the vectors that `body` takes and returns.
        body: a module over (batch, length, width).
        answers: number of answers per position.
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
        """Return the logits, `answers` rows per token."""
        return self.from_vectors(self.embedding(tokens))

    def from_vectors(
        self, x: Float[Tensor, "batch length width"]
    ) -> Float[Tensor, "batch answers classes"]:
        """Return the logits for embedded tokens."""
        logits: Tensor = self.output(self.body(x))
        return logits.reshape(len(x), -1, self.classes)


@final
class LogitsOnly(nn.Module):
    """A wrapper that returns only the logits of a model's output."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *inputs: Tensor) -> Tensor:
        """Return the logits of all next tokens."""
        logits: Tensor = self.model(*inputs).logits
        return logits


def train(
    model: nn.Module,
    draw: DrawBatch,
    *,
    steps: int,
    lr: float,
    seed: int,
    device: torch.device,
) -> list[float]:
    """Train a model on generated batches and return the loss of each step.

    AdamW with linear warmup over the first tenth of the steps and cosine decay, gradient clipping,
    and cross entropy over the positions whose target is not `IGNORED`.

    Args:
        model: maps the inputs of a batch to logits (batch, positions, classes).
        draw: makes one batch.
        steps: number of batches.
        lr: peak learning rate.
        seed: seed of the batches and of dropout; seed the model where it is built.
        device: device to train on; the model is moved there.
    """
    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=device.type == "cuda")
    generator, losses = Generator().manual_seed(seed), []
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        for step in range(1, steps + 1):
            batch = draw(generator).to(device)
            loss = masked_loss(model(*batch.inputs), batch.targets)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.param_groups[0]["lr"] = learning_rate(
                "cosine", lr, step=step, warmup=math.ceil(WARMUP * steps), spent=step / steps
            )
            optimizer.step()
            losses.append(loss.detach())
    return [float(loss) for loss in torch.stack(losses).cpu()] if losses else []


def masked_loss(
    logits: Float[Tensor, "batch positions classes"], targets: Int[Tensor, "batch positions"]
) -> Float[Tensor, ""]:
    """Return the mean cross entropy over the positions whose target is not `IGNORED`."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


@torch.no_grad()
def accuracy(model: nn.Module, draw: DrawBatch, *, seed: int, device: torch.device) -> float:
    """Return the share of correct answers on a batch that no training has drawn."""
    model.to(device).eval()
    batch = draw(Generator().manual_seed(HELD_OUT + seed)).to(device)
    wanted = batch.targets != IGNORED
    right = (model(*batch.inputs).argmax(-1) == batch.targets) & wanted
    return int(right.sum()) / int(wanted.sum())


def seeded(seed: int, build: Callable[..., Built], *arguments: Any, **options: Any) -> Built:
    """Build a model whose initial weights depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build(*arguments, **options)


class MatchedWidth(NamedTuple):
    """A width and the parameter count of the model with it."""

    width: int
    parameters: int


def match_width(
    build: Callable[[int], nn.Module], parameters: int, *, name: str = "the model"
) -> MatchedWidth:
    """Return the width whose model comes closest to a parameter count, within `TOLERANCE`.

    Widths that `build` rejects, such as one that the heads do not divide, are skipped.

    Args:
        build: makes the model of a width; a larger width must mean more parameters.
        parameters: the wanted count.
        name: name of the model in an error.
    """
    best, width = MatchedWidth(0, 0), 1
    while best.parameters < parameters and width <= parameters:
        try:
            count = count_parameters(build, width)
        except ArgumentError:
            count = -1
        if abs(count - parameters) < abs(best.parameters - parameters):
            best = MatchedWidth(width, count)
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


def count_parameters(build: Callable[..., nn.Module], *arguments: Any) -> int:
    """Return the parameter count of the model that `build` makes, without allocating it."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in build(*arguments).parameters())
