"""Settings of models of `transformers` that decide what their logits and decoders mean."""

from typing import Any, Literal

import torch
from torch import Tensor

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
