"""Tasks of jobs: what a worker loads once, and does with each block of records."""

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

from regard import api
from regard.api import bundled_models
from regard.api.word_alignment import AlignOptions, Units, align, check_can_align
from regard.atomic_files import file_checksum
from regard.data import Pair
from regard.data.file_formats import ReadOptions
from regard.data.pairs import column_names, source_column
from regard.errors import ArgumentError, DataError, describe_memory_error
from regard.jobs.input_shards import WorkUnit
from regard.jobs.job_folder import ROW_COLUMNS, OutputRow, RowTypes
from regard.jobs.records import (
    JOB_HINTS,
    Columns,
    JobRecord,
    pair_parser,
    read_records,
    source_parser,
)
from regard.seeing.trace.alignment import format_links
from regard.tasks.inputs.text import TextInput
from regard.training import RunFolder

#: batches of a block: as many as `Model.predict` reads ahead, so that batches are the same
BLOCK_BATCHES: Final = 16


class LoadedTask(NamedTuple):
    """A task in a worker, with its model.

    Attributes:
        types: of the columns of its rows.
        block: records that are answered together.
        records: yields the records of a unit.
        answer: returns a row for each record; those with an error keep it.
    """

    types: RowTypes
    block: int
    records: Callable[[WorkUnit], Iterator[JobRecord]]
    answer: Callable[[WorkUnit, Sequence[JobRecord]], list[OutputRow]]


@dataclass(frozen=True)
class ModelSpec:
    """The model of a task: run folders or bundled models, and how they are loaded."""

    runs: tuple[str, ...]
    device: str = "auto"
    precision: str = "32"

    def checksum(self) -> str:
        """Return a checksum of all files that answers depend on."""
        digest = hashlib.blake2b(digest_size=16)
        for run in self.runs:
            folder = RunFolder(bundled_models.find(run))
            for file in (
                folder.config_file,
                folder.model_file,
                folder.src_tokenizer_file,
                folder.tgt_tokenizer_file,
                folder.calibration_file,
            ):
                digest.update(file_checksum(file).encode() if file.exists() else b"-")
        return digest.hexdigest()

    def load(self) -> api.Model:
        """Load the model; raises ArgumentError unless it reads text."""
        model = api.load_run(*self.runs, device=self.device, precision=self.precision)
        if not isinstance(model.task.input, TextInput):
            fix = "give it the files themselves, without -o and --ray"
            raise ArgumentError("RUN", "read text to answer shards", model.path, fix)
        return model


@dataclass(frozen=True)
class JobTask:
    """Work of a model on each row: predict a source or that of a pair, or align a pair.

    Attributes:
        model: which.
        columns: of source and features, or of source, target and features; None finds them.
        id: column of ids.
        max_chars: longest source; that of the run if None.
        batch: rows at a time.
        options: of `Model.predict`.
        pairs: whether rows are pairs, whose targets stand beside predictions.
        align: how to align pairs; None predicts.
        words: whether links are of words; None decides by the kind of data.
    """

    model: ModelSpec
    columns: Columns | None = None
    id: int | str | None = None
    max_chars: int | None = None
    batch: int = api.BATCH
    options: Mapping[str, Any] = field(default_factory=dict)
    pairs: bool = False
    align: AlignOptions | None = None
    words: bool | None = None

    def describe(self) -> dict[str, Any]:
        """Return all that decides the content of rows, apart from the model, for the manifest.

        The batch size and the device change no answer.
        """
        own = {"columns": self.columns, "id": self.id, "max_chars": self.max_chars}
        own["precision"] = self.model.precision
        if self.align is None:
            return {"task": "evaluate" if self.pairs else "predict", **own, **self.options}
        return {"task": "align", **own, **self.align._asdict(), "words": self.words}

    def checksum(self) -> str:
        """Return the checksum of the model."""
        return self.model.checksum()

    def load(self) -> LoadedTask:
        """Load the model."""
        model = self.model.load()
        if self.align is not None:
            check_can_align(model.predictor)
        several = max(self.options.get("nbest", 1), self.options.get("num_samples", 0)) > 1
        types = {**ROW_COLUMNS, **self._columns(several), "error": "text"}

        def answer(unit: WorkUnit, block: Sequence[JobRecord]) -> list[OutputRow]:
            options = dict(self.options)
            if options.get("seed") is not None:  # each block has a seed of its own
                place = f"{options['seed']}:{unit.shard.name}:{block[0].row}"
                options["seed"] = random.Random(place).getrandbits(63)

            def predict(some: Sequence[JobRecord]) -> list[OutputRow]:
                sources = [_source(model, record.value) for record in some]
                outputs = model.predict(sources, attention=False, batch=self.batch, **options)
                return [
                    _predicted(output, record.value, several=several)
                    for output, record in zip(outputs, some, strict=True)
                ]

            work = predict if self.align is None else partial(self._linked, model)
            return answer_rows(unit, block, types, work)

        records = self._pairs(model) if self.pairs else self._sources(model)
        return LoadedTask(types, BLOCK_BATCHES * self.batch, records, answer)

    def _columns(self, several: bool) -> RowTypes:
        """Return the types of columns between those of every row and its error."""
        if self.align is not None:
            return {"links": "text"}
        found = {"text": "text", "score": "score"}
        if self.pairs:
            return {"source": "text", **found, "targets": "texts"}
        return {**found, "alternatives": "answers"} if several else found

    def _sources(self, model: api.Model) -> Callable[[WorkUnit], Iterator[JobRecord]]:
        limit = model.config.max_chars if self.max_chars is None else self.max_chars
        known = [source_column(model.config.columns)]

        def records(unit: WorkUnit) -> Iterator[JobRecord]:
            parser = source_parser(unit.shard, self.columns, self.id, limit, known)
            return read_records(unit, parser, model.check_source)

        return records

    def _pairs(self, model: api.Model) -> Callable[[WorkUnit], Iterator[JobRecord]]:
        model.check_reads_pairs()
        features = bool(model.features)
        columns = self.columns or column_names(model.config.columns)
        options = ReadOptions(
            columns=columns,
            features=columns is None and features,
            references=columns is None and not features and self.align is None,
            advice=JOB_HINTS,
        )

        def check(pair: Pair) -> None:
            model.predictor.check_source(_source(model, pair))
            if self.align is not None:
                model.check_target(pair.tgt)

        def records(unit: WorkUnit) -> Iterator[JobRecord]:
            parser = pair_parser(unit.shard, self.id, model.config.max_chars, options)
            return read_records(unit, parser, check)

        return records

    def _linked(self, model: api.Model, some: Sequence[JobRecord]) -> list[OutputRow]:
        assert self.align is not None
        found = align(
            model.predictor,
            [record.value for record in some],
            self.align.without_gold().choices,
            units=Units.of(model.task, self.words),
            batch=self.batch,
        )
        (links,) = found.values() or ([],)
        return [{"links": format_links(one)} for one in links]


def _source(model: api.Model, value: Any) -> Any:
    """Return a source, or that of a pair, with features if the model has any."""
    if not isinstance(value, Pair):
        return value
    return model.task.input.of_pair(value if model.features else value._replace(features=()))


def _predicted(output: api.Output, value: Any, *, several: bool) -> OutputRow:
    row = {"text": output.text, "score": output.score}
    if isinstance(value, Pair):
        return {**row, "source": value.src, "targets": [value.tgt, *value.more]}
    ranked = [{"text": one.text, "score": one.score} for one in output.alternatives]
    return {**row, "alternatives": ranked} if several else row


def answer_rows(
    unit: WorkUnit,
    block: Sequence[JobRecord],
    types: RowTypes,
    work: Callable[[Sequence[JobRecord]], list[OutputRow]],
) -> list[OutputRow]:
    """Return a row for each record of a block, in order, with all columns.

    If the work raises, each half of its records is tried alone, down to the one that it fails on,
    which gets the error.
    """
    good = [record for record in block if not record.error]
    found = dict(zip((record.row for record in good), _bisect(unit, good, work), strict=True))
    empty = dict.fromkeys(types)
    return [
        {
            **empty,
            "id": record.id,
            "shard": unit.shard.name,
            "row": record.row,
            **found.get(record.row, {}),
            **({"error": record.error} if record.error else {}),
        }
        for record in block
    ]


def _bisect(
    unit: WorkUnit,
    records: Sequence[JobRecord],
    work: Callable[[Sequence[JobRecord]], list[OutputRow]],
) -> list[OutputRow]:
    if not records:
        return []
    try:
        return work(records)
    except ArgumentError:  # an option that no source can be answered with
        raise
    except Exception as error:
        if len(records) == 1:
            return [{"error": str(_failed(unit, records[0], error))}]
    half = len(records) // 2
    return [*_bisect(unit, records[:half], work), *_bisect(unit, records[half:], work)]


def _failed(unit: WorkUnit, record: JobRecord, error: Exception) -> DataError:
    """Return the error of a source that raised while it was answered."""
    if isinstance(error, DataError):
        return DataError(unit.shard.name, record.row, error.reason, error.fix)
    memory = describe_memory_error(error)
    reason = memory.partition(":")[0] if memory else f"{type(error).__name__}: {error!s:.200}"
    said = f"the model failed on it ({reason})"
    return DataError(unit.shard.name, record.row, said, "shorten it, or leave it out")
