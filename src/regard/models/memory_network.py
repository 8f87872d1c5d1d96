"""The end-to-end memory network: a question reads the sentences of a story in several hops.

Sukhbaatar, Szlam, Weston and Fergus (2015), https://arxiv.org/abs/1503.08895. With u the vector of
the question, m_i and c_i those of sentence i, one hop is `p = softmax(u . m)`, `o = sum p_i c_i`,
`u' = u + o` (adjacent tables) or `u' = H u + o` (layer-wise); after the last hop the answer is
`softmax(W u)`. The letters are those of the paper.
"""

from dataclasses import replace
from typing import ClassVar, Final, Literal, cast, final, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard import masks
from regard.errors import ArgumentError
from regard.layers import LayerOptions, TransformerEncoderLayer
from regard.layers.dropout import Dropout
from regard.models.adapters import InputAdapter, read_source
from regard.models.encoder_only import AnswerModel
from regard.models.encoders import Encoder
from regard.models.protocol import (
    Lengths,
    Memory,
    Src,
    check_tokens,
)
from regard.ops.check import check_axes, check_choice, check_positive, check_share
from regard.ops.primitives import masked_softmax
from regard.symbols import PAD

Sharing = Literal["adjacent", "layerwise"]
#: deviation of the first weights, as in the paper
SPREAD: Final = 0.1


@final
class SentenceInput(InputAdapter):
    """Reads a table of word ids, one sentence per row, as one vector per sentence and table.

    A sentence is the sum of its words' vectors, each weighted by its place (position encoding,
    section 4.1): with J words and d features, `l_kj = (1 - j/J) - (k/d)(1 - 2j/J)`.
    """

    def __init__(self, vocab: int, dim: int, tables: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        check_positive(vocab=vocab, dim=dim, tables=tables)
        check_share(dropout=dropout)
        self.vocab, self.features, self.tables, self.dropout = vocab, dim, tables, dropout
        self.dim, self.positions = tables * dim, None
        self.table = nn.Embedding(vocab, tables * dim, padding_idx=PAD)
        nn.init.normal_(self.table.weight, std=SPREAD)
        with torch.no_grad():
            self.table.weight[PAD].zero_()

    def forward(
        self, src: Float[Tensor, "batch sentences words"], lengths: Lengths = None
    ) -> Float[Tensor, "batch sentences dim"]:
        """Return the vectors of sentences; what stands beyond `lengths` is never read."""
        check_axes("src", src, "batch sentences words")
        if src.dtype in (torch.float16, torch.bfloat16):
            raise ArgumentError(
                "src", "hold ids in float32, which are exact", src.dtype, "convert it before"
            )
        if lengths is not None:
            src = src.where(masks.padding(lengths, src.shape[1])[:, 0, 0, :, None], 0.0)
        ids = src.long()
        check_tokens("src", ids, self.vocab)
        words = ids != PAD
        if self.training and self.dropout:
            words = words & (torch.rand(ids.shape, device=ids.device) >= self.dropout)
        x = self.table(ids).unflatten(-1, (self.tables, self.features))
        weights = position_encoding(ids != PAD, self.features) * words[..., None]
        summed: Tensor = (x * weights[..., None, :].to(x.dtype)).sum(dim=2)
        return summed.flatten(2)

    def lengths(self, lengths: Int[Tensor, " batch"]) -> Int[Tensor, " batch"]:
        """Return the lengths: a sentence is a vector."""
        return lengths


def position_encoding(words: Tensor, dim: int) -> Float[Tensor, "*rows words dim"]:
    """Return the weight of each feature of each word; `words` is True at real words.

    With j the place of a word among the J of its sentence, and k a feature, both from 1:
    `l_kj = (1 - j/J) - (k/d)(1 - 2j/J)`.
    """
    place = words.cumsum(dim=-1) / words.sum(dim=-1, keepdim=True).clamp(min=1)
    feature = torch.arange(1, dim + 1, device=words.device) / dim
    j, k = place[..., None], feature
    return (1 - j) - k * (1 - 2 * j)


@final
class SentenceEncoder(Encoder):
    """Encodes the sentences of a story as memories, and the question, the last row, as a query.

    The output has the vectors of all tables of each sentence, side by side, and so has the
    question, the summary.

    Temporal encoding (section 4.1): the row of a table for the number of sentences that follow is
    added to each sentence. In training it counts some sentences that are not there (random noise).
    """

    def __init__(self, embedding: SentenceInput, *, times: int, noise: float) -> None:
        super().__init__()
        check_positive(times=times)
        check_share(noise=noise)
        self.embedding, self.times, self.noise = embedding, times, noise
        self.input_size = self.output_size = self.summary_size = embedding.dim
        self.temporal = nn.Embedding(times, embedding.dim)
        nn.init.normal_(self.temporal.weight, std=SPREAD)

    def forward(self, src: Src, lengths: Lengths, *, need_weights: bool = False) -> Memory:
        """Encode the story and the question."""
        x, real, _ = read_source(self.embedding, src, lengths)
        last = (real - 1).clamp(min=0)[:, None, None].expand(-1, 1, x.shape[2])
        question = x.gather(1, last)[:, 0]
        return Memory(x + self.temporal(self._ages(real, x.shape[1])), real, question)

    def _ages(self, lengths: Tensor, longest: int) -> Int[Tensor, "batch sentences"]:
        """Return how many sentences follow each one, before the question."""
        places = torch.arange(longest, device=lengths.device)
        ages = (lengths[:, None] - 2 - places).clamp(min=0)
        if self.training and self.noise:
            drawn = torch.rand(ages.shape, device=ages.device) < self.noise
            later = drawn & (places < lengths[:, None] - 1)
            ages = ages + later.long().flip(1).cumsum(dim=1).flip(1)
        return ages.clamp(max=self.times - 1)


#: the vector after the last hop, (batch, dim), and the weights, (batch, 1, hops, sentences)
Hops = tuple[Tensor, Tensor]


@final
class HopReader(nn.Module):
    """The hops of Sukhbaatar et al. (2015): the question reads the sentences.

    Adjacent hops share a table: the values of one are the keys of the next. Layer-wise, all hops
    have the same keys and the same values.

    Linear start (section 4.1): the first steps of training have no softmax.
    """

    def __init__(
        self, dim: int, hops: int, sharing: Sharing = "adjacent", *, linear_start: int = 0
    ) -> None:
        super().__init__()
        check_positive(dim=dim, hops=hops)
        check_choice("sharing", sharing, get_args(Sharing))
        self.dim, self.hops, self.sharing, self.linear_start = dim, hops, sharing, linear_start
        self.carry = nn.Linear(dim, dim, bias=False) if sharing == "layerwise" else None
        if linear_start:
            # part of the state of training: a run that resumes goes on counting
            self.register_buffer("steps", torch.zeros(()))

    @property
    def tables(self) -> int:
        """Number of tables that the sentences need."""
        return self.hops + 1 if self.sharing == "adjacent" else 2

    def forward(self, memory: Memory) -> Hops:
        """Return the vector of the question after all hops."""
        early = self._is_early()
        u = cast(Tensor, memory.summary)[:, : self.dim]
        mask = story_mask(memory)
        sides = (memory.output if memory.keys is None else memory.keys, memory.output)
        keys, values = (torch.split(x, self.dim, dim=-1) for x in sides)
        if self.sharing == "adjacent":
            pairs = zip(keys[:-1], values[1:], strict=True)
        else:
            pairs = zip([keys[0]] * self.hops, [values[1]] * self.hops, strict=True)
        weights = []
        for m, c in pairs:
            scores = (u[:, None] @ m.mT)[:, None]  # (batch, 1, 1, sentences)
            p = masked_softmax(scores, mask)
            weights.append(p)
            if early is not None:
                p = torch.where(early, scores.masked_fill(~mask, 0.0), p)
            o = (p[:, 0] @ c)[:, 0]
            u = o + (u if self.carry is None else self.carry(u))
        return u, torch.cat(weights, dim=2)

    def _is_early(self) -> Bool[Tensor, ""] | None:
        """Return whether this is a step without the softmax, and count it; None if none ever is."""
        if not self.linear_start:
            return None
        steps = cast(Tensor, self.steps)
        early = steps < self.linear_start
        if self.training:
            steps.add_(1)
        return early


@final
class MutualReader(nn.Module):
    """Sentences and question read each other in every hop, by one Transformer layer for all hops.

    This is the Universal Transformer of Dehghani et al. (2019), https://arxiv.org/abs/1807.03819,
    without halting, on sentences as in its experiments on stories. The weights are those of the
    question, mean over heads; it may attend to itself.
    """

    #: number of tables that the sentences need
    tables: ClassVar = 1

    def __init__(self, dim: int, hops: int, heads: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        check_positive(dim=dim, hops=hops, heads=heads)
        self.dim, self.hops = dim, hops
        self.layer = TransformerEncoderLayer(dim, heads, 4 * dim, LayerOptions(dropout=dropout))
        self.asked = nn.Parameter(torch.zeros(dim))
        self.hop = nn.Parameter(SPREAD * torch.randn(hops, dim))
        self.scale = nn.LayerNorm(dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, memory: Memory) -> Hops:
        """Return the vector of the question after all hops."""
        length = memory.output.shape[1]
        last = torch.arange(length, device=memory.lengths.device) == memory.lengths[:, None] - 1
        question = cast(Tensor, memory.summary)[:, None] + self.asked
        x = self.scale(torch.where(last[..., None], question, memory.output))
        weights = []
        for code in self.hop:
            x, (seen,) = self.layer(x + code, memory.mask, need_weights=True)
            own = seen.mean(dim=1, keepdim=True)  # (batch, 1, sentences, sentences)
            weights.append((own * last[:, None, :, None]).sum(dim=2, keepdim=True))
        vector = (self.norm(x) * last[..., None]).sum(dim=1)
        return vector, torch.cat(weights, dim=2)


def story_mask(memory: Memory) -> Bool[Tensor, "batch 1 1 sentences"]:
    """Return True at the sentences of the story: the question, the last row, is none of them."""
    return masks.padding((memory.lengths - 1).clamp(min=0), memory.output.shape[1])


@final
class MemoryNetwork(AnswerModel):
    """Writes one answer, then `eos`, after several hops over the sentences of a story.

    Its maps are `hops`, with a row for each hop, and `cross`, the same weights with a hop as a
    layer.
    """

    def __init__(
        self,
        encoder: SentenceEncoder,
        reader: HopReader | MutualReader,
        tgt_vocab: int,
        *,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        check_positive(tgt_vocab=tgt_vocab)
        self.encoder, self.reader = encoder, reader
        self.dropout = Dropout(dropout)
        self.output = nn.Linear(reader.dim, tgt_vocab)

    def encode(self, src: Src, lengths: Lengths, *, need_weights: bool = False) -> Memory:
        """Encode the story and the question; the map of the hops is made if asked for."""
        memory = super().encode(src, lengths, need_weights=need_weights)
        if not need_weights:
            return memory
        _, weights = self.reader(memory)
        return replace(memory, maps={"hops": (weights,)})

    def answers(self, memory: Memory) -> tuple[Tensor, Tensor]:
        """Score the answers; the weights are of all hops."""
        vector, weights = self.reader(memory)
        return self.output(self.dropout(vector)), weights
