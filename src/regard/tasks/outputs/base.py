"""Outputs of tasks: how targets are learned and built into a network, scored and described.

Models of two sorts exist: those that write tokens, which a search decodes (texts, labels, tags,
spans), and those that predict numbers in one pass, which are `NumbersOutput`.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from regard.data import Corpus, EncodedPairs, NumberTargets, Pair, TargetEncoder
from regard.data.corpus import DevSet
from regard.errors import RegardError
from regard.models import AnyModel
from regard.tasks.inputs.base import TaskInput
from regard.tasks.outputs.number_graphs import NumberGraph
from regard.tasks.settings import Advance, DevScores, Say, ScoreTable, Settings, TaskOptions


class OutputChoice(ABC):
    """The side of an output that needs no encoder: its settings, and learning from targets."""

    name: ClassVar[str]
    #: the output whose settings suit a run that names no preset, if it is another one
    like: ClassVar[str] = ""
    #: the one input that it goes with, and why, if it is one
    only: ClassVar[tuple[str, str] | None] = None
    #: inputs that it does not go with, and why
    refuses: ClassVar[Mapping[str, str]] = {}
    #: whether the model writes one output per input
    one_per_input: ClassVar[bool] = False
    #: settings beyond those of every run
    options_type: ClassVar[type[TaskOptions]] = TaskOptions
    #: defaults of settings that differ from those of other runs
    defaults: ClassVar[Mapping[str, Any]] = {}
    #: the preset of a run that names none,
    default_preset: ClassVar[str] = "bahdanau"
    #: tokens that a step counts for each that can be wrong: two, if the end after it is certain
    counted: int = 1
    #: and its other settings, unless they are given
    starter: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    @abstractmethod
    def is_possible(cls, settings: Settings) -> bool:
        """Return whether the settings leave this output open."""

    @classmethod
    @abstractmethod
    def fits(cls, encoder: TargetEncoder) -> bool:
        """Return whether an encoder of targets may be of this output."""

    @classmethod
    @abstractmethod
    def check_settings(cls, settings: Settings) -> None:
        """Raise ArgumentError if a setting makes no sense for this output."""

    @classmethod
    @abstractmethod
    def learn(cls, settings: Settings, targets: list[str], *, file: str, say: Say) -> TargetEncoder:
        """Learn the encoder from training targets, and announce it."""

    @classmethod
    def check_pair(cls, pair: Pair) -> Pair:
        """Return a pair whose target is usable; raises BadLine for another."""
        return pair


class TaskOutput(OutputChoice):
    """Targets of a model.

    Args:
        encoder: learned by `learn`, or loaded from a run folder.
        source: the input of the task.
        settings: of the run.
    """

    def __init__(self, encoder: TargetEncoder, source: TaskInput, settings: Settings) -> None:
        self.encoder: Any = encoder
        self.input, self.settings = source, settings
        self.options: Any = self.options_type.of(settings)

    def usable(
        self, pairs: Iterable[Pair], *, file: str, skip_bad: bool, say: Say
    ) -> Iterable[Pair]:
        """Return the examples that a model can learn from; others are bad lines."""
        return pairs

    @property
    @abstractmethod
    def size(self) -> int:
        """Different outputs of a position, which the network scores."""

    def network_options(self) -> dict[str, Any]:
        """Return arguments of the preset that follow from the encoders."""
        return {}

    def finish(self, model: Any) -> Any:
        """Return the model of a run, from a preset that reads its input."""
        return model

    def fitted_weights(
        self, model: AnyModel, data: tuple[EncodedPairs, DevSet] | None = None
    ) -> list[Tensor]:
        """Return weights that begin as a simple model, which is fitted if there are data.

        They learn slowly, from the score of that model on.
        """
        return []

    def train_set(self, corpus: Corpus) -> EncodedPairs:
        """Return the training examples of encoded data."""
        return corpus

    def dev_set(self, corpus: Corpus) -> DevSet:
        """Return the dev examples of encoded data."""
        return DevSet.of(corpus)

    def class_weights(self, train: EncodedPairs) -> Tensor | None:
        """Return the weight of each token in the loss; None if all count the same."""
        return None

    @abstractmethod
    def default_metric(self) -> str:
        """Return the metric that decides between checkpoints."""

    def calibrate(
        self, model: AnyModel, train: EncodedPairs, dev: DevSet, device: torch.device
    ) -> dict[str, Tensor]:
        """Return what predictions need beside the final weights, as tensors by name.

        They are kept in the run folder, and handed to `use_calibration` when it is loaded.
        """
        return {}

    def use_calibration(self, tensors: Mapping[str, Tensor]) -> None:
        """Take what `calibrate` has returned; raises RegardError if it is of another model."""
        raise RegardError(
            f"a run of {self.input.facts.examples} must have no calibration, but there is one: "
            f"remove the file calibration.safetensors."
        )

    @abstractmethod
    def encoder_rows(self) -> dict[str, str]:
        """Return rows of the model card about the targets."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the encoder's properties, as a server's `/api/info` states them."""


class NumbersOutput(TaskOutput):
    """Outputs that a model predicts in one pass, and not token by token."""

    @classmethod
    def fits(cls, encoder: TargetEncoder) -> bool:
        """Return whether targets are numbers."""
        return isinstance(encoder, NumberTargets)

    def default_metric(self) -> str:
        """Return the loss of the numbers."""
        loss: str = self.options.loss
        return loss

    def describe(self) -> dict[str, Any]:
        """Return the names of the numbers."""
        return {"tokenizer": self.encoder.kind, "names": list(self.encoder.names)}

    @abstractmethod
    def objective(self, model: AnyModel) -> nn.Module:
        """Return the model with its loss, called with the sides of a batch."""

    @abstractmethod
    def dev_scores(self, model: AnyModel, dev: DevSet, device: torch.device) -> DevScores:
        """Evaluate a model on the dev set, in evaluation mode and without gradients."""

    def dev_traces(self, model: AnyModel, dev: DevSet, device: torch.device) -> Sequence[Any]:
        """Return traces of a few dev examples for the report; none if it has nothing to draw."""
        return ()

    @abstractmethod
    def predictions(
        self, model: AnyModel, sources: Iterable[Any], device: torch.device
    ) -> Iterator[Any]:
        """Yield the prediction for each source, in order."""

    @abstractmethod
    def traces(self, model: AnyModel, sources: Sequence[Any], device: torch.device) -> list[Any]:
        """Return what can be drawn of the prediction for each source."""

    @abstractmethod
    def checked(self, model: AnyModel, source: Any, device: torch.device) -> Any:
        """Return what can be drawn of a prediction, with what mattered to it."""

    @abstractmethod
    def scores(
        self,
        model: AnyModel,
        file: Any,
        device: torch.device,
        advance: Advance = lambda share: None,
    ) -> ScoreTable:
        """Return the scores of a model on a file, beside baselines.

        `advance` is told of each part of the work that is done, as a share of all.
        """

    @abstractmethod
    def graph(self, model: AnyModel) -> NumberGraph:
        """Return the graph of a model, for an export."""
