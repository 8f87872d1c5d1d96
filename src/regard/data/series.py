"""Time series: tables of numbers over time, from files of tables or from Python.

A table has a time column, which is recognised or named, and columns of numbers. Its times go up in
equal steps: seconds, months, or days from Monday to Friday. Without a time column rows are numbered
from 0.
"""

import codecs
import itertools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int64

from regard.data import lazy_pyarrow as arrow
from regard.data.error_hints import BadLine, shorten
from regard.data.file_formats import ReadOptions, columns_kind, csv_rows
from regard.data.pair_reader import HEAD, table_rows, to_last_line
from regard.data.row_parsers import NUMBER, json_record, row_cells
from regard.data.table_files import open_columns
from regard.data.text_files import decode, display_name
from regard.errors import ArgumentError, DataError, RegardError
from regard.messages import message, translated
from regard.safe_read import PathLike, has_plain_digits, parse_number

#: what becomes of missing numbers and missing times
Gaps = Literal["refuse", "fill", "ignore"]
#: names by which a column of times is recognised, in lower case, whatever it holds
TIME_NAMES: Final = ("date", "time", "datetime", "timestamp", "ds", "day", "month", "year")
#: formats of times beyond ISO 8601
TIME_FORMATS: Final = (
    *("%Y/%m/%d %H:%M:%S", "%Y/%m/%d %H:%M", "%Y/%m/%d", "%Y-%m", "%Y/%m", "%Y.%m.%d"),
    *("%d %b %Y", "%d %B %Y", "%d-%b-%Y", "%d-%b-%y", "%d %b %Y %H:%M", "%d-%b-%Y %H:%M"),
    *("%b %d, %Y", "%B %d, %Y", "%b %d %Y", "%B %d %Y", "%b %Y", "%B %Y", "%b-%Y", "%b-%y"),
)
#: a time that begins with a day and a month, whose order the whole column decides
DAY_MONTH: Final = re.compile(
    r"([0-9]{1,2})([./-])([0-9]{1,2})\2([0-9]{4}|[0-9]{2})(,?[ T][0-9:]+( ?[AP]M)?)?", re.IGNORECASE
)
#: an hour that stands in a column of its own, beside that of the days
CLOCK: Final = re.compile(r"[0-9]{1,2}[:.][0-9]{2}([:.][0-9]{2})?")
#: the day that Excel counts from, in seconds, and the days that it may mean: from 1954 to 2119
EXCEL_START: Final = -2_209_161_600
EXCEL_DAYS: Final = (20_000, 80_000)
#: cells without a number
BLANKS: Final = ("", "na", "n/a", "#n/a", "nan", "null", "none", "?", "-")
#: names of columns that number rows
ROW_NUMBERS: Final = ("", "id", "idx", "index", "no", "nr", "row", "unnamed: 0")
#: numbers with a decimal comma, and numbers with commas between thousands
DECIMAL_COMMA: Final = re.compile(r"[-+]?([0-9]+|[0-9]{1,3}([.][0-9]{3})+),[0-9]+")
THOUSANDS: Final = re.compile(r"[-+]?[1-9][0-9]{0,2}(,[0-9]{3})+([.][0-9]+)?")
#: most cells of a table: two billion bytes as float64
MOST_CELLS: Final = 1 << 28
#: most rows that filling gaps may add to each row that is there
MOST_FILLED: Final = 10
DAY: Final = 86_400
#: a file is recognised as a series by so many of its first rows,
FEWEST_ROWS, MOST_ROWS = 20, 1000
#: whose steps are mostly equal, beside texts of so many characters at most; without times, they
#: change so little from row to row
USUAL_STEPS, SHORT_TEXT, LITTLE_CHANGE = 0.8, 24, 0.5
#: numbers from which on times since 1970 are milliseconds: seconds of the year 5138
EPOCH_MS: Final = 1e11


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
        notes: sentences about how times and numbers were read, where that was not obvious.
    """

    name: str
    time: str
    step: TimeStep
    times: Int64[np.ndarray, " rows"]
    columns: tuple[str, ...]
    values: Float[np.ndarray, "rows columns"]
    filled: int = 0
    notes: tuple[str, ...] = ()

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
        source: a file of CSV, Excel, JSON, Parquet or Arrow, which may be compressed; the content
            of a CSV file as bytes; a mapping of columns, a table of pyarrow or pandas; or an array
            (rows, columns).
        time: the time column; recognised if None.
        gaps: whether missing numbers and times are refused, filled by interpolation, or (times
            alone) ignored. Where gaps are filled, rows of one time are averaged, and rows between
            two steps are moved to them.
        columns: those that must hold numbers, if the table has all of them; others may hold text
            then, and are left out. All columns but the time if None.
    """
    if isinstance(source, SeriesTable):
        return source
    if isinstance(source, str | os.PathLike):
        raw = _file_columns(source)
    elif isinstance(source, bytes):
        lines = source.removeprefix(codecs.BOM_UTF8).splitlines()
        rows = to_last_line(iter(enumerate(lines, start=1)))
        raw = _cell_columns(csv_rows("file", list(itertools.islice(rows, HEAD)), rows), "file")
    else:
        raw = _python_columns(source)
    if columns is not None and set(columns) <= raw.columns.keys():
        chosen = _Builder(raw, gaps).time_column(time)
        kept = {name: raw.columns[name] for name in raw.columns if name in {chosen, *columns}}
        raw, time = raw._replace(columns=kept), chosen or time
    return _Builder(raw, gaps).table(time)


class SeriesColumns(NamedTuple):
    """The columns of a file that looks like a series; `time` is "" without one."""

    time: str
    numbers: tuple[str, ...]
    others: tuple[str, ...]


def recognise_series(source: PathLike) -> SeriesColumns | None:
    """Return the columns of a file if its first rows are a series; None for any other file.

    A series has a column of times that go up, mostly in equal steps, and more columns of numbers
    than of short texts. Without times, all columns are numbers that change little from row to row,
    and more than two: two are pairs.
    """
    try:
        raw = _file_columns(source, MOST_ROWS)
        builder = _Builder(raw, "ignore")
        time = builder.time_column(None)
        times = builder._times(time, raw.columns[time]) if time else np.zeros(0, np.int64)
    except (RegardError, OSError, ValueError, IndexError):
        return None
    numbers: dict[str, np.ndarray] = {}
    others: dict[str, Sequence[Any]] = {}
    for name, cells in raw.columns.items():
        try:
            if name != time:
                numbers[name] = builder._number_columns({name: cells})[0]
        except DataError:
            others[name] = cells
    found = SeriesColumns(time, tuple(numbers), tuple(others))
    if len(next(iter(raw.columns.values()), ())) < FEWEST_ROWS or len(numbers) <= len(others):
        return None
    if not time:
        change = [_change(values) for values in numbers.values() if np.ptp(values)]
        several = not others and len(numbers) > 2
        return found if several and change and np.median(change) < LITTLE_CHANGE else None
    short = all(len(str(cell)) <= SHORT_TEXT for cells in others.values() for cell in cells)
    in_order = bool((np.diff(times) > 0).all())
    if not short or not in_order or (_step_of(times).between(times) == 1).mean() < USUAL_STEPS:
        return None
    return found


def _change(values: Float[np.ndarray, " rows"]) -> float:
    """Return how far rows are from the row before, as a share of that from the median."""
    return float(np.abs(np.diff(values)).mean() / np.abs(values - np.median(values)).mean())


class _RawTable(NamedTuple):
    """Columns as they were found; `first_line` is the line of the first row."""

    name: str
    columns: Mapping[str, Sequence[Any]]
    first_line: int
    note: str = ""

    def error(self, row: int, reason: str, fix: str) -> DataError:
        """Return the error for a row."""
        return DataError(self.name, self.first_line + row, reason, fix)


def _file_columns(source: PathLike, most: int | None = None) -> _RawTable:
    """Return the columns of a file, or of its first rows; one of lines is read as CSV."""
    name, wanted = display_name(source), ReadOptions()
    if kind := columns_kind(source, wanted):
        with open_columns(source, kind) as file:
            batches, cells = [], 0
            for batch in file.batches(file.schema.names, most or HEAD):
                cells += batch.num_rows * batch.num_columns
                _check_cells(name, None, cells)
                batches.append(batch.slice(0, most))
                if most is not None:
                    break
            table = arrow.Table.from_batches(batches, file.schema)
        return _with_hours(_RawTable(name, _arrow_columns(table), 1))
    kind, rows, note = table_rows(source, wanted)
    if kind == "tsv":
        rows = csv_rows(name, list(itertools.islice(rows, HEAD)), rows)
    rows = itertools.islice(rows, most)
    if kind in ("jsonl", "pairs"):
        records = [_object(name, *row) for row in rows]
        return _python_columns(records)._replace(name=name, note=note)
    return _with_hours(_cell_columns(rows, name))._replace(note=note)


def _object(name: str, number: int, row: Any) -> Mapping[str, Any]:
    """Return the JSON object of a row; raises DataError for anything else."""
    try:
        found = json_record(decode(row)) if isinstance(row, bytes) else row
    except BadLine as bad:
        raise _bad_row(name, number, bad) from None
    if not isinstance(found, Mapping):
        reason = f"a row must be an object of numbers by name, but it is {shorten(found)}"
        raise DataError(name, number, reason, "write all rows in one way")
    return found


def _bad_row(name: str, number: int, bad: BadLine) -> DataError:
    return DataError(name, number, bad.reason, str(bad.fix))


def _check_cells(name: str, line: int | None, cells: int) -> None:
    if cells > MOST_CELLS:
        reason = f"the table has more than {MOST_CELLS:,} cells"
        raise DataError(name, line, reason, "cut it into parts")


def _cell_columns(numbered: Iterable[tuple[int, Any]], name: str) -> _RawTable:
    header: list[str] = []
    rows: list[list[str]] = []
    for number, row in numbered:
        try:
            cells = row_cells(row)
        except BadLine as bad:
            raise _bad_row(name, number, bad) from None
        if not cells:
            raise DataError(name, number, "the line is empty", "remove it")
        header = header or [cell.strip() for cell in cells]
        if len(cells) != len(header):
            raise DataError(
                name,
                number,
                f"the line must have {len(header)} cells like the first, but it has {len(cells)}",
                "mend it",
            )
        rows.append(cells)
        _check_cells(name, number, len(rows) * len(header))
    if not rows:
        raise DataError(name, None, "the file is empty", "give one with a header and rows")
    headless = all(_is_number(c) or NUMBER.fullmatch(c) or _is_time(c) for c in header)
    rows = rows if headless else rows[1:]
    names = [f"column {i}" for i in range(1, len(header) + 1)] if headless else header
    twice = {one for one in names if names.count(one) > 1}
    if twice:
        reason = f"two columns are named {min(twice)!r}"
        raise DataError(name, 1, reason, "give each a name of its own")
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    return _RawTable(name, dict(zip(names, columns, strict=True)), 1 if headless else 2)


def _arrow_columns(table: Any) -> dict[str, Sequence[Any]]:
    return {str(n): table.column(i).to_pylist() for i, n in enumerate(table.column_names)}


def _python_columns(source: Any) -> _RawTable:
    columns: Mapping[str, Sequence[Any]]
    if isinstance(source, list | tuple) and source and isinstance(source[0], Mapping):
        columns = {str(name): [row.get(name) for row in source] for name in source[0]}
    elif isinstance(source, Mapping):
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
        self.notes = [raw.note] if raw.note else []

    def table(self, time: str | None) -> SeriesTable:
        raw = self.raw
        count = len(next(iter(raw.columns.values()), ()))
        if not count:
            raise DataError(raw.name, None, "there are no rows", "give a header and rows")
        time = self.time_column(time)
        others = {name: values for name, values in raw.columns.items() if name != time}
        others = self._of_numbers(others)
        values = np.stack(self._number_columns(others), axis=1)
        seconds = np.arange(count)
        if time:
            seconds, values = self._ordered(self._times(time, raw.columns[time]), values)
        step = _step_of(seconds) if time else ROWS
        table = SeriesTable(raw.name, time, step, seconds, tuple(others), values)
        return replace(self._complete(table), notes=tuple(self.notes))

    def _of_numbers(self, columns: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
        """Return the columns that hold numbers: not those of texts alone, nor numbers of rows."""
        kept = {
            name: values
            for name, values in columns.items()
            if any(map(_may_be_number, values)) and not _numbers_rows(name, values)
        }
        if not kept:
            reason = "there is no column beside the time"
            if columns:
                reason = f"there is no column of numbers among {_listed(tuple(columns))}"
            raise DataError(self.raw.name, 1, reason, "add columns of numbers")
        if left := [name for name in columns if name not in kept]:
            names = _listed(left)
            self.notes.append(message("series.left-out", name=self.raw.name, names=names))
        return kept

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

    def _number_columns(self, columns: Mapping[str, Sequence[Any]]) -> list[np.ndarray]:
        """Return columns as numbers; commas in them mean the same in all columns."""
        try:
            texts = (cell for column in columns.values() for cell in column)
            if has_plain_digits("".join(cell for cell in texts if isinstance(cell, str))):
                return [np.array(values, np.float64) for values in columns.values()]
        except (ValueError, TypeError):
            pass
        cells = [
            (row, cell.strip())
            for values in columns.values()
            for row, cell in enumerate(values)
            if isinstance(cell, str) and "," in cell
        ]
        decimal, thousands = (
            bool(cells) and all(form.fullmatch(cell) for _, cell in cells)
            for form in (DECIMAL_COMMA, THOUSANDS)
        )
        if decimal and thousands:
            reason = f"{cells[0][1]!r} may have a decimal comma or a comma between thousands"
            raise self.raw.error(cells[0][0], reason, "write numbers as in 1234.5")
        if decimal or thousands:
            change = str.maketrans({".": None, ",": "."} if decimal else {",": None})
            number = cells[0][1].translate(change)
            note = message("series.comma", name=self.raw.name, text=cells[0][1], number=number)
            self.notes.append(note)
            columns = {
                name: [_unpunctuated(cell, change, decimal) for cell in values]
                for name, values in columns.items()
            }
        return [self._numbers(*column) for column in columns.items()]

    def _numbers(self, name: str, values: Sequence[Any]) -> Float[np.ndarray, " rows"]:
        found = np.empty(len(values))
        for row, value in enumerate(values):
            try:
                blank = value is None or str(value).strip().lower() in BLANKS
                found[row] = np.nan if blank else parse_number(value)
            except (ValueError, TypeError):
                raise self.raw.error(
                    row,
                    f"the column {name!r} must hold numbers, but here it is {shorten(value)}",
                    "mend it, or leave the column out by naming the others with targets=A,B",
                ) from None
        return found

    def _times(self, name: str, values: Sequence[Any]) -> Int64[np.ndarray, " rows"]:
        values = self._with_year_first(name, values)
        counted = self._counted_times(values)
        if counted is not None:
            return counted
        try:
            if all(isinstance(value, str) and "-" in value for value in values):
                return np.array(values, "datetime64[s]").astype(np.int64)
        except ValueError:
            pass
        for pattern in TIME_FORMATS if all(isinstance(v, str) for v in values) else ():
            if _parsed_time(values[0], pattern) is not None:
                with suppress(arrow.ArrowException):
                    texts = arrow.array([value.strip() for value in values])
                    found = arrow.compute.strptime(texts, pattern, "s")
                    return np.asarray(found).astype("datetime64[s]").astype(np.int64)
        found = list(map(parse_time, values))
        if None in found:
            row = found.index(None)
            raise self.raw.error(
                row,
                f"the column {name!r} must hold times, but here it is {shorten(values[row])}",
                "write times as 2016-07-01 00:00:00, or name another column with time=NAME",
            )
        return np.array(found, np.int64)

    def _counted_times(self, values: Sequence[Any]) -> Int64[np.ndarray, " rows"] | None:
        """Return times that are numbers: days of Excel, or milliseconds and less since 1970."""
        try:
            numbers = np.array([parse_number(value) for value in values])
        except (ValueError, TypeError):
            return None
        low, high = numbers.min(), numbers.max()
        if EXCEL_DAYS[0] <= low and high <= EXCEL_DAYS[1]:
            times = np.round(numbers * DAY) + EXCEL_START
        elif low >= EPOCH_MS:
            times = numbers // 1000.0 ** (1 + (np.log10(low / EPOCH_MS) // 3))
        else:
            return None
        found = times.astype(np.int64)
        shown = time_labels(found[:1], TimeStep("seconds", 1))[0]
        said = message("series.counted", name=self.raw.name, text=values[0], time=shown)
        self.notes.append(said)
        return found

    def _with_year_first(self, name: str, values: Sequence[Any]) -> Sequence[Any]:
        """Return times such as 31/01/2020 as 2020-01-31: a number above 12 anywhere is a day.

        With dots between them the day is first. If nothing else decides, it is the order in which
        times are equally far apart.
        """
        forms = [DAY_MONTH.fullmatch(v.strip()) if isinstance(v, str) else None for v in values]
        found = [form for form in forms if form]
        if not found:
            return values
        above = [max(int(form[part]) for form in found) > 12 for part in (1, 3)]
        # the groups of day and month
        orders = [(1, 3)] * (not above[1]) + [(3, 1)] * (not above[0])
        if len(orders) == 2 and all(form[2] == "." for form in found):
            orders = orders[:1]
        if len(orders) == 2 and len(found) == len(values):
            orders = [order for order in orders if _is_regular(found, *order)] or orders
        if len(orders) != 1:
            clash = "both numbers of some are above 12" if all(above) else "none is above 12"
            raise self.raw.error(
                forms.index(found[0]),
                f"day and month of the column {name!r} cannot be told apart, since {clash}",
                "write times as 2016-07-01 00:00:00",
            )
        decides = next((form for form in found if max(int(form[1]), int(form[3])) > 12), found[-1])
        text, time = decides[0], _iso_time(decides, *orders[0])
        self.notes.append(message("series.times", name=self.raw.name, text=text, time=time))
        pairs = zip(forms, values, strict=True)
        return [_iso_time(form, *orders[0]) if form else value for form, value in pairs]

    def _ordered(
        self, times: Int64[np.ndarray, " rows"], values: Float[np.ndarray, "rows columns"]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return times that go up with their values; rows of one time are averaged to fill gaps.

        A table whose last row is the first in time is turned round.
        """
        apart = np.diff(times)
        if len(apart) and apart.max() <= 0 and apart.min() < 0:
            self.notes.append(message("series.reversed", name=self.raw.name))
            times, values, apart = times[::-1], values[::-1], -apart[::-1]
        wrong = np.flatnonzero(apart < 0 if self.gaps != "refuse" else apart <= 0)
        if len(wrong):
            row = int(wrong[0])
            before, now = time_labels(times[row : row + 2], TimeStep("seconds", 1))
            reason, fix = (
                f"times must go up, but {now} follows {before}",
                "sort the file by its time column",
            )
            if before == now:
                reason = f"the time {now} is there twice"
                fix = "keep one row for each time, or say gaps=fill to average them, or gaps=ignore"
            raise self.raw.error(row + 1, reason, fix)
        again = int((apart == 0).sum())
        if not again:
            return times, values
        key = f"series.repeated.{self.gaps}"
        self.notes.append(message(key, name=self.raw.name, count=again))
        if self.gaps == "ignore":
            return times, values
        one, places = np.unique(times, return_inverse=True)
        real = np.isfinite(values)
        sums, counts = np.zeros((2, len(one), values.shape[1]))
        np.add.at(sums, places, np.where(real, values, 0))
        np.add.at(counts, places, real)
        return one, np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)

    def _complete(self, table: SeriesTable) -> SeriesTable:
        """Return a row for each step, missing numbers interpolated; raises DataError for gaps."""
        steps = table.step.between(table.times) if table.time else np.ones(len(table) - 1)
        odd = np.flatnonzero(steps != 1)
        if len(odd) and self.gaps == "refuse":
            row = int(odd[0])
            before, now = table.part(row, row + 2).labels()
            lies = "a gap" if steps[row] > 1 else "less than a step"
            raise self.raw.error(
                row + 1,
                f"there must be a row for each {table.step}, but from {before} to {now} there is "
                f"{lies}",
                "complete the rows, or say gaps=fill to interpolate, or gaps=ignore",
            )
        real = np.isfinite(table.values)
        if self.gaps != "fill" and not real.all():
            row, column = (int(place[0]) for place in np.nonzero(~real))
            raise self.raw.error(
                row,
                f"the column {table.columns[column]!r} has no finite number here",
                "complete it, or say gaps=fill to interpolate",
            )
        if self.gaps != "fill" or (real.all() and not len(odd)):
            return table
        return self._filled(table, np.concatenate([[0], np.cumsum(steps)]))

    def _filled(self, table: SeriesTable, places: Float[np.ndarray, " rows"]) -> SeriesTable:
        """Interpolate between the numbers that are there, which lie at these places in steps."""
        count = int(places[-1] + 0.5) + 1
        if count > MOST_FILLED * len(table):
            reason = f"filling its gaps would make {count:,} rows of {len(table):,}"
            raise DataError(table.name, None, reason, "say gaps=ignore, or cut the file")
        if between := int((places != np.round(places)).sum()):
            self.notes.append(message("series.between", name=table.name, count=between))
        grid = np.arange(count)
        values = np.empty((count, table.values.shape[1]))
        filled = 0
        for i, column in enumerate(table.values.T):
            real = np.isfinite(column)
            if not real.any():
                reason = f"the column {table.columns[i]!r} has no number at all"
                raise DataError(table.name, None, reason, "leave it out")
            values[:, i] = np.interp(grid, places[real], column[real])
            filled += count - int(np.isin(grid, places[real]).sum())
        first = int(table.times[0])
        times = np.concatenate([[first], table.step.after(first, count - 1)])
        return replace(table, times=times, values=values, filled=filled)


def _step_of(times: Int64[np.ndarray, " rows"]) -> TimeStep:
    """Return the most frequent step of times that go up, or stay."""
    times = np.unique(times)
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
    """Return seconds since 1970, or None for what is no time.

    A number is a year, a date such as 20200131, or seconds since 1970, by its digits.
    """
    text = value.isoformat() if hasattr(value, "isoformat") else str(value).strip()
    if text.isdecimal() and len(text) in (4, 9, 10):
        return _seconds(datetime(int(text), 1, 1)) if len(text) == 4 else int(text)
    try:
        return _seconds(datetime.fromisoformat(text))
    except ValueError:
        pass
    found = (_parsed_time(text, pattern) for pattern in TIME_FORMATS)
    return next((_seconds(time) for time in found if time is not None), None)


def _parsed_time(text: str, pattern: str) -> datetime | None:
    try:
        return datetime.strptime(text.strip(), pattern)
    except ValueError:
        return None


def _iso_time(form: re.Match[str], day: int, month: int) -> str:
    """Return a time as ISO 8601 writes it, from the groups of its day and its month."""
    year = form[4] if len(form[4]) == 4 else f"{20 if int(form[4]) < 69 else 19}{form[4]}"
    date = f"{year}-{int(form[month]):02}-{int(form[day]):02}"
    clock = (form[5] or "").strip(", T")
    if clock[-1:] in ("M", "m"):
        afternoon = clock[-2] in "Pp"
        hour, colon, rest = clock[:-2].strip().partition(":")
        clock = f"{int(hour) % 12 + 12 * afternoon}{colon}{rest}"
    hour, colon, rest = clock.partition(":")
    return f"{date} {hour:0>2}:{rest}" if colon else date


def _is_regular(forms: Sequence[re.Match[str]], day: int, month: int) -> bool:
    """Return whether times are equally far apart if their days and months are these groups."""
    try:
        texts = [_iso_time(form, day, month) for form in forms]
        times = np.array(texts, "datetime64[s]").astype(np.int64)
    except ValueError:
        return False
    times = times[:: -1 if times[0] > times[-1] else 1]
    return len(times) > 2 and bool((_step_of(times).between(times) == 1).all())


def _with_hours(raw: _RawTable) -> _RawTable:
    """Return a table with the hours that stand in the column after that of days joined to these."""
    time = _Builder(raw, "ignore").time_column(None) if raw.columns else ""
    after = [*raw.columns][[*raw.columns].index(time) + 1 :][:1] if time else []
    hours = [str(cell).strip() for cell in raw.columns[after[0]]] if after else []
    days = [str(cell).strip() for cell in raw.columns[time]] if after else []
    whole = any(":" in day for day in days) or all(map(_is_number, hours))
    if not hours or whole or not all(map(CLOCK.fullmatch, hours)):
        return raw
    times = [f"{day} {hour.replace('.', ':')}" for day, hour in zip(days, hours, strict=True)]
    columns = {name: cells for name, cells in raw.columns.items() if name != after[0]}
    return raw._replace(columns={**columns, time: times})


def _may_be_number(value: Any) -> bool:
    return _is_number(value) or (isinstance(value, str) and bool(NUMBER.fullmatch(value.strip())))


def _numbers_rows(name: str, values: Sequence[Any]) -> bool:
    """Return whether a column only numbers the rows, by its name and its content."""
    if name.strip().lower() not in ROW_NUMBERS or not all(map(_is_number, values)):
        return False
    numbers = np.array([parse_number(value) for value in values])
    return len(numbers) > 1 and bool((np.diff(numbers) == 1).all())


def _seconds(time: datetime) -> int:
    """Return seconds since 1970; a time without a zone is taken as UTC."""
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp())


def _is_time(value: Any) -> bool:
    known = isinstance(value, str) and DAY_MONTH.fullmatch(value.strip())
    return not _is_number(value) and (bool(known) or parse_time(value) is not None)


def _unpunctuated(cell: Any, change: dict[int, Any], decimal: bool) -> Any:
    """Return the text of a number as Python reads it; a cell that is none stays as it is."""
    grouped = isinstance(cell, str) and decimal and "." in cell and "," not in cell
    if grouped and not re.fullmatch(r"[-+]?[0-9]{1,3}([.][0-9]{3})+", cell.strip()):
        return f"{cell} beside numbers with a comma"
    return cell.translate(change) if isinstance(cell, str) else cell


def _is_number(value: Any) -> bool:
    try:
        parse_number(value)
    except (ValueError, TypeError):
        return False
    return True


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:8])
    return shown + (f" and {len(names) - 8} more" if len(names) > 8 else "")
