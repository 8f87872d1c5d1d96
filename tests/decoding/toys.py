"""A model whose probabilities are a table, so that all its targets can be listed."""

import itertools
import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from regard.decoding import DecodingOptions, decode
from regard.models.protocol import Memory, ModelOutput, SequenceModel, StepOutput
from regard.state import State
from regard.symbols import BOS, EOS, UNK

HEADS = 2


@dataclass(frozen=True)
class ToyState(State):
    source: Tensor  # the first token of the source picks the table
    lengths: Tensor
    code: Tensor  # the target so far, as a number
    width: int


class Toy(SequenceModel):
    """`logits[source, prefix]` and `looks[source, prefix]` are drawn once, and never again."""

    def __init__(self, vocab: int, max_len: int, *, sources: int = 7, src_len: int = 5, seed=0):
        super().__init__()
        draw = torch.Generator().manual_seed(seed)
        self.vocab, self.max_len = vocab, max_len
        self.words = vocab - UNK
        prefixes = sum(self.words**n for n in range(max_len + 1))
        self.logits = 2 * torch.randn(sources, prefixes, vocab, generator=draw, dtype=torch.float64)
        self.looks = torch.randn(
            sources, prefixes, HEADS, src_len, generator=draw, dtype=torch.float64
        )
        self.rows_per_step: list[int] = []

    def encode(self, src, lengths, *, need_weights=False):
        return Memory(src[..., None].double(), lengths)

    def start(self, memory):
        first = memory.output[:, 0, 0].long()
        width = memory.output.shape[1]
        return ToyState(first, memory.lengths, torch.zeros_like(first), width)

    def step(self, tokens, state, *, need_weights=False):
        self.rows_per_step.append(len(tokens))
        # bos is the only token that may come first, and no prefix has it later
        code = torch.where(tokens == BOS, 0, state.code * self.words + tokens - EOS)
        code = code.clamp(0, self.logits.shape[1] - 1)  # for lanes without a hypothesis
        real = torch.arange(state.width) < state.lengths[:, None]
        scores = self.looks[state.source, code, :, : state.width]
        scores = scores.masked_fill(~real[:, None], float("-inf"))
        weights = scores.softmax(-1).nan_to_num(0.0)[:, :, None]
        after = ToyState(state.source, state.lengths, code, state.width)
        maps = {"cross": (weights,)} if need_weights else {}
        return StepOutput(self.logits[state.source, code].clone(), after, maps)

    def forward(self, src, lengths, tgt, *, keep=None, need_weights=False):
        state, logits, rows = self.start(self.encode(src, lengths)), [], []
        for tokens in tgt.unbind(1):
            out = self.step(tokens, state, need_weights=True)
            state = out.state
            logits.append(out.logits)
            rows.append(out.maps["cross"][0])
        maps = {"cross": (torch.cat(rows, dim=2),)} if need_weights else {}
        return ModelOutput(torch.stack(logits, dim=1), maps)

    def log_prob(self, source: int, tokens: tuple[int, ...]) -> float:
        """Of the target with its end, term by term."""
        return sum(self.terms(source, tokens))

    def terms(self, source: int, tokens: tuple[int, ...]) -> list[float]:
        terms = []
        for place, token in enumerate((*tokens, EOS)):
            row = self.logits[source, self._code(tokens[:place])].tolist()
            terms.append(row[token] - math.log(sum(map(math.exp, row))))
        return terms

    def look(self, source: int, tokens: tuple[int, ...], length: int) -> Tensor:
        """Where it looks, (steps, length): mean over the heads."""
        rows = [
            self.looks[source, self._code(tokens[:place]), :, :length].softmax(-1).mean(0)
            for place in range(len(tokens) + 1)
        ]
        return torch.stack(rows)

    def all_targets(self, max_len: int | None = None) -> list[tuple[int, ...]]:
        words = range(UNK, self.vocab)
        lengths = range((self.max_len if max_len is None else max_len) + 1)
        return [target for n in lengths for target in itertools.product(words, repeat=n)]

    def _code(self, prefix: tuple[int, ...]) -> int:
        code = 0
        for token in prefix:
            code = code * self.words + token - EOS
        return code


def greedy(model, src, lengths, options=None, **more):
    """The likeliest token at every step."""
    options = replace(options or DecodingOptions(), beam=1, nbest=1)
    return decode(model, src, lengths, options, **more)


def sources(*firsts: int, length: int = 5) -> tuple[Tensor, Tensor]:
    """Sources whose first token picks the table, all of full length."""
    src = torch.full((len(firsts), length), 6)
    src[:, 0] = torch.tensor(firsts)
    return src, torch.full((len(firsts),), length)
