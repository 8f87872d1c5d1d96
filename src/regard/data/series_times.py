"""Times of series: steps between them, and the ways in which people write them."""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final, Literal, NamedTuple

import numpy as np
from jaxtyping import Float, Int64

from regard.data import lazy_pyarrow as arrow
from regard.data.error_hints import shorten
from regard.errors import DataError
from regard.messages import message, translated
from regard.safe_read import parse_number

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
#: numbers from which on times since 1970 are milliseconds: seconds of the year 5138
EPOCH_MS: Final = 1e11
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


def time_labels(times: Int64[np.ndarray, " rows"], step: TimeStep) -> list[str]:
    """Return times as text: dates alone if all are at midnight, or the numbers of rows."""
    if step.unit == "rows":
        return [str(time) for time in times.tolist()]
    unit = "D" if not (times % DAY).any() else "m" if not (times % 60).any() else "s"
    shown = times.astype("datetime64[s]").astype(f"datetime64[{unit}]").astype(str)
    return [text.replace("T", " ") for text in shown.tolist()]


class TimeReader(NamedTuple):
    """Reads a column of times."""

    file: str
    name: str
    error: Callable[[int, str, str], DataError]
    say: Callable[[str], None]

    def read(self, values: Sequence[Any]) -> Int64[np.ndarray, " rows"]:
        """Return seconds since 1970; raises DataError for a cell that is no time."""
        values = self._with_year_first(values)
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
            raise self.error(
                row,
                f"the column {self.name!r} must hold times, but here it is {shorten(values[row])}",
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
        said = message("series.counted", name=self.file, text=values[0], time=shown)
        self.say(said)
        return found

    def _with_year_first(self, values: Sequence[Any]) -> Sequence[Any]:
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
            raise self.error(
                forms.index(found[0]),
                f"day and month of the column {self.name!r} cannot be told apart, since {clash}",
                "write times as 2016-07-01 00:00:00",
            )
        decides = next((form for form in found if max(int(form[1]), int(form[3])) > 12), found[-1])
        text, time = decides[0], _iso_time(decides, *orders[0])
        self.say(message("series.times", name=self.file, text=text, time=time))
        pairs = zip(forms, values, strict=True)
        return [_iso_time(form, *orders[0]) if form else value for form, value in pairs]


def step_of(times: Int64[np.ndarray, " rows"]) -> TimeStep:
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
    return len(times) > 2 and bool((step_of(times).between(times) == 1).all())


def _seconds(time: datetime) -> int:
    """Return seconds since 1970; a time without a zone is taken as UTC."""
    return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp())


def is_time(value: Any) -> bool:
    """Return whether a cell is a time, and not a number that may be one."""
    known = isinstance(value, str) and DAY_MONTH.fullmatch(value.strip())
    return not is_number(value) and (bool(known) or parse_time(value) is not None)


def is_number(value: Any) -> bool:
    """Return whether a cell is a number as Python reads it."""
    try:
        parse_number(value)
    except (ValueError, TypeError):
        return False
    return True
