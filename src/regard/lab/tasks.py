"""Made-up tasks that ask one thing each of a model, and make as many examples as are wanted.

Every example of a batch has the same length, so that nothing is padded. Where nothing is asked the
target is `IGNORED`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch
from jaxtyping import Int
from torch import Generator, Tensor

from regard.errors import ArgumentError
from regard.symbols import BOS, EOS

IGNORED: Final = -100
"""The target of a position that is not asked about; the one that torch's cross entropy skips."""

SYMBOLS: Final = 4
"""Token ids below this are pad, bos, eos and unk, for tasks that go through the presets."""


class Batch(NamedTuple):
    """What a model is called with, and the classes it should give, `IGNORED` where none."""

    inputs: tuple[Tensor, ...]
    targets: Int[Tensor, "batch length"]

    def to(self, device: torch.device) -> "Batch":
        """The same batch on a device."""
        return Batch(tuple(part.to(device) for part in self.inputs), self.targets.to(device))


Draw = Callable[[Generator], Batch]
"""Makes one batch out of chance."""


@dataclass(frozen=True)
class Recall:
    """Pairs of a key and a value, then noise, then one of the keys: its value is asked.

    A pair is one token, so that no model has to put two together before it can begin.

    Attributes:
        pairs: how many are shown; their keys differ.
        keys: how many different keys there are.
        values: how many different values there are.
        noise: how many different tokens stand between the pairs and the question.
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
        """Pairs, then questions, then noise."""
        return self.keys * self.values + self.keys + self.noise

    @property
    def classes(self) -> int:
        """An answer is a value."""
        return self.values

    def draw(self, count: int, distance: int, chance: Generator) -> Batch:
        """Examples with `distance` tokens of noise between the pairs and the question."""
        order = torch.rand(count, self.keys, generator=chance).argsort(1)[:, : self.pairs]
        values = _numbers(self.values, (count, self.pairs), chance)
        asked = _numbers(self.pairs, (count, 1), chance)
        first_noise = self.keys * self.values + self.keys
        noise = first_noise + _numbers(self.noise, (count, distance), chance)
        question = self.keys * self.values + order.gather(1, asked)
        tokens = torch.cat([order * self.values + values, noise, question], dim=1)
        targets = torch.full_like(tokens, IGNORED)
        targets[:, -1:] = values.gather(1, asked)
        return Batch((tokens,), targets)


@dataclass(frozen=True)
class Copy:
    """A few symbols, then noise, then as many numbered questions: the symbols again, in order.

    Question i asks for symbol i, so that no model has to count its own answers.

    Attributes:
        span: how many symbols are shown.
        symbols: how many different ones there are.
        noise: how many different tokens stand between the symbols and the questions.
    """

    span: int = 4
    symbols: int = 8
    noise: int = 8

    @property
    def vocab(self) -> int:
        """Symbols, then questions, then noise."""
        return self.symbols + self.span + self.noise

    @property
    def classes(self) -> int:
        """An answer is a symbol."""
        return self.symbols

    def draw(self, count: int, distance: int, chance: Generator) -> Batch:
        """Examples with `distance` tokens of noise between the symbols and the questions."""
        symbols = _numbers(self.symbols, (count, self.span), chance)
        noise = self.symbols + self.span + _numbers(self.noise, (count, distance), chance)
        questions = (self.symbols + torch.arange(self.span)).expand(count, -1)
        tokens = torch.cat([symbols, noise, questions], dim=1)
        targets = torch.full_like(tokens, IGNORED)
        targets[:, -self.span :] = symbols
        return Batch((tokens,), targets)


@dataclass(frozen=True)
class Offsets:
    """At every position, the tokens that stood so many places before are asked.

    With several offsets a position asks for several tokens; targets then hold them side by side,
    `(batch, length * offsets)`, position by position.

    Attributes:
        offsets: how many places before, each asked everywhere.
        vocab: how many different tokens there are.
    """

    offsets: tuple[int, ...]
    vocab: int = 8

    @property
    def classes(self) -> int:
        """An answer is a token."""
        return self.vocab

    def draw(self, count: int, length: int, chance: Generator) -> Batch:
        """Examples of a length; positions too early to have such a token are not asked."""
        tokens = _numbers(self.vocab, (count, length), chance)
        targets = torch.full((count, length, len(self.offsets)), IGNORED)
        for slot, offset in enumerate(self.offsets):
            targets[:, offset:, slot] = tokens[:, : length - offset]
        return Batch((tokens,), targets.flatten(1))


@dataclass(frozen=True)
class Rewriting:
    """A source and its translation, for the presets: every word has a translation of its own.

    Attributes:
        name: what the order of the words does: see `ORDERS`.
        words: how many different words there are.
    """

    name: str
    words: int = 16

    @property
    def vocab(self) -> int:
        """The words, and pad, bos, eos, unk before them; the same on both sides."""
        return SYMBOLS + self.words

    def pairs(self, count: int, length: int, chance: Generator) -> tuple[Tensor, Tensor]:
        """Sources and their translations, as token ids without bos and eos."""
        source = _numbers(self.words, (count, length), chance)
        return SYMBOLS + source, SYMBOLS + ORDERS[self.name](source, self.words)

    def draw(self, count: int, length: int, chance: Generator) -> Batch:
        """Examples as a preset takes them: source, lengths, target from bos on."""
        source, target = self.pairs(count, length, chance)
        ends = torch.full((count, 1), EOS)
        inputs = torch.cat([torch.full_like(ends, BOS), target], dim=1)
        lengths = torch.full((count,), length)
        return Batch((source, lengths, inputs), torch.cat([target, ends], dim=1))


def _word_for_word(source: Tensor, words: int) -> Tensor:
    """The translation of word w is word w + 1, in its place."""
    return (source + 1) % words


def _series(source: Tensor, words: int) -> Tensor:
    """A running quantity: what stands here plus what stood before, as in a time series."""
    before = torch.cat([torch.zeros_like(source[:, :1]), source[:, :-1]], dim=1)
    return (source + before) % words


def _swapped(source: Tensor, words: int) -> Tensor:
    """Neighbours change places, two by two; a last word without a neighbour stays."""
    order = torch.arange(source.shape[1])
    even = source.shape[1] // 2 * 2
    order[:even] = order[:even].view(-1, 2).flip(1).flatten()
    return _word_for_word(source[:, order], words)


def _verb_second(source: Tensor, words: int) -> Tensor:
    """The last word comes second, as the German verb does on its way into English."""
    moved = torch.cat([source[:, :1], source[:, -1:], source[:, 1:-1]], dim=1)
    return _word_for_word(moved[:, : source.shape[1]], words)


def _reversed(source: Tensor, words: int) -> Tensor:
    """The last word first."""
    return _word_for_word(source.flip(1), words)


ORDERS: Final[dict[str, Callable[[Tensor, int], Tensor]]] = {
    "word for word": _word_for_word,
    "running sum": _series,
    "neighbours swapped": _swapped,
    "last word second": _verb_second,
    "reversed": _reversed,
}
"""What can happen to the order of the words."""


def _numbers(below: int, shape: tuple[int, ...], chance: Generator) -> Tensor:
    return torch.randint(below, shape, generator=chance)
