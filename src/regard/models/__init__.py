"""The models: one protocol, parts that combine, and the presets."""

from regard.models.adapters import InputAdapter, PatchInput, VectorInput
from regard.models.encoder_decoder import EncoderDecoder
from regard.models.head_presets import CLASSIFIERS, LANGUAGE_MODELS
from regard.models.heads import Classifier, ClassifierOutput, LanguageModel, Tagger
from regard.models.presets import COPY_PRESETS, PRESETS, TAG_PRESETS
from regard.models.protocol import Maps, Memory, ModelOutput, SequenceModel, StepOutput
from regard.models.text_model import TextModel
from regard.models.text_presets import TEXT_PRESETS
from regard.models.with_input import with_input

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
