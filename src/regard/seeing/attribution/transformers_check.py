"""Check a model of `transformers`: what mattered to its outputs, by methods that can be trusted.

    trace = check_text(model, tokenizer, "the cat sat on the")

A decoder-only model writes on, an encoder-decoder writes a target, a classifier chooses a class,
and a masked language model fills its masks; each output is then explained by its inputs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from regard.errors import ArgumentError
from regard.models.protocol import inference
from regard.ops.primitives import log_softmax
from regard.seeing.attribution.faithfulness import add_methods
from regard.seeing.attribution.input_scorer import InputScorer, MethodUnavailableError
from regard.seeing.attribution.methods import method_names
from regard.seeing.attribution.transformers_config import decoder_start, head_scale
from regard.seeing.attribution.transformers_scorer import (
    OutputKind,
    TransformersScorer,
    score_class,
    score_masked,
    score_next,
    score_target,
    token_choices,
)
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
    outputs = OutputNames(model, tokenizer, scorer.kind)
    contrast = None if versus is None else (outputs.versus(versus), versus)
    shown = partial(_text, tokenizer) if text_of is None else text_of
    if outputs.classes is None:
        written = shown(scorer.written)
    else:
        labels = scorer.written if scorer.label is None else [scorer.label]
        written = Text.of([outputs.label(label) for label in labels])
    trace = Trace(
        shown(scorer.ids),
        with_output_probs(written, scorer),
        attention_maps(scorer, scorer.kind),
        model=ModelInfo(type(model).__name__),
        decoded=DecodingInfo("greedy" if target is None else "forced"),
    )
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
        return score_target(model, ids, others(ids), written, start=start)
    with inference(model):
        logits: Tensor = model(input_ids=_batch(model, ids)).logits[0]
    if logits.ndim == 1:
        if head_scale(config) == "none":
            rule, fix = "choose a class to be checked", "look at it with regard.capture"
            raise ArgumentError("model", rule, "a regression", fix)
        outputs = OutputNames(model, tokenizer, "class")
        label = int(logits.argmax()) if target is None else outputs.find("target", target)
        return score_class(model, ids, others(ids), label)
    masks = [i for i, token in enumerate(ids) if token == tokenizer.mask_token_id]
    if tokenizer.mask_token_id is not None and masks:
        return score_masked(model, ids, others(ids), _fillings(tokenizer, logits, masks, target))
    if target is None:
        whole = _generated(model, ids, max_new_tokens)
    else:
        whole = [*ids, *tokenizer(target, add_special_tokens=False).input_ids]
    return score_next(model, whole, others(whole), first=len(ids))


def with_output_probs(written: Text, scorer: InputScorer) -> Text:
    """Return the outputs of a scorer, each with its probability."""
    with inference(scorer.model):
        rows = log_softmax(scorer.replaced_logits([{}])[0].float())
    probs = [float(row[token].exp()) for row, token in zip(rows, scorer.written, strict=True)]
    tokens = zip(written.tokens, probs, strict=True)
    return replace(written, tokens=tuple(replace(one, prob=min(prob, 1.0)) for one, prob in tokens))


def attention_maps(scorer: InputScorer, outputs: OutputKind) -> tuple[Map, ...]:
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
) -> dict[int, int]:
    if target is None:
        return {place: int(logits[place].argmax()) for place in masks}
    words = target.split()
    if len(words) != len(masks):
        rule = f"have a token for each of the {len(masks)} masks, separated by spaces"
        raise ArgumentError("target", rule, repr(target), "give as many as there are masks")
    tokens = [_one_token(tokenizer, "target", word) for word in words]
    return dict(zip(masks, tokens, strict=True))


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
