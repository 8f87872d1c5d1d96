"""How a model is run to decode."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor, nn


@contextmanager
def inference(model: nn.Module) -> Iterator[None]:
    """Without gradients and without dropout; the model is given back as it was."""
    training = [module for module in model.modules() if module.training]
    for module in training:
        module.training = False
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


def log_softmax(logits: Float[Tensor, "*batch vocab"]) -> Float[Tensor, "*batch vocab"]:
    """Log-probabilities, in float32 at least: half precision has too few of them."""
    # widened first: asked to widen by itself, the CPU's kernel takes four times as long
    return logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)


def of_encoder(kind: str) -> bool:
    """Whether maps of this kind come from the encoder, one for all hypotheses of a source."""
    return kind.startswith("encoder-")
