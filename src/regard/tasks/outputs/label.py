"""One label for a source, such as the sentiment of a review."""

import json
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from regard.data import EncodedPairs, TargetEncoder
from regard.errors import ArgumentError
from regard.evaluation import ClassReport, confusion
from regard.evaluation.classification import unknown_classes
from regard.models import (
    LABEL_PRESETS,
    SPAN_PRESETS,
    STORY_PRESETS,
    TAG_PRESETS,
    SequenceModel,
)
from regard.ops.primitives import log_softmax
from regard.symbols import BOS, SYMBOLS, UNK
from regard.tasks.inputs.base import TaskInput
from regard.tasks.outputs.tokens import TokenOutput
from regard.tasks.settings import Settings, TaskOptions
from regard.tasks.tokenizer_training import check_label_settings

Label = bool | int | str
Weight = Annotated[float, Field(ge=0)]


class LabelOptions(TaskOptions):
    """Settings of runs whose targets are labels."""

    class_weights: Literal["balanced"] | dict[Label, Weight] | None = Field(
        default=None,
        description="weights of labels in the loss, 1 if not named: balanced, by which rare labels "
        'count as much as frequent ones, or as in {"spam": 5}',
    )


class LabelOutput(TokenOutput):
    """Whole labels: a classifier scores them, or a decoder writes them as one token."""

    name = "label"
    options_type: ClassVar[type[TaskOptions]] = LabelOptions
    default_preset = "classifier-rnn"
    exact_metric = "accuracy"

    def __init__(self, encoder: TargetEncoder, source: TaskInput, settings: Settings) -> None:
        super().__init__(encoder, source, settings)
        self.labels = tuple(self.tokenizer.tokens(range(len(SYMBOLS), self.tokenizer.vocab_size)))
        self.end_is_certain = settings.preset in LABEL_PRESETS

    @classmethod
    def is_possible(cls, settings: Settings) -> bool:
        """Return whether labels are asked for, or the preset writes nothing else."""
        if settings.preset in {*LABEL_PRESETS, *STORY_PRESETS}:
            return True
        return settings.tgt_tokenizer == "label" and settings.preset not in {
            *TAG_PRESETS,
            *SPAN_PRESETS,
        }

    @classmethod
    def fits(cls, encoder: TargetEncoder) -> bool:
        """Return whether targets are whole labels."""
        return encoder.kind == "label"

    @classmethod
    def check_settings(cls, settings: Settings) -> None:
        """Raise ArgumentError for settings that do not go with labels."""
        check_label_settings(settings)
        weights = LabelOptions.of(settings).class_weights
        if weights is not None and not cls.is_possible(settings):
            rule, fix = "be left out unless targets are labels", "add tgt_tokenizer=label"
            raise ArgumentError("class_weights", rule, repr(weights), fix)

    def class_weights(self, train: EncodedPairs) -> Tensor | None:
        """Return the weight of each token in the loss; None if all count the same."""
        given = self.options.class_weights
        if given == "balanced":
            ids = train.gather("tgt", np.arange(len(train.tgt_lengths))).padded(1)[0]
            counts = torch.from_numpy(np.bincount(ids.ravel(), minlength=self.tokenizer.vocab_size))
            balanced = len(ids) / (len(self.labels) * counts.clamp(min=1))
            return torch.where(counts > 0, balanced, 1.0).float()
        weights = torch.ones(self.tokenizer.vocab_size)
        for label, weight in (given or {}).items():
            (token,) = self.tokenizer.encode(label if type(label) is str else json.dumps(label))
            if token == UNK:
                rule = f"name labels of the data, such as {', '.join(self.labels[:3])}"
                raise ArgumentError("class_weights", rule, repr(label), "write it as they are")
            weights[token] = weight
        return weights if given else None

    def decoding(self) -> dict[str, Any]:
        """Return options to write one label."""
        return {"max_len": 1, "min_len": 1, "forbid_unknown": True}

    def probabilities(
        self, module: SequenceModel, src: Tensor, lengths: Tensor
    ) -> Float[Tensor, "batch labels"]:
        """Return the probability of each label among all."""
        state = module.start(module.encode(src, lengths))
        logits = module.step(torch.full_like(lengths, BOS), state).logits[:, len(SYMBOLS) :]
        return log_softmax(logits.float()).exp()

    def class_report(
        self, predictions: Sequence[str], references: Sequence[Sequence[str]]
    ) -> ClassReport:
        """Return results by label."""
        normalize = self.tokenizer.normalize
        gold = [[normalize(text) for text in several] for several in references]
        found = confusion([normalize(text) for text in predictions], gold)
        return ClassReport("label", found.rows(), found, unknown_classes(gold, self.labels))
