"""Several labels for a source, such as the genres of a film: each holds or not, by itself."""

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, cast

import numpy as np
import torch
from jaxtyping import Float
from pydantic import Field
from torch import Tensor

from regard.data import EncodedPairs, TargetEncoder, Tokenizer
from regard.data.lookup_codecs import LabelSetCodec
from regard.errors import ArgumentError, DataError
from regard.evaluation import ClassReport, confusion
from regard.evaluation.classification import set_report, unknown_classes
from regard.evaluation.metrics import compared
from regard.messages import message
from regard.models import (
    LABEL_PRESETS,
    SPAN_PRESETS,
    STORY_PRESETS,
    TAG_PRESETS,
    SequenceModel,
)
from regard.models.encoder_only import LabelSetClassifier, LabelSetState
from regard.ops.primitives import log_softmax
from regard.symbols import BOS, SYMBOLS, UNK
from regard.tasks.inputs.base import TaskInput
from regard.tasks.outputs.number import NOT_TOKENS
from regard.tasks.outputs.tokens import TokenOutput
from regard.tasks.settings import Say, Settings, TaskOptions, refuse_settings
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
        self.counted = 1 + self.end_is_certain

    @classmethod
    def is_possible(cls, settings: Settings) -> bool:
        """Return whether labels are asked for, or the preset writes nothing else."""
        if settings.preset in {*LABEL_PRESETS, *STORY_PRESETS}:
            return True
        others = {*TAG_PRESETS, *SPAN_PRESETS}
        return settings.tgt_tokenizer == "label" and settings.preset not in others

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
        texts, gold = compared(predictions, references, self.tokenizer)
        found = confusion(texts, gold)
        return ClassReport("label", found.rows(), found, unknown_classes(gold, self.labels))


class LabelSetOptions(LabelOptions):
    """Settings of runs whose targets name several labels each."""

    separator: str | None = Field(
        default=None,
        description="what parts the labels of a target, as in comedy|drama, of which each is "
        "predicted by itself; json if targets are lists in JSON",
        min_length=1,
    )


class LabelSetOutput(LabelOutput):
    """Any number of labels: a classifier gives each of them a probability of its own."""

    name = "labels"
    like = "label"
    options_type: ClassVar[type[TaskOptions]] = LabelSetOptions
    defaults: ClassVar[Mapping[str, Any]] = {"label_smoothing": 0.0, "beam": 1}
    exact_metric = "subset-accuracy"
    exclusive = False

    def __init__(self, encoder: TargetEncoder, source: Any, settings: Settings) -> None:
        super().__init__(encoder, source, settings)
        self.end_is_certain, self.counted = False, 1

    @classmethod
    def is_possible(cls, settings: Settings) -> bool:
        """Return whether targets are parted into labels."""
        return LabelSetOptions.of(settings).separator is not None

    @classmethod
    def fits(cls, encoder: TargetEncoder) -> bool:
        """Return whether targets are sets of labels."""
        return encoder.kind == "labels"

    @classmethod
    def check_settings(cls, settings: Settings) -> None:
        """Raise ArgumentError for settings of one label, or of texts."""
        if not cls.is_possible(settings):  # a setting of both was given
            return LabelOutput.check_settings(settings)
        what = "where targets name several labels"
        if settings.preset not in LABEL_PRESETS:
            rule = f"be one of {', '.join(LABEL_PRESETS)} {what}"
            raise ArgumentError("preset", rule, settings.preset, "choose one of them")
        if settings.label_smoothing:
            value = settings.label_smoothing
            raise ArgumentError("label_smoothing", f"be left out {what}", value, "leave it out")
        return refuse_settings(settings, NOT_TOKENS, f"be left out {what}")

    @classmethod
    def learn(cls, settings: Settings, targets: list[str], *, file: str, say: Say) -> TargetEncoder:
        """Learn the labels."""
        separator = LabelSetOptions.of(settings).separator
        tokenizer = Tokenizer("labels", LabelSetCodec.train(targets, separator))
        sizes = list(map(len, tokenizer.encode_batch(targets)))
        count = tokenizer.vocab_size - len(SYMBOLS)
        if count < 2 or 2 * count > sum(sizes):
            reason = (
                f"labels must be two or more that come again, but {len(sizes):,} targets, such as "
                f"{targets[0]!r:.40}, name {count:,} different ones"
            )
            raise DataError(file, None, reason, "choose another separator, or leave it out")
        each = sum(sizes) / len(sizes)
        say(message("train.label-sets", count=count, each=each, separator=repr(separator)))
        return tokenizer

    def finish(self, model: Any) -> LabelSetClassifier:
        """Return the classifier, whose labels do not exclude each other."""
        return LabelSetClassifier(model.classifier)

    def decoding(self) -> dict[str, Any]:
        """Return options to write label after label, until none is above the threshold."""
        return {"beam": 1, "nbest": 1, "max_len": len(self.labels), "forbid_unknown": True}

    def probabilities(
        self, module: SequenceModel, src: Tensor, lengths: Tensor
    ) -> Float[Tensor, "batch labels"]:
        """Return the probability of each label."""
        state = cast(LabelSetState, module.start(module.encode(src, lengths)))
        return torch.sigmoid(state.logits[:, len(SYMBOLS) :].float())

    def class_report(
        self, predictions: Sequence[str], references: Sequence[Sequence[str]]
    ) -> ClassReport:
        """Return results by label; a label that is missing is confused with those in excess."""
        return set_report(*compared(predictions, references, self.tokenizer))
