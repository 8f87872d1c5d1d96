"""Models of other libraries: folders that `save_pretrained` of transformers wrote."""

from regard.pretrained.folder import PretrainedError, fetch, is_hub_name, is_pretrained
from regard.pretrained.generation import PretrainedOutput, generate
from regard.pretrained.model import PretrainedModel

__all__ = [
    "PretrainedError",
    "PretrainedModel",
    "PretrainedOutput",
    "fetch",
    "generate",
    "is_hub_name",
    "is_pretrained",
]
