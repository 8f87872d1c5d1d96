"""Series: tables of numbers over time, of which a model reads the last rows."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple

import numpy as np
import torch
from pydantic import BeforeValidator, Field
from torch import Tensor

from regard.data import BadLines, Corpus, Pair, PairReader, SourceEncoder
from regard.data.pair_reader import OpenedSource, SourceTransform, keep_source
from regard.data.pairs import Format
from regard.data.series import Gaps, SeriesTable, read_series, recognise_series
from regard.data.series_windows import END, SeriesScaler, find_period, measure_columns
from regard.data.text_codec import SeriesRows
from regard.data.text_files import ROW_FILES, format_suffix
from regard.errors import ArgumentError, DataError
from regard.evaluation.forecasts import WindowMoments, choose_linear, last_row
from regard.messages import message
from regard.models.forecasters import FORECASTERS, WindowScale
from regard.seeing import Text, Token
from regard.seeing.attribution.input_scorer import Replacements, frame_replacements
from regard.tasks.inputs.base import InputDescription, InputFacts, TaskInput
from regard.tasks.inputs.graph_inputs import GraphInputs, SeriesInputs
from regard.tasks.inputs.text import name_some
from regard.tasks.settings import (
    DataPlace,
    Say,
    Settings,
    SourceFiles,
    TaskOptions,
    default_of,
    refuse_settings,
)

#: the longest season that is searched for, in steps
LONGEST_SEASON: Final = 1024
#: look-backs that are tried, and the longest for series that no linear map forecasts
LOOK_BACKS: Final = (6, 12, 24, 48, 96, 192, 336)
UNKNOWN: Final = 96
#: horizons that the dev rows have at least
WINDOWS_OF_DEV: Final = 3
#: rows below which dev gets as many as test
FEW_ROWS: Final = 500
#: share of numbers that are interpolated where nobody has said what becomes of gaps
FEW_GAPS: Final = 0.1
#: settings that have no meaning for series
TEXT_ONLY: Final = (
    *("tgt", "dev_tgt", "columns", "features", "src_tokenizer", "tgt_tokenizer"),
    *("src_case", "stack", "scale_vectors", "shared_vocab", "src_vectors", "tgt_vectors"),
)


def _listed(value: Any) -> Any:
    """Read `0.1,0.9` as a list, and a single value as a list of one."""
    if isinstance(value, str):
        return [part.strip() for part in value.split(",") if part.strip()]
    return [value] if isinstance(value, int | float) else value


#: most steps of a forecast, or of what it is made from
MAX_STEPS: Final = 1_000_000


class SeriesOptions(TaskOptions):
    """The settings of a run that forecasts."""

    # more would overflow the size of a matrix before the rows of the data are counted
    horizon: int = Field(24, description="steps to forecast", ge=1, le=MAX_STEPS)
    look_back: int | None = Field(
        None,
        description="steps that the model reads; default: by the rows, up to 336, or four times "
        "the horizon for a preset that is named",
        ge=1,
        le=MAX_STEPS,
    )
    time: str | None = Field(None, description="the time column; none recognises it")
    targets: Annotated[tuple[str, ...] | None, BeforeValidator(_listed)] = Field(
        None, description="columns to forecast, as in A,B; default: all columns of numbers"
    )
    exogenous: Annotated[tuple[str, ...], BeforeValidator(_listed)] = Field(
        (), description="columns that are read and not forecast, as in C,D"
    )
    split: Annotated[tuple[float, ...], BeforeValidator(_listed)] = Field(
        (0.7, 0.1, 0.2),
        description="training, dev and test rows, in the order of time: shares, or numbers of rows",
        min_length=3,
        max_length=3,
    )
    gaps: Gaps = Field(
        "refuse", description="missing numbers and times: refuse, fill by interpolation, ignore"
    )
    period: int | None = Field(
        None, description="steps of a season, for the seasonal baseline; none finds it", ge=1
    )
    window_scale: WindowScale = Field(
        "mean", description="scale of each window, which is undone: its mean, last value, or none"
    )
    patch_len: int = Field(16, description="steps of a patch of the preset transformer", ge=1)
    stride: int = Field(8, description="steps between the beginnings of two patches", ge=1)
    skip: bool | Literal["fitted"] = Field(
        False,
        description="whether the preset transformer adds a linear map of the window; fitted: one "
        "that begins as least squares of the training windows",
    )
    quantiles: Annotated[tuple[float, ...], BeforeValidator(_listed)] = Field(
        (0.1, 0.9), description="levels of the quantiles, as in 0.1,0.9"
    )
    loss: Literal["mse", "mae"] = Field("mse", description="loss of the point forecast")

    @property
    def rows_read(self) -> int:
        """Steps that the model reads."""
        return 4 * self.horizon if self.look_back is None else self.look_back

    @property
    def window(self) -> int:
        """Steps of an example."""
        return self.rows_read + self.horizon


class SeriesInput(TaskInput):
    """Tables of series: files, mappings of columns, arrays; the model reads their last rows."""

    name = "series"
    facts = InputFacts(
        "rows",
        "one series",
        "series",
        card_name="series",
        scales_batches=False,
        examples="windows",
        inputs="windows",
        held_out_by="of later rows",
        files=("series.csv", "series.csv"),
        only=("forecast", "a series is cut into windows, whose answer is their next rows"),
        codec=SeriesRows,
    )
    encoder_type: ClassVar[Any] = SeriesScaler
    options_type: ClassVar[type[TaskOptions]] = SeriesOptions

    @classmethod
    def is_possible(cls, settings: Settings) -> bool:
        """Return whether a setting of series is given, or the file may be a table."""
        if settings.task_options:
            return True
        table = isinstance(settings.data, str) and format_suffix(settings.data) in ROW_FILES
        of_text = any(getattr(settings, name) != default_of(settings, name) for name in TEXT_ONLY)
        return table and not settings.columns and settings.preset in FORECASTERS and not of_text

    @classmethod
    def recognise(cls, settings: Settings, first: Callable[[], Sequence[Pair]]) -> str:
        """Return that a setting of series is given, or that the file has times and numbers."""
        if settings.task_options:
            return message("train.why.given", setting=next(iter(settings.task_options)))
        found = recognise_series(str(settings.data))
        if found is None:
            return ""
        return message(f"train.why.series{'' if found.time else '-rows'}", time=repr(found.time))

    @classmethod
    def choose_options(cls, settings: Settings, source: Any, say: Say) -> dict[str, Any]:
        """Return horizon, look-back and split that fit the rows, unless they are given.

        The look-back is that of the linear map which forecasts dev rows best. A run that names its
        preset and a setting of series has the defaults of `SeriesOptions`.
        """
        given, options = settings.task_options, SeriesOptions.of(settings)
        if given and (options.skip != "fitted" or {"horizon", "look_back"} <= given.keys()):
            return {}
        found: dict[str, Any] = {}
        columns = None if given else recognise_series(source)
        if columns is not None and columns.others:
            found["targets"] = columns.numbers
            say(message("train.no-numbers", file=source, names=", ".join(columns.others)))
        table, gaps = _complete(source, options.model_copy(update=found))
        found |= {"gaps": gaps} if gaps != options.gaps else {}
        if "split" not in given and len(table) < FEW_ROWS:
            found["split"] = (0.6, 0.2, 0.2)
        options = options.model_copy(update=found)
        ends = split_rows(options.split, len(table), table.name)
        if "horizon" not in given:
            most = (ends.dev - ends.train) // WINDOWS_OF_DEV
            found["horizon"] = max(1, min(options.horizon, most))
        if "look_back" not in given:
            found["look_back"] = _best_look_back(
                table, ends, len(options.exogenous), found.get("horizon", options.horizon)
            )
            side = max(1, found["look_back"] // 4)
            if side < options.patch_len:
                found |= {"patch_len": side, "stride": max(1, side // 2)}
        return {name: value for name, value in found.items() if name not in given}

    @classmethod
    def check_settings(cls, settings: Settings) -> None:
        """Raise ArgumentError for settings of texts."""
        refuse_settings(settings, TEXT_ONLY, "be left out for series")
        options: SeriesOptions = SeriesOptions.of(settings)
        both = set(options.targets or ()) & set(options.exogenous)
        if both:
            rule = "not be forecast as well"
            raise ArgumentError("exogenous", rule, min(both), "name each column once")

    @classmethod
    def reader(cls, settings: Settings, place: DataPlace) -> SourceTransform:
        """Return pairs as they are: `open` reads tables."""
        return keep_source

    @classmethod
    def read_examples(
        cls, settings: Settings, place: DataPlace, check: Callable[[Pair], Pair]
    ) -> PairReader:
        """Read a table as stretches: the training rows, and the dev rows with those before them."""
        options: SeriesOptions = SeriesOptions.of(settings)
        table = _own_columns(place.source, options)
        stretches = _stretches(settings, table, options, is_dev=place.source == settings.dev)
        split = [_describe_split(table, stretches)] if settings.dev is None else []
        note = "\n".join([*table.notes, *split])
        opened = OpenedSource(table.name, enumerate(stretches, 1), Format("text"), note=note)

        def as_pair(number: int, stretch: Stretch) -> Pair:
            return Pair(str(int(stretch.table.times[0])), "", number, frames=stretch)

        return PairReader(opened, as_pair, BadLines(settings.skip_bad, advice=place.hints))

    @classmethod
    def is_dev(cls, settings: Settings, pair: Pair, share: float) -> bool:
        """Return whether a stretch is the dev rows."""
        stretch: Stretch = pair.frames
        return stretch.part == "dev"

    @classmethod
    def learn(
        cls, settings: Settings, pairs: Iterable[Pair], *, file: str, why: str, say: Say
    ) -> SourceEncoder:
        """Learn the scale of each column from the training rows, and find a season."""
        options: SeriesOptions = SeriesOptions.of(settings)
        stretch: Stretch = next(iter(pairs)).frames
        table, targets = stretch.table, len(stretch.table.columns) - len(options.exogenous)
        mean, scale = measure_columns(table.values)
        for name, column in zip(table.columns, table.values.T, strict=True):
            if np.ptp(column) == 0:
                say(message("train.constant-column", file=file, name=repr(name)))
        period = options.period
        if period is not None and period > options.rows_read:
            rule, fix = f"be at most look_back, {options.rows_read}", "lower it, or raise look_back"
            raise ArgumentError("period", rule, period, fix)
        if period is None:
            longest = min(options.rows_read, LONGEST_SEASON)
            known = (table.values[:, :targets] - mean[:targets]) / scale[:targets]
            period = find_period(known, table.step, longest)
        scaler = SeriesScaler(
            table.columns,
            targets,
            tuple(mean.tolist()),
            tuple(scale.tolist()),
            table.time,
            table.step,
            period,
            stretch.seen_until,
            stretch.test_until,
            table.beginning(options.window),
        )
        how = "given" if options.period else "found"
        season = message(f"train.{'season' if period > 1 else 'no-season'}.{how}", steps=period)
        say(message("train.series", series=scaler.summary, why=why, season=season))
        say(message("train.windows", rows=options.rows_read, horizon=options.horizon))
        return scaler

    def is_one(self, given: Any) -> bool:
        """Return whether this is one table: anything but a list of tables, or an iterator."""
        tables = (str, Path, SeriesTable, Mapping)
        several = isinstance(given, list | tuple) and given and isinstance(given[0], tables)
        return not (several or isinstance(given, Iterator))

    def parse(self, source: Any, *, line: bool = False) -> SeriesTable:
        """Return the table; raises RegardError unless it has the columns of the run."""
        return self.table(source)

    def table(self, source: Any) -> SeriesTable:
        """Read a table with the columns of the run."""
        time = self.encoder.time or None
        own = ",".join(self.encoder.columns)
        columns = self.encoder.columns
        read = read_series(source, time=time, gaps=self.options.gaps, columns=columns)
        found = read.select(self.encoder.columns, f"the run was trained with {own}")
        needed = self.options.rows_read
        if len(found) < needed:
            raise DataError(
                found.name,
                None,
                f"there must be {needed} rows, which the model reads, but there are {len(found)}",
                "add earlier rows",
            )
        if found.step != self.encoder.step and self.options.gaps != "ignore":
            reason = (
                f"there must be a row for each {self.encoder.step}, as in training, but there is "
                f"one for each {found.step}"
            )
            raise DataError(found.name, None, reason, "bring it to the same steps")
        return found

    def rows(self, sources: Sequence[Any]) -> list[np.ndarray]:
        """Return the last rows of tables, standardised."""
        read = self.options.rows_read
        return [self.encoder.encode(self.table(one).values[-read:]) for one in sources]

    def batch(self, rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor]:
        """Stack rows, which are equally many."""
        lengths = torch.full((len(rows),), self.options.rows_read)
        return torch.from_numpy(np.stack(rows)), lengths

    def labels(self, row: np.ndarray) -> list[str]:
        """Return how many steps each row lies before the forecast."""
        return [str(i - len(row)) for i in range(len(row))]

    def text(self, source: Any, row: np.ndarray) -> Text:
        """Return the name of the table with the times of its rows."""
        table = self.table(source)
        last = table.part(len(table) - len(row), len(table))
        return Text(table.name, tuple(map(Token, last.labels())))

    def corpus_text(self, corpus: Corpus, row: int, text: str) -> Text:
        """Return the time of an example."""
        return Text(text, (Token(text),))

    def replacements(self, row: np.ndarray) -> Replacements:
        """Return other rows of the same window."""
        return frame_replacements(row, 1)

    def read(self, given: SourceFiles) -> Iterator[SeriesTable]:
        """Read the table of each file."""
        return map(self.table, given.files)

    def describe(self) -> InputDescription:
        """Return the columns, the step, and the rows that the model reads."""
        kind, rows = self.encoder.kind, self.options.rows_read
        own = {"columns": list(self.encoder.columns), "step": str(self.encoder.step)}
        own["look_back"] = rows
        said = message("reads.series", rows=rows, columns=name_some(self.encoder.columns))
        info = {"tokenizer": kind, **own, "files": [".csv"]}
        return InputDescription(said, info, {"kind": kind, **own})

    def graph_inputs(self) -> GraphInputs:
        """Return the last rows before scaling."""
        return SeriesInputs(self.encoder, self.options.rows_read)


class SplitRows(NamedTuple):
    """The ends of training, dev and test rows."""

    train: int
    dev: int
    test: int


def _complete(source: Any, options: SeriesOptions) -> tuple[SeriesTable, Gaps]:
    """Return a table, and what becomes of its gaps: few of them are filled if nobody was asked."""
    try:
        return _own_columns(source, options), options.gaps
    except DataError:
        filled = options.model_copy(update={"gaps": "fill"})
        table = None if "gaps" in options.model_fields_set else _own_columns(source, filled)
        if table is None or table.filled > FEW_GAPS * table.values.size:
            raise
        return table, "fill"


def _best_look_back(table: SeriesTable, ends: "SplitRows", exogenous: int, horizon: int) -> int:
    """Return the look-back whose linear map forecasts dev rows best, of those that rows allow."""
    values = table.values[:, : table.values.shape[1] - exogenous]
    mean, scale = measure_columns(values[: ends.train])
    known, longest = (values - mean) / scale, max(1, ends.train // 4)
    tried = [rows for rows in LOOK_BACKS if rows <= longest] or [longest]
    first = max(0, ends.train - tried[-1])
    train, dev = (
        WindowMoments.of([rows], tried[-1], horizon)
        for rows in (known[: ends.train], known[first : ends.dev])
    )
    if not train.windows or not dev.windows:
        return tried[0]  # the rows are counted, and refused, when they are cut
    weight = choose_linear(train, dev, map(last_row, tried)).weight
    return len(weight) if weight.any() else max(rows for rows in tried if rows <= UNKNOWN)


def split_rows(split: Sequence[float], rows: int, name: str) -> SplitRows:
    """Return the ends of the parts; raises if the table has too few rows.

    Shares are rounded down for training and test rows, and dev gets the rest. Numbers of rows may
    leave some at the end of the table unused.
    """
    if sum(split) <= 1 + 1e-9:
        train, test = int(rows * split[0]), int(rows * split[2])
        used = int(rows * sum(split) + 1e-6)
        return SplitRows(train, used - test, used)
    sizes = [int(part) for part in split]
    if any(part != size for part, size in zip(split, sizes, strict=True)) or sum(sizes) > rows:
        rule = f"be three shares, or whole numbers of the {rows:,} rows of {name}"
        value = ",".join(f"{part:g}" for part in split)
        raise ArgumentError("split", rule, value, "say split=0.7,0.1,0.2 for example")
    ends = np.cumsum(sizes)
    return SplitRows(*(int(end) for end in ends))


class Stretch(NamedTuple):
    """Rows of a table that are for training or for dev.

    Attributes:
        part: "train" or "dev".
        table: its rows; those of dev begin with what the first window reads.
        seen_until: last time of training and dev rows,
        test_until: and of test rows, which go on if rows are added to the file.
    """

    part: str
    table: SeriesTable
    seen_until: int
    test_until: int

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers."""
        return self.table.nbytes

    @property
    def values(self) -> np.ndarray:
        """The numbers."""
        return self.table.values


def _own_columns(source: Any, options: SeriesOptions) -> SeriesTable:
    """Read a table, with the columns to forecast first and the exogenous ones after them."""
    wanted = [*options.targets, *options.exogenous] if options.targets else None
    table = read_series(source, time=options.time, gaps=options.gaps, columns=wanted)
    others = [name for name in table.columns if name not in options.exogenous]
    names = [*(options.targets or others), *options.exogenous]
    return table.select(names, "name columns of the file with targets=A,B and exogenous=C,D")


def _stretches(
    settings: Settings, table: SeriesTable, options: SeriesOptions, *, is_dev: bool
) -> list[Stretch]:
    """Cut a table in the order of time; raises DataError if a part has no window."""
    rows = len(table)
    if settings.dev is not None:
        found = [Stretch("dev" if is_dev else "train", table, int(table.times[-1]), END)]
    else:
        ends = split_rows(options.split, rows, table.name)
        seen, test = (int(table.times[max(0, end - 1)]) for end in (ends.dev, ends.test))
        test = END if ends.test == rows else test
        first = max(0, ends.train - options.rows_read)
        found = [
            Stretch("train", table.part(0, ends.train), seen, test),
            Stretch("dev", table.part(first, ends.dev), seen, test),
        ]
    for part, piece, *_ in found:
        if len(piece) < options.window:
            raise DataError(
                table.name,
                None,
                f"the {part} rows must be at least look_back + horizon, {options.window}, but of "
                f"{rows:,} rows they are {len(piece):,}",
                "lower look_back or horizon, add rows, or change split",
            )
    return found


def _describe_split(table: SeriesTable, stretches: Sequence[Stretch]) -> str:
    """Return a sentence about the parts of a table."""
    train = stretches[0]
    seen = table.times <= train.seen_until
    test = int(((table.times <= train.test_until) & ~seen).sum())
    labels = train.table.labels()
    own = int(seen.sum()) - len(train.table)
    return message(
        "train.split",
        name=table.name,
        rows=len(table),
        filled=message("train.filled", count=table.filled) if table.filled else "",
        train=len(train.table),
        first=labels[0],
        last=labels[-1],
        dev=own,
        test=test,
    )
