"""Synthetic tasks, small models with equal parameter counts, and their training.

A task tests one ability of a model and generates any number of examples. All examples of a batch
have the same length, so that nothing is padded.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, TypeVar, final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Generator, Tensor, nn

from regard.errors import ArgumentError
from regard.training.schedule import learning_rate

#: target of a position without an answer; torch's cross entropy skips it
IGNORED: Final = -100


class TaskBatch(NamedTuple):
    """The inputs of a model and its target classes."""

    inputs: tuple[Tensor, ...]
    targets: Int[Tensor, "batch length"]

    def to(self, device: torch.device) -> "TaskBatch":
        """Return the batch on a device."""
        return TaskBatch(tuple(part.to(device) for part in self.inputs), self.targets.to(device))


class TokenTask(Protocol):
    """A task whose examples are drawn by the number of them and their size."""

    def draw(self, count: int, size: int, generator: Generator) -> TaskBatch:
        """Draw examples."""


DrawBatch = Callable[[int, Generator], TaskBatch]
"""Makes a random batch of a number of examples."""


@dataclass(frozen=True)
class Copy:
    """Symbols, then noise, then as many numbered questions: the answers are the symbols in order.

    Question i asks for symbol i, so that a model does not have to count its own answers.

    Attributes:
        size: number of symbols shown, of twice as many; there are as many noise tokens.
    """

    size: int = 4

    @property
    def classes(self) -> int:
        """Number of possible answers."""
        return 2 * self.size

    @property
    def vocab(self) -> int:
        """Number of tokens: symbols, then questions, then noise."""
        return 2 * self.classes + self.size

    def draw(self, count: int, distance: int, generator: Generator) -> TaskBatch:
        """Draw examples with `distance` noise tokens between the symbols and the questions."""
        symbols = integers(self.classes, (count, self.size), generator)
        first_noise = self.classes + self.size
        noise = first_noise + integers(self.classes, (count, distance), generator)
        questions = (self.classes + torch.arange(self.size)).expand(count, -1)
        tokens = torch.cat([symbols, noise, questions], dim=1)
        targets = torch.full_like(tokens, IGNORED)
        targets[:, -self.size :] = symbols
        return TaskBatch((tokens,), targets)


@dataclass(frozen=True)
class Offsets:
    """At every position, the answers are the tokens at some offsets before it.

    With several offsets, targets hold a position's answers side by side,
    `(batch, length * offsets)`.

    Attributes:
        offsets: distances back, each asked at every position.
        vocab: number of different tokens, and of possible answers.
    """

    offsets: tuple[int, ...]
    vocab: int = 8

    def draw(self, count: int, length: int, generator: Generator) -> TaskBatch:
        """Draw examples of a length; positions without such an earlier token are ignored."""
        tokens = integers(self.vocab, (count, length), generator)
        targets = torch.full((count, length, len(self.offsets)), IGNORED)
        for slot, offset in enumerate(self.offsets):
            targets[:, offset:, slot] = tokens[:, : length - offset]
        return TaskBatch((tokens,), targets.flatten(1))


def integers(below: int, shape: tuple[int, ...], generator: Generator) -> Tensor:
    """Return random integers from 0."""
    return torch.randint(below, shape, generator=generator)


Built = TypeVar("Built", bound=nn.Module)

#: parameter counts that differ by less than this share count as equal
TOLERANCE: Final = 0.05
#: share of the steps in which the learning rate rises
WARMUP: Final = 0.1
#: largest norm of a gradient: plain RNNs explode without it
CLIP: Final = 1.0
#: examples that an accuracy is measured on
EXAMPLES: Final = 256
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


def train(
    model: nn.Module,
    draw: DrawBatch,
    *,
    steps: int,
    batch: int,
    rate: float,
    seed: int,
    device: torch.device,
) -> None:
    """Train a model on generated batches.

    AdamW with linear warmup over the first tenth of the steps and cosine decay, gradient clipping,
    and cross entropy over the positions whose target is not `IGNORED`.

    Args:
        model: maps the inputs of a batch to logits (batch, positions, classes), or to an output
            that has them.
        draw: makes one batch.
        steps: number of batches.
        batch: number of examples in each.
        rate: peak learning rate.
        seed: seed of the batches and of dropout; seed the model where it is built.
        device: device to train on; the model is moved there.
    """
    model.to(device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, fused=device.type == "cuda")
    generator = Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        for step in range(1, steps + 1):
            examples = draw(batch, generator).to(device)
            output = model(*examples.inputs)
            loss = masked_loss(getattr(output, "logits", output), examples.targets)
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.param_groups[0]["lr"] = learning_rate(
                "cosine", rate, step=step, warmup=math.ceil(WARMUP * steps), spent=step / steps
            )
            optimizer.step()


def train_on_sizes(
    model: nn.Module, task: TokenTask, sizes: Sequence[int], *, seed: int, **options: Any
) -> None:
    """Train a model on a task, each batch of one of some sizes; options are those of `train`."""

    def draw(count: int, generator: Generator) -> TaskBatch:
        place = int(torch.randint(len(sizes), (1,), generator=generator)) if len(sizes) > 1 else 0
        return task.draw(count, sizes[place], generator)

    train(model, draw, seed=seed, **options)


def masked_loss(
    logits: Float[Tensor, "batch positions classes"], targets: Int[Tensor, "batch positions"]
) -> Float[Tensor, ""]:
    """Return the mean cross entropy over the positions whose target is not `IGNORED`."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED)


@torch.no_grad()
def accuracy(
    model: nn.Module, task: TokenTask, size: int, *, seed: int, device: torch.device
) -> float:
    """Return the share of correct answers on examples that no training has drawn."""
    model.to(device).eval()
    batch = task.draw(EXAMPLES, size, Generator().manual_seed(HELD_OUT + seed)).to(device)
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
