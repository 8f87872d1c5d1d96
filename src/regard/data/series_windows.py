"""Windows of series: the scale of the columns, and the examples that training cuts from them."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

import numpy as np
from jaxtyping import Float, Float32, Int, Int32
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from regard.data.batches import Batch, BatchShape, number_batch
from regard.data.checksummed_json import VERSION, StoredEncoder, validated
from regard.data.corpus import FrameRows
from regard.data.pairs import Pair
from regard.data.series_times import TimeStep
from regard.messages import message
from regard.safe_read import PathLike

Lengths = TypeVar("Lengths", int, Tensor)

#: columns of a file of scales that is read
MOST_COLUMNS: Final = 100_000
#: seasons that are tried for each step, in seconds: a day, a week, a year
SEASONS: Final = (86_400, 7 * 86_400, 365 * 86_400)


class _Column(BaseModel):
    """A column in a file of `SeriesScaler`."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    name: str
    mean: float
    scale: Annotated[float, Field(gt=0)]


class _SeriesScalerFile(BaseModel):
    """A file of `SeriesScaler`."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)

    version: int
    kind: Literal["series"]
    columns: list[_Column] = Field(min_length=1, max_length=MOST_COLUMNS)
    targets: Annotated[int, Field(ge=1)]
    time: str
    unit: Literal["rows", "seconds", "months", "weekdays"]
    count: Annotated[int, Field(ge=1, lt=2**40)]
    period: Annotated[int, Field(ge=1, lt=2**31)]
    seen_until: Annotated[int, Field(ge=-(2**62), lt=2**62)]
    test_until: Annotated[int, Field(ge=-(2**62), lt=2**62)]

    @model_validator(mode="after")
    def _check(self) -> "_SeriesScalerFile":
        if self.targets > len(self.columns):
            raise ValueError(f"it has {len(self.columns)} columns for {self.targets} targets")
        return self


@dataclass(frozen=True)
class SeriesScaler(StoredEncoder):
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
    """

    kind: ClassVar[str] = "series"
    #: it has no tokens
    vocab_size: ClassVar[int] = 0
    limit_unit: ClassVar[str] = "rows "

    columns: tuple[str, ...]
    targets: int
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    time: str
    step: TimeStep
    period: int
    seen_until: int
    test_until: int

    @property
    def frame_size(self) -> int:
        """Number of columns."""
        return len(self.columns)

    @property
    def target_names(self) -> tuple[str, ...]:
        """Names of the columns that are forecast."""
        return self.columns[: self.targets]

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
        file = validated(_SeriesScalerFile, path, content)
        names, mean, scale = zip(*((c.name, c.mean, c.scale) for c in file.columns), strict=True)
        step = TimeStep(file.unit, file.count)
        ends = (file.seen_until, file.test_until)
        return cls(names, file.targets, mean, scale, file.time, step, file.period, *ends)

    def to_json(self) -> dict[str, Any]:
        """Return the content of the file."""
        columns = zip(self.columns, self.mean, self.scale, strict=True)
        return {
            "version": VERSION,
            "kind": self.kind,
            "columns": [{"name": n, "mean": m, "scale": s} for n, m, s in columns],
            "targets": self.targets,
            "time": self.time,
            "unit": self.step.unit,
            "count": self.step.size,
            "period": self.period,
            "seen_until": self.seen_until,
            "test_until": self.test_until,
        }


def measure_columns(
    values: Float[np.ndarray, "rows columns"],
) -> tuple[Float[np.ndarray, " columns"], Float[np.ndarray, " columns"]]:
    """Return mean and standard deviation of each column; 1 for a constant one."""
    deviation = values.std(axis=0)
    # a constant column may differ from its mean by rounding
    constant = deviation <= 1e-12 * np.abs(values).max(axis=0)
    return values.mean(axis=0), np.where(constant, 1.0, deviation)


def find_period(values: Float[np.ndarray, "rows columns"], step: TimeStep, longest: int) -> int:
    """Return the steps of a season: the lag at which rows differ least; 1 if that is no season.

    Args:
        values: standardised rows.
        step: between two rows, which suggests days, weeks and years.
        longest: longest season, in steps.
    """
    known = {
        "seconds": [seconds // step.size for seconds in SEASONS if step.unit == "seconds"],
        "months": [12 // step.size],
        "weekdays": [5, 21, 260],
        "rows": [],
    }[step.unit]
    rows = len(values)
    lags = [lag for lag in {*known, _spectral_peak(values)} if 2 <= lag <= min(longest, rows // 2)]
    differ = {lag: float(np.abs(values[lag:] - values[:-lag]).mean()) for lag in (1, *lags)}
    # the step before is nearest in a slow series, whatever its season: leave that comparison out
    seasons = {lag: value for lag, value in differ.items() if lag > 1}
    typical = float(np.abs(values - np.median(values, axis=0)).mean())
    best = min(seasons, key=lambda lag: (seasons[lag], lag), default=1)
    return best if best > 1 and seasons[best] < typical else 1


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
    """Windows of stretches of standardised rows: each is an example.

    Args:
        stretches: standardised rows (rows, columns).
        look_back: rows that a model reads,
        horizon: and that it forecasts.
        targets: number of columns that are forecast, which come first.
    """

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
