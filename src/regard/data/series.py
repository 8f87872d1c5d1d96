"""Time series: tables of numbers over time, from CSV or Parquet files or from Python.

A table has a time column, which is recognised or named, and columns of numbers. Its times go up in
equal steps: seconds, months, or days from Monday to Friday. Without a time column rows are numbered
from 0.
"""

import codecs
import csv
import io
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int64

from regard.data import lazy_pyarrow as arrow
from regard.data.error_hints import BadLine, shorten
from regard.data.pair_reader import not_parquet
from regard.data.text_files import decode, display_name, format_suffix, numbered_lines, open_bytes
from regard.errors import ArgumentError, DataError
from regard.messages import message, translated
from regard.safe_read import PathLike, has_plain_digits, parse_number, read_stream

#: what becomes of missing numbers and missing times
Gaps = Literal["refuse", "fill", "ignore"]
#: names by which a column of times is recognised, in lower case, whatever it holds
TIME_NAMES: Final = ("date", "time", "datetime", "timestamp", "ds", "day", "month", "year")
#: formats of times beyond ISO 8601
TIME_FORMATS: Final = ("%Y/%m/%d %H:%M:%S", "%Y/%m/%d %H:%M", "%Y/%m/%d", "%d.%m.%Y", "%Y-%m")
DELIMITERS: Final = ",;\t"
QUOTED: Final = re.compile(r'"[^"]*"')
#: most cells of a table: two billion bytes as float64
MOST_CELLS: Final = 1 << 28
#: most rows that filling gaps may add to each row that is there
MOST_FILLED: Final = 10
DAY: Final = 86_400


class TimeStep(NamedTuple):
    """The step between two times of a series.

    Attributes:
        unit: "rows" without times, else "seconds", "months" or "weekdays" (Monday to Friday).
        size: how many of them.
    """

    unit: Literal["rows", "seconds", "months", "weekdays"]
    size: int

    def after(self, last: int, steps: int) -> Int64[np.ndarray, " steps"]:
        """Return the times of the next steps."""
        ahead: Any = np.arange(1, steps + 1)
        if self.unit == "months":
            month = _months(np.array([last]))[0]
            day = np.array([last]).astype("datetime64[s]") - _month_start(np.array([month]))
            return np.asarray(_month_start(month + self.size * ahead) + day, np.int64)
        if self.unit == "weekdays":
            days = np.array(last // DAY, "datetime64[D]")
            return np.busday_offset(days, ahead * self.size).astype(np.int64) * DAY + last % DAY
        return np.asarray(last + self.size * ahead)

    def between(self, times: Int64[np.ndarray, " rows"]) -> Float[np.ndarray, " pairs"]:
        """Return the number of steps from each time to the next; not whole if it lies between."""
        if self.unit == "months":
            return np.diff(_months(times)) / self.size
        if self.unit == "weekdays":
            days = (times // DAY).astype("datetime64[D]")
            return np.busday_count(days[:-1], days[1:]) / self.size
        return np.diff(times) / self.size

    def __str__(self) -> str:
        if self.unit != "seconds":
            return self.unit[:-1] if self.size == 1 else f"{self.size} {self.unit}"
        for seconds, name in ((DAY, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
            if self.size % seconds == 0:
                many = self.size // seconds
                return name if many == 1 else f"{many} {name}s"
        raise AssertionError("every number of seconds is one of seconds")

    def in_words(self) -> str:
        """Return the step in the current language."""
        count, _, unit = str(self).rpartition(" ")
        found = translated("time", unit)
        return message("time.many", count=count, unit=found) if count else found


def _months(times: np.ndarray) -> np.ndarray:
    return times.astype("datetime64[s]").astype("datetime64[M]").astype(np.int64)


def _month_start(months: np.ndarray) -> np.ndarray:
    return np.asarray(months).astype("datetime64[M]").astype("datetime64[s]")


ROWS: Final = TimeStep("rows", 1)


@dataclass(frozen=True)
class SeriesTable:
    """Numbers over time.

    Attributes:
        name: of the file, in messages.
        time: name of the time column; "" without one.
        step: between two rows.
        times: seconds since 1970 of each row, or its number.
        columns: names of the columns.
        values: the numbers.
        filled: numbers that were missing and are interpolated.
    """

    name: str
    time: str
    step: TimeStep
    times: Int64[np.ndarray, " rows"]
    columns: tuple[str, ...]
    values: Float[np.ndarray, "rows columns"]
    filled: int = 0

    def __len__(self) -> int:
        return len(self.values)

    @property
    def nbytes(self) -> int:
        """Bytes of the numbers."""
        return self.values.nbytes

    def select(self, columns: Sequence[str], fix: str) -> "SeriesTable":
        """Return some columns in this order; raises DataError if one is missing."""
        missing = [column for column in columns if column not in self.columns]
        if missing:
            raise DataError(
                self.name,
                1,
                f"there must be a column {missing[0]!r}, but the columns of numbers are "
                f"{_listed(self.columns)}",
                fix,
            )
        places = [self.columns.index(column) for column in columns]
        return replace(self, columns=tuple(columns), values=self.values[:, places])

    def part(self, first: int, end: int) -> "SeriesTable":
        """Return some rows."""
        rows = slice(first, end)
        return replace(self, times=self.times[rows], values=self.values[rows])

    def labels(self) -> list[str]:
        """Return the time of each row as text."""
        return time_labels(self.times, self.step)


def time_labels(times: Int64[np.ndarray, " rows"], step: TimeStep) -> list[str]:
    """Return times as text: dates alone if all are at midnight, or the numbers of rows."""
    if step.unit == "rows":
        return [str(time) for time in times.tolist()]
    unit = "D" if not (times % DAY).any() else "m" if not (times % 60).any() else "s"
    shown = times.astype("datetime64[s]").astype(f"datetime64[{unit}]").astype(str)
    return [text.replace("T", " ") for text in shown.tolist()]


def read_series(
    source: Any,
    *,
    time: str | None = None,
    gaps: Gaps = "refuse",
    columns: Sequence[str] | None = None,
) -> SeriesTable:
    """Read a table; raises DataError for one that is no series, with its line.

    Args:
        source: a file ending in .csv or .parquet, which may be compressed; the content of a CSV
            file as bytes; a mapping of columns, a table of pyarrow or pandas; or an array (rows,
            columns).
        time: the time column; recognised if None.
        gaps: whether missing numbers and times are refused, filled by interpolation, or (times
            alone) ignored.
        columns: those that must hold numbers, if the table has all of them; others may hold text
            then, and are left out. All columns but the time if None.
    """
    if isinstance(source, SeriesTable):
        return source
    if isinstance(source, str | os.PathLike):
        name = display_name(source)
        if format_suffix(source) == ".parquet":
            raw = _parquet_columns(source, name)
        else:
            raw = _csv_columns(numbered_lines(source), name)
    elif isinstance(source, bytes):
        lines = source.removeprefix(codecs.BOM_UTF8).splitlines()
        raw = _csv_columns(enumerate(lines, start=1), "file")
    else:
        raw = _python_columns(source)
    if columns is not None and set(columns) <= raw.columns.keys():
        chosen = _Builder(raw, gaps).time_column(time)
        kept = {name: raw.columns[name] for name in raw.columns if name in {chosen, *columns}}
        raw, time = raw._replace(columns=kept), chosen or time
    return _Builder(raw, gaps).table(time)


class _RawTable(NamedTuple):
    """Columns as they were found; `first_line` is the line of the first row."""

    name: str
    columns: Mapping[str, Sequence[Any]]
    first_line: int

    def error(self, row: int, reason: str, fix: str) -> DataError:
        """Return the error for a row."""
        return DataError(self.name, self.first_line + row, reason, fix)


def _csv_columns(numbered: Iterable[tuple[int, bytes]], name: str) -> _RawTable:
    lines = _text_lines(numbered, name)
    first = next(lines, None)
    if first is None:
        raise DataError(name, None, "the file is empty", "give one with a header and rows")
    delimiter = max(DELIMITERS, key=QUOTED.sub("", first[1]).count)
    header = [cell.strip() for cell in _cells(first[1], delimiter)]
    headless = all(map(_is_number, header))
    rows: list[list[str]] = [header] if headless else []
    for number, line in lines:
        cells = _cells(line, delimiter)
        if len(cells) != len(header):
            raise DataError(
                name,
                number,
                f"the line must have {len(header)} cells like the first, but it has {len(cells)}",
                "mend it",
            )
        rows.append(cells)
        if len(rows) * len(header) > MOST_CELLS:
            reason = f"the table has more than {MOST_CELLS:,} cells"
            raise DataError(name, number, reason, "cut it into parts")
    names = [f"column {i}" for i in range(1, len(header) + 1)] if headless else header
    twice = {one for one in names if names.count(one) > 1}
    if twice:
        reason = f"two columns are named {min(twice)!r}"
        raise DataError(name, 1, reason, "give each a name of its own")
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    return _RawTable(name, dict(zip(names, columns, strict=True)), 1 if headless else 2)


def _text_lines(numbered: Iterable[tuple[int, bytes]], name: str) -> Iterator[tuple[int, str]]:
    blank = 0
    for number, raw in numbered:
        try:
            line = decode(raw)
        except BadLine as bad:
            raise DataError(name, number, bad.reason, str(bad.fix)) from None
        if not line.strip():
            blank = blank or number
            continue
        if blank:  # only the end of a file may have empty lines
            raise DataError(name, blank, "the line is empty", "remove it")
        yield number, line


def _cells(line: str, delimiter: str) -> list[str]:
    if '"' not in line:
        return line.split(delimiter)
    return next(csv.reader([line], delimiter=delimiter))


def _parquet_columns(source: PathLike, name: str) -> _RawTable:
    with open_bytes(source) as stream:
        try:
            file = arrow.parquet.ParquetFile(io.BytesIO(read_stream(stream, name)))
            if file.metadata.num_rows * file.metadata.num_columns > MOST_CELLS:
                reason = f"the table has more than {MOST_CELLS:,} cells"
                raise DataError(name, None, reason, "cut it into parts")
            table = file.read()
        except (arrow.ArrowException, OSError) as error:
            raise not_parquet(name, error) from None
    return _RawTable(name, _arrow_columns(table), 1)


def _arrow_columns(table: Any) -> dict[str, Sequence[Any]]:
    return {str(n): table.column(i).to_pylist() for i, n in enumerate(table.column_names)}


def _python_columns(source: Any) -> _RawTable:
    columns: Mapping[str, Sequence[Any]]
    if isinstance(source, Mapping):
        columns = {str(name): list(values) for name, values in source.items()}
    elif hasattr(source, "column_names"):
        columns = _arrow_columns(source)
    elif hasattr(source, "columns") and hasattr(source, "to_dict"):
        columns = {str(name): source[name].tolist() for name in source.columns}
    else:
        array = np.asarray(source)
        if array.ndim not in (1, 2) or array.dtype.kind not in "fiu":
            raise ArgumentError(
                "the series",
                "be a file, a mapping of columns, or an array (rows, columns)",
                shorten(source),
                "name a .csv file, for example",
            )
        array = array.reshape(len(array), -1)
        columns = {f"column {i + 1}": array[:, i].tolist() for i in range(array.shape[1])}
    if len({len(values) for values in columns.values()}) > 1:
        sizes = ", ".join(f"{name} {len(values)}" for name, values in columns.items())
        raise ArgumentError("the columns of a series", "be equally long", sizes, "cut them")
    return _RawTable("series", columns, 1)


class _Builder:
    """Makes a table from raw columns."""

    def __init__(self, raw: _RawTable, gaps: Gaps) -> None:
        self.raw, self.gaps = raw, gaps

    def table(self, time: str | None) -> SeriesTable:
        raw = self.raw
        count = len(next(iter(raw.columns.values()), ()))
        if not count:
            raise DataError(raw.name, None, "there are no rows", "give a header and rows")
        time = self.time_column(time)
        others = {name: values for name, values in raw.columns.items() if name != time}
        if not others:
            reason = "there is no column beside the time"
            raise DataError(raw.name, 1, reason, "add columns of numbers")
        values = np.stack([self._numbers(*column) for column in others.items()], axis=1)
        times = np.arange(count)
        if time:
            times = self._times(time, raw.columns[time])
            self._check_order(times)
        step = _step_of(times) if time else ROWS
        table = SeriesTable(raw.name, time, step, times, tuple(others), values)
        if time:
            table = self._regular(table)
        return self._without_gaps(table)

    def time_column(self, given: str | None) -> str:
        """Return the name of the time column, "" if there is none."""
        columns = self.raw.columns
        if given is not None:
            if given not in columns:
                raise DataError(
                    self.raw.name,
                    1,
                    f"there must be a column {given!r} of times, but the columns are "
                    f"{_listed(tuple(columns))}",
                    "name one of them with time=NAME",
                )
            return given
        for name, values in columns.items():
            if name.lower() in TIME_NAMES or _is_time(values[0]):
                return name
        return ""

    def _numbers(self, name: str, values: Sequence[Any]) -> Float[np.ndarray, " rows"]:
        try:
            if has_plain_digits("".join(value for value in values if isinstance(value, str))):
                return np.array(values, np.float64)
        except (ValueError, TypeError):
            pass
        found = np.empty(len(values))
        for row, value in enumerate(values):
            try:
                blank = value is None or str(value).strip().lower() in ("", "na", "nan", "null")
                found[row] = np.nan if blank else parse_number(value)
            except (ValueError, TypeError):
                raise self.raw.error(
                    row,
                    f"the column {name!r} must hold numbers, but here it is {shorten(value)}",
                    "mend it, or leave the column out by naming the others with targets=A,B",
                ) from None
        return found

    def _times(self, name: str, values: Sequence[Any]) -> Int64[np.ndarray, " rows"]:
        try:
            return np.array(values, "datetime64[s]").astype(np.int64)
        except (ValueError, TypeError):
            pass
        found = []
        for row, value in enumerate(values):
            time = parse_time(value)
            if time is None:
                raise self.raw.error(
                    row,
                    f"the column {name!r} must hold times, but here it is {shorten(value)}",
                    "write times as 2016-07-01 00:00:00, or name another column with time=NAME",
                )
            found.append(time)
        return np.array(found, np.int64)

    def _check_order(self, times: Int64[np.ndarray, " rows"]) -> None:
        wrong = np.flatnonzero(np.diff(times) <= 0)
        if not len(wrong):
            return
        row = int(wrong[0])
        before, now = time_labels(times[row : row + 2], TimeStep("seconds", 1))
        if before == now:
            raise self.raw.error(
                row + 1, f"the time {now} is there twice", "keep one row for each time"
            )
        raise self.raw.error(
            row + 1,
            f"times must go up, but {now} follows {before}",
            "sort the file by its time column",
        )

    def _regular(self, table: SeriesTable) -> SeriesTable:
        """Fill gaps in time with rows of NaN, or refuse them."""
        steps = table.step.between(table.times)
        odd = np.flatnonzero(steps != 1)
        if not len(odd) or self.gaps == "ignore":
            return table
        row = int(odd[0])
        before, now = table.part(row, row + 2).labels()
        if self.gaps == "refuse" or not np.equal(steps, np.round(steps)).all():
            lies = "a gap" if steps[row] > 1 else "less than a step"
            raise self.raw.error(
                row + 1,
                f"there must be a row for each {table.step}, but from {before} to {now} there is "
                f"{lies}",
                "complete the rows, or say gaps=fill to interpolate, or gaps=ignore",
            )
        places = np.concatenate([[0], np.cumsum(steps)]).astype(np.int64)
        count = int(places[-1]) + 1
        if count > MOST_FILLED * len(table):
            reason = f"filling its gaps would make {count:,} rows of {len(table):,}"
            raise DataError(table.name, None, reason, "say gaps=ignore, or cut the file")
        values = np.full((count, table.values.shape[1]), np.nan)
        values[places] = table.values
        first = int(table.times[0])
        times = np.concatenate([[first], table.step.after(first, count - 1)])
        return replace(table, times=times, values=values)

    def _without_gaps(self, table: SeriesTable) -> SeriesTable:
        """Interpolate numbers that are missing, or refuse them."""
        bad = ~np.isfinite(table.values)
        if not bad.any():
            return table
        row, column = (int(place[0]) for place in np.nonzero(bad))
        name = table.columns[column]
        if self.gaps != "fill":
            raise self.raw.error(
                row,
                f"the column {name!r} has no finite number here",
                "complete it, or say gaps=fill to interpolate",
            )
        values = table.values.copy()
        rows = np.arange(len(values))
        for i in range(values.shape[1]):
            real = ~bad[:, i]
            if not real.any():
                reason = f"the column {table.columns[i]!r} has no number at all"
                raise DataError(table.name, None, reason, "leave it out")
            values[:, i] = np.interp(rows, rows[real], values[real, i])
        return replace(table, values=values, filled=int(bad.sum()))


def _step_of(times: Int64[np.ndarray, " rows"]) -> TimeStep:
    """Return the most frequent step of times that go up."""
    if len(times) < 2:
        return TimeStep("seconds", DAY)
    apart, counts = np.unique(np.diff(times), return_counts=True)
    usual = int(apart[counts.argmax()])
    months = np.diff(_months(times))
    # months are 28 to 31 days long, and years 365 or 366
    if usual >= 28 * DAY and months.min() == months.max() and len(apart) > 1:
        return TimeStep("months", int(months[0]))
    days = (times // DAY).astype("datetime64[D]")
    if usual == DAY and len(apart) > 1 and np.is_busday(days).all():
        return TimeStep("weekdays", 1)
    return TimeStep("seconds", usual)


def parse_time(value: Any) -> int | None:
    """Return seconds since 1970, or None for what is no time."""
    text = value.isoformat() if hasattr(value, "isoformat") else str(value).strip()
    try:
        return _seconds(datetime.fromisoformat(text))
    except ValueError:
        pass
    for pattern in TIME_FORMATS:
        try:
            return _seconds(datetime.strptime(text, pattern))
        except ValueError:
            continue
    return None


def _seconds(time: datetime) -> int:
    """Return seconds since 1970; a time without a zone is taken as UTC."""
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp())


def _is_time(value: Any) -> bool:
    return not _is_number(value) and parse_time(value) is not None


def _is_number(value: Any) -> bool:
    try:
        parse_number(value)
    except (ValueError, TypeError):
        return False
    return True


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:8])
    return shown + (f" and {len(names) - 8} more" if len(names) > 8 else "")
