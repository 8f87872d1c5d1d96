"""Input of the command line: pairs, texts and sources for a run, laid out like its own data."""

import itertools
import re
import shlex
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from rich.console import Console

from regard import api
from regard.api.evaluate_pairs import known_pairs, read_for, references_of
from regard.cli.commands import AlignArgs, CompareArgs, EvaluateArgs, HeadsArgs
from regard.cli.console import note
from regard.data import BadLines, Pair, PairReader, read_texts
from regard.data.error_hints import ErrorHints, with_commas
from regard.data.media_files import MEDIA, reject_media
from regard.data.pair_reader import MAX_CHARS, SOURCE_TABLES
from regard.data.pairs import column_names, run_columns
from regard.data.table_files import COLUMN_FILES, SHEETS
from regard.data.text_files import ROW_FILES, display_name, encoding_note, format_suffix
from regard.errors import ArgumentError, DataError
from regard.messages import message
from regard.pretrained import PretrainedModel
from regard.tasks.inputs.text import name_some, text_sources
from regard.tasks.settings import SourceFiles

OutputT = TypeVar("OutputT")
AnyModel = api.Model | PretrainedModel
#: how errors name the options of the commands that read data for a run
OPTIONS: Final = ErrorHints(
    tgt="TGT",
    targets="name the second of two parallel files after it",
    columns=lambda columns: f"--columns {shlex.quote(with_commas(columns))}",
    skip="--skip-bad",
)
#: of commands that read sources and cannot leave any out, and of `regard predict`
SOURCE_OPTIONS: Final = OPTIONS._replace(skip="")
PREDICT_OPTIONS: Final = OPTIONS._replace(longer="shorten it, or raise --max-chars")


def pairs_for(
    model: api.Model,
    file: str,
    args: AlignArgs | CompareArgs | EvaluateArgs | HeadsArgs,
    bad: list[int] | None = None,
) -> list[Pair]:
    """Return the pairs of a file that is laid out like the training data of a run.

    `bad` is given the numbers of lines left out; with it, the run must be able to write targets.
    """
    reader = read_for(
        model.predictor,
        file,
        args.tgt,
        columns=named_columns(args.columns),
        skip_bad=args.skip_bad,
        on_bad=None if bad is None else lambda error: bad.append(error.line or 0),
        advice=OPTIONS,
        forced=bad is not None,
    )
    pairs = known_pairs(model.task, reader)
    _report_reading(reader)
    bare = next((pair.src for pair in pairs if not pair.features), None)
    if bare is not None:
        warn_of_features(model, bare)
    return pairs


def named_columns(columns: str | None) -> tuple[int | str, ...] | None:
    """Return the columns of a list such as `0,2` or `en,fr`; None if there is none."""
    return column_names([word.strip() for word in columns.split(",")] if columns else None)


def metric_words(metrics: str | None) -> list[str]:
    """Return the metrics of a list such as `bleu, chrf`."""
    return [name for name in map(str.strip, (metrics or "").lower().split(",")) if name]


def texts_for(model: api.Model, file: str, *, skip_bad: bool = False) -> list[str]:
    """Return the texts of a file."""
    limit = model.config.max_chars
    reader = read_texts(file, skip_bad=skip_bad, max_chars=limit, advice=OPTIONS)
    texts = [pair.tgt for pair in reader]
    _report_reading(reader)
    return texts


def _report_reading(reader: PairReader) -> None:
    for sentence in (reader.note, str(reader.bad) if reader.bad.total else ""):
        if sentence:
            Console(stderr=True).print(sentence, highlight=False, markup=False, soft_wrap=True)


def is_media(file: str) -> bool:
    """Return whether a file is a picture or a recording, by its ending."""
    return file.lower().endswith(MEDIA)


def sources_of(model: AnyModel, file: str) -> Iterator[Any]:
    """Yield the sources of a file, one per line, or its tables of vectors."""
    return iter(InputLines([file], model, advice=SOURCE_OPTIONS))


def one_source(model: AnyModel, text: str) -> Any:
    """Return the text itself or, for a run that reads vectors, the only table of a file."""
    if not isinstance(model, api.Model):
        reject_media(text)
        return text
    if not model.task.input.facts.is_file:
        model.check_source(text)
        return text
    found = list(itertools.islice(sources_of(model, text), 2))
    if len(found) != 1:
        many = f"{display_name(text)}, which has {'several' if found else 'none'}"
        raise ArgumentError("TEXT", "be a file of one source", many, "write it as a .npy file")
    return found[0]


class InputLines:
    """Sources for a model: the lines of a file, or the tables of vectors of several files.

    Args:
        files: file names; `-` is stdin. Only a run that reads vectors takes several.
        model: a run, or a model of transformers.
        max_chars: longest line in characters; that of the run if None.
        skip_bad: leave out the lines that the run cannot take; otherwise the first one raises.
        columns: comma-separated names or numbers of source and features in a table.
        advice: how errors name options.

    Attributes:
        bad: the lines that were left out.
    """

    def __init__(
        self,
        files: Sequence[str],
        model: AnyModel,
        *,
        max_chars: int | None = None,
        skip_bad: bool = False,
        columns: str | None = None,
        advice: ErrorHints = PREDICT_OPTIONS,
    ) -> None:
        words = [] if columns is None else [word.strip() for word in columns.split(",")]
        # as those of pairs, whose target is not read here
        self._columns = column_names([*words[:1], *words]) if words else None
        if words and not any(format_suffix(file) in SOURCE_TABLES for file in files):
            rule = f"be for files that end in {', '.join(SOURCE_TABLES)}"
            raise ArgumentError("--columns", rule, repr(columns), "leave it out")
        if max_chars is not None and max_chars < 1:
            raise ArgumentError("--max-chars", "be at least 1", max_chars, "choose a larger number")
        self._files, self._model = files, model
        own = model.config.max_chars if isinstance(model, api.Model) else MAX_CHARS
        self._max_chars = own if max_chars is None else max_chars
        # one entry for each line that was read and not yet predicted: None, or what is wrong
        self._pending: deque[DataError | None] = deque()
        self.bad = BadLines(skip_bad, self._pending.append, advice)

    def __iter__(self) -> Iterator[Any]:
        for source in self._read():
            self._pending.append(None)
            yield source

    def _read(self) -> Iterator[Any]:
        files, model = self._files, self._model
        for file in files:
            is_text = format_suffix(file) in {*ROW_FILES} - {*COLUMN_FILES, *SHEETS}
            if is_text and (said := encoding_note(file)):
                note(said)
        rules = (self._max_chars, self.bad, model.check_source)
        if isinstance(model, PretrainedModel):
            return text_sources(SourceFiles(files, self._columns, *rules))
        columns = self._columns or column_names(run_columns(model.config.columns))
        return model.task.input.read(SourceFiles(files, columns, *rules))

    def merge_errors(self, outputs: Iterable[OutputT]) -> Iterator[OutputT | DataError]:
        """Yield the outputs in order, with the error of each skipped line in its place."""
        for output in outputs:
            yield from self._skipped()
            self._pending.popleft()
            yield output
        yield from self._skipped()

    def _skipped(self) -> Iterator[DataError]:
        while self._pending and (error := self._pending[0]) is not None:
            self._pending.popleft()
            yield error


def warn_if_bare(model: AnyModel, sources: Iterable[Any]) -> Iterator[Any]:
    """Yield the sources unchanged; warn of the first one that lacks the features of the run."""
    if isinstance(model, PretrainedModel):
        yield from sources
        return
    warned = False
    for source in sources:
        if not warned and isinstance(source, str) and source.strip() and "\t" not in source:
            warned = True
            warn_of_features(model, source)
        yield source


def warn_of_features(model: api.Model, text: str) -> None:
    """Print that a source has no features, if the run was trained with some."""
    known = model.features
    if not known:
        return
    # a word that needs no quoting in a shell
    word = text if re.fullmatch(r"[\w .,-]{1,30}", text) else "word"
    example = f"$'{word}\\t{known[0]}'"
    names = name_some(known)
    note(message("predict.features", text=f"{text!r:.40}", example=example, names=names))


class ExampleFile(NamedTuple):
    """Sources of a model and, if they come from pairs, their targets.

    Attributes:
        sources: as the model reads them; of a language model, texts.
        pairs: None if there are no targets.
    """

    sources: list[Any]
    pairs: list[Pair] | None = None

    @property
    def references(self) -> list[list[str]] | None:
        """The accepted targets of each source."""
        return None if self.pairs is None else references_of(self.pairs)

    def some(self, rows: Sequence[int]) -> "ExampleFile":
        """Return the examples of these numbers, from 0."""
        pairs = None if self.pairs is None else [self.pairs[i] for i in rows]
        return ExampleFile([self.sources[i] for i in rows], pairs)


def read_examples(model: api.Model, file: str, args: CompareArgs | HeadsArgs) -> ExampleFile:
    """Read a file by its ending (.txt: texts; others: pairs), stdin as texts, or a text itself."""
    ending = Path(file).suffix.lower()
    is_file = Path(file).is_file() or ending in (*ROW_FILES, ".npy", ".gz")
    if not model.task.has_sources:
        texts = texts_for(model, file, skip_bad=args.skip_bad) if is_file or file == "-" else [file]
        return ExampleFile(texts)
    if args.tgt is None and (file == "-" or ending == ".txt"):
        return ExampleFile(list(sources_of(model, file)))
    if not is_file and args.tgt is None:
        return ExampleFile([one_source(model, file)])
    pairs = pairs_for(model, file, args, [])
    return ExampleFile([model.task.input.of_pair(p) for p in pairs], pairs)
