"""Kinds of data. A kind reads, learns from, encodes, labels and scores one sort of example.

Everything that differs between sorts of data is a method or an attribute of these two classes, so
that no other code asks which sort it has. `regard.kinds.KINDS` names all kinds.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from regard.data import (
    TOKENIZER_KINDS,
    BadLines,
    Corpus,
    EncodedPairs,
    Pair,
    PairReader,
    SourceEncoder,
    TargetEncoder,
    Tokenizer,
    is_held_out,
    require_text_target,
)
from regard.data.dev_set import DevSet
from regard.data.error_hints import ErrorHints
from regard.data.normalization import CASES
from regard.data.pair_reader import SourceTransform
from regard.decoding import DecodingOptions, Hypothesis
from regard.errors import RegardError
from regard.evaluation import ClassReport, choose_metrics, confusion
from regard.evaluation.classification import MOST_CLASSES, unknown_classes
from regard.kinds.graph_inputs import GraphInputs
from regard.kinds.number_graphs import NumberGraph
from regard.models import LABEL_PRESETS, AnyModel
from regard.seeing import Text, Trace
from regard.seeing.attribution.replacements import Replacements
from regard.symbols import SYMBOLS

Say = Callable[[str], None]
Advance = Callable[[float], None]

#: the metric that decides between checkpoints, by the kind of the target's tokeniser
METRICS: dict[str, str] = {
    "char": "exact",
    "space": "per",
    "word": "bleu",
    "bpe": "bleu",
    "unigram": "bleu",
    "label": "accuracy",
}
#: marks by which sentences are told from words and dates, if targets are cut into characters
SENTENCE_ENDS: Final = frozenset("。！？!?")


@runtime_checkable
class Settings(Protocol):
    """The settings of a run that depend on its data; `regard.training.Config` has them."""

    data: str | tuple[str, ...]
    tgt: str | None
    dev: str | None
    dev_tgt: str | None
    columns: tuple[str, ...] | None
    features: bool | None
    skip_bad: bool
    max_chars: int
    join_lines: int
    preset: str
    model: Any
    kind_options: Any
    src_tokenizer: Any
    tgt_tokenizer: Any
    src_case: Any
    stack: int
    scale_vectors: bool
    shared_vocab: bool
    vocab_size: int
    src_vectors: str | None
    tgt_vectors: str | None
    bpe_dropout: float
    metric: Any

    @property
    def model_size(self) -> Any:
        """The row of the preset's sizes."""
        ...


class KindOptions(BaseModel):
    """Settings that only one kind of data has: a field with a default and a description for each.

    They are settings of a run like any other, as in `regard train series.csv horizon=96`. Two kinds
    may have a setting of the same name if it means the same.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Encoders(NamedTuple):
    """Encoders learned from training examples; `tokenizer.src.json` and `tokenizer.tgt.json`."""

    source: SourceEncoder
    target: TargetEncoder


class DataPlace(NamedTuple):
    """A place that examples are read from.

    Attributes:
        source: a file, or examples given in Python.
        tgt_file: the targets, if they are another file.
        hints: how errors name the settings.
        folder: base of relative file names among the sources.
        encoder: of the sources, once it is learned.
    """

    source: Any
    tgt_file: str | None
    hints: ErrorHints
    folder: Path
    encoder: SourceEncoder | None = None


class DevScores(NamedTuple):
    """Results on the dev set.

    Attributes:
        metrics: values by name, the dev loss among them.
        health: statistics of attention, if the kind has any.
        outputs: the outputs as text, in the order of the dev set; empty if none are compared.
        errors: standard errors of metrics by name, if outputs are compared.
    """

    metrics: dict[str, float]
    health: Any = None
    outputs: Sequence[str] = ()
    errors: Mapping[str, float] = {}


class ScoreTable(NamedTuple):
    """Scores of a model on a file, each row beside a baseline.

    Attributes:
        examples: how many examples were counted, worded as a title.
        columns: names of the scores.
        rows: the name of a model or baseline, and its scores; NaN where it has none.
        notes: sentences about how they were computed.
    """

    examples: str
    columns: tuple[str, ...]
    rows: list[tuple[str, tuple[float, ...]]]
    notes: tuple[str, ...] = ()


@runtime_checkable
class SourceAdapter(Protocol):
    """Sources of a model, as a caller gives them and as the model reads them.

    A row is what the model reads of one source: token ids with `eos`, or scaled frames.
    """

    #: what a source is measured in, such as "source tokens"
    unit: str
    #: what the model card calls the source encoder
    card_name: str
    #: whether a source ends with `eos`, which attention may collapse to
    ends_with_eos: bool
    #: whether a command line names a source by a file
    is_file: bool
    #: the field of a server's request that holds a source: "text", "frames" or "file"
    request_field: str

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Features that may follow a source after a tab."""
        ...

    @property
    def frame_size(self) -> int:
        """Numbers per frame, or 0 for text."""
        ...

    def is_one(self, given: Any) -> bool:
        """Return whether this is one source, and not several."""
        ...

    def check_several(self, given: Any) -> None:
        """Raise ArgumentError unless given an iterable of sources."""
        ...

    def check(self, source: Any) -> None:
        """Raise RegardError if this cannot be a source."""
        ...

    def check_line(self, line: Any) -> None:
        """Like `check`, for a line of a file."""
        ...

    def rows(self, sources: Sequence[Any]) -> list[Any]:
        """Encode sources."""
        ...

    def receive(self, content: bytes) -> Any:
        """Return the source in a file that a client has sent; raises RegardError if it has none."""
        ...

    def batch(self, rows: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """Pad rows to a batch; returns the batch and the lengths of the rows."""
        ...

    def positions(self, lengths: Any) -> Any:
        """Return how many vectors a model makes of rows of these lengths."""
        ...

    def length(self, row: Any) -> int:
        """Return the positions of a row, `eos` not counted."""
        ...

    def labels(self, row: Any) -> list[str]:
        """Return a label for each position: the columns of an attention map."""
        ...

    def text(self, source: Any, row: Any) -> Text:
        """Return a source as traces hold it."""
        ...

    def corpus_text(self, corpus: Corpus, row: int, text: str) -> Text:
        """Return the source of an encoded example as traces hold it."""
        ...

    def notes(self, text: Text) -> tuple[str, ...]:
        """Return remarks for readers of a trace, such as unknown tokens."""
        ...

    def unknown(self, source: Any, row: Any) -> tuple[str, ...]:
        """Return the parts of a source that the model has no token for."""
        ...

    def replacements(self, row: Any) -> Replacements:
        """Return what may replace each input in an ablation."""
        ...

    def replaced(self, tgt: Tokenizer, found: Hypothesis, source: Any, row: Any) -> list[str]:
        """Return for each unknown output the source word with the largest attention weight."""
        ...

    def size(self, pair: Pair) -> int:
        """Return the length of a pair's source in `unit`."""
        ...

    def transform(self, place: Any) -> SourceTransform:
        """Return the function that parses the sources of pairs read from a place."""
        ...

    def of_pair(self, pair: Pair) -> Any:
        """Return the source of a pair as `Model.predict` takes it."""
        ...

    def read(
        self,
        files: Sequence[str],
        settings: Settings,
        *,
        max_chars: int,
        bad: BadLines,
        check: Callable[[Any], None],
    ) -> Iterator[Any]:
        """Read sources without targets; unusable ones are added to `bad`.

        Args:
            files: "-" is stdin.
            settings: of the run, which may name the column of sources.
            max_chars: the most characters of a line.
            bad: counts unusable sources, or raises the first.
            check: raises DataError for a source that does not fit the model.
        """
        ...

    def describe(self) -> dict[str, Any]:
        """Return the encoder's properties, as a server's `/api/info` states them."""
        ...

    def manifest(self) -> dict[str, Any]:
        """Return the encoder's properties, as the manifest of an exported model states them."""
        ...

    def reads(self) -> str:
        """Return a phrase about what a model reads, such as "text, letter by letter"."""
        ...

    def examples(self, card: str, dev: Path) -> list[Any]:
        """Return example sources to try.

        Args:
            card: text of the model card.
            dev: file of the encoded dev set, which may be missing.
        """
        ...

    def graph_inputs(self) -> GraphInputs:
        """Return the description of an exported graph's inputs."""
        ...


class DataKind(ABC):
    """One kind of data. The class knows how to recognise, read and learn; an instance has encoders.

    Args:
        settings: those of the run.
        encoders: learned by `learn`, or loaded from a run folder.
    """

    #: its key in `KINDS`
    name: ClassVar[str]
    #: what messages call the examples
    examples: ClassVar[str] = "pairs"
    #: what messages call distinct inputs
    inputs: ClassVar[str] = "sources"
    #: whether an example has a source that the model encodes and attends to
    has_sources: ClassVar[bool] = True
    #: whether the model writes one output per input
    one_output_per_input: ClassVar[bool] = False
    #: whether parsing is slow, so that parsed examples are kept on disk until they are encoded
    caches_parsed: ClassVar[bool] = False
    #: whether sources may lie in files of their own, which can change while the data file does not
    names_files: ClassVar[bool] = False
    #: whether training data may be shards, which are text
    reads_shards: ClassVar[bool] = False
    #: what messages call the tokens whose embeddings start from word vectors, by setting
    vector_sides: ClassVar[Mapping[str, str]] = {"src_vectors": "source", "tgt_vectors": "target"}
    #: whether the default batch size grows with the number of examples
    scales_batches: ClassVar[bool] = True
    #: attention maps that are printed with predictions
    shown_maps: ClassVar[tuple[str, ...]] = ("cross",)
    #: file names in example commands: inputs to predict from, and examples to evaluate with
    example_files: ClassVar[tuple[str, str]] = ("input.txt", "test.tsv")
    #: how a source file says which encoder it is for: values of "kind" in tokenizer.src.json
    encoder_kinds: ClassVar[tuple[str, ...]] = ()
    #: the same for the encoder of targets: values of "kind" in tokenizer.tgt.json
    target_kinds: ClassVar[tuple[str, ...]] = TOKENIZER_KINDS
    #: settings beyond those of every run
    options_type: ClassVar[type[KindOptions]] = KindOptions
    #: the preset of a run that names settings of this kind and no preset
    default_preset: ClassVar[str] = "bahdanau"
    #: defaults of settings that differ from those of other runs
    defaults: ClassVar[Mapping[str, Any]] = {}
    #: how dev examples are chosen if they have no file, worded to follow their number
    held_out_by: ClassVar[str] = "held out by hash"

    #: the sources of examples
    sources: SourceAdapter

    def __init__(self, settings: Settings, encoders: Encoders) -> None:
        self.settings = settings
        self.encoders = encoders
        self.source = encoders.source

    @property
    def target(self) -> Tokenizer:
        """The tokeniser of the targets; raises RegardError if these are numbers."""
        return require_text_target(self.encoders.target, "what is asked for")

    @classmethod
    def options(cls, settings: Settings) -> Any:
        """Return the settings of this kind: an instance of its `options_type`."""
        return cls.options_type(**settings.kind_options)

    @classmethod
    @abstractmethod
    def is_possible(cls, settings: Settings) -> bool:
        """Return whether the settings leave this kind open."""

    @classmethod
    @abstractmethod
    def recognise(cls, settings: Settings, first: Callable[[], Sequence[Pair]]) -> str:
        """Return why the data are of this kind, worded to follow "because"; "" if they are not.

        Args:
            settings: which leave this kind open.
            first: reads the first pairs, their sources as they stand in the file.
        """

    @classmethod
    @abstractmethod
    def check_settings(cls, settings: Settings) -> None:
        """Raise ArgumentError if a setting makes no sense for this kind."""

    @classmethod
    @abstractmethod
    def read(cls, settings: Settings, place: DataPlace) -> PairReader:
        """Read examples."""

    @classmethod
    @abstractmethod
    def learn(
        cls, settings: Settings, pairs: Iterable[Pair], *, file: str, why: str, say: Say
    ) -> Encoders:
        """Learn the encoders from training examples.

        Args:
            settings: of the run.
            pairs: at least one; read once.
            file: what messages call their file.
            why: the answer of `recognise`.
            say: announces each choice.
        """

    @classmethod
    def load_encoder(cls, path: Path, content: dict[str, Any]) -> SourceEncoder:
        """Return the source encoder that a run folder holds; raises DataError if it is damaged.

        Sources are text unless a kind says otherwise.
        """
        return Tokenizer.from_json(path, content)

    @classmethod
    def fingerprint_options(cls, settings: Settings) -> dict[str, Any]:
        """Return settings beyond those of all kinds that change the encoded examples."""
        return dict(settings.kind_options)

    @classmethod
    def split_key(cls, pair: Pair) -> str:
        """Return the text whose hash decides whether an example is held out."""
        return pair.src

    @classmethod
    def is_dev(cls, settings: Settings, pair: Pair, share: float) -> bool:
        """Return whether an example of the data is held out, if there is no dev file."""
        # letters in another case are the same source to a model that converts them to one
        return is_held_out(CASES[settings.src_case](cls.split_key(pair)), share=share)

    def usable(
        self, pairs: Iterable[Pair], *, file: str, skip_bad: bool, say: Say
    ) -> Iterable[Pair]:
        """Return the examples that a model of this kind can learn from; others are bad lines."""
        return pairs

    def train_set(self, corpus: Corpus) -> EncodedPairs:
        """Return the training examples of encoded data."""
        return corpus

    def dev_set(self, corpus: Corpus) -> DevSet:
        """Return the dev examples of encoded data."""
        return DevSet.of(corpus)

    @abstractmethod
    def build_model(self) -> AnyModel:
        """Build the preset of the settings for these encoders."""

    def objective(self, model: AnyModel, tokens: Callable[[], nn.Module]) -> nn.Module:
        """Return the model with its loss, called with the sides of a batch.

        Args:
            model: to train.
            tokens: makes the cross entropy of token targets.
        """
        return tokens()

    def dev_scores(
        self, model: AnyModel, dev: DevSet, device: torch.device, tokens: Callable[[], DevScores]
    ) -> DevScores:
        """Evaluate a model on the dev set, in evaluation mode and without gradients.

        Args:
            model: to evaluate.
            dev: the dev set.
            device: where the model is.
            tokens: makes the scores of token targets.
        """
        return tokens()

    def dev_traces(
        self,
        model: AnyModel,
        dev: DevSet,
        device: torch.device,
        tokens: Callable[[], Sequence[Trace]],
    ) -> Sequence[Trace]:
        """Return traces of a few dev examples for the report; arguments are as for `dev_scores`."""
        return tokens()

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
            f"a run of {self.examples} must have no calibration, but there is one: remove the file "
            f"calibration.safetensors."
        )

    def predictions(
        self,
        model: AnyModel,
        sources: Iterable[Any],
        device: torch.device,
        tokens: Callable[[], Iterator[Any]],
    ) -> Iterator[Any]:
        """Yield the prediction for each source, in order.

        Args:
            model: in evaluation mode.
            sources: as the source adapter takes them.
            device: where the model is.
            tokens: makes the outputs of a model that writes tokens.
        """
        return tokens()

    def traces(
        self,
        model: AnyModel,
        sources: Sequence[Any],
        device: torch.device,
        tokens: Callable[[], Sequence[Any]],
    ) -> Sequence[Any]:
        """Return what can be drawn of the prediction for each source, see `predictions`."""
        return tokens()

    def checked(
        self, model: AnyModel, source: Any, device: torch.device, tokens: Callable[[], Any]
    ) -> Any:
        """Return what can be drawn of a prediction, with what mattered to it; see `traces`."""
        return tokens()

    def printed(self, prediction: Any, tokens: Callable[[], str], *, as_json: bool = False) -> str:
        """Return the lines of a prediction on stdout; `tokens` makes those of a written output."""
        return tokens()

    def number_graph(self, model: AnyModel) -> NumberGraph:
        """Return the graph of a model that predicts numbers; other models have other graphs."""
        raise RegardError(
            f"the graph of a run of {self.examples} must be that of a model that writes tokens: "
            f"report it."
        )

    def trace_notes(self, source: Text, target: Text) -> tuple[str, ...]:
        """Return remarks for readers of a trace, such as unknown tokens."""
        return self.sources.notes(source)

    def output_notes(self, predictions: Sequence[str], pairs: Sequence[Pair]) -> tuple[str, ...]:
        """Return sentences about predictions that no metric says, for `regard evaluate`."""
        return ()

    def scores(
        self,
        model: AnyModel,
        file: Any,
        device: torch.device,
        advance: Advance = lambda share: None,
    ) -> ScoreTable | None:
        """Return the scores of a model on a file, beside baselines.

        None if outputs are compared with targets by metrics, as texts are. `advance` is told of
        each part of the work that is done, as a share of all.
        """
        return None

    @property
    def stored_sizes(self) -> dict[str, Any]:
        """Sizes of the encoders that stored weights must agree with, by name."""
        return {}

    def default_metric(self) -> str:
        """Return the metric that decides between checkpoints."""
        return "chrf" if self._writes_sentences else METRICS[self.target.kind]

    @property
    def _writes_sentences(self) -> bool:
        """True if targets are cut into characters and are sentences, which are never all right."""
        if self.target.kind != "char":
            return False
        return bool(SENTENCE_ENDS.intersection(self.target.tokens(range(self.target.vocab_size))))

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """The labels that outputs are, if targets are whole labels; else none."""
        if self.encoders.target.kind != "label":
            return ()
        return tuple(self.target.tokens(range(len(SYMBOLS), self.target.vocab_size)))

    @property
    def end_is_certain(self) -> bool:
        """True if the model ends its outputs by itself, so that nobody need look at their end."""
        return self.settings.preset in LABEL_PRESETS

    def metrics(self) -> tuple[str, ...]:
        """Return the metrics that suit the targets, the main one first."""
        suitable = choose_metrics(self.target.kind)
        if self._writes_sentences:
            suitable = ("chrf", *suitable)
        if len(self.labels) <= MOST_CLASSES:
            return suitable
        return tuple(name for name in suitable if name != "macro-f1")

    def class_report(
        self, predictions: Sequence[str], references: Sequence[Sequence[str]]
    ) -> ClassReport | None:
        """Return results by class, if targets are classes or made of them; else None."""
        if not self.labels:
            return None
        normalize = self.target.normalize
        gold = [[normalize(text) for text in several] for several in references]
        found = confusion([normalize(text) for text in predictions], gold)
        return ClassReport("label", found.rows(), found, unknown_classes(gold, self.labels))

    def sort_lengths(self, corpus: EncodedPairs) -> np.ndarray:
        """Return the lengths by which dev examples are batched."""
        return corpus.src_lengths

    def overlap(self, train: EncodedPairs, dev: DevSet) -> int:
        """Return how many dev sources are also sources of training pairs."""
        return 0

    def max_positions(self, model: AnyModel) -> int | None:
        """Return the longest source that the model has positions for; None if any fits."""
        return model.src_positions

    def prefixed(self, options: DecodingOptions, rows: Sequence[Any]) -> DecodingOptions:
        """Return decoding options for these sources, each with the prefix that it must begin with.

        A single prefix is that of every source.
        """
        prefix = options.prefix or ()
        return replace(options, prefix=[*prefix] * len(rows)) if len(prefix) == 1 else options

    def unknown_words(self, source: Any) -> list[str]:
        """Return the words that outputs repeat from a source though the model has no token."""
        return []

    def encoder_rows(self) -> dict[str, str]:
        """Return rows of the model card about the encoders."""
        rows = {
            self.sources.card_name: self.source.summary,
            "target tokens": self.encoders.target.summary,
        }
        return rows | self._vector_rows("target vectors")

    def _vector_rows(self, target: str) -> dict[str, str]:
        files = {"source vectors": self.settings.src_vectors, target: self.settings.tgt_vectors}
        return {name: f"start from {file}" for name, file in files.items() if file}

    def card_examples(self, dev: DevSet) -> str:
        """Return the model card's paragraph with dev examples."""
        pairs = zip(dev.sources[:3], dev.references[:3], strict=True)
        lines = [f"    {src} -> {references[0]}" for src, references in pairs]
        return "Pairs of its dev set look like this:\n\n" + "\n".join(lines) + "\n"
