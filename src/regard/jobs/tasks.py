"""Tasks of jobs: what a worker loads once, and does with each block of records."""

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from regard import api
from regard.api import bundled_models
from regard.api.word_alignment import AlignOptions, Units, align, check_can_align
from regard.atomic_files import file_checksum
from regard.data import Pair
from regard.data.file_formats import ReadOptions
from regard.data.pairs import column_names, source_column
from regard.errors import ArgumentError, DataError, describe_memory_error
from regard.jobs.input_shards import WorkUnit
from regard.jobs.output_shards import ROW_COLUMNS, OutputRow, RowTypes
from regard.jobs.records import (
    JOB_HINTS,
    Columns,
    JobRecord,
    RowLayout,
    pair_parser,
    read_records,
    source_parser,
)
from regard.kinds.text_source import TextSource
from regard.seeing.trace.alignment import format_links
from regard.training import RunFolder

#: batches of a block: as many as `Model.predict` reads ahead, so that batches are the same
BLOCK_BATCHES: Final = 16


class LoadedTask(Protocol):
    """A task in a worker, with its model."""

    @property
    def types(self) -> RowTypes:
        """Types of the columns of its rows."""
        ...

    @property
    def block(self) -> int:
        """Records that are answered together."""
        ...

    def records(self, unit: WorkUnit) -> Iterator[JobRecord]:
        """Yield the records of a unit."""
        ...

    def answer(self, unit: WorkUnit, block: Sequence[JobRecord]) -> list[OutputRow]:
        """Return a row for each record; those with an error keep it."""
        ...


class JobTask(Protocol):
    """A task as a job hands it to its workers: small, and the same in each of them."""

    def describe(self) -> dict[str, Any]:
        """Return all that decides the content of rows, apart from the model, for the manifest."""
        ...

    def checksum(self) -> str:
        """Return the checksum of the model."""
        ...

    def load(self) -> LoadedTask:
        """Load the model."""
        ...


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
        if not isinstance(model.kind.sources, TextSource):
            fix = "give it the files themselves, without -o and --ray"
            raise ArgumentError("RUN", "read text to answer shards", model.path, fix)
        return model


@dataclass(frozen=True)
class PredictTask:
    """Predict the target of each source.

    Attributes:
        model: which.
        columns: of source and features.
        id: column of ids.
        max_chars: longest source; that of the run if None.
        batch: sources at a time.
        options: of `Model.predict`.
    """

    model: ModelSpec
    columns: Columns | None = None
    id: int | str | None = None
    max_chars: int | None = None
    batch: int = api.BATCH
    options: Mapping[str, Any] = field(default_factory=dict)

    def describe(self) -> dict[str, Any]:
        """Return the options; the batch size and the device change no answer."""
        own = {"columns": self.columns, "id": self.id, "max_chars": self.max_chars}
        own["precision"] = self.model.precision
        return {"task": "predict", **own, **self.options}

    def checksum(self) -> str:
        """Return the checksum of the model."""
        return self.model.checksum()

    def load(self) -> "LoadedPrediction":
        """Load the model."""
        return LoadedPrediction(self, self.model.load())


class LoadedPrediction:
    """Prediction with a loaded model."""

    def __init__(self, task: PredictTask, model: api.Model) -> None:
        self.task, self.model = task, model
        self.block = BLOCK_BATCHES * task.batch
        self._several = max(task.options.get("nbest", 1), task.options.get("num_samples", 0)) > 1

    @property
    def types(self) -> RowTypes:
        """Types of the columns."""
        more = {"alternatives": "answers"} if self._several else {}
        return {**ROW_COLUMNS, "text": "text", "score": "score", **more, "error": "text"}

    def records(self, unit: WorkUnit) -> Iterator[JobRecord]:
        """Yield the sources of a unit."""
        config = self.model.config
        limit = config.max_chars if self.task.max_chars is None else self.task.max_chars
        layout = RowLayout(self.task.columns, self.task.id, limit)
        parser = source_parser(unit.shard, layout, [source_column(config.columns)])
        return read_records(unit, parser, self.model.check_source)

    def answer(self, unit: WorkUnit, block: Sequence[JobRecord]) -> list[OutputRow]:
        """Return predictions; a source that the model fails on gets an error."""
        first = block[0].row if block else 0

        def predict(records: Sequence[JobRecord]) -> list[OutputRow]:
            options = seeded(self.task.options, unit, first)
            sources = [record.value for record in records]
            outputs = self.model.predict(sources, attention=False, batch=self.task.batch, **options)
            return [self._row(output) for output in outputs]

        return answer_rows(unit, block, self.types, predict)

    def _row(self, output: api.Output) -> OutputRow:
        row = {"text": output.text, "score": output.score}
        if not self._several:
            return row
        ranked = [{"text": one.text, "score": one.score} for one in output.alternatives]
        return {**row, "alternatives": ranked}


@dataclass(frozen=True)
class PairTask:
    """A task on pairs: predictions beside targets, or alignments.

    Attributes:
        model: which.
        columns: of source, target and features; those of the run if None.
        id: column of ids.
        batch: pairs at a time.
        beam: width of the search; that of the run if None.
        align: how to align; None predicts.
    """

    model: ModelSpec
    columns: Columns | None = None
    id: int | str | None = None
    batch: int = api.BATCH
    beam: int | None = None
    align: AlignOptions | None = None
    words: bool | None = None

    def describe(self) -> dict[str, Any]:
        """Return the options; the batch size and the device change no answer."""
        own = {"columns": self.columns, "id": self.id, "precision": self.model.precision}
        if self.align is None:
            return {"task": "evaluate", **own, "beam": self.beam}
        how = {name: value for name, value in self.align._asdict().items() if name != "batch"}
        return {"task": "align", **own, **how, "words": self.words}

    def checksum(self) -> str:
        """Return the checksum of the model."""
        return self.model.checksum()

    def load(self) -> "LoadedPairs":
        """Load the model."""
        model = self.model.load()
        if self.align is not None:
            check_can_align(model.predictor)
        model.check_reads_pairs()
        return LoadedPairs(self, model)


class LoadedPairs:
    """Evaluation or alignment of pairs with a loaded model."""

    def __init__(self, task: PairTask, model: api.Model) -> None:
        self.task, self.model = task, model
        self.block = BLOCK_BATCHES * task.batch

    @property
    def types(self) -> RowTypes:
        """Types of the columns."""
        if self.task.align is not None:
            return {**ROW_COLUMNS, "links": "text", "error": "text"}
        own = {"source": "text", "text": "text", "score": "score", "targets": "texts"}
        return {**ROW_COLUMNS, **own, "error": "text"}

    def records(self, unit: WorkUnit) -> Iterator[JobRecord]:
        """Yield the pairs of a unit."""
        config, features = self.model.config, bool(self.model.features)
        columns = self.task.columns or column_names(config.columns)
        options = ReadOptions(
            columns=columns,
            features=columns is None and features,
            references=columns is None and not features and self.task.align is None,
            advice=JOB_HINTS,
        )
        layout = RowLayout(columns, self.task.id, config.max_chars)
        return read_records(unit, pair_parser(unit.shard, layout, options), self._check)

    def _check(self, pair: Pair) -> None:
        self.model.predictor.check_source(self._source(pair))
        if self.task.align is not None:
            self.model.check_target(pair.tgt)

    def _source(self, pair: Pair) -> Any:
        known = pair if self.model.features else pair._replace(features=())
        return self.model.kind.sources.of_pair(known)

    def answer(self, unit: WorkUnit, block: Sequence[JobRecord]) -> list[OutputRow]:
        """Return predictions with targets, or links."""
        work = self._predicted if self.task.align is None else self._aligned
        return answer_rows(unit, block, self.types, work)

    def _predicted(self, records: Sequence[JobRecord]) -> list[OutputRow]:
        options: dict[str, Any] = {} if self.task.beam is None else {"beam": self.task.beam}
        sources = [self._source(record.value) for record in records]
        outputs = self.model.predict(sources, attention=False, batch=self.task.batch, **options)
        return [
            {
                "source": record.value.src,
                "text": output.text,
                "score": output.score,
                "targets": [record.value.tgt, *record.value.more],
            }
            for record, output in zip(records, outputs, strict=True)
        ]

    def _aligned(self, records: Sequence[JobRecord]) -> list[OutputRow]:
        how = self.task.align
        assert how is not None
        found = align(
            self.model.predictor,
            [record.value for record in records],
            how.without_gold().choices,
            units=Units.of(self.model.kind, self.task.words),
            link=how.link,
            batch=self.task.batch,
        )
        (links,) = found.values() or ([],)
        return [{"links": format_links(one)} for one in links]


def seeded(options: Mapping[str, Any], unit: WorkUnit, row: int) -> dict[str, Any]:
    """Return options with a random seed of their own for each block, if there is a seed."""
    if options.get("seed") is None:
        return dict(options)
    draw = random.Random(f"{options['seed']}:{unit.shard.name}:{row}")
    return {**options, "seed": draw.getrandbits(63)}


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
