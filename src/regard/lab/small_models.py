"""Train small models on synthetic tasks, with widths that give them equal parameter counts.

Synthetic tasks that test one ability of a model each and generate any number of examples.

All examples of a batch have the same length, so that nothing is padded. The target of a position
that has no answer is `IGNORED`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeVar, final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Generator, Tensor, nn

from regard.errors import ArgumentError
from regard.symbols import BOS, EOS
from regard.training.schedule import learning_rate

#: target of a position without an answer; torch's cross entropy skips it
IGNORED: Final = -100
#: token ids below this are pad, bos, eos and unk, for tasks that go through the presets
FIRST_WORD: Final = 4


class TaskBatch(NamedTuple):
    """The inputs of a model and its target classes."""

    inputs: tuple[Tensor, ...]
    targets: Int[Tensor, "batch length"]

    def to(self, device: torch.device) -> "TaskBatch":
        """Return the batch on a device."""
        return TaskBatch(tuple(part.to(device) for part in self.inputs), self.targets.to(device))


DrawBatch = Callable[[Generator], TaskBatch]
"""Makes one random batch."""


@dataclass(frozen=True)
class Recall:
    """Key-value pairs, then noise, then one of the keys: the answer is its value.

    A pair is one token, so that a model does not have to bind two tokens first.

    Attributes:
        pairs: number of pairs shown; their keys differ.
        keys: number of different keys.
        values: number of different values.
        noise: number of different noise tokens.
    """

    pairs: int = 4
    keys: int = 8
    values: int = 8
    noise: int = 8

    def __post_init__(self) -> None:
        if self.pairs > self.keys:
            raise ArgumentError(
                "pairs", f"be at most keys = {self.keys}", self.pairs, "each pair has its own key"
            )

    @property
    def vocab(self) -> int:
        """Number of tokens: pairs, then questions, then noise."""
        return self.keys * self.values + self.keys + self.noise

    @property
    def classes(self) -> int:
        """Number of possible answers."""
        return self.values

    def draw(self, count: int, distance: int, generator: Generator) -> TaskBatch:
        """Draw examples with `distance` noise tokens between the pairs and the question."""
        order = torch.rand(count, self.keys, generator=generator).argsort(1)[:, : self.pairs]
        values = _integers(self.values, (count, self.pairs), generator)
        asked = _integers(self.pairs, (count, 1), generator)
        first_noise = self.keys * self.values + self.keys
        noise = first_noise + _integers(self.noise, (count, distance), generator)
        question = self.keys * self.values + order.gather(1, asked)
        tokens = torch.cat([order * self.values + values, noise, question], dim=1)
        targets = torch.full_like(tokens, IGNORED)
        targets[:, -1:] = values.gather(1, asked)
        return TaskBatch((tokens,), targets)


@dataclass(frozen=True)
class Copy:
    """Symbols, then noise, then as many numbered questions: the answers are the symbols in order.

    Question i asks for symbol i, so that a model does not have to count its own answers.

    Attributes:
        span: number of symbols shown.
        symbols: number of different symbols.
        noise: number of different noise tokens.
    """

    span: int = 4
    symbols: int = 8
    noise: int = 8

    @property
    def vocab(self) -> int:
        """Number of tokens: symbols, then questions, then noise."""
        return self.symbols + self.span + self.noise

    @property
    def classes(self) -> int:
        """Number of possible answers."""
        return self.symbols

    def draw(self, count: int, distance: int, generator: Generator) -> TaskBatch:
        """Draw examples with `distance` noise tokens between the symbols and the questions."""
        symbols = _integers(self.symbols, (count, self.span), generator)
        noise = self.symbols + self.span + _integers(self.noise, (count, distance), generator)
        questions = (self.symbols + torch.arange(self.span)).expand(count, -1)
        tokens = torch.cat([symbols, noise, questions], dim=1)
        targets = torch.full_like(tokens, IGNORED)
        targets[:, -self.span :] = symbols
        return TaskBatch((tokens,), targets)


@dataclass(frozen=True)
class Offsets:
    """At every position, the answers are the tokens at some offsets before it.

    With several offsets, targets hold a position's answers side by side,
    `(batch, length * offsets)`.

    Attributes:
        offsets: distances back, each asked at every position.
        vocab: number of different tokens.
    """

    offsets: tuple[int, ...]
    vocab: int = 8

    @property
    def classes(self) -> int:
        """Number of possible answers."""
        return self.vocab

    def draw(self, count: int, length: int, generator: Generator) -> TaskBatch:
        """Draw examples of a length; positions without such an earlier token are ignored."""
        tokens = _integers(self.vocab, (count, length), generator)
        targets = torch.full((count, length, len(self.offsets)), IGNORED)
        for slot, offset in enumerate(self.offsets):
            targets[:, offset:, slot] = tokens[:, : length - offset]
        return TaskBatch((tokens,), targets.flatten(1))


@dataclass(frozen=True)
class Rewriting:
    """Sources and translations for the presets, with one translation per word.

    Attributes:
        name: word order of the translation, one of `ORDERS`.
        words: number of different words.
    """

    name: str
    words: int = 16

    @property
    def vocab(self) -> int:
        """Number of tokens of either side: pad, bos, eos, unk and the words."""
        return FIRST_WORD + self.words

    def pairs(self, count: int, length: int, generator: Generator) -> tuple[Tensor, Tensor]:
        """Draw sources and their translations as token ids without bos and eos."""
        source = _integers(self.words, (count, length), generator)
        return FIRST_WORD + source, FIRST_WORD + ORDERS[self.name](source, self.words)

    def draw(self, count: int, length: int, generator: Generator) -> TaskBatch:
        """Draw examples as inputs of a preset: source, lengths, target starting with bos."""
        source, target = self.pairs(count, length, generator)
        ends = torch.full((count, 1), EOS)
        inputs = torch.cat([torch.full_like(ends, BOS), target], dim=1)
        lengths = torch.full((count,), length)
        return TaskBatch((source, lengths, inputs), torch.cat([target, ends], dim=1))


def _word_for_word(source: Tensor, words: int) -> Tensor:
    """Translate word w to word w + 1, in its place."""
    return (source + 1) % words


def _running_sum(source: Tensor, words: int) -> Tensor:
    """Add the word before, as in a time series."""
    before = torch.cat([torch.zeros_like(source[:, :1]), source[:, :-1]], dim=1)
    return (source + before) % words


def _neighbours_swapped(source: Tensor, words: int) -> Tensor:
    """Swap neighbours, two by two; a last word without a neighbour stays."""
    order = torch.arange(source.shape[1])
    even = source.shape[1] // 2 * 2
    order[:even] = order[:even].view(-1, 2).flip(1).flatten()
    return _word_for_word(source[:, order], words)


def _last_word_second(source: Tensor, words: int) -> Tensor:
    """Move the last word to the second place, as a German verb moves in English."""
    moved = torch.cat([source[:, :1], source[:, -1:], source[:, 1:-1]], dim=1)
    return _word_for_word(moved[:, : source.shape[1]], words)


#: word orders of `Rewriting`
ORDERS: Final[dict[str, Callable[[Tensor, int], Tensor]]] = {
    "word for word": _word_for_word,
    "running sum": _running_sum,
    "neighbours swapped": _neighbours_swapped,
    "last word second": _last_word_second,
}


def _integers(below: int, shape: tuple[int, ...], generator: Generator) -> Tensor:
    return torch.randint(below, shape, generator=generator)


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
