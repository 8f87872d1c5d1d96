"""Encoder-only models: a tagger, and a classifier with attentive pooling."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple, cast, final

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.attention import AdditiveAttention
from regard.models.embedding import positions_of
from regard.models.encoders import Encoder
from regard.models.ngram_bag import NgramBag
from regard.models.protocol import (
    Keep,
    Lengths,
    Maps,
    Memory,
    ModelOutput,
    NumberModel,
    NumberOutput,
    SequenceModel,
    Src,
    StepOutput,
    Tgt,
    select_positions,
)
from regard.ops.check import check_axes, check_positive
from regard.state import OF_SOURCE, State
from regard.symbols import EOS, SYMBOLS, UNK

# Logit of `eos` after the last tag or label: finite in float16, and exactly 1 after a softmax.
CERTAIN = 1e4
# Logit of a symbol in place of a label: 0 after a softmax, and a loss that a dev set can average.
IMPROBABLE = -100.0


@dataclass(frozen=True)
class TaggerState(State):
    """The logits of every position, and the position that is next."""

    logits: Float[Tensor, "batch src_len tgt_vocab"] = field(metadata=OF_SOURCE)
    lengths: Int[Tensor, " batch"] = field(metadata=OF_SOURCE)
    position: int


@final
class Tagger(SequenceModel):
    """Writes one output per source token, then `eos`.

    Decoding runs it like every model: step t scores the tag of source token t, whatever came
    before, and `eos` after the last one. `tgt_lengths` tells decoding not to end before.

    Args:
        encoder: reads the source.
        tgt_vocab: number of different tags, the symbols included.
        dropout: probability of dropping a feature before the output layer.

    Examples:
        >>> model = regard.models.PRESETS["rnn"](src_vocab=11, tgt_vocab=13, size="tiny")
        >>> model(torch.tensor([[5, 7, 4]]), None, torch.tensor([[1, 6, 8]])).logits.shape
        torch.Size([1, 3, 13])
    """

    def __init__(self, encoder: Encoder, tgt_vocab: int, *, dropout: float = 0.0) -> None:
        super().__init__()
        check_positive(tgt_vocab=tgt_vocab)
        self.encoder = encoder
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(encoder.output_size, tgt_vocab)

    def encode(self, src: Src, lengths: Lengths, *, need_weights: bool = False) -> Memory:
        """Encode the source."""
        memory: Memory = self.encoder(src, lengths, need_weights=need_weights)
        return memory

    def start(self, memory: Memory) -> State:
        """Score all positions: no step depends on another."""
        return TaggerState(self.output(self.dropout(memory.output)), memory.lengths, 0)

    def tgt_lengths(self, memory: Memory) -> Int[Tensor, " batch"]:
        """Return the number of source tokens, without an `eos` at the end of a source."""
        lengths, tokens = memory.lengths, memory.tokens
        if tokens is None:
            return lengths
        last = (lengths - 1).clamp(min=0)[:, None]
        ends = (tokens.gather(1, last).squeeze(1) == EOS) & (lengths > 0)
        return lengths - ends.long()

    def step(
        self, tokens: Int[Tensor, " batch"], state: State, *, need_weights: bool = False
    ) -> StepOutput:
        """Return the scores of the next position, whatever `tokens` is."""
        check_axes("tokens", tokens, "batch")
        state = cast(TaggerState, state)
        logits = _from_position(state, 1)[:, 0]
        return StepOutput(logits, replace(state, position=state.position + 1), {})

    def forward(
        self, src: Src, lengths: Lengths, tgt: Tgt, *, keep: Keep = None, need_weights: bool = False
    ) -> ModelOutput:
        """Return the scores of the first `tgt_len` positions, whatever tokens `tgt` holds."""
        memory = self.encode(src, lengths, need_weights=need_weights)
        state = cast(TaggerState, self.start(memory))
        logits = select_positions(_from_position(state, tgt.shape[1]), keep)
        return ModelOutput(logits, memory.maps, lengths=memory.lengths)


def _from_position(state: TaggerState, count: int) -> Float[Tensor, "batch count tgt_vocab"]:
    """Return the scores of `count` positions; after the end of a source they are all for `eos`."""
    logits, first = state.logits, state.position
    here = logits[:, first : first + count]
    missing = count - here.shape[1]
    here = torch.cat([here, logits.new_zeros(len(logits), missing, logits.shape[2])], dim=1)
    positions = torch.arange(first, first + count, device=logits.device)
    ended = positions >= state.lengths[:, None]  # (batch, count)
    return torch.where(ended[..., None], only_eos(here[0, 0]), here)


def only_eos(like: Float[Tensor, " tgt_vocab"]) -> Float[Tensor, " tgt_vocab"]:
    """Return logits by which `eos` is certain."""
    only_eos = torch.full_like(like, -CERTAIN)
    only_eos[EOS].fill_(CERTAIN)  # an assignment would synchronise with a GPU
    return only_eos


class ClassifierOutput(NamedTuple):
    """Logits (batch, classes), the weights of the pooling, and the maps of the encoder.

    Examples:
        >>> classifier = regard.models.CLASSIFIERS["transformer"](11, 3, size="tiny")
        >>> logits, weights, maps = classifier(torch.tensor([[5, 7, 2]]), None, need_weights=True)
        >>> list(maps)
        ['encoder-self']
    """

    logits: Tensor
    weights: Tensor | None
    maps: Maps


@final
class Classifier(nn.Module):
    """Writes one output per source: attention with a learned query pools the memory.

    The pooling is that of Yang et al. (2016), https://aclanthology.org/N16-1174, section 2.2.

    Args:
        encoder: reads the source.
        classes: number of different outputs.
        hidden_size: width of the network that scores the tokens.
        dropout: probability of dropping a feature before the output layer.
        bag: n-grams of the source that have a share of the output, outside of training.

    Examples:
        >>> classifier = regard.models.CLASSIFIERS["rnn"](src_vocab=11, classes=3, size="tiny")
        >>> out = classifier(torch.tensor([[5, 7, 4, 2]]), None, need_weights=True)
        >>> out.logits.shape, out.weights.shape
        (torch.Size([1, 3]), torch.Size([1, 1, 1, 4]))
    """

    def __init__(
        self,
        encoder: Encoder,
        classes: int,
        *,
        hidden_size: int,
        dropout: float = 0.0,
        bag: NgramBag | None = None,
    ) -> None:
        super().__init__()
        check_positive(classes=classes, hidden_size=hidden_size)
        dim = encoder.output_size
        self.encoder = encoder
        self.query = nn.Parameter(torch.randn(1, 1, dim) * dim**-0.5)
        self.pooling = AdditiveAttention(dim, dim, hidden_size)
        self.dropout = nn.Dropout(dropout)
        self.output = nn.Linear(dim, classes)
        self.bag = bag

    def forward(
        self, src: Src, lengths: Lengths, *, need_weights: bool = False
    ) -> ClassifierOutput:
        """Score the classes; `weights` is (batch, 1, 1, src_len), one row over the source."""
        memory: Memory = self.encoder(src, lengths, need_weights=need_weights)
        return self.classify(memory, need_weights=need_weights)

    def classify(self, memory: Memory, *, need_weights: bool = False) -> ClassifierOutput:
        """Score the classes of an encoded source."""
        query = self.query.to(memory.output.dtype).expand(memory.output.shape[0], -1, -1)
        context, weights = self.pooling(
            query, memory.output, memory.output, memory.mask, need_weights=need_weights
        )
        logits = self.output(self.dropout(context[:, 0]))
        if self.bag is not None and memory.tokens is not None and not self.training:
            votes = self.bag(memory.tokens, memory.lengths)  # float32, whatever autocast says
            logits = torch.lerp(logits.to(votes.dtype), votes, self.bag.share)
        return ClassifierOutput(logits, weights, memory.maps)


@final
class Regressor(NumberModel):
    """Predicts one number per source: a classifier whose only output is the number.

    The map `cross` has the weights of the pooling.

    Args:
        classifier: with one class.
    """

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.classifier = classifier

    @property
    def encoder(self) -> Encoder:
        """The classifier's encoder."""
        return self.classifier.encoder

    @property
    def src_positions(self) -> int | None:
        """The number of learned positions of the encoder; None if unlimited."""
        return positions_of(self.encoder.embedding)

    def forward(
        self,
        src: Src,
        lengths: Lengths,
        tgt: Float[Tensor, "batch steps targets"] | None = None,
        *,
        need_weights: bool = False,
    ) -> NumberOutput:
        """Predict the number of each source, whatever `tgt` holds."""
        logits, weights, maps = self.classifier(src, lengths, need_weights=need_weights)
        if weights is not None:
            maps = maps | {"cross": (weights,)}
        return NumberOutput(logits[:, None, :, None], torch.ones_like(logits), maps)


@dataclass(frozen=True)
class LabelState(State):
    """The logits of the label, the weights by which its source was pooled, and tokens written."""

    logits: Float[Tensor, "batch tgt_vocab"] = field(metadata=OF_SOURCE)
    weights: Float[Tensor, "batch 1 1 src_len"] = field(metadata=OF_SOURCE)
    written: Int[Tensor, " batch"]


class ClassifierModel(SequenceModel):
    """A classifier behind the protocol of sequence models, whose tokens are labels.

    Args:
        classifier: scores as many classes as the vocabulary of the targets has tokens.
    """

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.classifier = classifier

    @property
    def encoder(self) -> Encoder:
        """The classifier's encoder."""
        return self.classifier.encoder

    @property
    def src_positions(self) -> int | None:
        """The number of learned positions of the encoder; None if unlimited."""
        return positions_of(self.encoder.embedding)

    def encode(self, src: Src, lengths: Lengths, *, need_weights: bool = False) -> Memory:
        """Encode the source."""
        memory: Memory = self.encoder(src, lengths, need_weights=need_weights)
        return memory


@final
class SequenceClassifier(ClassifierModel):
    """A classifier behind the protocol of sequence models: it writes one label, then `eos`.

    The vocabulary of its targets is the symbols and the labels. Symbols have logits of their own,
    which take their share of label smoothing; outside of training only labels have a probability.
    The map `cross` has the weights of the pooling in its first row, and no weights after it.

    Args:
        classifier: scores as many classes as the vocabulary of the targets has tokens.

    Examples:
        >>> classifier = regard.models.CLASSIFIERS["rnn"](src_vocab=11, classes=7, size="tiny")
        >>> model = regard.models.SequenceClassifier(classifier).eval()
        >>> model(torch.tensor([[5, 7, 2]]), None, torch.tensor([[1, 6]])).logits.shape
        torch.Size([1, 2, 7])
    """

    def start(self, memory: Memory) -> State:
        """Score the labels: no step depends on another."""
        logits, weights, _ = self._labels(memory, need_weights=True)
        assert weights is not None
        return LabelState(logits, weights, torch.zeros_like(memory.lengths))

    def tgt_lengths(self, memory: Memory) -> Int[Tensor, " batch"]:
        """Return 1: the label."""
        return torch.ones_like(memory.lengths)

    def step(
        self, tokens: Int[Tensor, " batch"], state: State, *, need_weights: bool = False
    ) -> StepOutput:
        """Return the scores of the labels, and `eos` after one, whatever `tokens` is."""
        check_axes("tokens", tokens, "batch")
        state = cast(LabelState, state)
        ended = state.written > 0
        logits = torch.where(ended[:, None], only_eos(state.logits[0]), state.logits)
        maps: Maps = {}
        if need_weights:
            maps = {"cross": (state.weights.masked_fill(ended[:, None, None, None], 0.0),)}
        return StepOutput(logits, replace(state, written=state.written + 1), maps)

    def forward(
        self, src: Src, lengths: Lengths, tgt: Tgt, *, keep: Keep = None, need_weights: bool = False
    ) -> ModelOutput:
        """Return the scores of the labels, then `eos`, whatever tokens `tgt` holds."""
        memory = self.encode(src, lengths, need_weights=need_weights)
        label, weights, maps = self._labels(memory, need_weights=need_weights)
        after = tgt.shape[1] - 1
        ends = only_eos(label[0]).expand(len(label), after, -1)
        logits = torch.cat([label[:, None], ends], dim=1)
        if weights is not None:
            maps = maps | {"cross": (F.pad(weights, (0, 0, 0, after)),)}
        certain = torch.arange(tgt.shape[1], device=tgt.device).expand(tgt.shape) > 0
        return ModelOutput(
            select_positions(logits, keep),
            maps,
            lengths=memory.lengths,
            certain=select_positions(certain, keep),
        )

    def _labels(self, memory: Memory, *, need_weights: bool) -> ClassifierOutput:
        """Score the labels; outside of training, symbols are out of the question."""
        out = self.classifier.classify(memory, need_weights=need_weights)
        if self.training:
            return out
        symbols = torch.arange(out.logits.shape[1], device=out.logits.device) < len(SYMBOLS)
        return out._replace(logits=out.logits.masked_fill(symbols, IMPROBABLE))


@dataclass(frozen=True)
class LabelSetState(State):
    """The logits of all labels, the weights of the pooling, and which labels are written."""

    logits: Float[Tensor, "batch tgt_vocab"] = field(metadata=OF_SOURCE)
    weights: Float[Tensor, "batch 1 1 src_len"] = field(metadata=OF_SOURCE)
    written: Bool[Tensor, "batch tgt_vocab"]


@final
class LabelSetClassifier(ClassifierModel):
    """Writes each label above a threshold, the likeliest first, then `eos`.

    Labels do not exclude each other: each has a probability of its own, the sigmoid of its logit.
    A greedy search, which compares one label at a time with `eos`, finds all above the threshold.
    The log-probabilities of the tokens of a target, in any order, and of its `eos`, that no other
    label holds, sum to the binary cross-entropy of all labels, with the sign reversed.

    Args:
        classifier: scores as many classes as the vocabulary of the targets has tokens.
    """

    threshold: Tensor

    def __init__(self, classifier: Classifier) -> None:
        super().__init__(classifier)
        self.register_buffer("threshold", torch.tensor(0.5))

    def start(self, memory: Memory) -> State:
        """Score the labels: no step depends on another."""
        logits, weights, _ = self._labels(memory, need_weights=True)
        assert weights is not None
        return LabelSetState(logits, weights, torch.zeros_like(logits, dtype=torch.bool))

    def step(
        self, tokens: Int[Tensor, " batch"], state: State, *, need_weights: bool = False
    ) -> StepOutput:
        """Score the likeliest label that is not written yet, and `eos` instead of it."""
        check_axes("tokens", tokens, "batch")
        state = cast(LabelSetState, state)
        written = state.written.scatter(1, tokens[:, None], True)
        best = state.logits.masked_fill(written, -CERTAIN).max(dim=1, keepdim=True)
        only_eos = torch.arange(written.shape[1], device=written.device) == EOS
        logits = torch.where(only_eos, 0.0, -CERTAIN).to(best.values).expand(written.shape)
        logits = logits.scatter(1, best.indices, best.values - self.threshold.logit())
        maps: Maps = {"cross": (state.weights,)} if need_weights else {}
        return StepOutput(logits, replace(state, written=written), maps)

    def forward(
        self, src: Src, lengths: Lengths, tgt: Tgt, *, keep: Keep = None, need_weights: bool = False
    ) -> ModelOutput:
        """Score each label of `tgt` by itself, in its place, and `eos` against all others."""
        memory = self.encode(src, lengths, need_weights=need_weights)
        scores, weights, maps = self._labels(memory, need_weights=need_weights)
        others = scores.masked_fill(
            torch.zeros_like(scores, dtype=torch.bool).scatter(1, tgt, True), -CERTAIN
        )
        none = F.logsigmoid(-others).sum(dim=1, keepdim=True).clamp(max=-1e-30)
        ends = none - torch.log(-torch.expm1(none))  # the logit of their probability
        after = F.pad(tgt[:, 1:], (0, 1))
        is_label = after >= UNK
        place = torch.where(is_label, after, others.argmax(dim=1, keepdim=True))
        logits = scores.new_full((*tgt.shape, scores.shape[1]), -CERTAIN)
        own = torch.where(is_label, scores.gather(1, after), 0.0)
        logits = logits.scatter(2, place[..., None], own[..., None])
        stop = torch.where(is_label, 0.0, ends)
        logits = logits.scatter(2, torch.full_like(place, EOS)[..., None], stop[..., None])
        if weights is not None:
            maps = maps | {"cross": (weights.expand(-1, -1, tgt.shape[1], -1),)}
        return ModelOutput(select_positions(logits, keep), maps, lengths=memory.lengths)

    def _labels(self, memory: Memory, *, need_weights: bool) -> ClassifierOutput:
        """Score the labels in float32 at least; symbols are improbable."""
        out = self.classifier.classify(memory, need_weights=need_weights)
        wide = out.logits.to(torch.promote_types(out.logits.dtype, torch.float32))
        symbols = torch.arange(wide.shape[1], device=wide.device) < len(SYMBOLS)
        return out._replace(logits=wide.masked_fill(symbols, IMPROBABLE))
