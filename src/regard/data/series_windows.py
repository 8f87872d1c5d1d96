"""Windows of series: the scale of the columns, and the examples that training cuts from them."""

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple, TypeVar

import numpy as np
from jaxtyping import Float, Float32, Int, Int32, Int64
from pydantic import Field
from torch import Tensor

from regard.atomic_files import Positive, Size, StoredRecord, invalid_file
from regard.data import lazy_pyarrow as arrow
from regard.data.batches import Batch, BatchShape, number_batch
from regard.data.corpus import FrameRows
from regard.data.error_hints import shorten
from regard.data.frame_scaler import NumberTargets
from regard.data.pairs import Pair
from regard.errors import DataError
from regard.messages import message, translated
from regard.safe_read import PathLike, parse_number

#: formats of times beyond ISO 8601
TIME_FORMATS: Final = (
    *("%Y/%m/%d %H:%M:%S", "%Y/%m/%d %H:%M", "%Y/%m/%d", "%Y-%m", "%Y/%m", "%Y.%m.%d"),
    *("%d %b %Y", "%d %B %Y", "%d-%b-%Y", "%d-%b-%y", "%d %b %Y %H:%M", "%d-%b-%Y %H:%M"),
    *("%b %d, %Y", "%B %d, %Y", "%b %d %Y", "%B %d %Y", "%b %Y", "%B %Y", "%b-%Y", "%b-%y"),
    *("%b-%d-%Y", "%B-%d-%Y"),
)
#: a quarter, and the end of a time that has a zone
QUARTER: Final = re.compile(r"([0-9]{4})[-: ]?Q([1-4])", re.IGNORECASE)
ZONE: Final = re.compile(r".{10}.*(Z|[+-][0-9]{2}:?[0-9]{2})")
#: a time that begins with a day and a month, whose order the whole column decides
DAY_MONTH: Final = re.compile(
    r"([0-9]{1,2})([./-])([0-9]{1,2})\2([0-9]{4}|[0-9]{2})(,?[ T][0-9:]+( ?[AP]M)?)?", re.IGNORECASE
)
#: an hour that stands in a column of its own, beside that of the days
CLOCK: Final = re.compile(r"[0-9]{1,2}[:.][0-9]{2}([:.][0-9]{2})?")
#: the day that Excel counts from, in seconds, and the days that it may mean: from 1954 to 2119
EXCEL_START: Final = -2_209_161_600
EXCEL_DAYS: Final = (20_000, 80_000)
#: years that may have a fraction, which is one of months, and how far its digits may be from one
YEARS, NEAR_MONTH = (1000, 2200), 0.06
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

    def after(self, times: Int64[np.ndarray, " rows"], steps: int) -> Int64[np.ndarray, " steps"]:
        """Return the times of the next steps; months that are shorter have their last day."""
        ahead: Any = np.arange(1, steps + 1)
        last = int(times[-1])
        if self.unit == "months":
            found = _months(times)[-1] + self.size * ahead
            longest = (times - _month_start(_months(times))).max()
            end = _month_start(found + 1) - DAY + last % DAY
            return np.asarray(np.minimum(_month_start(found) + longest, end), np.int64)
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
    return months.astype("datetime64[M]").astype("datetime64[s]").astype(np.int64)


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
        zoned = bool(values) and isinstance(values[0], str) and ZONE.fullmatch(values[0].strip())
        try:
            if not zoned and all(isinstance(value, str) and "-" in value for value in values):
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
        times = np.array(found, np.int64)
        if zoned:
            shown = time_labels(times[:1], TimeStep("seconds", 1))[0]
            self.say(message("series.counted", name=self.file, text=values[0], time=f"{shown} UTC"))
        return times

    def _counted_times(self, values: Sequence[Any]) -> Int64[np.ndarray, " rows"] | None:
        """Return times that are numbers: days of Excel, years with a fraction, ms since 1970."""
        try:
            numbers = np.array([parse_number(value) for value in values])
        except (ValueError, TypeError):
            return None
        low, high = numbers.min(), numbers.max()
        months = np.round(12 * numbers)
        if YEARS[0] <= low and high <= YEARS[1] and (numbers % 1).any():
            if np.abs(12 * numbers - months).max() > NEAR_MONTH:
                return None
            times = _month_start(months.astype(np.int64) - 12 * 1970)
        elif EXCEL_DAYS[0] <= low and high <= EXCEL_DAYS[1]:
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
    # months are 28 to 31 days long, and years 365 or 366; some may be missing
    months = _months(times)
    day, rest = (
        (times - start) // DAY for start in (_month_start(months), _month_start(months + 1))
    )
    regular, same = np.ptp(np.diff(months)) == 0, ((day == day.max()) | (rest == -1)).all()
    if usual >= 28 * DAY and len(apart) > 1 and (regular or same):
        return TimeStep("months", int(np.bincount(np.diff(months)).argmax()))
    days = (times // DAY).astype("datetime64[D]")
    if usual == DAY and len(apart) > 1 and np.is_busday(days).all():
        return TimeStep("weekdays", 1)
    return TimeStep("seconds", usual)


def parse_time(value: Any) -> int | None:
    """Return seconds since 1970, or None for what is no time.

    A number is a year, a date such as 20200131, or seconds since 1970, by its digits.
    """
    text = value.isoformat() if hasattr(value, "isoformat") else str(value).strip()
    if quarter := QUARTER.fullmatch(text):
        text = f"{quarter[1]}-{3 * int(quarter[2]) - 2:02}-01"
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


Lengths = TypeVar("Lengths", int, Tensor)

#: columns of a file of scales that is read
MOST_COLUMNS: Final = 100_000
#: seasons that are tried for each step, in seconds: a day, a week, a year
SEASONS: Final = (86_400, 7 * 86_400, 365 * 86_400)


#: seconds since 1970, or a number of a row
Time = Annotated[int, Field(ge=-(2**62), lt=2**62)]
#: later than any row
END: Final = 2**62 - 1


@dataclass(frozen=True)
class SeriesScaler(StoredRecord):
    """The encoder of series: standardises each column as in the training rows.

    Attributes:
        columns: names, those that are forecast first.
        targets: how many are forecast; the others are exogenous.
        mean: of each column,
        scale: and its standard deviation.
        time: name of the time column; "" without one.
        step: between two rows.
        period: steps of a season; 1 if none was found.
        seen_until: the last time that training and dev rows have,
        test_until: and that test rows of the same file have.
        beginning: a checksum of the rows of its first window, by which a file without times is the
            one of training; "" in runs of earlier versions.
    """

    kind: ClassVar[str] = "series"
    #: it has no tokens
    vocab_size: ClassVar[int] = 0
    limit_unit: ClassVar[str] = "rows "

    columns: Annotated[tuple[str, ...], Field(min_length=1, max_length=MOST_COLUMNS)]
    targets: Size
    mean: tuple[float, ...]
    scale: tuple[Positive, ...]
    time: str
    step: TimeStep
    period: Size
    seen_until: Time
    test_until: Time
    beginning: str = ""

    @property
    def frame_size(self) -> int:
        """Number of columns."""
        return len(self.columns)

    @property
    def target_names(self) -> tuple[str, ...]:
        """Names of the columns that are forecast."""
        return self.columns[: self.targets]

    @property
    def number_targets(self) -> NumberTargets:
        """The encoder of the columns that are forecast."""
        count = self.targets
        return NumberTargets(self.target_names, self.mean[:count], self.scale[:count])

    def extended(self, other: "SeriesScaler") -> "SeriesScaler":
        """Return the encoder of other rows, with the scale of the columns that this one has."""
        own, theirs = (
            {name: part for name, *part in zip(one.columns, one.mean, one.scale, strict=True)}
            for one in (self, other)
        )
        mean, scale = zip(*((theirs | own)[name] for name in other.columns), strict=True)
        return replace(other, mean=mean, scale=scale)

    def encode_sources(self, pairs: Sequence[Pair]) -> list[Float32[np.ndarray, "rows columns"]]:
        """Return the standardised rows of stretches."""
        return [self.encode(pair.frames.values) for pair in pairs]

    def fits(self, pair: Pair, row: np.ndarray, limit: int) -> bool:
        """Return True: limits of length are for windows, and a stretch has many."""
        return True

    def encode(
        self, values: Float[np.ndarray, "rows columns"]
    ) -> Float32[np.ndarray, "rows columns"]:
        """Return standardised rows."""
        scaled = (values - np.array(self.mean)) / np.array(self.scale)
        standardised: Float32[np.ndarray, "rows columns"] = scaled.astype(np.float32)
        return standardised

    def decode(
        self, values: Float[np.ndarray, "*any targets"]
    ) -> Float[np.ndarray, "*any targets"]:
        """Return forecasts of the targets at the scale of the data."""
        scale, mean = np.array(self.scale[: self.targets]), np.array(self.mean[: self.targets])
        return np.asarray(values.astype(np.float64) * scale + mean)

    def positions(self, frames: Lengths) -> Lengths:
        """Return the number of rows."""
        return frames

    @property
    def summary(self) -> str:
        """A short description."""
        more = len(self.columns) - self.targets
        number = "one" if more == 1 else "several"
        exogenous = message(f"source.series.exogenous.{number}", count=more) if more else ""
        return message(
            "source.series", count=self.targets, exogenous=exogenous, step=self.step.in_words()
        )

    @classmethod
    def from_json(cls, path: PathLike, content: dict[str, Any]) -> "SeriesScaler":
        """Return the scaler that a file describes; raises DataError if it is invalid."""
        fields = dict(content)
        try:
            columns = fields.pop("columns")
            fields["columns"], fields["mean"], fields["scale"] = (
                [column[part] for column in columns] for part in ("name", "mean", "scale")
            )
            fields["step"] = (fields.pop("unit"), fields.pop("count"))
        except (KeyError, TypeError):
            raise invalid_file(path, "its columns or its step are missing") from None
        return super().from_json(path, fields)

    def to_json(self) -> dict[str, Any]:
        """Return the content of the file, which has a record for each column."""
        fields = super().to_json()
        parts = zip(fields.pop("columns"), fields.pop("mean"), fields.pop("scale"), strict=True)
        fields["columns"] = [{"name": n, "mean": m, "scale": s} for n, m, s in parts]
        fields["unit"], fields["count"] = fields.pop("step")
        return fields

    def check_fields(self) -> None:
        """Raise ValueError for more targets than columns, or an impossible step."""
        if self.targets > len(self.columns):
            raise ValueError(f"it has {len(self.columns)} columns for {self.targets} targets")
        if not 1 <= self.step.size < 2**40:
            raise ValueError("the size of its step is not from 1 to 2**40")


def measure_columns(
    values: Float[np.ndarray, "rows columns"],
) -> tuple[Float[np.ndarray, " columns"], Float[np.ndarray, " columns"]]:
    """Return mean and standard deviation of each column; 1 for a constant one."""
    deviation = values.std(axis=0)
    # a constant column may differ from its mean by rounding
    constant = deviation <= 1e-12 * np.abs(values).max(axis=0)
    return values.mean(axis=0), np.where(constant, 1.0, deviation)


def find_period(values: Float[np.ndarray, "rows columns"], step: TimeStep, longest: int) -> int:
    """Return the steps of a season: the lag at which rows differ least; 1 if that is no season."""
    known = {
        "seconds": [seconds // step.size for seconds in SEASONS if step.unit == "seconds"],
        "months": [12 // step.size],
        "weekdays": [5, 21, 260],
        "rows": [],
    }[step.unit]
    rows = len(values)
    lags = [lag for lag in {*known, _spectral_peak(values)} if 2 <= lag <= min(longest, rows // 2)]
    seasons = {lag: float(np.abs(values[lag:] - values[:-lag]).mean()) for lag in lags}
    typical = float(np.abs(values - np.median(values, axis=0)).mean())
    best = min(seasons, key=lambda lag: (seasons[lag], lag), default=1)
    return best if seasons.get(best, typical) < typical else 1


def _spectral_peak(values: Float[np.ndarray, "rows columns"]) -> int:
    """Return the period of the strongest frequency, after linear trends are removed."""
    rows = len(values)
    if rows < 8:
        return 1
    line = np.linspace(-1, 1, rows)[:, None]
    flat = values - values.mean(axis=0) - line * (line * values).mean(axis=0) / (line**2).mean()
    power = (np.abs(np.fft.rfft(flat, axis=0)) ** 2).sum(axis=1)
    power[:2] = 0
    return round(rows / max(1, int(power.argmax())))


class SeriesWindows:
    """Windows of stretches of standardised rows: each is an example."""

    def __init__(
        self,
        stretches: Sequence[Float32[np.ndarray, "_ columns"]],
        *,
        look_back: int,
        horizon: int,
        targets: int,
    ) -> None:
        self.stretches, self.look_back, self.horizon = stretches, look_back, horizon
        self.targets = targets
        counts = [max(0, len(one) - look_back - horizon + 1) for one in stretches]
        self.stretch_of = np.repeat(np.arange(len(counts)), counts)
        self.first = np.concatenate([np.arange(count) for count in counts])

    def at(self, firsts: Int[np.ndarray, " windows"]) -> "SeriesWindows":
        """Return the windows of the first stretch that begin at these rows."""
        found = copy(self)
        found.stretch_of, found.first = np.zeros(len(firsts), np.int64), firsts
        return found

    def __len__(self) -> int:
        return len(self.first)

    @property
    def src_lengths(self) -> Int32[np.ndarray, " pairs"]:
        """Rows that a model reads of each window."""
        return np.full(len(self), self.look_back, np.int32)

    @property
    def tgt_lengths(self) -> Int32[np.ndarray, " pairs"]:
        """Rows to forecast, less one: the loss has a term for each of these and one more."""
        return np.full(len(self), self.horizon - 1, np.int32)

    def gather(self, side: str, rows: Int[np.ndarray, " rows"]) -> FrameRows:
        """Return what is read ("src") or forecast ("tgt") of some windows."""
        history, future = self.numbers(rows)
        tables = history if side == "src" else future
        size = tables[0].size if len(tables) else 0
        lengths = np.full(len(rows), tables.shape[1], np.int32)
        return FrameRows(np.arange(len(rows)) * size, lengths, tables.ravel(), tables.shape[2])

    def numbers(
        self, rows: Int[np.ndarray, " batch"]
    ) -> tuple[
        Float32[np.ndarray, "batch look_back columns"], Float32[np.ndarray, "batch horizon targets"]
    ]:
        """Return what is read and what is forecast of some windows."""
        both = np.stack(
            [
                self.stretches[stretch][first : first + self.look_back + self.horizon]
                for stretch, first in zip(self.stretch_of[rows], self.first[rows], strict=True)
            ]
        )
        return both[:, : self.look_back], both[:, self.look_back :, : self.targets]

    def batch(self, rows: Int[np.ndarray, " batch"], shape: BatchShape | None = None) -> Batch:
        """Return windows as a batch; rows that fill it up to a shape have no targets."""
        more = 0 if shape is None else max(0, shape.rows - len(rows))
        history, future = self.numbers(np.concatenate([rows, np.repeat(rows[:1], more)]))
        return number_batch(history, np.full(len(history), self.look_back), future, rows)
