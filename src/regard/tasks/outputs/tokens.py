"""Tokens: an output that a model writes token by token, such as a translation."""

from collections.abc import Sequence
from typing import Any, Final

from jaxtyping import Float
from torch import Tensor

from regard.data import Corpus, EncodedPairs, Pair, TargetEncoder, Tokenizer
from regard.data.corpus import DevSet
from regard.data.lookup_codecs import KINDS
from regard.data.running_text import RunningText
from regard.data.story_encoder import MARKS
from regard.evaluation import ClassReport, copied_share
from regard.evaluation.classification import MOST_CLASSES
from regard.messages import message
from regard.models import (
    COPY_PRESETS,
    LABEL_PRESETS,
    SPAN_PRESETS,
    STORY_PRESETS,
    TAG_PRESETS,
    SequenceModel,
)
from regard.seeing import Text
from regard.tasks.inputs.base import TaskInput
from regard.tasks.inputs.story import StoryInput
from regard.tasks.inputs.text import describe_tokenizer
from regard.tasks.outputs.base import TaskOutput
from regard.tasks.settings import Say, Settings
from regard.tasks.tokenizer_training import learn_target_tokenizer

#: marks by which sentences are told from words and dates, if targets are cut into characters
SENTENCE_ENDS: Final = frozenset("。！？!?")
#: measures of summaries
ROUGE: Final = ("rouge-1", "rouge-2", "rouge-l")


class TokenOutput(TaskOutput):
    """Texts, cut into tokens."""

    name = "tokens"
    #: the labels that outputs are, if targets are whole labels
    labels: tuple[str, ...] = ()
    #: whether an output is one label, and not any number of them
    exclusive: bool = True
    #: the share of outputs that are right as a whole
    exact_metric: str = "exact"
    #: whether the model ends its outputs by itself, so that nobody need look at their end
    end_is_certain: bool = False

    def __init__(self, encoder: TargetEncoder, source: TaskInput, settings: Settings) -> None:
        super().__init__(encoder, source, settings)
        assert isinstance(encoder, Tokenizer)
        self.tokenizer = encoder

    @classmethod
    def is_possible(cls, settings: Settings) -> bool:
        """Return whether the preset writes texts of any length, and labels are not asked for."""
        others = {*LABEL_PRESETS, *STORY_PRESETS, *TAG_PRESETS, *SPAN_PRESETS}
        return settings.preset not in others and settings.tgt_tokenizer != "label"

    @classmethod
    def fits(cls, encoder: TargetEncoder) -> bool:
        """Return whether targets are cut into tokens."""
        return isinstance(encoder, Tokenizer) and encoder.kind != "label"

    @classmethod
    def check_settings(cls, settings: Settings) -> None:
        """Take any settings."""

    @classmethod
    def learn(cls, settings: Settings, targets: list[str], *, file: str, say: Say) -> TargetEncoder:
        """Learn the tokeniser, whose tokens are whole labels if the targets look like that."""
        return learn_target_tokenizer(settings, targets, say, file=file)

    @property
    def size(self) -> int:
        """Tokens of the vocabulary."""
        return self.tokenizer.vocab_size

    def train_set(self, corpus: Corpus) -> EncodedPairs:
        """Return the training examples, or windows of running text."""
        return RunningText(corpus, self.input.context) if self.input.context else corpus

    def dev_set(self, corpus: Corpus) -> DevSet:
        """Return the dev examples, or windows of running text."""
        found = self.train_set(corpus)
        return found.dev_set() if isinstance(found, RunningText) else DevSet.of(corpus)

    @property
    def copies(self) -> bool:
        """True if the preset copies tokens of the source."""
        return self.settings.preset in COPY_PRESETS

    def network_options(self) -> dict[str, Any]:
        """Return how many tokens a preset that copies never copies: features and marks."""
        if not self.copies:
            return {}
        marks = MARKS if isinstance(self.input, StoryInput) else self.input.feature_names
        return {"src_only": len(marks)}

    @property
    def _writes_sentences(self) -> bool:
        """True if targets are cut into characters and are sentences, which are never all right."""
        if self.tokenizer.kind != "char":
            return False
        return bool(SENTENCE_ENDS.intersection(self.tokenizer.tokens(range(self.size))))

    def default_metric(self) -> str:
        """Return the metric that suits input and tokeniser."""
        kind = KINDS[self.tokenizer.kind]
        usual = "chrf" if self._writes_sentences else kind.decides or kind.metrics[0]
        return self.input.facts.metrics.get(self.tokenizer.kind, usual)

    def metrics(self) -> tuple[str, ...]:
        """Return the metrics that suit the targets, the main one first."""
        if isinstance(self.input, StoryInput) and self.settings.preset not in LABEL_PRESETS:
            return ("em", "f1")
        if self.settings.metric in ROUGE:
            return ROUGE
        suitable = KINDS[self.tokenizer.kind].metrics
        if len(self.labels) > MOST_CLASSES:  # of which a mean says little
            suitable = tuple(name for name in suitable if name != "macro-f1")
        return ("chrf", *suitable) if self._writes_sentences else suitable

    def decoding(self) -> dict[str, Any]:
        """Return options of decoding that follow from the output, whatever is asked for."""
        return {}

    def probabilities(
        self, module: SequenceModel, src: Tensor, lengths: Tensor
    ) -> Float[Tensor, "batch labels"] | None:
        """Return the probability of each label; None if outputs are no labels."""
        return None

    def class_report(
        self, predictions: Sequence[str], references: Sequence[Sequence[str]]
    ) -> ClassReport | None:
        """Return results by class, if targets are classes or made of them; else None."""
        return None

    def trace_notes(self, source: Text, target: Text) -> tuple[str, ...]:
        """Return how many words were copied, if the preset copies."""
        if not self.copies or isinstance(self.input, StoryInput) or not target.text.strip():
            return ()
        return (message("copied.trace", share=copied_share([target.text], [source.text])),)

    def output_notes(self, predictions: Sequence[str], pairs: Sequence[Pair]) -> tuple[str, ...]:
        """Return how many words were copied, if the preset copies and may do something else."""
        if not self.copies:
            return ()
        sources = [pair.src for pair in pairs]
        own = copied_share(predictions, sources)
        right = copied_share([pair.tgt for pair in pairs], sources)
        return (message("copied.all", own=own, right=right),)

    def encoder_rows(self) -> dict[str, str]:
        """Return rows of the model card about the targets."""
        return {"target tokens": self.tokenizer.summary}

    def describe(self) -> dict[str, Any]:
        """Return the tokeniser's kind, its vocabulary's size and the number of its features."""
        return describe_tokenizer(self.tokenizer)
