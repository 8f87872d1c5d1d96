"""Models of other libraries: folders that `save_pretrained` of transformers wrote."""

from regard.pretrained.folder import fetch, is_hub_name, is_pretrained
from regard.pretrained.folder_checks import PretrainedError
from regard.pretrained.generation import generate
from regard.pretrained.model import PretrainedModel
from regard.pretrained.wrapped import PromptModel

__all__ = [
    "PretrainedError",
    "PretrainedModel",
    "PromptModel",
    "fetch",
    "generate",
    "is_hub_name",
    "is_pretrained",
]
