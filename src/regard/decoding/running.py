"""How a model is run to decode."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from regard.models.protocol import evaluating


@contextmanager
def inference(model: nn.Module) -> Iterator[None]:
    """Without gradients and without dropout; the model is given back as it was."""
    with evaluating(model), torch.no_grad():
        yield


def of_encoder(kind: str) -> bool:
    """Whether maps of this kind come from the encoder, one for all hypotheses of a source."""
    return kind.startswith("encoder-")
