"""A task is an input and an output: all that the rest of the package knows about data."""

import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np

from regard.data import EncodedPairs, Pair, PairReader, StoryEncoder, Tokenizer
from regard.data.corpus import DevSet, overlapping_sources
from regard.data.frame_scaler import TargetEncoder
from regard.data.series_windows import SeriesScaler
from regard.data.stories import QUESTION_MARK
from regard.decoding import DecodingOptions
from regard.errors import ArgumentError, RegardError
from regard.models import PRESETS, AnyModel
from regard.models.protocol import require_sequence_model
from regard.seeing import Text
from regard.symbols import UNK
from regard.tasks.inputs.array import ArrayInput
from regard.tasks.inputs.base import TaskInput
from regard.tasks.inputs.series import SeriesInput
from regard.tasks.inputs.text import Source, TextInput, unknown_note
from regard.tasks.outputs.base import NumbersOutput, TaskOutput
from regard.tasks.outputs.forecast import ForecastOutput
from regard.tasks.outputs.tokens import TokenOutput
from regard.tasks.settings import DataPlace, Encoders, Say, Settings
from regard.tasks.tokenizer_training import TOKENIZER_LINES, learn_target_tokenizer


class Task:
    """The input and the output of a run, with their encoders.

    Args:
        settings: of the run.
        source: the input.
        output: the output.
    """

    def __init__(self, settings: Settings, source: TaskInput, output: TaskOutput) -> None:
        self.settings, self.input, self.output = settings, source, output
        self.encoders = Encoders(source.encoder, output.encoder)

    @property
    def type(self) -> "TaskType":
        """The classes of input and output."""
        return TaskType(type(self.input), type(self.output))

    def __str__(self) -> str:
        return f"{self.input.name} to {self.output.name}"

    @property
    def starter(self) -> Mapping[str, Any]:
        """Settings of a run that names no preset."""
        return {**self.type.starter, **self.input.starter(self.output.like or self.output.name)}

    @property
    def unit(self) -> str:
        """Unit that sources are measured in."""
        return self.input.describe().unit or self.input.facts.unit

    @property
    def has_sources(self) -> bool:
        """True if the model encodes a source and attends to it."""
        return self.input.facts.has_sources

    @property
    def numbers(self) -> NumbersOutput | None:
        """The output of a model that predicts numbers; None if it writes tokens."""
        return self.output if isinstance(self.output, NumbersOutput) else None

    @cached_property
    def tokens(self) -> TokenOutput:
        """The output of a model that writes tokens; raises RegardError if it predicts numbers."""
        require_text_target(self.encoders.target, "what is asked for")
        return cast(TokenOutput, self.output)

    @property
    def target(self) -> Tokenizer:
        """The tokeniser of the targets; raises RegardError if these are numbers."""
        return self.tokens.tokenizer

    @property
    def labels(self) -> tuple[str, ...]:
        """The labels that outputs are; none if they are something else."""
        return self.output.labels if isinstance(self.output, TokenOutput) else ()

    def build_model(self) -> AnyModel:
        """Build the preset of the settings for these encoders."""
        settings, output = self.settings, self.output
        if isinstance(output, ForecastOutput):
            return output.build()
        if settings.model.get("ngrams") and self.input.vocab_size == 1:
            rule = f"be 0 for {self.input.facts.several}, which have no tokens"
            raise ArgumentError("ngrams", rule, settings.model["ngrams"], "leave it out")
        # the embedding of a source vocabulary is replaced unless the input is tokens
        network = PRESETS[settings.preset](
            self.input.vocab_size,
            output.size,
            settings.model_size,
            **settings.model,
            **output.network_options(),
        )
        model: AnyModel = output.finish(self.input.attach(network))
        return model

    def sort_lengths(self, corpus: EncodedPairs) -> np.ndarray:
        """Return the lengths by which dev examples are batched."""
        return corpus.src_lengths if self.has_sources else corpus.tgt_lengths

    def source_size(self, pair: Pair) -> int:
        """Return the length of a pair's source in the input's unit."""
        (row,) = self.input.rows([self.input.of_pair(pair)])
        return len(row) - self.input.facts.ends

    def overlap(self, train: EncodedPairs, dev: DevSet) -> int:
        """Return how many dev sources are also sources of training pairs, if they are tokens."""
        tokens = isinstance(self.input.encoder, Tokenizer | StoryEncoder)
        tables = getattr(self.input.encoder, "width", 0)
        return overlapping_sources(train, dev) if tokens and self.has_sources and not tables else 0

    def max_positions(self, model: AnyModel) -> int | None:
        """Return the longest source that the model has positions for; None if any fits.

        A language model writes its source, `bos` in the place of `eos`.
        """
        if self.has_sources:
            return model.src_positions
        return require_sequence_model(model, "a language model").tgt_positions

    def prefixed(self, options: DecodingOptions, rows: Sequence[Any]) -> DecodingOptions:
        """Return decoding options for these sources, each with the prefix that it must begin with.

        A single prefix is that of every source; a language model begins with its source. Tokens
        that all targets begin with, such as the name of a language, count nothing.
        """
        if not self.has_sources:
            return replace(options, prefix=[row[:-1] for row in rows])
        prefix, first = options.prefix or (), self.target.prefix
        if first:
            given = [[*first, *own] for own in prefix or [[]]]
            options, prefix = replace(options, prefix=given, forced=len(first)), given
        return replace(options, prefix=[*prefix] * len(rows)) if len(prefix) == 1 else options

    def unknown_words(self, source: Any) -> list[str]:
        """Return the words that outputs repeat from a source though the model has no token."""
        if self.has_sources:
            return []
        tokenizer = cast(TextInput, self.input).tokenizer
        text = Source.of(tokenizer, source).text
        ids, spans = tokenizer.encode(text), tokenizer.spans(text)
        return [text[slice(*span)] for i, span in zip(ids, spans, strict=True) if i == UNK]

    def trace_notes(self, source: Text, target: Text) -> tuple[str, ...]:
        """Return remarks for readers of a trace, such as unknown tokens.

        What a language model reads is its source, or a target that it is made to write.
        """
        if not self.has_sources:
            return unknown_note(self.target, source if source.text else target)
        return (*self.input.notes(source), *self.tokens.trace_notes(source, target))

    def encoder_rows(self) -> dict[str, str]:
        """Return rows of the model card about the encoders."""
        files = {"source vectors": self.settings.src_vectors}
        rows = {self.input.facts.card_name: self.encoders.source.summary}
        if not self.has_sources:
            rows = {"tokens": self.target.summary}
            files["vectors"] = self.settings.tgt_vectors
        else:
            rows |= self.output.encoder_rows()
            files["target vectors"] = self.settings.tgt_vectors
        return rows | {name: f"start from {file}" for name, file in files.items() if file}

    def card_examples(self, dev: DevSet) -> str:
        """Return the model card's paragraph with dev examples; none for windows of series."""
        what = self.input.facts.examples
        if isinstance(self.output, ForecastOutput):
            return ""
        pairs = zip(dev.sources[:3], dev.references[:3], strict=True)
        lines = [f"{src.replace(QUESTION_MARK, ' ')} -> {texts[0]}" for src, texts in pairs]
        if not self.has_sources:
            lines = [several[0] for several in dev.references[:3]]
        shown = textwrap.indent("\n".join(lines), "    ")
        return f"{what.capitalize()} of its dev set look like this:\n\n{shown}\n"


class TaskType(NamedTuple):
    """An input and an output that go together."""

    input: type[TaskInput]
    output: type[TaskOutput]

    @property
    def options(self) -> Set[str]:
        """Names of settings that only some tasks have."""
        parts = (self.input.options_type, self.output.options_type)
        return {name for part in parts for name in part.model_fields}

    @property
    def starter(self) -> Mapping[str, Any]:
        """Settings of a run that names no preset."""
        return {"preset": self.output.default_preset, **self.output.starter}

    def check_settings(self, settings: Settings) -> None:
        """Raise ArgumentError if a setting makes no sense for this task."""
        self.input.check_settings(settings)
        self.output.check_settings(settings)

    def read(self, settings: Settings, place: DataPlace) -> PairReader:
        """Read examples."""
        return self.input.read_examples(settings, place, self.output.check_pair)

    def learn(
        self, settings: Settings, pairs: Iterable[Pair], *, file: str, why: str, say: Say
    ) -> Encoders:
        """Learn the encoders from training examples, in one pass.

        Args:
            settings: of the run.
            pairs: at least one; read once.
            file: what messages call their file.
            why: why the input was chosen, worded to follow "because".
            say: announces each choice.
        """
        targets: list[str] = []
        found = self.input.learn(settings, _collected(pairs, targets), file=file, why=why, say=say)
        if isinstance(found, SeriesScaler):
            return Encoders(found, found.number_targets)
        if settings.shared_vocab or not self.input.facts.has_sources:
            both = found.tokenizer if isinstance(found, StoryEncoder) else cast(Tokenizer, found)
            return Encoders(found, both)
        open_output = self.output is TokenOutput and "preset" not in settings.model_fields_set
        if (
            open_output
            and issubclass(self.input, ArrayInput)
            and max(len(t.split()) for t in targets) < 2
        ):
            # a word is no caption, and labels of pictures and recordings are often few of each
            return Encoders(
                found, learn_target_tokenizer(settings, targets, say, file=file, each=2)
            )
        return Encoders(found, self.output.learn(settings, targets, file=file, say=say))

    @property
    def vector_sides(self) -> dict[str, str]:
        """Tokens whose embeddings may start from word vectors, by setting."""
        if not self.input.facts.has_sources:
            return {"tgt_vectors": "text"}
        read = {"src_vectors": "source"} if self.input is not SeriesInput else {}
        return read | (
            {"tgt_vectors": "target"} if not issubclass(self.output, NumbersOutput) else {}
        )


def _collected(pairs: Iterable[Pair], targets: list[str]) -> Iterator[Pair]:
    """Yield pairs; adds the first targets to a list."""
    for pair in pairs:
        if len(targets) < TOKENIZER_LINES:
            targets.append(pair.tgt)
        yield pair


def require_text_target(target: TargetEncoder, what: str) -> Tokenizer:
    """Return the tokeniser of text targets; raises RegardError for numbers."""
    if isinstance(target, Tokenizer):
        return target
    raise RegardError(
        f"{what} must have a target of text, but this run predicts {target.summary}: use `regard "
        f"predict`, `regard evaluate` or `regard show` with it."
    )
