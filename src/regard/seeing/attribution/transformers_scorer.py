"""Input scorers of models of `transformers`: encoders, decoders, and encoder-decoders.

Nothing is imported from `transformers`: a model is any torch module with its conventions, which are
`get_input_embeddings`, `config.is_encoder_decoder`, the arguments `input_ids` or `inputs_embeds`,
`attention_mask` and `decoder_input_ids`, and an output with `logits`.
"""

import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Literal, final

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

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
from regard.seeing.capture import recompute
from regard.seeing.capture.softmax_tracker import PRODUCTS, SoftmaxTracker

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
        parts = [self.model.get_encoder()] if self.decoder_ids is not None else []  # type: ignore[operator]
        with evaluating(self.model), torch.no_grad(), recorded_attention(parts) as calls:
            self.replaced_logits([{}])
        if not calls:
            raise MethodUnavailableError("the attention of this model cannot be seen")
        if self.decoder_ids is None:
            own, own_norms = layer_weights(calls, (self.inputs, self.inputs))
            rows = [self._class_rows()] if self.kind == "class" else self.places
            return AttentionRecord([], own, rows, None, own_norms)
        encoder = [call for call in calls if call.inside]
        # a decoder layer attends to what is written, and then to the source
        cross_calls = [call for call in calls if not call.inside][1::2]
        own, own_norms = layer_weights(encoder, (self.inputs, self.inputs))
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


class RecordedAttention:
    """One attention: weights, values, and the projection of the output once it has run.

    Attributes:
        weights: (heads, queries, keys).
        value: (kv_heads, keys, head_dim).
        merged: (queries, heads * head_dim), the heads side by side.
        inside: whether it ran inside one of the chosen modules.
        projection: (dim, heads * head_dim).
    """

    def __init__(self, weights: Tensor, value: Tensor, inside: bool) -> None:
        self.weights, self.value, self.inside = weights, value, inside
        self.projection: Tensor | None = None
        shared = value.repeat_interleave(len(weights) // len(value), dim=0)
        self.merged = (weights.to(value.dtype) @ shared).transpose(0, 1).flatten(1)

    def is_projected_by(self, x: Tensor) -> bool:
        """Return whether `x`, the input of a linear layer, is the output of the attention."""
        if x.shape[-1] != self.merged.shape[-1] or x.numel() != self.merged.numel():
            return False
        return torch.allclose(x.reshape_as(self.merged), self.merged, rtol=1e-3, atol=1e-4)


class _Recorder(TorchFunctionMode):
    """Records attention by torch's function or by a softmax and a product, and its projection."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[RecordedAttention] = []
        self.inside = 0
        self._softmaxes = SoftmaxTracker()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        if func is F.scaled_dot_product_attention:
            pending = recompute.TORCH_FUNCTIONS[func](output, *args, **kwargs)
            with recompute.aside():
                weights = pending.compute()
            value = args[2] if len(args) > 2 else kwargs["value"]
            self._keep(weights[:, 0] if value.ndim == 3 else weights, value)
        elif func in PRODUCTS:
            found = self._softmaxes.weights_of_product(func, args)
            if found is not None:
                self._keep(found.read(), _values(func, args))
        elif func is F.linear and self.calls:
            self._project(args[0], args[1])
        elif func is torch.addmm and self.calls:
            self._project(args[1], args[2].T)
        else:
            self._softmaxes.follow(func, args, kwargs, output)
        return output

    def _keep(self, weights: Tensor, value: Tensor) -> None:
        """Keep weights and values of a batch of one, by which heads folded into it are unfolded."""
        heads, values = (x.reshape(-1, *x.shape[-2:]) for x in (weights, value))
        self.calls.append(RecordedAttention(heads, values, bool(self.inside)))

    def _project(self, x: Tensor, weight: Tensor) -> None:
        last = self.calls[-1]
        if last.projection is None and last.is_projected_by(x):
            last.projection = weight


def _values(func: Any, args: Sequence[Any]) -> Tensor:
    """Return the values of a product with weights, (*batch and heads, keys, head_dim)."""
    value: Tensor = args[-1]
    if func is not torch.einsum:
        return value
    weights, values, output = re.split(",|->", args[0].replace(" ", "").replace("...", ""))
    rest = next(letter for letter in output if letter not in weights)
    return value.permute([values.index(letter) for letter in (*weights[:-2], weights[-1], rest)])


@contextmanager
def recorded_attention(parts: Sequence[nn.Module]) -> Iterator[list[RecordedAttention]]:
    """Record the attention of the first row of a batch; calls in `parts` are marked."""
    recorder, thread = _Recorder(), threading.get_ident()

    def enter(*_: Any) -> None:
        recorder.inside += threading.get_ident() == thread

    def leave(*_: Any) -> None:
        recorder.inside -= threading.get_ident() == thread

    handles = [part.register_forward_pre_hook(enter) for part in parts]
    handles += [part.register_forward_hook(leave) for part in parts]
    try:
        with recorder:
            yield recorder.calls
    finally:
        for handle in handles:
            handle.remove()


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
    if any(call.projection is None for call in calls):
        return weights, None
    values = [ValueProjection(call.value, call.projection) for call in calls]
    return weights, [value_norms(*pair) for pair in zip(weights, values, strict=True)]
