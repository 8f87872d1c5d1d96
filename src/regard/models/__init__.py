"""The models: one protocol, parts that combine, and the presets.

Example:
    >>> model = regard.models.PRESETS["transformer"](src_vocab=11, tgt_vocab=13, size="tiny")
    >>> isinstance(model, regard.models.AnyModel)
    True
    >>> sorted(regard.models.TEXT_PRESETS), sorted(regard.models.LANGUAGE_MODELS)
    (['lm-rnn', 'lm-self-attentive', 'lm-transformer'], ['rnn', 'self-attentive', 'transformer'])
    >>> sorted(regard.models.LABEL_PRESETS)
    ['classifier-rnn', 'classifier-self-attentive', 'classifier-transformer']
    >>> sorted(regard.models.CLASSIFIERS)
    ['rnn', 'self-attentive', 'transformer']
    >>> sorted(regard.models.COPY_PRESETS | regard.models.SPAN_PRESETS)
    ['pointer', 'span']
    >>> sorted(regard.models.STORY_PRESETS | regard.models.TAG_PRESETS)
    ['memory-network', 'rnn', 'story-transformer']
    >>> maps: regard.models.Maps = {"cross": (torch.ones(2, 1, 3, 5),)}  # a tensor for each layer
"""

from regard.models.adapters import (
    ColumnInput,
    ConvInput,
    ConvStem,
    InputAdapter,
    PictureInput,
    TimeConvInput,
    VectorInput,
)
from regard.models.ctc_decoder import JointDecoder
from regard.models.encoder_decoder import EncoderDecoder
from regard.models.encoder_only import Classifier, ClassifierOutput, SequenceClassifier, Tagger
from regard.models.encoders import with_input
from regard.models.language_model import LanguageModel, TextModel
from regard.models.presets import (
    CLASSIFIERS,
    COPY_PRESETS,
    LABEL_PRESETS,
    LANGUAGE_MODELS,
    PRESETS,
    SPAN_PRESETS,
    STORY_PRESETS,
    TAG_PRESETS,
    TEXT_PRESETS,
)
from regard.models.protocol import (
    AnyModel,
    Maps,
    Memory,
    ModelOutput,
    NumberModel,
    NumberOutput,
    SequenceModel,
    StepOutput,
)

__all__ = [
    "CLASSIFIERS",
    "COPY_PRESETS",
    "LABEL_PRESETS",
    "LANGUAGE_MODELS",
    "PRESETS",
    "SPAN_PRESETS",
    "STORY_PRESETS",
    "TAG_PRESETS",
    "TEXT_PRESETS",
    "AnyModel",
    "Classifier",
    "ClassifierOutput",
    "ColumnInput",
    "ConvInput",
    "ConvStem",
    "EncoderDecoder",
    "InputAdapter",
    "JointDecoder",
    "LanguageModel",
    "Maps",
    "Memory",
    "ModelOutput",
    "NumberModel",
    "NumberOutput",
    "PictureInput",
    "SequenceClassifier",
    "SequenceModel",
    "StepOutput",
    "Tagger",
    "TextModel",
    "TimeConvInput",
    "VectorInput",
    "with_input",
]
