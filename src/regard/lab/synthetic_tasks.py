"""Synthetic tasks that test one ability of a model each and generate any number of examples.

All examples of a batch have the same length, so that nothing is padded. The target of a position
that has no answer is `IGNORED`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from regard.errors import ArgumentError
from regard.symbols import BOS, EOS

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
