"""Models of other libraries: folders that `save_pretrained` of transformers wrote."""

from pathlib import Path

import torch

from regard.pretrained.folder import fetch, is_hub_name, is_pretrained, load_parts
from regard.pretrained.folder_checks import PretrainedError
from regard.pretrained.generation import PretrainedOutput, generate
from regard.pretrained.media_model import MediaModel
from regard.pretrained.model import PretrainedModel

__all__ = [
    "MediaModel",
    "PretrainedError",
    "PretrainedModel",
    "PretrainedOutput",
    "fetch",
    "generate",
    "is_hub_name",
    "is_pretrained",
    "load_pretrained",
]


def load_pretrained(
    folder: str | Path,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    *,
    allow_pickle: bool = False,
) -> PretrainedModel | MediaModel:
    """Load a folder that `save_pretrained` wrote: a model of text, or of pictures or sound."""
    parts = load_parts(folder, device, dtype, allow_pickle=allow_pickle)
    kind = PretrainedModel if parts.processor is None else MediaModel
    return kind(parts, folder, device)
