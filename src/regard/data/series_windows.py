"""Windows of series: the scale of the columns, and the examples that training cuts from them."""

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final, TypeVar

import numpy as np
from jaxtyping import Float, Float32, Int, Int32
from pydantic import Field
from torch import Tensor

from regard.atomic_files import Positive, Size, StoredRecord, invalid_file
from regard.data.batches import Batch, BatchShape, number_batch
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


#: seconds since 1970, or a number of a row
Time = Annotated[int, Field(ge=-(2**62), lt=2**62)]


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
