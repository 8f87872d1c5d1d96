"""One label for a source, such as the sentiment of a review."""

from collections.abc import Sequence

from regard.data import TargetEncoder
from regard.evaluation import ClassReport, choose_metrics, confusion
from regard.evaluation.classification import MOST_CLASSES, unknown_classes
from regard.models import LABEL_PRESETS, SPAN_PRESETS, STORY_PRESETS, TAG_PRESETS
from regard.symbols import SYMBOLS
from regard.tasks.inputs.base import TaskInput
from regard.tasks.outputs.tokens import TokenOutput
from regard.tasks.settings import Settings
from regard.tasks.tokenizer_training import check_label_settings


class LabelOutput(TokenOutput):
    """Whole labels: a classifier scores them, or a decoder writes them as one token."""

    name = "label"
    default_preset = "classifier-rnn"

    def __init__(self, encoder: TargetEncoder, source: TaskInput, settings: Settings) -> None:
        super().__init__(encoder, source, settings)
        self.labels = tuple(self.tokenizer.tokens(range(len(SYMBOLS), self.size)))
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

    def default_metric(self) -> str:
        """Return the share of right labels."""
        return "accuracy"

    def metrics(self) -> tuple[str, ...]:
        """Return the metrics of labels; the mean over labels is left out if they are many."""
        found = choose_metrics("label")
        return (
            found
            if len(self.labels) <= MOST_CLASSES
            else tuple(n for n in found if n != "macro-f1")
        )

    def class_report(
        self, predictions: Sequence[str], references: Sequence[Sequence[str]]
    ) -> ClassReport:
        """Return results by label."""
        normalize = self.tokenizer.normalize
        gold = [[normalize(text) for text in several] for several in references]
        found = confusion([normalize(text) for text in predictions], gold)
        return ClassReport("label", found.rows(), found, unknown_classes(gold, self.labels))
