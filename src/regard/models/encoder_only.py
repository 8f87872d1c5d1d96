"""Encoder-only models: a tagger, and a classifier with attentive pooling."""

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import ClassVar, NamedTuple, cast, final

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.attention import AdditiveAttention
from regard.layers.dropout import Dropout
from regard.models.encoders import Encoder
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
    real_lengths,
    select_positions,
)
from regard.ops.check import check_axes, check_positive
from regard.state import OF_SOURCE, State
from regard.symbols import EOS, PAD, SYMBOLS, UNK

# The hash of an n-gram: that of its beginning times the one, plus its last token, modulo the other.
MULTIPLIER, MODULUS = 1_000_003, 2**31 - 1
# Rows of neighbours for each token of the vocabulary, and the most numbers of a table of votes.
ROWS_PER_TOKEN, LARGEST_TABLE = 8, 1 << 19
# The share of n-grams beside a network that few examples have made too certain.
SHARE = 0.75


class Ngrams(NamedTuple):
    """The n-grams of each source as numbers, the shortest first; `real` is False for padding."""

    keys: Int[Tensor, "batch ngrams"]
    real: Bool[Tensor, "batch ngrams"]


@final
class NgramBag(nn.Module):
    """Votes of the n-grams of a source: of its tokens, and of neighbours, which are hashed.

    Each n-gram has a vote for each class, weighted by its inverse document frequency; their sum is
    divided by the Euclidean norm of the weights. It is linear in the n-grams, so that each vote is
    an exact contribution. Nothing here is trained by gradients: a baseline is fitted, and stored.

    Beside a network it has a share of the output, `(1 - share) network + share bag`; of logits that
    is a log-linear pool. The network learns alone, as if there were no bag: together it would learn
    little, since n-grams explain their training data almost fully.

    Examples:
        >>> from regard.models.encoder_only import NgramBag
        >>> NgramBag(vocab=11, classes=3)(torch.tensor([[5, 7, 2]]), None).shape
        torch.Size([1, 3])
    """

    marks: Tensor
    idf: Tensor
    votes: Tensor
    bias: Tensor
    share: Tensor

    def __init__(self, vocab: int, classes: int, order: int = 2) -> None:
        super().__init__()
        check_positive(vocab=vocab, classes=classes, order=order)
        self.vocab, self.order = vocab, order
        self.buckets = max(1024, min(ROWS_PER_TOKEN * vocab, LARGEST_TABLE // classes))
        rows = vocab + (self.buckets if order > 1 else 0)
        self.register_buffer("marks", torch.zeros(rows))
        self.register_buffer("idf", torch.zeros(rows))
        self.register_buffer("votes", torch.zeros(rows, classes))
        self.register_buffer("bias", torch.zeros(classes))
        self.register_buffer("share", torch.tensor(SHARE))

    def ngrams(self, tokens: Int[Tensor, "batch src_len"], lengths: Lengths) -> Ngrams:
        """Return the n-grams of sources: ids of tokens, and hashes after these of neighbours."""
        count = torch.arange(tokens.shape[1], device=tokens.device)
        here = (count < real_lengths(tokens, lengths)[:, None]) & (tokens != EOS)
        keys, real, hashes = [tokens], [here], tokens
        for length in range(2, self.order + 1):
            hashes = (hashes[:, :-1] * MULTIPLIER + tokens[:, length - 1 :]) % MODULUS
            keys.append(self.vocab + hashes)
            real.append(real[-1][:, :-1] & here[:, length - 1 :])
        both = torch.cat(real, dim=1)
        return Ngrams(torch.cat(keys, dim=1).masked_fill(~both, PAD), both)

    def rows(
        self, keys: Int[Tensor, "*shape"]
    ) -> tuple[Int[Tensor, "*shape"], Int[Tensor, "*shape"]]:
        """Return the row of the tables for each n-gram, and the mark of those that own it.

        Marks are below 256, which all floating point types hold exactly.
        """
        hashes = (keys - self.vocab).clamp(min=0)
        row = torch.where(keys < self.vocab, keys, self.vocab + hashes % self.buckets)
        return row, torch.where(keys < self.vocab, 0, 1 + hashes // self.buckets % 255)

    def forward(
        self, tokens: Int[Tensor, "batch src_len"], lengths: Lengths
    ) -> Float[Tensor, "batch classes"]:
        """Return the sum of votes for each class."""
        keys, real = self.ngrams(tokens, lengths)
        rows, marks = self.rows(keys)
        idf = self.idf[rows] * (real & (self.marks[rows] == marks))
        norm = idf.square().sum(dim=1, keepdim=True).sqrt().clamp(min=1e-6)
        return ((idf / norm)[..., None] * self.votes[rows]).sum(dim=1) + self.bias


# Numbers of a source that have votes, at most: neighbours of more are averaged.
MOST_NUMBERS = 1024


def fixed_numbers(
    src: Float[Tensor, "batch frames features"], frames: int
) -> Float[Tensor, "batch numbers"]:
    """Return the numbers of sources of one length in a row; others are cut, or end in zeros."""
    whole = F.pad(src, (0, 0, 0, max(0, frames - src.shape[1])))[:, :frames]
    joined = -(-frames * src.shape[2] // MOST_NUMBERS)
    return F.avg_pool1d(whole.mT, joined, ceil_mode=True).flatten(1)


@final
class LinearBag(nn.Module):
    """Votes of the numbers of a source, all sources being of one length: a linear map of them.

    It has a share of the output as `NgramBag` has, and is fitted as that is.

    Examples:
        >>> from regard.models.encoder_only import LinearBag
        >>> LinearBag(numbers=6, classes=3, frames=2)(torch.randn(5, 2, 3), None).shape
        torch.Size([5, 3])
    """

    weight: Tensor
    bias: Tensor
    share: Tensor

    def __init__(self, numbers: int, classes: int, frames: int = 0) -> None:
        super().__init__()
        self.frames = frames
        self.register_buffer("weight", torch.zeros(numbers, classes))
        self.register_buffer("bias", torch.zeros(classes))
        self.register_buffer("share", torch.tensor(SHARE))

    def forward(
        self, src: Float[Tensor, "batch frames features"], lengths: Lengths
    ) -> Float[Tensor, "batch classes"]:
        """Return the sum of votes for each class."""
        return fixed_numbers(src.to(self.weight.dtype), self.frames) @ self.weight + self.bias


# Logit of `eos` after the last tag or label: finite in float16, and exactly 1 after a softmax.
CERTAIN = 1e4
# Logit of a symbol in place of a label: 0 after a softmax, and a loss that a dev set can average.
IMPROBABLE = -100.0


@dataclass(frozen=True)
class TaggerState(State):
    """The logits of every position, and the position of each row that is next."""

    logits: Float[Tensor, "batch src_len tgt_vocab"] = field(metadata=OF_SOURCE)
    lengths: Int[Tensor, " batch"] = field(metadata=OF_SOURCE)
    position: Int[Tensor, " batch"]


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
        self.dropout = Dropout(dropout)
        self.output = nn.Linear(encoder.output_size, tgt_vocab)

    def start(self, memory: Memory) -> State:
        """Score all positions: no step depends on another."""
        logits = self.output(self.dropout(memory.output))
        return TaggerState(logits, memory.lengths, torch.zeros_like(memory.lengths))

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
        logits, here = state.logits, state.position
        place = here.clamp(max=logits.shape[1] - 1)[:, None, None].expand(-1, 1, logits.shape[2])
        ended = (here >= state.lengths)[:, None]
        own = logits.gather(1, place).squeeze(1)
        own = torch.where(ended, only_eos(logits[0, 0]), own)
        return StepOutput(own, replace(state, position=here + 1), {})

    def forward(
        self, src: Src, lengths: Lengths, tgt: Tgt, *, keep: Keep = None, need_weights: bool = False
    ) -> ModelOutput:
        """Return the scores of the first `tgt_len` positions, whatever tokens `tgt` holds."""
        memory = self.encode(src, lengths, need_weights=need_weights)
        count = tgt.shape[1]
        logits = self.output(self.dropout(memory.output))
        logits = F.pad(logits, (0, 0, 0, count - logits.shape[1]))  # or cut
        ended = torch.arange(count, device=logits.device) >= memory.lengths[:, None]
        logits = torch.where(ended[..., None], only_eos(logits[0, 0]), logits)
        return ModelOutput(select_positions(logits, keep), memory.maps, lengths=memory.lengths)


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
        bag: what of the source has a share of the output, outside of training: n-grams, or numbers.

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
        bag: NgramBag | LinearBag | None = None,
    ) -> None:
        super().__init__()
        check_positive(classes=classes, hidden_size=hidden_size)
        dim = encoder.output_size
        self.encoder = encoder
        self.query = nn.Parameter(torch.randn(1, 1, dim) * dim**-0.5)
        self.pooling = AdditiveAttention(dim, dim, hidden_size)
        self.dropout = Dropout(dropout)
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
    """

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.classifier = classifier

    @property
    def encoder(self) -> Encoder:
        """The classifier's encoder."""
        return self.classifier.encoder

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
class AnswerState(State):
    """Scores of the answers, the weights they follow from, and how many tokens were written."""

    logits: Float[Tensor, "batch tgt_vocab"] = field(metadata=OF_SOURCE)
    weights: Float[Tensor, "batch 1 layers src_len"] = field(metadata=OF_SOURCE)
    written: Int[Tensor, " batch"]


class AnswerModel(SequenceModel):
    """Writes one token, then `eos`: nothing depends on the steps.

    Its map `cross` has the weights by which the source was read in its first row, and no weights
    after it.
    """

    #: whether a loss counts the `eos` after the answer, which is certain
    learns_end: ClassVar = True

    @abstractmethod
    def answers(self, memory: Memory) -> tuple[Tensor, Tensor]:
        """Return the scores of the answers, and the weights (batch, 1, layers, src_len)."""

    def start(self, memory: Memory) -> State:
        """Score the answers: no step depends on another."""
        return AnswerState(*self.answers(memory), torch.zeros_like(memory.lengths))

    def tgt_lengths(self, memory: Memory) -> Int[Tensor, " batch"]:
        """Return 1: the answer."""
        return torch.ones_like(memory.lengths)

    def step(
        self, tokens: Int[Tensor, " batch"], state: State, *, need_weights: bool = False
    ) -> StepOutput:
        """Return the scores of the answers, and `eos` after one, whatever `tokens` is."""
        check_axes("tokens", tokens, "batch")
        state = cast(AnswerState, state)
        ended = state.written > 0
        logits = torch.where(ended[:, None], only_eos(state.logits[0]), state.logits)
        maps: Maps = {}
        if need_weights:
            weights = state.weights.masked_fill(ended[:, None, None, None], 0.0)
            maps = {"cross": tuple(layer[:, :, None] for layer in weights.unbind(dim=2))}
        return StepOutput(logits, replace(state, written=state.written + 1), maps)

    def forward(
        self, src: Src, lengths: Lengths, tgt: Tgt, *, keep: Keep = None, need_weights: bool = False
    ) -> ModelOutput:
        """Return the scores of the answer, then of `eos`, whatever tokens `tgt` holds."""
        memory = self.encode(src, lengths, need_weights=need_weights)
        answer, weights = self.answers(memory)
        after = tgt.shape[1] - 1
        ends = only_eos(answer[0]).expand(len(answer), after, -1)
        logits = select_positions(torch.cat([answer[:, None], ends], dim=1), keep)
        maps, certain = memory.maps, None
        if need_weights:
            layers = [layer[:, :, None] for layer in weights.unbind(dim=2)]
            maps = maps | {"cross": tuple(F.pad(layer, (0, 0, 0, after)) for layer in layers)}
        if not self.learns_end:
            certain = torch.arange(tgt.shape[1], device=tgt.device).expand(tgt.shape) > 0
            certain = select_positions(certain, keep)
        return ModelOutput(logits, maps, lengths=memory.lengths, certain=certain)


@final
class SequenceClassifier(AnswerModel):
    """A classifier behind the protocol of sequence models: it writes one label, then `eos`.

    The vocabulary of its targets is the symbols and the labels. Symbols have logits of their own,
    which take their share of label smoothing; outside of training only labels have a probability.

    Args:
        classifier: scores as many classes as the vocabulary of the targets has tokens.

    Examples:
        >>> classifier = regard.models.CLASSIFIERS["rnn"](src_vocab=11, classes=7, size="tiny")
        >>> model = regard.models.SequenceClassifier(classifier).eval()
        >>> model(torch.tensor([[5, 7, 2]]), None, torch.tensor([[1, 6]])).logits.shape
        torch.Size([1, 2, 7])
    """

    learns_end = False

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.classifier = classifier

    @property
    def encoder(self) -> Encoder:
        """The classifier's encoder."""
        return self.classifier.encoder

    def answers(self, memory: Memory) -> tuple[Tensor, Tensor]:
        """Score the labels; outside of training, symbols are out of the question."""
        logits, weights, _ = self.classifier.classify(memory, need_weights=True)
        assert weights is not None
        return logits if self.training else without_symbols(logits), weights


def without_symbols(logits: Float[Tensor, "batch classes"]) -> Float[Tensor, "batch classes"]:
    """Make symbols improbable, which are among the classes and no labels."""
    symbols = torch.arange(logits.shape[1], device=logits.device) < len(SYMBOLS)
    return logits.masked_fill(symbols, IMPROBABLE)


@dataclass(frozen=True)
class LabelSetState(State):
    """The logits of all labels, the weights of the pooling, and which labels are written."""

    logits: Float[Tensor, "batch tgt_vocab"] = field(metadata=OF_SOURCE)
    weights: Float[Tensor, "batch 1 1 src_len"] = field(metadata=OF_SOURCE)
    written: Bool[Tensor, "batch tgt_vocab"]


def _logit_of_none(logits: Float[Tensor, "batch classes"]) -> Float[Tensor, "batch 1"]:
    """Return the logit of the probability that none of some labels holds."""
    none = F.logsigmoid(-logits).sum(dim=1, keepdim=True).clamp(max=-1e-30)
    half = torch.tanh(-none / 2)  # ONNX has no expm1, and exp(x) - 1 is 0 where x is small
    return none - torch.log(2 * half / (1 + half))


@final
class LabelSetClassifier(SequenceModel):
    """Writes each label above a threshold, the likeliest first, then `eos`.

    Labels do not exclude each other: each has a probability of its own, the sigmoid of its logit.
    A greedy search, which compares one label at a time with `eos`, finds all above the threshold.
    The log-probabilities of the tokens of a target, in any order, and of its `eos`, that no other
    label holds, sum to the binary cross-entropy of all labels, with the sign reversed.
    """

    threshold: Tensor

    def __init__(self, classifier: Classifier) -> None:
        super().__init__()
        self.classifier = classifier
        self.register_buffer("threshold", torch.tensor(0.5))

    @property
    def encoder(self) -> Encoder:
        """The classifier's encoder."""
        return self.classifier.encoder

    def start(self, memory: Memory) -> State:
        """Score the labels: no step depends on another."""
        logits, weights, _ = self._labels(memory, need_weights=True)
        assert weights is not None
        return LabelSetState(logits, weights, torch.zeros_like(logits, dtype=torch.bool))

    def step(
        self, tokens: Int[Tensor, " batch"], state: State, *, need_weights: bool = False
    ) -> StepOutput:
        """Score the likeliest label that is not written yet if it is above the threshold, or `eos`.

        The other one has the rest of the probability; `pad`, which is never written, if that is
        the larger part.
        """
        check_axes("tokens", tokens, "batch")
        state = cast(LabelSetState, state)
        written = state.written.scatter(1, tokens[:, None], True)
        others = state.logits.masked_fill(written, -CERTAIN)
        best = others.max(dim=1, keepdim=True)
        names, eos = best.values > self.threshold.logit(), torch.full_like(best.indices, EOS)
        own = torch.where(names, best.values, _logit_of_none(others))
        rest, pad = torch.where(own > 0, 0.0, -CERTAIN / 2), torch.where(own > 0, -CERTAIN, 0.0)
        logits = torch.full_like(others, -CERTAIN).scatter(1, torch.full_like(eos, PAD), pad)
        logits = logits.scatter(1, torch.where(names, eos, best.indices), rest)
        logits = logits.scatter(1, torch.where(names, best.indices, eos), own)
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
        ends = _logit_of_none(others)
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
        return out._replace(logits=without_symbols(wide))
