"""A reader that answers a question with a span of the passage, which it points at.

The reader is after DrQA (Chen et al., 2017, https://aclanthology.org/P17-1171): passage tokens with
their matches in the question and its aligned embedding, bidirectional LSTMs, and bilinear scores of
where the answer starts and ends; with a second layer over attention to the question as in BiDAF
(Seo et al., 2017, https://arxiv.org/abs/1611.01603).

It is a sequence model: the probability of a text is the sum over all spans that read so (Kadlec et
al., 2016, https://aclanthology.org/P16-1086), and that of the next token follows from it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Final, cast, final

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard import masks
from regard.errors import ArgumentError
from regard.layers import RNNStack
from regard.layers.dropout import Dropout
from regard.models.adapters import read_source
from regard.models.decoders import Decoder, DecoderOutput
from regard.models.embedding import TokenEmbedding
from regard.models.encoders import Encoder
from regard.models.pointer_decoder import merge_equal_tokens
from regard.models.protocol import Keep, Lengths, Maps, Memory, Src, Tgt, select_positions
from regard.ops.check import check_equal, check_positive, half_of
from regard.ops.primitives import masked_softmax
from regard.ops.recurrence.scores import Cell
from regard.state import OF_SOURCE, State
from regard.symbols import EOS, PAD

#: probability of a token that no span reads next
LEAST: Final = 1e-9
#: tokens around each in which matches are averaged
WINDOWS: Final = (5, 15, 41)
#: numbers about a token's matches in the question: alone, with its left and with its right
#: neighbour, weighed by rarity, and the mean of that in each window
MATCHES: Final = 4 + len(WINDOWS)


@final
class ReaderEncoder(Encoder):
    """Reads a passage, a mark, a question and `eos`; the output is of all tokens.

    The summary is the question: its tokens, pooled by attention.
    """

    folded: Tensor

    def __init__(
        self,
        embedding: TokenEmbedding,
        hidden: int,
        *,
        cell: Cell = "lstm",
        layers: int = 1,
        dropout: float = 0.0,
        folded: Sequence[int] | None = None,
    ) -> None:
        super().__init__()
        check_positive(hidden=hidden, layers=layers)
        vocab, dim = embedding.vocab, embedding.dim
        if folded is not None:
            check_equal("agree in tokens", folded=len(folded), vocab=vocab)
        self.embedding, self.mark = embedding, vocab - 1
        self.dropout = Dropout(dropout)
        self.align = nn.Linear(dim, dim)
        self.input_size = dim
        first = 2 * dim + MATCHES + 1
        stack = partial(
            RNNStack,
            hidden_size=half_of(hidden=hidden),
            cell=cell,
            bidirectional=True,
            dropout=dropout,
        )
        self.lower = stack(first, num_layers=layers)
        self.attend = nn.Linear(hidden, hidden, bias=False)
        self.upper = stack(3 * hidden)
        self.pooling = nn.Linear(hidden, 1)
        self.output_size = self.summary_size = hidden
        table = range(vocab) if folded is None else folded
        # follows from the vocabulary, so that no file of weights needs it
        self.register_buffer("folded", torch.tensor(list(table)), persistent=False)

    def forward(self, src: Src, lengths: Lengths, *, need_weights: bool = False) -> Memory:
        """Encode the passage and the question."""
        x, real, tokens = read_source(self.embedding, src, lengths)
        assert tokens is not None
        asked = question_tokens(tokens, real, self.mark)
        aligned = self._aligned(x, asked)
        found = matches(self.folded[tokens], asked)
        # ids are sorted by how often tokens, or the merges that make them, were seen
        rarity = (1 + tokens).log() / math.log(2 + self.mark)
        inside = masks.padding(real, tokens.shape[1])[:, 0, 0] & ~asked
        rare = found[..., 0] * rarity * inside
        flags = torch.cat([found, rare[..., None], *averages(rare), asked[..., None]], dim=-1)
        lower, _ = self.lower(torch.cat([x, aligned, flags.to(x.dtype)], dim=-1), real)
        lower = self.dropout(lower)
        mask = asked[:, None, None]
        scores = self.attend(lower) @ lower.mT
        seen = masked_softmax(scores[:, None], mask)[:, 0] @ lower
        upper, _ = self.upper(torch.cat([lower, seen, lower * seen], dim=-1), real)
        weights = masked_softmax(self.pooling(lower).mT[:, None], mask)[:, 0]
        question = (weights @ lower)[:, 0]
        return Memory(self.dropout(upper), real, question, tokens=tokens)

    def _aligned(self, x: Tensor, asked: Tensor) -> Tensor:
        """Return for each token the embeddings of question tokens like it (DrQA, section 3.2)."""
        projected = F.relu(self.align(x))
        scores = projected @ projected.mT * x.shape[-1] ** -0.5
        return masked_softmax(scores[:, None], asked[:, None, None])[:, 0] @ x


def question_tokens(
    tokens: Int[Tensor, "batch src_len"], lengths: Int[Tensor, " batch"], mark: int
) -> Bool[Tensor, "batch src_len"]:
    """Return whether each token is part of the question: after the mark, before `eos`."""
    after = (tokens == mark).cumsum(dim=1) > 0
    real = masks.padding(lengths, tokens.shape[1])[:, 0, 0]
    return after & real & (tokens != mark) & (tokens != EOS)


def matches(
    tokens: Int[Tensor, "batch src_len"], asked: Bool[Tensor, "batch src_len"]
) -> Float[Tensor, "batch src_len 3"]:
    """Return whether each token stands in the question, alone or with one of its neighbours."""
    same = (tokens[:, :, None] == tokens[:, None, :]) & asked[:, None, :]
    before = same[:, 1:, 1:] & same[:, :-1, :-1]
    found = [same, F.pad(before, (1, 0, 1, 0)), F.pad(before, (0, 1, 0, 1))]
    return torch.stack([each.any(dim=2) for each in found], dim=-1).float()


def averages(x: Float[Tensor, "batch src_len"]) -> list[Float[Tensor, "batch src_len 1"]]:
    """Return the means of the numbers around each position, one for each of `WINDOWS`."""
    return [F.avg_pool1d(x[:, None], size, stride=1, padding=size // 2).mT for size in WINDOWS]


@dataclass(frozen=True)
class SpanState(State):
    """Probabilities of spans, and the spans that read as what was written so far.

    Attributes:
        spans: probability of each span, by its first token and its length less one.
        tokens: those of the source.
        alive: starts of spans that begin with what was written.
        position: number of tokens that were read, `bos` included.
    """

    spans: Float[Tensor, "batch src_len longest"] = field(metadata=OF_SOURCE)
    tokens: Int[Tensor, "batch src_len"] = field(metadata=OF_SOURCE)
    alive: Bool[Tensor, "batch src_len"]
    position: int


@final
class SpanDecoder(Decoder):
    """Writes the tokens of a span of the passage, then `eos`.

    With s_i and e_j the scores of its first and last token and b_n that of its length, a span has
    the probability `softmax(s_i + e_j + b_{j-i})` over all spans of the passage.
    """

    copies_source: ClassVar = True

    def __init__(self, vocab: int, width: int, *, longest: int = 20) -> None:
        super().__init__()
        check_positive(vocab=vocab, width=width, longest=longest)
        self.vocab, self.longest = vocab, longest
        self.first, self.last = (nn.Linear(width, width) for _ in range(2))
        self.length = nn.Parameter(torch.zeros(longest))

    def start(self, memory: Memory) -> State:
        """Return the probabilities of all spans."""
        if memory.tokens is None:
            raise ArgumentError(
                "memory", "have the tokens of the passage", "without them", "have the encoder keep"
            )
        tokens, question = memory.tokens, cast(Tensor, memory.summary)
        with torch.autocast(memory.output.device.type, enabled=False):
            output = memory.output.to(torch.promote_types(memory.output.dtype, torch.float32))
            query = question.to(output.dtype)
            # weights may be of half precision, too
            asked = (
                F.linear(query, layer.weight.to(query.dtype), layer.bias.to(query.dtype))
                for layer in (self.first, self.last)
            )
            s, e = ((output @ asking[..., None])[..., 0] for asking in asked)
            ends = F.pad(e, (0, self.longest - 1)).unfold(1, self.longest, 1)
            scores = s[..., None] + ends + self.length
            valid = valid_spans(tokens, memory.lengths, self.vocab, self.longest)
            flat = masked_softmax(scores.flatten(1)[:, None, None], valid.flatten(1)[:, None, None])
        return SpanState(flat.view_as(scores), tokens, torch.ones_like(tokens, dtype=torch.bool), 0)

    def forward(
        self, tokens: Tgt, state: State, *, keep: Keep = None, need_weights: bool = False
    ) -> DecoderOutput:
        """Return the log-probabilities of next tokens; the map is where these stand."""
        state = cast(SpanState, state)
        written, ended, places = [], [], []
        for token in tokens.unbind(dim=1):
            state = _read(state, token)
            more, end, place = _next(state)
            written.append(more)
            ended.append(end)
            places.append(place)
        emitted, eos = torch.stack(written, dim=1), torch.stack(ended, dim=1)
        total = (emitted.sum(dim=-1) + eos)[..., None].clamp_min(torch.finfo(eos.dtype).tiny)
        merged = merge_equal_tokens(emitted, state.tokens, self.vocab) / total
        ids = state.tokens[:, None].expand_as(merged)
        parts = (merged, ids, eos / total[..., 0])
        merged, ids, eos = (select_positions(part, keep) for part in parts)
        probs = merged.new_zeros(*merged.shape[:-1], self.vocab).scatter_add(-1, ids, merged)
        only_eos = probs.new_zeros(self.vocab)
        only_eos[EOS].fill_(1.0)  # an assignment would synchronise with a GPU
        logits = (probs + eos[..., None] * only_eos).clamp_min(LEAST).log()
        maps: Maps = {}
        if need_weights:
            maps = {"cross": ((torch.stack(places, dim=1) / total)[:, None],)}
        return DecoderOutput(logits, state, maps)


def _read(state: SpanState, token: Int[Tensor, " batch"]) -> SpanState:
    """Return the state after a token: spans that read otherwise are out; `bos` comes first."""
    alive = state.alive
    if state.position:
        alive = alive & (shifted(state.tokens, state.position - 1) == token[:, None])
    return replace(state, alive=alive, position=state.position + 1)


def _next(state: SpanState) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mass of each place as the next token, that of the end, and the map's row."""
    at, longest = state.position - 1, state.spans.shape[2]
    spans = state.spans * state.alive[..., None]
    more = spans[..., at:].sum(dim=-1) if at < longest else spans.new_zeros(spans.shape[:2])
    emitted = _moved(more, at)
    if not 0 < at <= longest:
        nothing = spans.new_zeros(len(spans))
        return emitted, nothing, emitted
    ends = spans[..., at - 1]
    return emitted, ends.sum(dim=-1), emitted + _moved(ends, at - 1)


def _moved(mass: Float[Tensor, "batch src_len"], by: int) -> Float[Tensor, "batch src_len"]:
    """Return the mass of each start at the place so many tokens after it."""
    return F.pad(mass, (by, 0))[:, : mass.shape[1]] if by else mass


def shifted(tokens: Int[Tensor, "batch src_len"], by: int) -> Int[Tensor, "batch src_len"]:
    """Return the token so many places after each; padding beyond the end."""
    return F.pad(tokens, (0, by), value=PAD)[:, by:]


def valid_spans(
    tokens: Int[Tensor, "batch src_len"], lengths: Int[Tensor, " batch"], vocab: int, longest: int
) -> Bool[Tensor, "batch src_len longest"]:
    """Return whether each span lies in the passage and has no mark inside."""
    before = (tokens == vocab - 1).cumsum(dim=1) == 0
    real = masks.padding(lengths, tokens.shape[1])[:, 0, 0]
    inside = before & real & (tokens < vocab - 2) & (tokens != EOS)
    ahead = F.pad(inside, (0, longest - 1)).unfold(1, longest, 1)
    return ahead.long().cumprod(dim=-1).bool()
