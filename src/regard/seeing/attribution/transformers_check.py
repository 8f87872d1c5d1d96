"""Check a model of `transformers`: what mattered to its outputs, by methods that can be trusted.

    trace = check_text(model, tokenizer, "the cat sat on the")

A decoder-only model writes on, an encoder-decoder writes a target, a classifier chooses a class,
and a masked language model fills its masks; each output is then explained by its inputs.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Final, Literal, NamedTuple, final

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard.errors import ArgumentError
from regard.models.protocol import evaluating, inference
from regard.ops.primitives import log_softmax
from regard.seeing.attribution.faithfulness import add_methods
from regard.seeing.attribution.input_scorer import (
    Array,
    AttentionRecord,
    Change,
    InputScorer,
    MethodUnavailableError,
    Values,
    hooked,
    mean_vectors,
    rows_at_once,
    token_replacements,
    value_norms,
)
from regard.seeing.attribution.methods import method_names
from regard.seeing.trace.trace import (
    DecodingInfo,
    Map,
    MapKind,
    ModelInfo,
    Text,
    Token,
    Trace,
    missing_mass,
)

#: how a classifier turns logits into probabilities; the logits of a regression are its numbers
HeadScale = Literal["softmax", "sigmoid", "none"]


def head_scale(config: Any) -> HeadScale:
    """Return the scale of a classification head, as the losses of transformers choose it."""
    problem = getattr(config, "problem_type", None)
    if problem == "multi_label_classification":
        return "sigmoid"
    return "none" if problem == "regression" or config.num_labels == 1 else "softmax"


def label_logits(logits: Tensor, label: int) -> Tensor:
    """Return the logits (..., 2) of a label and of its absence, whose softmax is the sigmoid."""
    own = logits[..., label]
    return torch.stack([own, torch.zeros_like(own)], dim=-1)


def decoder_start(model: Any) -> int:
    """Return the token that the decoder of an encoder-decoder begins with."""
    configs = (getattr(model, "generation_config", None), model.config)
    found = (getattr(config, "decoder_start_token_id", None) for config in configs)
    return next((one for one in found if isinstance(one, int)), 0)


#: outputs of a model: next tokens, tokens at masked positions, a class, or a target sequence
OutputKind = Literal["next", "masked", "class", "target"]
#: logits that are held at once
MAX_LOGITS: Final = 1 << 25
#: largest difference of logits, as a share of their range, between token ids and their vectors
SAME_LOGITS: Final = 1e-3


@final
class TransformersScorer(InputScorer):
    """One input of a model of `transformers`, and its outputs.

    `text_scorer` makes one of a text.

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
        base: nn.Module = self.model.base_model  # type: ignore[assignment]
        keep = [(base, lambda module, inputs, output: states.append(output[0]))]
        with hooked(after=keep), evaluating(self.model), torch.enable_grad():
            logits = self.logits(self.vectors()[None].requires_grad_())
        last = states[-1] if states else None
        if last is None or last.shape[:2] != (1, self.inputs):
            raise MethodUnavailableError("the positions that its class is read from cannot be seen")
        (slope,) = torch.autograd.grad(logits[0, 0, self.written[0]], last, allow_unused=True)
        rows = [] if slope is None else slope[0].any(dim=-1).nonzero()[:, 0].tolist()
        if not rows:
            raise MethodUnavailableError("the positions that its class is read from cannot be seen")
        return rows


def token_choices(ids: Sequence[int], vocab: int, special: Sequence[int]) -> list[Sequence[int]]:
    """Return the tokens that may stand at each position: any that is not special."""
    usual = tuple(i for i in range(vocab) if i not in set(special))
    return [(token,) if token in special else usual for token in ids]


class RecordedAttention(NamedTuple):
    """One attention of a batch of one.

    Attributes:
        weights: (heads, queries, keys).
        values: with the output projection, as `value_norms` takes them; None if unknown.
        inside: whether it ran inside the encoder.
    """

    weights: Tensor
    values: Values | None
    inside: bool


@contextmanager
def recorded_attention(
    model: nn.Module, encoder: nn.Module | None = None
) -> Iterator[list[RecordedAttention]]:
    """Record the attention of a batch of one; calls in the encoder are marked."""
    from regard.seeing.capture.recorder import record_vectors  # loads torch's compiler

    found: list[RecordedAttention] = []
    with record_vectors(model) as calls:
        yield found
    inner = [f"{name}." for name, part in model.named_modules() if part is encoder]
    for call in calls:
        values = None
        if call.value is not None and call.projection is not None:
            values = call.value.reshape(-1, *call.value.shape[-2:]), call.projection
        inside = any(f"{call.name}.".startswith(name) for name in inner)
        found.append(RecordedAttention(call.weights.flatten(0, 1), values, inside))


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
    values = [call.values for call in calls if call.values is not None]
    if len(values) < len(calls):
        return weights, None
    return weights, [value_norms(*pair) for pair in zip(weights, values, strict=True)]


#: tokens that a model writes by itself
MAX_NEW_TOKENS: Final = 20


def check_text(
    model: nn.Module,
    tokenizer: Any,
    text: str,
    target: str | None = None,
    *,
    methods: str = "all",
    versus: str | None = None,
    max_new_tokens: int = MAX_NEW_TOKENS,
    text_of: Callable[[Sequence[int]], Text] | None = None,
) -> Trace:
    """Return a trace of the outputs for a text, with scores and faithfulness of several methods.

    Args:
        model: of `transformers`: a decoder, an encoder-decoder, a classifier of sequences or a
            masked language model.
        tokenizer: of the model.
        text: the input; of a masked language model, with one mask or more.
        target: what the model is made to write, the name of a class, or the tokens at the masks,
            separated by spaces; its own output if None.
        methods: names of `seeing.attribution.methods.METHODS` separated by commas, or `all`.
        versus: a token, or the name of a class, that each output is compared with.
        max_new_tokens: most tokens that the model writes by itself, greedily.
        text_of: returns the text of tokens, with a label for each; as the vocabulary has them if
            None.
    """
    method_names(methods)
    scorer = text_scorer(model, tokenizer, text, target, max_new_tokens)
    names = OutputNames(model, tokenizer, scorer.kind)
    shown = partial(_text, tokenizer) if text_of is None else text_of
    if names.classes is None:
        written = shown(scorer.written)
    else:
        labels = scorer.written if scorer.label is None else [scorer.label]
        written = Text.of([names.label(label) for label in labels])
    trace = Trace(
        shown(scorer.ids),
        _with_output_probs(written, scorer),
        _attention_maps(scorer, scorer.kind),
        model=ModelInfo(type(model).__name__),
        decoded=DecodingInfo("greedy" if target is None else "forced"),
        notes=scorer.replacements.notes,
    )
    contrast = None if versus is None else (names.versus(versus), versus)
    return add_methods(trace, scorer, methods, contrast)


def text_scorer(
    model: nn.Module,
    tokenizer: Any,
    text: str,
    target: str | None = None,
    max_new_tokens: int = MAX_NEW_TOKENS,
) -> TransformersScorer:
    """Return the scorer of a text and of the outputs of a model for it; see `check_text`."""
    ids = list(tokenizer(text).input_ids)
    if not ids:
        raise ArgumentError("text", "have a token or more", repr(text), "give a longer text")
    special = list(tokenizer.all_special_ids)
    vocab = len(next(model.get_input_embeddings().parameters()))  # type: ignore[operator]

    def others(tokens: Sequence[int]) -> list[Sequence[int]]:
        return token_choices(tokens, min(vocab, len(tokenizer)), special)

    config: Any = model.config
    if config.is_encoder_decoder:
        if not model.can_generate():  # type: ignore[operator]
            raise ArgumentError(
                "model", "write its outputs", f"a {type(model).__name__}", "choose another head"
            )
        if target is None:
            start, *written = _generated(model, ids, max_new_tokens)
        else:
            written = list(tokenizer(text_target=target).input_ids)
            start = decoder_start(model)
        read, places = [start, *written[:-1]], range(len(written))
        return TransformersScorer(model, ids, "target", places, written, others(ids), read)
    with inference(model):
        logits: Tensor = model(input_ids=_batch(model, ids)).logits[0]
    if logits.ndim == 1:
        if head_scale(config) == "none":
            rule, fix = "choose a class to be checked", "look at it with regard.capture"
            raise ArgumentError("model", rule, "a regression", fix)
        outputs = OutputNames(model, tokenizer, "class")
        label = int(logits.argmax()) if target is None else outputs.find("target", target)
        if head_scale(config) == "sigmoid":
            return TransformersScorer(model, ids, "class", [], [0], others(ids), label=label)
        return TransformersScorer(model, ids, "class", [], [label], others(ids))
    masks = [i for i, token in enumerate(ids) if token == tokenizer.mask_token_id]
    if tokenizer.mask_token_id is not None and masks:
        filled = _fillings(tokenizer, logits, masks, target)
        return TransformersScorer(model, ids, "masked", masks, filled, others(ids))
    if target is None:
        whole = _generated(model, ids, max_new_tokens)
    else:
        whole = [*ids, *tokenizer(target, add_special_tokens=False).input_ids]
    places, read = range(len(ids) - 1, len(whole) - 1), whole[:-1]
    return TransformersScorer(model, read, "next", places, whole[len(ids) :], others(read))


def _with_output_probs(written: Text, scorer: InputScorer) -> Text:
    """Return the outputs of a scorer, each with its probability."""
    with inference(scorer.model):
        rows = log_softmax(scorer.replaced_logits([{}])[0].float())
    probs = [float(row[token].exp()) for row, token in zip(rows, scorer.written, strict=True)]
    tokens = zip(written.tokens, probs, strict=True)
    return replace(written, tokens=tuple(replace(one, prob=min(prob, 1.0)) for one, prob in tokens))


def _attention_maps(scorer: InputScorer, outputs: OutputKind) -> tuple[Map, ...]:
    """Return the attention from outputs to inputs; nothing where it cannot be seen."""
    try:
        found = scorer.attention()
    except MethodUnavailableError:
        return ()  # `add_methods` gives the reason
    layers = found.cross or [found.at_outputs(heads) for heads in found.own]
    kind: MapKind = "cross"
    if not found.cross:
        kind = "decoder-self" if outputs == "next" else "encoder-self"
    causal = outputs == "next"
    maps = []
    for number, heads in enumerate(layers):
        weights = np.ascontiguousarray(heads, dtype=np.float32)
        missing = missing_mass(weights)
        maps.append(Map(kind, number, weights, missing, "target", "source", causal))
    return tuple(maps)


class OutputNames:
    """Names of the outputs of a model: tokens, or classes."""

    def __init__(self, model: nn.Module, tokenizer: Any, kind: str) -> None:
        self.tokenizer = tokenizer
        config: Any = model.config
        self.classes: Mapping[int, str] | None = config.id2label if kind == "class" else None
        self.scale = head_scale(config) if kind == "class" else "softmax"

    def label(self, output: int) -> str:
        """Return the name of an output."""
        if self.classes is not None:
            return str(self.classes[output])
        return _labels(self.tokenizer, [output])[0]

    def versus(self, name: str) -> int:
        """Return the output that others are compared with; labels of their own have none."""
        if self.scale == "sigmoid":
            rule = "be left out for a model whose labels do not exclude each other"
            raise ArgumentError("versus", rule, repr(name), "leave it out")
        return self.find("versus", name)

    def find(self, argument: str, name: str) -> int:
        """Return the output of a name."""
        if self.classes is not None:
            for number, label in self.classes.items():
                if label == name:
                    return int(number)
            rule = f"be one of {', '.join(map(str, self.classes.values()))}"
            raise ArgumentError(argument, rule, repr(name), "choose a class of the model")
        return _one_token(self.tokenizer, argument, name)


def _one_token(tokenizer: Any, argument: str, name: str) -> int:
    """Return the id of a token, given as it is listed in the vocabulary or as a text."""
    vocabulary = tokenizer.get_vocab()
    if name in vocabulary:
        return int(vocabulary[name])
    ids = tokenizer(name, add_special_tokens=False).input_ids
    if len(ids) != 1 or ids[0] == tokenizer.unk_token_id:
        pieces = " ".join(_labels(tokenizer, ids)) or "nothing"
        rule = "be one token of the vocabulary"
        raise ArgumentError(argument, rule, f"{name!r} ({pieces})", "choose a shorter one")
    return int(ids[0])


def _fillings(
    tokenizer: Any, logits: Tensor, masks: Sequence[int], target: str | None
) -> list[int]:
    if target is None:
        return [int(logits[place].argmax()) for place in masks]
    words = target.split()
    if len(words) != len(masks):
        rule = f"have a token for each of the {len(masks)} masks, separated by spaces"
        raise ArgumentError("target", rule, repr(target), "give as many as there are masks")
    return [_one_token(tokenizer, "target", word) for word in words]


def _text(tokenizer: Any, ids: Sequence[int]) -> Text:
    special = set(tokenizer.all_special_ids)
    labels = _labels(tokenizer, ids)
    pairs = enumerate(zip(labels, ids, strict=True))
    tokens = tuple(Token(label, word=i, special=one in special) for i, (label, one) in pairs)
    return Text(" ".join(labels), tokens)


def _labels(tokenizer: Any, ids: Sequence[int]) -> list[str]:
    return [str(label) for label in tokenizer.convert_ids_to_tokens(list(ids))]


def _batch(model: nn.Module, ids: Sequence[int]) -> Tensor:
    return torch.tensor([list(ids)], device=next(model.parameters()).device)


def _generated(model: nn.Module, ids: Sequence[int], count: int) -> list[int]:
    """Return what the model writes greedily, the prompt or the start token included."""
    batch = _batch(model, ids)
    with inference(model):
        found: Tensor = model.generate(  # type: ignore[operator]
            batch,
            attention_mask=torch.ones_like(batch),
            max_new_tokens=count,
            do_sample=False,
            num_beams=1,  # whatever the generation config says
            num_return_sequences=1,
        )
    return [int(token) for token in found[0]]
