"""Record a pass of a model of transformers, and give its trace texts and probabilities."""

import math
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from regard.errors import ArgumentError
from regard.models.protocol import inference
from regard.pretrained.token_texts import labels
from regard.seeing.capture.capture_result import MAX_WEIGHTS, CaptureResult
from regard.seeing.trace.trace import DecodingInfo, ModelInfo, Text, Trace
from regard.seeing.trace.view import with_segmented_words

#: candidates that are named beside each token
ALTERNATIVES: Final = 3


@dataclass(frozen=True)
class Recording:
    """Choice of the weights that are recorded.

    Attributes:
        layers: numbers of layers, as in the names of their modules; or modules, as in
            `regard.capture`; None for all.
        max_weights: of `regard.capture`.
    """

    layers: Any = None
    max_weights: int = MAX_WEIGHTS

    @property
    def numbers(self) -> list[int] | None:
        """The numbers of the layers, if they are chosen by numbers."""
        given = self.layers
        if isinstance(given, str) or not isinstance(given, Sequence) or not given:
            return None
        whole = all(isinstance(one, int) and not isinstance(one, bool) for one in given)
        return sorted(set(given)) if whole else None

    def of(self, model: Any) -> AbstractContextManager[CaptureResult]:
        """Return a block of `regard.capture`; raises for numbers that the model does not have."""
        # loads torch's compiler, which commands that only draw do without
        from regard.seeing.capture.recorder import capture

        layers, numbers = self.layers, self.numbers
        if numbers is not None:
            known = {_layer_number(name) for name, _ in model.named_modules()} - {None}
            wrong = [one for one in numbers if one not in known]
            if wrong:
                most = max((one for one in known if one is not None), default=0)
                rule = f"be numbers from 0 to {most}, the layers of the model"
                raise ArgumentError("layers", rule, wrong[0], "choose others")
            layers = lambda name: _layer_number(name) in numbers  # noqa: E731
        return capture(model, layers, max_weights=self.max_weights)

    def numbered(self, trace: Any) -> Any:
        """Return a trace whose layers are counted as in the model, not as in the choice."""
        numbers = self.numbers
        if numbers is None:
            return trace
        count = {found.kind: 1 + found.layer for found in trace.maps}
        maps: Any = tuple(
            replace(found, layer=numbers[found.layer])
            if count[found.kind] == len(numbers)
            else found
            for found in trace.maps
        )
        return replace(trace, maps=maps)


def _layer_number(name: str) -> int | None:
    """Return the first number of a module's name, as in `model.layers.3.self_attn`, or None."""
    return next((int(part) for part in name.split(".") if part.isdecimal()), None)


def run_once(model: Any, recording: Recording | None, **inputs: Any) -> tuple[Any, Any]:
    """Return the output of one forward pass, and its `CaptureResult`, or None for no recording."""
    block = nullcontext() if recording is None else recording.of(model)
    with inference(model), block as seen:
        return model(**inputs), seen


def with_probs(
    tokenizer: Any, text: Text, ids: Sequence[int], log_probs: Iterable[Tensor]
) -> tuple[Text, list[float]]:
    """Return a text with the probabilities of its last tokens, and the logarithms of these."""
    tokens, scores = list(text.tokens), list[float]()
    for place, (own, row) in enumerate(zip(ids, log_probs, strict=True), len(tokens) - len(ids)):
        scores.append(float(row[own]))
        best = row.topk(min(ALTERNATIVES + 1, len(row)))
        found = best.indices.tolist()
        named = zip(found, labels(tokenizer, found), best.values.exp().tolist(), strict=True)
        others = [(label, prob) for one, label, prob in named if one != own][:ALTERNATIVES]
        prob = math.exp(min(scores[-1], 0.0))
        tokens[place] = replace(tokens[place], prob=prob, alternatives=tuple(others))
    return replace(text, tokens=tuple(tokens)), scores


def named_trace(
    model: Any, trace: Trace, source: Text, target: Text, info: DecodingInfo | None = None
) -> Any:
    """Return a recorded trace with its texts.

    Of a decoder-only model, and of an encoder, the positions are those of the target as far as it
    was read. The rows of an encoder-decoder are the tokens that it wrote, and the columns of its
    self-attention are those that it read.
    """
    maps: Any = trace.maps
    if model.config.is_encoder_decoder:
        maps = tuple(
            replace(one, columns="read") if one.kind == "decoder-self" else one for one in maps
        )
    else:
        source = _first(target, len(trace.source.tokens))
    name = Path(getattr(model.config, "name_or_path", "") or "").name or type(model).__name__
    named = replace(
        trace,
        source=source,
        target=target,
        maps=maps,
        model=ModelInfo(name, model.config.model_type),
        decoded=info or DecodingInfo(),
    )
    return with_segmented_words(named)


def _first(text: Text, count: int) -> Text:
    """Return the first tokens of a text, and the part of it that they are."""
    if count >= len(text.tokens):
        return text
    kept = text.tokens[:count]
    end = max((token.span[1] for token in kept if token.span is not None), default=0)
    return Text(text.text[:end], kept)
