"""Heads of a model of transformers: traces of texts, switches, and the cost of its predictions."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from regard.evaluation.metrics import Statistics
from regard.pretrained.model import PretrainedModel
from regard.seeing.attribution.interventions import HeadSwitch, module_switches
from regard.seeing.attribution.transformers_check import head_scale
from regard.seeing.trace import Trace
from regard.seeing.trace.head_habits import HeadKey


def text_traces(
    model: PretrainedModel, texts: Sequence[str], targets: Sequence[str] | None
) -> Iterator[Trace]:
    """Yield the trace of each text, read in one pass, or with what an encoder-decoder writes."""
    for i, text in enumerate(texts):
        if model.task == "text-generation":
            yield model.trace(text, max_len=0)
        else:
            yield model.trace(text, None if targets is None else targets[i])


def pretrained_switches(
    model: PretrainedModel, text: str, target: str | None
) -> dict[HeadKey, HeadSwitch]:
    """Return the switch of each head, found by running the model once on a text."""
    return module_switches(model.module, model.attention_names(text, target))


def prediction_scorer(
    model: PretrainedModel, texts: Sequence[str], targets: Sequence[str]
) -> Callable[[], Statistics] | None:
    """Return a function that scores the model as it is now: nats and places of each text.

    A model that writes is scored by the negative log-probability of the text or the target. Any
    other is scored by the divergence of its predictions from those that it makes when this function
    is called: `sum p log(p / q)` over the places. None if the model has no predictions.
    """
    inputs = [model.forward_inputs(*pair) for pair in zip(texts, targets, strict=True)]
    if model.generates:
        return lambda: np.array([_nats(model, one) for one in inputs], dtype=np.float64)
    whole = [_log_probs(model, one) for one in inputs]
    if any(one is None for one in whole):
        return None

    def divergence() -> Statistics:
        rows = []
        for one, base in zip(inputs, whole, strict=True):
            now = _log_probs(model, one)
            assert base is not None
            assert now is not None
            apart = F.kl_div(now, base, reduction="sum", log_target=True)
            rows.append((float(apart), float(base.shape[:-1].numel())))
        return np.array(rows, dtype=np.float64)

    return divergence


def _nats(model: PretrainedModel, inputs: dict[str, Tensor]) -> tuple[float, float]:
    """Return the negative log-probability of the labels, or of the text after its first token."""
    with torch.no_grad():
        logits = model.module(**inputs).logits[0].float()
    if "labels" in inputs:
        wanted = inputs["labels"][0]
    else:
        logits, wanted = logits[:-1], inputs["input_ids"][0, 1:]
    nats = F.cross_entropy(logits, wanted, reduction="sum") if len(wanted) else torch.zeros(())
    return float(nats), float(len(wanted))


def _log_probs(model: PretrainedModel, inputs: dict[str, Tensor]) -> Tensor | None:
    with torch.no_grad():
        found: Any = model.module(**inputs)
    logits = getattr(found, "logits", None)
    scale = head_scale(model.module.config) if model.task == "text-classification" else "softmax"
    if logits is None or scale == "none":
        return None
    row = logits[0].float()
    return (
        torch.stack([F.logsigmoid(row), F.logsigmoid(-row)], -1)
        if scale == "sigmoid"
        else row.log_softmax(-1)
    )
