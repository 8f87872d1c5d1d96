"""Language models, and the adapter by which training and decoding use them."""

from dataclasses import dataclass
from typing import cast, final

import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor, nn

from regard.models.causal_body import BodyOutput, CausalBody
from regard.models.embedding import OutputLayer, TokenEmbedding
from regard.models.protocol import (
    Keep,
    Lengths,
    Memory,
    ModelOutput,
    SequenceModel,
    Src,
    StepOutput,
    Tgt,
    check_source,
    positions_of,
    real_lengths,
)
from regard.ops.check import check_axes
from regard.state import State


@dataclass(frozen=True)
class LanguageState(State):
    """The state of the body, and the number of tokens it has read."""

    body: State
    position: int


@final
class LanguageModel(nn.Module):
    """Scores the next token after each token of a text.

    Args:
        embedding: of the tokens.
        body: reads them.
        dropout: probability of dropping a feature before the output layer.
        tied: whether the output layer shares the table of the embedding.
        learns_bias: whether the biases of the logits are learned, or stay as they are.
        reads_bos: whether all tokens know of the `bos` before them, or the first one alone.

    Examples:
        >>> model = regard.models.LANGUAGE_MODELS["transformer"](vocab=11, size="tiny")
        >>> model(torch.tensor([[1, 5, 7]])).logits.shape
        torch.Size([1, 3, 11])
    """

    def __init__(
        self,
        embedding: TokenEmbedding,
        body: CausalBody,
        *,
        dropout: float = 0.0,
        tied: bool = False,
        learns_bias: bool = True,
        reads_bos: bool = True,
    ) -> None:
        super().__init__()
        self.embedding, self.body, self.reads_bos = embedding, body, reads_bos
        self.output = OutputLayer(
            body.output_size, embedding, dropout=dropout, tied=tied, learns_bias=learns_bias
        )

    def start(self, batch: int) -> State:
        """Return the state before the first token."""
        return LanguageState(self.body.start(batch, self.embedding.table.weight), 0)

    def step(
        self, tokens: Int[Tensor, " batch"], state: State, *, need_weights: bool = False
    ) -> StepOutput:
        """Read the newest token of each row and score the next one."""
        check_axes("tokens", tokens, "batch")
        out = self.forward(tokens[:, None], state, need_weights=need_weights)
        return out._replace(logits=out.logits[:, 0])

    def forward(
        self,
        tokens: Int[Tensor, "batch length"],
        state: State | None = None,
        *,
        keep: Keep = None,
        need_weights: bool = False,
    ) -> StepOutput:
        """Return logits (batch, length, vocab) after `state`; position t scores token t + 1.

        With `keep`, only these positions are scored, (kept, vocab), row by row.
        """
        before = cast(LanguageState, self.start(len(tokens)) if state is None else state)
        out = self._read(tokens, before, need_weights=need_weights)
        after = LanguageState(out.state, before.position + tokens.shape[1])
        maps = {f"decoder-{kind}": tensors for kind, tensors in out.maps.items()}
        return StepOutput(self.output(out.output, self.embedding, keep), after, maps)

    def _read(
        self, tokens: Int[Tensor, "batch length"], before: LanguageState, *, need_weights: bool
    ) -> BodyOutput:
        """Return what the body makes of tokens; a `bos` that is not read has weights of 0."""
        start = before.position - (not self.reads_bos and before.position > 0)
        first = tokens if self.reads_bos or before.position else tokens[:, :1]
        x = self.embedding(first, start=start)
        out: BodyOutput = self.body(x, before.body, need_weights=need_weights)
        if self.reads_bos:
            return out
        if before.position:
            maps = {k: tuple(F.pad(m, (1, 0)) for m in layers) for k, layers in out.maps.items()}
            return out._replace(maps=maps)
        if tokens.shape[1] == 1:
            return out._replace(state=before.body)
        x = self.embedding(tokens[:, 1:])
        rest: BodyOutput = self.body(x, before.body, need_weights=need_weights)
        maps = {
            kind: tuple(
                torch.cat([F.pad(a, (0, b.shape[3])), F.pad(b, (1, 0))], dim=2)
                for a, b in zip(layers, rest.maps[kind], strict=True)
            )
            for kind, layers in out.maps.items()
        }
        return BodyOutput(torch.cat([out.output, rest.output], dim=1), rest.state, maps)


@final
class TextModel(SequenceModel):
    """A language model behind the protocol of sequence models.

    A source must be given, as to every model, but its tokens are ignored.

    Args:
        language: scores the next token.

    Examples:
        >>> language = regard.models.LANGUAGE_MODELS["rnn"](vocab=11, size="tiny")
        >>> model = regard.models.TextModel(language)
        >>> model(torch.tensor([[2]]), None, torch.tensor([[1, 5, 7]])).logits.shape
        torch.Size([1, 3, 11])
    """

    def __init__(self, language: LanguageModel) -> None:
        super().__init__()
        self.language = language

    @property
    def tgt_positions(self) -> int | None:
        """The number of learned positions; None if unlimited."""
        most = positions_of(self.language)
        return most if most is None or self.language.reads_bos else most + 1

    def encode(self, src: Src, lengths: Lengths, *, need_weights: bool = False) -> Memory:
        """Return a memory of width 0: the source is not read."""
        check_source(src, lengths)
        nothing = self.language.embedding.table.weight.new_empty(*src.shape, 0)
        return Memory(nothing, real_lengths(src, lengths))

    def start(self, memory: Memory) -> State:
        """Return the state before the first token."""
        return self.language.start(len(memory.lengths))

    def step(
        self, tokens: Int[Tensor, " batch"], state: State, *, need_weights: bool = False
    ) -> StepOutput:
        """Read the newest token of each row and score the next one."""
        return self.language.step(tokens, state, need_weights=need_weights)

    def forward(
        self, src: Src, lengths: Lengths, tgt: Tgt, *, keep: Keep = None, need_weights: bool = False
    ) -> ModelOutput:
        """Score all next tokens at once, given the right ones before them."""
        check_source(src, lengths)
        out: StepOutput = self.language(tgt, keep=keep, need_weights=need_weights)
        return ModelOutput(out.logits, out.maps)
