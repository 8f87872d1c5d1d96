"""The models: one protocol, parts that combine, and the presets."""

from regard.models.adapters import InputAdapter, PatchInput, VectorInput
from regard.models.encoder_decoder import EncoderDecoder
from regard.models.encoder_only import Classifier, ClassifierOutput, Tagger
from regard.models.encoders import with_input
from regard.models.language_model import LanguageModel, TextModel
from regard.models.presets import (
    CLASSIFIERS,
    COPY_PRESETS,
    LANGUAGE_MODELS,
    PRESETS,
    TAG_PRESETS,
    TEXT_PRESETS,
)
from regard.models.protocol import Maps, Memory, ModelOutput, SequenceModel, StepOutput

__all__ = [
    "CLASSIFIERS",
    "COPY_PRESETS",
    "LANGUAGE_MODELS",
    "PRESETS",
    "TAG_PRESETS",
    "TEXT_PRESETS",
    "Classifier",
    "ClassifierOutput",
    "EncoderDecoder",
    "InputAdapter",
    "LanguageModel",
    "Maps",
    "Memory",
    "ModelOutput",
    "PatchInput",
    "SequenceModel",
    "StepOutput",
    "Tagger",
    "TextModel",
    "VectorInput",
    "with_input",
]
