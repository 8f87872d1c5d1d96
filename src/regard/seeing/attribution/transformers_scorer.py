"""Input scorers of models of `transformers`: encoders, decoders, and encoder-decoders.

Nothing is imported from `transformers`: a model is any torch module with its conventions, which are
`get_input_embeddings`, `config.is_encoder_decoder`, the arguments `input_ids` or `inputs_embeds`,
`attention_mask` and `decoder_input_ids`, and an output with `logits`.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal, NamedTuple, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.errors import ArgumentError
from regard.models.protocol import evaluating
from regard.seeing.attribution.input_scorer import (
    AttentionRecord,
    Change,
    InputScorer,
    MethodUnavailableError,
    mean_vectors,
    rows_at_once,
)
from regard.seeing.attribution.replacements import token_replacements
from regard.seeing.attribution.transformers_config import head_scale, label_logits
from regard.seeing.attribution.value_norms import Array, ValueProjection, value_norms
from regard.seeing.capture.recorder import record_vectors

#: outputs of a model: next tokens, tokens at masked positions, a class, or a target sequence
OutputKind = Literal["next", "masked", "class", "target"]
#: logits that are held at once
MAX_LOGITS: Final = 1 << 25
#: largest difference of logits, as a share of their range, between token ids and their vectors
SAME_LOGITS: Final = 1e-3


@final
class TransformersScorer(InputScorer):
    """One input of a model of `transformers`, and its outputs.

    Use `score_next`, `score_masked`, `score_class` or `score_target` to make one.

    Args:
        model: any torch module with the conventions of `transformers`.
        ids: of the inputs, special tokens included.
        kind: of the outputs.
        places: for each output the position that it is predicted from.
        written: token or class of each output.
        others: for each input, the tokens that may stand there; only itself for a special token.
        decoder_ids: inputs of the decoder, for `target`.
        label: number of a label with a probability of its own, whose outputs are that it is right
            (0) and that it is not (1); None for classes of which one is right.
    """

    def __init__(
        self,
        model: nn.Module,
        ids: Sequence[int],
        kind: OutputKind,
        places: Sequence[int],
        written: Sequence[int],
        others: Sequence[Sequence[int]],
        decoder_ids: Sequence[int] | None = None,
        *,
        label: int | None = None,
    ) -> None:
        if not written:
            raise ArgumentError("written", "have an output or more", "empty", "score a longer text")
        self.model, self.kind, self.written = model, kind, list(written)
        self.ids, self.places, self.inputs = list(ids), list(places), len(ids)
        self.label = label
        self.replacements = token_replacements(self.ids, others)
        self.decoder_ids = None if decoder_ids is None else list(decoder_ids)
        self._check_vectors()

    @property
    def _device(self) -> torch.device:
        return next(self.model.parameters()).device

    def _table(self) -> nn.Module:
        table: nn.Module = self.model.get_input_embeddings()  # type: ignore[operator]
        return table

    def _tensor(self, rows: Sequence[Sequence[int]]) -> Int[Tensor, "batch length"]:
        return torch.tensor(rows, device=self._device)

    def _run(self, rows: int, **given: Any) -> Float[Tensor, "batch outputs vocab"]:
        given["attention_mask"] = self._tensor([[1] * self.inputs] * rows)
        if self.decoder_ids is not None:
            given["decoder_input_ids"] = self._tensor([self.decoder_ids] * rows)
        elif self.kind == "next":
            given["use_cache"] = False
        logits: Tensor = self.model(**given).logits
        if self.kind != "class":
            return logits[:, self.places]
        return (logits if self.label is None else label_logits(logits, self.label))[:, None]

    def _check_vectors(self) -> None:
        """Raise unless vectors in place of ids give the same logits."""
        with evaluating(self.model), torch.no_grad():
            by_ids = self.replaced_logits([{}])
            by_vectors = self.logits(self.vectors()[None])
        width = float(by_ids.max() - by_ids.min())
        if not float((by_ids - by_vectors).abs().max()) <= SAME_LOGITS * max(width, 1.0):
            raise ArgumentError(
                "model",
                "compute the same from inputs_embeds as from input_ids",
                f"a {type(self.model).__name__}, which does not",
                "it may read its ids a second time; choose another model",
            )

    def visible(self) -> Bool[np.ndarray, "outputs inputs"]:
        """Return the inputs up to the position of each output, for a model that writes on."""
        if self.kind != "next":
            return super().visible()
        return np.arange(self.inputs) <= np.array(self.places)[:, None]

    def vectors(self) -> Float[Tensor, "inputs dim"]:
        """Return the outputs of the model's input embeddings."""
        with torch.no_grad():
            vectors: Tensor = self._table()(self._tensor([self.ids]))[0]
        return vectors

    def origin(self) -> Float[Tensor, "inputs dim"]:
        """Return zeros: positions are added later."""
        return torch.zeros_like(self.vectors())

    def baseline(self) -> Float[Tensor, "inputs dim"]:
        """Return the mean vector of what may stand at each position."""
        table = self._table()
        vocab = len(next(table.parameters()))
        with torch.no_grad():  # not the parameter itself, which some embeddings scale
            vectors: Tensor = table(torch.arange(vocab, device=self._device)[None])[0]
        return mean_vectors(vectors, self.replacements.others)

    def logits(
        self, vectors: Float[Tensor, "batch inputs dim"]
    ) -> Float[Tensor, "batch outputs vocab"]:
        """Score the outputs, given vectors of the inputs."""
        return self._run(len(vectors), inputs_embeds=vectors)

    def replaced_logits(self, changes: Sequence[Change]) -> Float[Tensor, "batch outputs vocab"]:
        """Score the outputs with some inputs replaced."""
        rows = [self.replacements.put(self.ids, change) for change in changes]
        return self._run(len(rows), input_ids=self._tensor(rows))

    @property
    def rows_at_once(self) -> int:
        """Number of rows of a batch, fewer if the vocabulary is large."""
        vocab = getattr(self.model.config, "vocab_size", 1)
        length = self.inputs + len(self.decoder_ids or ())
        return min(rows_at_once(length), max(1, MAX_LOGITS // (length * int(vocab))))

    def attention(self) -> AttentionRecord:
        """Return the attention of one pass, with values and output projections."""
        encoder = self.model.get_encoder() if self.decoder_ids is not None else None  # type: ignore[operator]
        with (
            evaluating(self.model),
            torch.no_grad(),
            recorded_attention(self.model, encoder) as calls,
        ):
            self.replaced_logits([{}])
        if not calls:
            raise MethodUnavailableError("the attention of this model cannot be seen")
        if self.decoder_ids is None:
            own, own_norms = layer_weights(calls, (self.inputs, self.inputs))
            rows = [self._class_rows()] if self.kind == "class" else self.places
            return AttentionRecord([], own, rows, None, own_norms)
        inside = [call for call in calls if call.inside]
        # a decoder layer attends to what is written, and then to the source
        cross_calls = [call for call in calls if not call.inside][1::2]
        own, own_norms = layer_weights(inside, (self.inputs, self.inputs))
        cross, norms = layer_weights(cross_calls, (len(self.decoder_ids), self.inputs))
        places = self.places
        return AttentionRecord(
            [heads[:, places] for heads in cross],
            own,
            [],
            None if norms is None else [layer[places] for layer in norms],
            own_norms,
        )

    def _class_rows(self) -> list[int]:
        """Return the positions whose last hidden states the class depends on, by its gradient."""
        states: list[Tensor] = []
        handle = self.model.base_model.register_forward_hook(  # type: ignore[union-attr]
            lambda module, inputs, output: states.append(output[0])
        )
        try:
            with evaluating(self.model), torch.enable_grad():
                logits = self.logits(self.vectors()[None].requires_grad_())
        finally:
            handle.remove()
        last = states[-1] if states else None
        if last is None or last.shape[:2] != (1, self.inputs):
            raise MethodUnavailableError("the positions that its class is read from cannot be seen")
        (slope,) = torch.autograd.grad(logits[0, 0, self.written[0]], last, allow_unused=True)
        rows = [] if slope is None else slope[0].any(dim=-1).nonzero()[:, 0].tolist()
        if not rows:
            raise MethodUnavailableError("the positions that its class is read from cannot be seen")
        return rows


def token_choices(ids: Sequence[int], vocab: int, special: Sequence[int]) -> list[Sequence[int]]:
    """Return the tokens that may stand at each position: any that is not special.

    Args:
        ids: of the inputs.
        vocab: number of tokens.
        special: ids that are never replaced, nor put in the place of another token.
    """
    usual = tuple(i for i in range(vocab) if i not in set(special))
    return [(token,) if token in special else usual for token in ids]


def score_next(
    model: nn.Module, ids: Sequence[int], others: Sequence[Sequence[int]], *, first: int
) -> TransformersScorer:
    """Score the tokens of a decoder-only model from number `first` on, each by those before it."""
    _check_first(first, len(ids))
    places = range(first - 1, len(ids) - 1)
    inputs = ids[:-1]
    return TransformersScorer(model, inputs, "next", places, ids[first:], others[: len(inputs)])


def score_masked(
    model: nn.Module,
    ids: Sequence[int],
    others: Sequence[Sequence[int]],
    fillings: Mapping[int, int],
) -> TransformersScorer:
    """Score tokens at masked positions of an encoder, given as position to token."""
    return TransformersScorer(model, ids, "masked", [*fillings], [*fillings.values()], others)


def score_class(
    model: nn.Module, ids: Sequence[int], others: Sequence[Sequence[int]], label: int
) -> TransformersScorer:
    """Score a class of a classifier of sequences.

    Methods that read attention read the rows that the class depends on: the first or the last, or
    the mean of all, by how the classifier pools.
    """
    if head_scale(model.config) != "sigmoid":
        return TransformersScorer(model, ids, "class", [], [label], others)
    return TransformersScorer(model, ids, "class", [], [0], others, label=label)


def score_target(
    model: nn.Module,
    ids: Sequence[int],
    others: Sequence[Sequence[int]],
    target: Sequence[int],
    *,
    start: int,
) -> TransformersScorer:
    """Score a target of an encoder-decoder, whose decoder begins with the token `start`."""
    read = [start, *target[:-1]]
    return TransformersScorer(model, ids, "target", range(len(target)), target, others, read)


def _check_first(first: int, count: int) -> None:
    if not 1 <= first < count:
        rule = f"be from 1 to {count - 1}, since a token is scored by those before it"
        raise ArgumentError("first", rule, first, "give a prompt of one token or more")


class RecordedAttention(NamedTuple):
    """One attention of a batch of one.

    Attributes:
        weights: (heads, queries, keys).
        value: (kv_heads, keys, head_dim); None if unknown.
        projection: (dim, heads * head_dim); None if unknown.
        inside: whether it ran inside the encoder.
    """

    weights: Tensor
    value: Tensor | None
    projection: Tensor | None
    inside: bool


@contextmanager
def recorded_attention(
    model: nn.Module, encoder: nn.Module | None = None
) -> Iterator[list[RecordedAttention]]:
    """Record the attention of a batch of one; calls in the encoder are marked."""
    found: list[RecordedAttention] = []
    with record_vectors(model) as calls:
        yield found
    inner = {name for name, part in model.named_modules() if part is encoder}
    for weights, vectors, projection in calls:
        assert weights is not None
        inside = any(vectors.name == one or vectors.name.startswith(f"{one}.") for one in inner)
        heads, value = weights.flatten(0, 1), vectors.value
        if value is not None:
            value = value.reshape(-1, *value.shape[-2:])
        found.append(RecordedAttention(heads, value, projection, inside))


def layer_weights(
    calls: Sequence[RecordedAttention], shape: tuple[int, int]
) -> tuple[list[Array], list[Array] | None]:
    """Return weights of each layer, and the norms, or None if a projection is not known."""
    for call in calls:
        if call.weights.shape[1:] != shape:
            raise MethodUnavailableError(
                f"a layer attends with {call.weights.shape[1]} queries to {call.weights.shape[2]} "
                f"keys, not with {shape[0]} to {shape[1]}"
            )
    weights = [call.weights.double().cpu().numpy() for call in calls]
    values = [
        ValueProjection(call.value, call.projection)
        for call in calls
        if call.value is not None and call.projection is not None
    ]
    if len(values) < len(calls):
        return weights, None
    return weights, [value_norms(*pair) for pair in zip(weights, values, strict=True)]
