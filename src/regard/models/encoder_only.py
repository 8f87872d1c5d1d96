"""Heads for tasks other than turning one sequence into another of its own length."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple, cast, final

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from regard.attention import AdditiveAttention
from regard.models.encoders import Encoder
from regard.models.protocol import (
    Keep,
    Lengths,
    Maps,
    Memory,
    ModelOutput,
    SequenceModel,
    Src,
    StepOutput,
    select_positions,
)
from regard.ops.check import check_axes, check_positive
from regard.state import OF_SOURCE, State
from regard.symbols import EOS

# How sure a tagger is of `eos` after its last tag; finite in float16, and exact in a softmax.
CERTAIN = 1e4


@dataclass(frozen=True)
class TaggerState(State):
    """The scores of every position, and the position that is next."""

    logits: Float[Tensor, "batch src_len tgt_vocab"] = field(metadata=OF_SOURCE)
    lengths: Int[Tensor, " batch"] = field(metadata=OF_SOURCE)
    position: int


@final
class Tagger(SequenceModel):
    """One output per input, and then the end: the word-by-word model.

    Decoding sees it as it sees every model: step t scores the tag of source token t, whatever came
    before, and `eos` after the last one. It also asks for `tgt_lengths`, and never ends before.

    Args:
        encoder: what reads the source.
        tgt_vocab: number of different tags, the symbols included.
        dropout: probability of dropping a feature before the output layer.
    """

    def __init__(self, encoder: Encoder, tgt_vocab: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        check_positive(tgt_vocab=tgt_vocab)
        self.encoder = encoder
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(encoder.output_size, tgt_vocab)

    def encode(
        self,
        src: Src,
        lengths: Lengths,
        *,
        need_weights: bool = False,
    ) -> Memory:
        """Reads the source."""
        memory: Memory = self.encoder(src, lengths, need_weights=need_weights)
        return memory

    def start(self, memory: Memory) -> State:
        """Scores all positions: no step depends on another."""
        return TaggerState(self.output(self.dropout(memory.output)), memory.lengths, 0)

    def tgt_lengths(self, memory: Memory) -> Int[Tensor, " batch"]:
        """One tag for each source token; `eos` at the end of a source is none."""
        lengths, tokens = memory.lengths, memory.tokens
        if tokens is None:
            return lengths
        last = (lengths - 1).clamp(min=0)[:, None]
        ends = (tokens.gather(1, last).squeeze(1) == EOS) & (lengths > 0)
        return lengths - ends.long()

    def step(
        self, tokens: Int[Tensor, " batch"], state: State, *, need_weights: bool = False
    ) -> StepOutput:
        """The scores of the next position; `tokens` changes nothing."""
        check_axes("tokens", tokens, "batch")
        state = cast(TaggerState, state)
        logits = _from_position(state, 1)[:, 0]
        return StepOutput(logits, replace(state, position=state.position + 1), {})

    def forward(
        self,
        src: Src,
        lengths: Lengths,
        tgt: Int[Tensor, "batch tgt_len"],
        *,
        keep: Keep | None = None,
        need_weights: bool = False,
    ) -> ModelOutput:
        """The scores of the first `tgt_len` positions; what `tgt` holds changes nothing."""
        memory = self.encode(src, lengths, need_weights=need_weights)
        state = cast(TaggerState, self.start(memory))
        logits = _from_position(state, tgt.shape[1])
        scored = logits if keep is None else select_positions(logits, keep)
        return ModelOutput(scored, memory.maps, lengths=memory.lengths)


def _from_position(state: TaggerState, count: int) -> Float[Tensor, "batch count tgt_vocab"]:
    """Scores of `count` positions, those after the end of a source being all for `eos`."""
    logits, first = state.logits, state.position
    here = logits[:, first : first + count]
    missing = count - here.shape[1]
    here = torch.cat([here, logits.new_zeros(len(logits), missing, logits.shape[2])], dim=1)
    positions = torch.arange(first, first + count, device=logits.device)
    ended = positions >= state.lengths[:, None]  # (batch, count)
    only_eos = torch.full_like(here[0, 0], -CERTAIN)
    only_eos[EOS].fill_(CERTAIN)  # an assignment would wait for a GPU
    return torch.where(ended[..., None], only_eos, here)


class ClassifierOutput(NamedTuple):
    """Logits (batch, classes); what the pooling looked at, and where the encoder looked."""

    logits: Tensor
    weights: Tensor | None
    maps: Maps


@final
class Classifier(nn.Module):
    """One output per source: attention pools the memory, with a query that is learned.

    The pooling is that of Yang et al. (2016), https://aclanthology.org/N16-1174, section 2.2.

    Args:
        encoder: what reads the source.
        classes: number of different outputs.
        hidden_size: width of the network that scores the tokens.
        dropout: probability of dropping a feature before the output layer.
    """

    def __init__(
        self, encoder: Encoder, classes: int, *, hidden_size: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        check_positive(classes=classes, hidden_size=hidden_size)
        dim = encoder.output_size
        self.encoder = encoder
        self.query = nn.Parameter(torch.randn(1, 1, dim) * dim**-0.5)
        self.pooling = AdditiveAttention(dim, dim, hidden_size)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(dim, classes)

    def forward(
        self,
        src: Src,
        lengths: Lengths,
        *,
        need_weights: bool = False,
    ) -> ClassifierOutput:
        """Scores the classes; `weights` is (batch, 1, 1, src_len), one row over the source."""
        memory: Memory = self.encoder(src, lengths, need_weights=need_weights)
        query = self.query.to(memory.output.dtype).expand(len(src), -1, -1)
        context, weights = self.pooling(
            query, memory.output, memory.output, memory.mask, need_weights=need_weights
        )
        logits = self.output(self.dropout(context[:, 0]))
        return ClassifierOutput(logits, weights, memory.maps)
