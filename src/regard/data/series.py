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
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int64

from regard.atomic_files import content_checksum
from regard.data import lazy_pyarrow as arrow
from regard.data.error_hints import BadLine, shorten
from regard.data.pairs import NUMBER, json_record, row_cells
from regard.data.series_windows import (
    CLOCK,
    EXCEL_DAYS,
    ROWS,
    TimeReader,
    TimeStep,
    is_number,
    is_time,
    parse_time,
    step_of,
    time_labels,
)
from regard.data.table_files import (
    HEAD,
    column_kind,
    csv_rows,
    open_columns,
    open_table,
    to_last_line,
)
from regard.data.text_files import decode, display_name
from regard.errors import ArgumentError, DataError, RegardError
from regard.messages import message
from regard.safe_read import PathLike, has_plain_digits, parse_number

#: what becomes of missing numbers and missing times
Gaps = Literal["refuse", "fill", "ignore"]
#: names by which a column of times is recognised, in lower case, whatever it holds
TIME_NAMES: Final = ("date", "time", "datetime", "timestamp", "ds", "day", "month", "year")
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
#: a file is recognised as a series by so many of its first rows,
FEWEST_ROWS, MOST_ROWS = 20, 1000
#: whose steps are mostly equal, beside texts of so many characters at most; without times, they
#: change so little from row to row
USUAL_STEPS, SHORT_TEXT, LITTLE_CHANGE = 0.8, 24, 0.6
#: parts of a year that may have a column of their own, and how many there are of each
YEAR_PARTS: Final = {"quarter": 4, "month": 12}


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

    def beginning(self, rows: int) -> str:
        """Return a checksum of the numbers of the first rows."""
        return content_checksum(self.values[:rows].tobytes())

    def select(self, columns: Sequence[str], fix: str) -> "SeriesTable":
        """Return some columns in this order; raises DataError if one is missing."""
        missing = [column for column in columns if column not in self.columns]
        if missing:
            reason = (
                f"there must be a column {missing[0]!r}, but the columns of numbers are "
                f"{_listed(self.columns)}"
            )
            raise DataError(self.name, 1, reason, fix)
        places = [self.columns.index(column) for column in columns]
        return replace(self, columns=tuple(columns), values=self.values[:, places])

    def part(self, first: int, end: int) -> "SeriesTable":
        """Return some rows."""
        rows = slice(first, end)
        return replace(self, times=self.times[rows], values=self.values[rows])

    def labels(self) -> list[str]:
        """Return the time of each row as text."""
        return time_labels(self.times, self.step)


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
    raw = _with_parts(raw)
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
        raw = _with_parts(_file_columns(source, MOST_ROWS))
        builder = _Builder(raw, "ignore")
        time = builder.time_column(None)
        times = builder.times(time) if time else np.zeros(0, np.int64)
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
        return found if several and change and max(change) < LITTLE_CHANGE else None
    short = all(len(str(cell)) <= SHORT_TEXT for cells in others.values() for cell in cells)
    in_order = bool((np.diff(times) > 0).all())
    if not short or not in_order or (step_of(times).between(times) == 1).mean() < USUAL_STEPS:
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
    name = display_name(source)
    if kind := column_kind(source):
        with open_columns(source, kind) as file:
            batches, cells = [], 0
            for batch in file.batches(file.schema.names, most or HEAD):
                cells += batch.num_rows * batch.num_columns
                _check_cells(name, None, cells)
                batches.append(batch.slice(0, most))
                if most is not None:
                    break
            table = arrow.Table.from_batches(batches, file.schema)
        return _RawTable(name, _arrow_columns(table), 1)
    opened = open_table(source)
    rows = opened.rows(())
    if opened.kind == "tsv":
        rows = csv_rows(name, list(itertools.islice(rows, HEAD)), rows)
    rows = itertools.islice(rows, most)
    if opened.has_records:
        records = [_object(name, *row) for row in rows]
        return _python_columns(records)._replace(name=name, note=opened.note)
    return _cell_columns(rows, name)._replace(note=opened.note)


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
    headless = all(is_number(c) or NUMBER.fullmatch(c) or is_time(c) for c in header)
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
            rule = "be a file, a mapping of columns, or an array (rows, columns)"
            value = shorten(source)
            raise ArgumentError("the series", rule, value, "name a .csv file, for example")
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
            seconds, values = self._ordered(self.times(time), values)
        step = step_of(seconds) if time and not self.counts_rows(time) else ROWS
        table = SeriesTable(raw.name, time, step, seconds, tuple(others), values)
        return replace(self._complete(table), notes=tuple(self.notes))

    def _of_numbers(self, columns: Mapping[str, Sequence[Any]]) -> dict[str, Sequence[Any]]:
        """Return the columns that hold numbers: not those of texts alone, nor numbers of rows."""
        kept = {}
        for name, values in columns.items():
            texts = (value.strip() for value in values if isinstance(value, str))
            numbers = any(map(is_number, values)) or any(map(NUMBER.fullmatch, texts))
            if numbers and not _numbers_rows(name, values):
                kept[name] = values
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
                reason = (
                    f"there must be a column {given!r} of times, but the columns are "
                    f"{_listed(tuple(columns))}"
                )
                raise DataError(self.raw.name, 1, reason, "name one of them with time=NAME")
            return given
        for name, values in columns.items():
            if name.lower() in TIME_NAMES or is_time(values[0]):
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

    def times(self, name: str) -> Int64[np.ndarray, " rows"]:
        """Return the seconds since 1970 of a column of times, or the numbers that it counts."""
        if self.counts_rows(name):
            return np.array(self._numbers(name, self.raw.columns[name]), np.int64)
        reader = TimeReader(self.raw.name, name, self.raw.error, self.notes.append)
        return reader.read(self.raw.columns[name])

    def counts_rows(self, name: str) -> bool:
        """Return whether a column of times counts rows, as 1, 2, 3, ..., and has no dates."""
        cells = self.raw.columns[name]
        small = is_number(cells[0]) and abs(parse_number(cells[0])) < EXCEL_DAYS[0]
        return small and parse_time(cells[0]) is None and _counts(cells)

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
        after = table.step.after(table.times[::-1], count - 1)  # of the first row
        times = np.concatenate([table.times[:1], after])
        return replace(table, times=times, values=values, filled=filled)


def _with_parts(raw: _RawTable) -> _RawTable:
    """Return a table with times joined that stand in columns of years, and of quarters or months.

    Hours that stand in the column after that of days are joined to these.
    """
    lower = {name.strip().lower(): name for name in raw.columns}
    part = next((name for name in YEAR_PARTS if name in lower), "")
    if "year" in lower and part and "day" not in lower:
        found = ([*map(str, raw.columns[lower[name]])] for name in ("year", part))
        whole, parts = ([cell.strip().removesuffix(".0") for cell in cells] for cells in found)
        able = {str(number) for number in range(1, YEAR_PARTS[part] + 1)}
        if {*parts} <= able and all(cell.isdecimal() and len(cell) == 4 for cell in whole):
            form = "{}Q{}" if part == "quarter" else "{}-{:0>2}"
            times = [form.format(*one) for one in zip(whole, parts, strict=True)]
            rest = {name: raw.columns[name] for name in raw.columns if name != lower[part]}
            return raw._replace(columns={**rest, lower["year"]: times})
    time = _Builder(raw, "ignore").time_column(None) if raw.columns else ""
    after = [*raw.columns][[*raw.columns].index(time) + 1 :][:1] if time else []
    hours = [str(cell).strip() for cell in raw.columns[after[0]]] if after else []
    days = [str(cell).strip() for cell in raw.columns[time]] if after else []
    has_hours = any(":" in day for day in days) or all(map(is_number, hours))
    if not hours or has_hours or not all(map(CLOCK.fullmatch, hours)):
        return raw
    times = [f"{day} {hour.replace('.', ':')}" for day, hour in zip(days, hours, strict=True)]
    columns = {name: cells for name, cells in raw.columns.items() if name != after[0]}
    return raw._replace(columns={**columns, time: times})


def _numbers_rows(name: str, values: Sequence[Any]) -> bool:
    """Return whether a column only numbers the rows, by its name and its content."""
    return name.strip().lower() in ROW_NUMBERS and _counts(values)


def _counts(values: Sequence[Any]) -> bool:
    """Return whether each value is a whole number, and one more than the one before."""
    if not all(map(is_number, values)):
        return False
    numbers = np.array([parse_number(value) for value in values])
    return len(numbers) > 1 and bool((np.diff(numbers) == 1).all()) and not (numbers % 1).any()


def _unpunctuated(cell: Any, change: dict[int, Any], decimal: bool) -> Any:
    """Return the text of a number as Python reads it; a cell that is none stays as it is."""
    grouped = isinstance(cell, str) and decimal and "." in cell and "," not in cell
    if grouped and not re.fullmatch(r"[-+]?[0-9]{1,3}([.][0-9]{3})+", cell.strip()):
        return f"{cell} beside numbers with a comma"
    return cell.translate(change) if isinstance(cell, str) else cell


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:8])
    return shown + (f" and {len(names) - 8} more" if len(names) > 8 else "")
