"""Language models, and the adapter by which training and decoding use them."""

from dataclasses import dataclass
from typing import cast, final

from jaxtyping import Int
from torch import Tensor, nn

from regard.models.causal_body import CausalBody
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
    ) -> None:
        super().__init__()
        self.embedding, self.body = embedding, body
        self.output = OutputLayer(body.output_size, embedding, dropout=dropout, tied=tied)

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
        x = self.embedding(tokens, start=before.position)
        out = self.body(x, before.body, need_weights=need_weights)
        after = LanguageState(out.state, before.position + tokens.shape[1])
        maps = {f"decoder-{kind}": tensors for kind, tensors in out.maps.items()}
        return StepOutput(self.output(out.output, self.embedding, keep), after, maps)


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
        return positions_of(self.language)

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
