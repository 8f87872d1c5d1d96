"""Inputs of tasks: how sources are recognised, read, encoded, embedded, labelled and replaced.

An `Input` class knows how to recognise and to learn; an instance has the encoder of a run. A row is
what the model reads of one source: token ids, or a table of numbers.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, NamedTuple

from torch import Tensor

from regard.data import Corpus, Pair, PairReader, SourceEncoder, read_pairs, text_codec
from regard.data.corpus import is_held_out
from regard.data.lookup_codecs import CASES
from regard.data.pair_reader import SourceTransform
from regard.data.pairs import column_names, run_columns
from regard.errors import ArgumentError
from regard.seeing import Text
from regard.seeing.attribution.input_scorer import Replacements
from regard.tasks.inputs.graph_inputs import GraphInputs
from regard.tasks.settings import DataPlace, Say, Settings, SourceFiles, TaskOptions

#: methods of tables that return a dictionary for each row, with their arguments
TABLE_ROWS: Final = {"to_pylist": (), "to_dicts": (), "to_list": (), "to_dict": ("records",)}


def is_table(data: Any) -> bool:
    """Return whether data are a table of pandas, polars, pyarrow or datasets."""
    named = hasattr(data, "columns") or hasattr(data, "column_names")
    return (
        named and not isinstance(data, Mapping) and any(hasattr(data, name) for name in TABLE_ROWS)
    )


class InputFacts(NamedTuple):
    """Facts about an input, for code that does not ask which it is.

    Attributes:
        unit: what a source is measured in, such as "source tokens".
        one: one source, such as "one picture",
        several: and several, as messages call them.
        card_name: what the model card calls the encoder.
        request_field: of a server's request: "text", "frames" or "file". A command line names a
            source by a file unless it is "text".
        ends: positions at the end of a row that are no input, such as `eos`.
        ends_with_eos: whether a row ends with `eos`, which attention may collapse to.
        caches_parsed: whether parsing is slow, so that it is kept on disk until all is encoded.
        names_files: whether sources may lie in files of their own, which can change while the data
            file does not.
        reads_shards: whether training data may be shards, which are text.
        has_sources: whether the model encodes a source and attends to it.
        scales_batches: whether the default batch size grows with the number of examples.
        examples: what messages call the examples,
        inputs: and distinct inputs.
        held_out_by: how dev examples are chosen if they have no file, to follow their number.
        maps: attention maps that are printed with predictions.
        files: in example commands: inputs to predict from, and examples to evaluate with.
        metrics: that decide between checkpoints in the place of the usual ones, by tokeniser.
        only: the one output that it goes with, and why, if it is one.
        codec: reads sources for an exported graph. Its file is copied into exported folders and
            needs no regard; it is made with the path of the encoder's file and the manifest.
    """

    unit: str
    one: str
    several: str
    card_name: str = "source"
    request_field: str = "file"
    ends: int = 0
    ends_with_eos: bool = False
    caches_parsed: bool = False
    names_files: bool = False
    reads_shards: bool = False
    has_sources: bool = True
    scales_batches: bool = True
    examples: str = "pairs"
    inputs: str = "sources"
    held_out_by: str = "held out by hash"
    maps: tuple[str, ...] = ("cross",)
    files: tuple[str, str] = ("input.txt", "test.tsv")
    metrics: Mapping[str, str] = {}
    only: tuple[str, str] | None = None
    codec: type = text_codec.TokenCodec

    @property
    def is_file(self) -> bool:
        """True if a command line names a source by a file."""
        return self.request_field != "text"


class InputDescription(NamedTuple):
    """Properties of an input and its encoder, for those who have no code for it.

    Attributes:
        reads: a phrase about what a model reads, such as "text, letter by letter".
        info: as a server's `/api/info` states them.
        manifest: as the manifest of an exported model states them.
        sizes: of the encoder that stored weights must agree with, by name.
        unit: that sources are measured in; None for that of the facts.
    """

    reads: str
    info: dict[str, Any]
    manifest: dict[str, Any]
    sizes: dict[str, Any] = {}  # noqa: RUF012
    unit: str | None = None


class InputChoice(ABC):
    """The side of an input that needs no encoder: recognise, read and learn from sources."""

    name: ClassVar[str]
    facts: ClassVar[InputFacts]
    #: the type of its encoder
    encoder_type: ClassVar[Any]
    #: settings beyond those of every run
    options_type: ClassVar[type[TaskOptions]] = TaskOptions

    @classmethod
    @abstractmethod
    def is_possible(cls, settings: Settings) -> bool:
        """Return whether the settings leave this input open."""

    @classmethod
    @abstractmethod
    def recognise(cls, settings: Settings, first: Callable[[], Sequence[Pair]]) -> str:
        """Return why sources are of this sort, worded to follow "because"; "" if they are not.

        Args:
            settings: which leave this input open.
            first: reads the first pairs, their sources as they stand in the file.
        """

    @classmethod
    @abstractmethod
    def check_settings(cls, settings: Settings) -> None:
        """Raise ArgumentError if a setting makes no sense for this input."""

    @classmethod
    @abstractmethod
    def reader(cls, settings: Settings, place: DataPlace) -> SourceTransform:
        """Return the function that parses the sources of pairs read from a place."""

    @classmethod
    @abstractmethod
    def learn(
        cls, settings: Settings, pairs: Iterable[Pair], *, file: str, why: str, say: Say
    ) -> SourceEncoder:
        """Learn the encoder from training examples, and announce it.

        Args:
            settings: of the run.
            pairs: at least one; read once.
            file: what messages call their file.
            why: the answer of `recognise`.
            say: announces each choice.
        """

    @classmethod
    def choose_options(cls, settings: Settings, source: Any, say: Say) -> dict[str, Any]:
        """Return settings that follow from the training data before they are read as examples.

        Args:
            settings: of the run.
            source: the data: a file, or examples given in Python.
            say: announces a choice that nothing else announces.
        """
        return {}

    @classmethod
    def read_examples(
        cls, settings: Settings, place: DataPlace, check: Callable[[Pair], Pair]
    ) -> PairReader:
        """Read examples; `check` raises BadLine for a target that is unusable."""
        parse = cls.reader(settings, place)
        return read_pair_files(settings, place, lambda pair: check(parse(pair)))

    @classmethod
    def is_dev(cls, settings: Settings, pair: Pair, share: float) -> bool:
        """Return whether an example of the data is held out, if there is no dev file."""
        # letters in another case are the same source to a model that converts them to one
        return is_held_out(CASES[settings.src_case](pair.src), share=share)


class TaskInput(InputChoice):
    """Sources of a model, as a caller gives them and as the model reads them.

    Args:
        encoder: learned by `learn`, or loaded from a run folder.
        settings: of the run.
    """

    #: features that may follow a source after a tab
    feature_names: tuple[str, ...] = ()

    def __init__(self, encoder: SourceEncoder, settings: Settings) -> None:
        self.encoder: Any = encoder
        self.settings = settings
        self.options: Any = self.options_type.of(settings)

    def starter(self, output: str) -> Mapping[str, Any]:
        """Return settings of a run that names no preset, for the name of its output."""
        return {}

    @property
    def vocab_size(self) -> int:
        """Tokens of the vocabulary; 1 if the embedding is replaced by `attach`."""
        return 1

    @property
    def context(self) -> int:
        """Most tokens of a text and those before it that are read together; 0 for one alone."""
        return 0

    def attach(self, model: Any) -> Any:
        """Let the encoder of a model read such rows."""
        return model

    @abstractmethod
    def is_one(self, given: Any) -> bool:
        """Return whether this is one source, and not several."""

    @abstractmethod
    def parse(self, source: Any, *, line: bool = False) -> Any:
        """Return a source in the form that is encoded soonest; raises RegardError if it is none.

        Args:
            source: as a caller gives it, or the content of a file that a client has sent.
            line: whether it is a line of a file.
        """

    @abstractmethod
    def rows(self, sources: Sequence[Any]) -> list[Any]:
        """Encode sources."""

    @abstractmethod
    def batch(self, rows: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """Pad rows to a batch; returns the batch and the lengths of the rows."""

    def positions(self, lengths: Any) -> Any:
        """Return how many vectors a model makes of rows of these lengths."""
        return lengths

    @abstractmethod
    def labels(self, row: Any) -> list[str]:
        """Return a label for each position: the columns of an attention map."""

    @abstractmethod
    def text(self, source: Any, row: Any) -> Text:
        """Return a source as traces hold it."""

    def corpus_text(self, corpus: Corpus, row: int, text: str) -> Text:
        """Return the source of an encoded example as traces hold it."""
        return self.text(text, corpus.frames(row))

    def notes(self, text: Text) -> tuple[str, ...]:
        """Return remarks for readers of a trace, such as unknown tokens."""
        return ()

    def unknown(self, source: Any, row: Any) -> tuple[str, ...]:
        """Return the parts of a source that the model has no token for."""
        return ()

    @abstractmethod
    def replacements(self, row: Any) -> Replacements:
        """Return what may replace each input in an ablation."""

    def of_pair(self, pair: Pair) -> Any:
        """Return the source of a pair as `Model.predict` takes it."""
        return pair.frames

    @abstractmethod
    def read(self, given: SourceFiles) -> Iterator[Any]:
        """Read sources without targets; unusable ones are added to `given.bad`."""

    @abstractmethod
    def describe(self) -> InputDescription:
        """Return the properties of the input and its encoder."""

    def examples(self, card: str, dev: Path) -> list[Any]:
        """Return example sources to try.

        Args:
            card: text of the model card.
            dev: file of the encoded dev set, which may be missing.
        """
        return []

    @abstractmethod
    def graph_inputs(self) -> GraphInputs:
        """Return the description of an exported graph's inputs."""

    def length(self, row: Any) -> int:
        """Return the inputs of a row, without what only ends it."""
        return int(self.positions(len(row))) - self.facts.ends

    def check_several(self, given: Any) -> None:
        """Raise ArgumentError unless given an iterable of sources."""
        if self.is_one(given) or isinstance(given, bytes):
            text = isinstance(given, str) and not self.facts.is_file
            what = f"one text, {given!r:.40}" if text else self.facts.one
            fix = "call the model with it, or put it in a list"
            raise ArgumentError("texts", "be several", what, fix)
        scalar = getattr(given, "ndim", 1) == 0
        if scalar or isinstance(given, Mapping) or not isinstance(given, Iterable):
            fix = "give the model a string, or a list of strings"
            raise ArgumentError("text", "be a string, or several", f"{given!r:.40}", fix)


def read_pair_files(settings: Settings, place: DataPlace, sources: SourceTransform) -> PairReader:
    """Read pairs, whose sources are parsed by a function."""
    source = place.source
    # beside tuples, columns are meant for the file of dev pairs
    tuples = not isinstance(source, str) and not isinstance(next(iter(source), ()), Mapping)
    columns = None if tuples and settings.dev is not None else settings.columns
    if source == settings.dev:
        columns = run_columns(columns)
    return read_pairs(
        source,
        tgt_file=place.tgt_file,
        columns=column_names(columns),
        features=bool(settings.features),
        skip_bad=settings.skip_bad,
        max_chars=settings.max_chars,
        advice=place.hints,
        sources=sources,
    )
