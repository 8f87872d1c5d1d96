"""The context that experiments run in: a device, seeds, data, and a pool of processes."""

import math
import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from regard.safe_read import json_value
from regard.worker_processes import end_with_parent

CONFIDENCE: Final = 0.95
#: with fewer sizes there are too few degrees of freedom to tell a bend from noise
MIN_SIZES: Final = 5
#: a power law has one exponent: linear and quadratic cost are one power apart, so an exponent that
#: drifts by a third of that from the smallest to the largest size is not a single number
MAX_BEND: Final = 1 / 3
#: an interval with a larger half-width than this cannot tell linear from quadratic
MAX_HALF_WIDTH: Final = 0.5

Points = NDArray[np.float64]
Numbers = Sequence[int | float]


class MeanInterval(NamedTuple):
    """A mean with its 95% confidence interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:.3g} [{self.low:.3g}, {self.high:.3g}]"


@dataclass(frozen=True)
class PowerLaw:
    """A line fitted to points in log-log, and whether the points lie on it.

    Attributes:
        exponent: slope of the line with its interval: `y` grows as `x ** exponent`.
        last: slope at the largest `x` of a parabola in log-log.
        reason: why one exponent does not describe all points; empty if it does.
    """

    exponent: MeanInterval
    last: float
    reason: str

    def __str__(self) -> str:
        if self.reason:
            return f"none: {self.reason}"
        mean, low, high = (f"{round(value, 2) + 0.0:.2f}" for value in self.exponent)
        return f"{mean} [{low}, {high}]"

    def includes(self, exponent: int | float, *, within: float = 0.0) -> bool:
        """Return whether this is a power law whose interval comes within `within` of `exponent`."""
        low, high = self.exponent.low - within, self.exponent.high + within
        return not self.reason and low <= exponent <= high


def interval(values: Numbers) -> MeanInterval:
    """Return the mean of `values` with Student's interval, of width zero for a single value."""
    numbers = np.asarray(values, dtype=np.float64)
    mean = float(numbers.mean())
    if len(numbers) == 1:
        return MeanInterval(mean, mean, mean)
    reach = student_t(len(numbers) - 1) * float(numbers.std(ddof=1)) / math.sqrt(len(numbers))
    return MeanInterval(mean, mean - reach, mean + reach)


def intervals(runs: Sequence[Numbers]) -> list[MeanInterval]:
    """Return the interval over runs at each place of their sequences of values."""
    return [interval(values) for values in zip(*runs, strict=True)]


def difference(first: Sequence[float], second: Sequence[float]) -> MeanInterval:
    """Return the interval of the paired differences, first minus second, seed by seed."""
    return interval([a - b for a, b in zip(first, second, strict=True)])


def spread(found: MeanInterval, digits: int = 1, unit: str = "") -> str:
    """Format an interval for a sentence: `97.1% (96.8 to 97.4)`."""
    return f"{found.mean:.{digits}f}{unit} ({found.low:.{digits}f} to {found.high:.{digits}f})"


def percent(share: MeanInterval) -> str:
    """Format a share as a percentage with its interval, clipped to 0% and 100%."""
    low, high = max(0.0, share.low), min(1.0, share.high)
    return f"{share.mean:.0%} ({low:.0%} to {high:.0%})"


def slope(x: Numbers, y: Numbers) -> MeanInterval:
    """Return the slope of the least-squares line with its interval."""
    (found, *_) = _least_squares(np.asarray(x, np.float64), np.asarray(y, np.float64), degree=1)
    return found


def power_law(x: Numbers, y: Numbers) -> PowerLaw:
    """Fit `y = factor * x ** exponent`.

    The points are no power law if there are fewer than `MIN_SIZES`, if they bend (the quadratic
    term of a parabola in log-log has an interval that excludes zero, and its slope changes from end
    to end by more than `MAX_BEND`), or if they scatter so much that the exponent's interval is
    wider than `MAX_HALF_WIDTH` either way.
    """
    if len(x) < MIN_SIZES:
        return PowerLaw(MeanInterval(math.nan, math.nan, math.nan), math.nan, "too few sizes")
    logs_x, logs_y = np.log(np.asarray(x, np.float64)), np.log(np.asarray(y, np.float64))
    logs_x -= logs_x.mean()  # far from zero, a parabola would lose precision
    (exponent, _) = _least_squares(logs_x, logs_y, degree=1)
    (square, linear, _) = _least_squares(logs_x, logs_y, degree=2)
    first, last = (linear.mean + 2 * square.mean * float(x) for x in (logs_x[0], logs_x[-1]))
    reason, reach = "", exponent.high - exponent.mean
    if not square.low <= 0 <= square.high and abs(last - first) > MAX_BEND:
        reason = f"its slope goes from {first:.2f} to {last:.2f}"
    elif reach > MAX_HALF_WIDTH:
        reason = f"the points scatter, {exponent.mean:.2f} give or take {reach:.2f}"
    return PowerLaw(exponent, last, reason)


def crossing(x: Numbers, rising: Numbers, other: Numbers) -> float | None:
    """Return the `x` from which `rising` stays above `other`, interpolated in log-log.

    None if it never does within the points; the first `x` if it always is. `x` ascends.
    """
    xs, ups, downs = np.log(np.array([x, rising, other], dtype=np.float64))
    gap = ups - downs
    below = np.flatnonzero(gap <= 0)
    if not len(below):
        return float(math.exp(xs[0]))
    i = int(below[-1])
    if i == len(xs) - 1:
        return None
    part = gap[i] / (gap[i] - gap[i + 1])
    return float(math.exp(xs[i] + part * (xs[i + 1] - xs[i])))


def student_t(freedom: int) -> float:
    """Return the half-width of Student's two-sided interval in standard errors."""
    from scipy.special import stdtrit  # not above: the extra may be missing

    return float(stdtrit(freedom, (1 + CONFIDENCE) / 2))


def _least_squares(x: Points, y: Points, *, degree: int) -> list[MeanInterval]:
    """Fit a polynomial, and return its coefficients, highest power first."""
    found, covariance = np.polyfit(x, y, degree, cov=True)
    reach = np.sqrt(np.diag(covariance)) * student_t(len(x) - degree - 1)
    return [MeanInterval(*map(float, (c, c - r, c + r))) for c, r in zip(found, reach, strict=True)]


T = TypeVar("T")

#: worker processes on a GPU, most of which a small model leaves idle
GPU_WORKERS: Final = 4


@dataclass(frozen=True)
class ExperimentContext:
    """Settings of a lab run.

    Attributes:
        device: device that models run on.
        quick: smaller sizes and fewer steps, for two cores and a few minutes.
        seeds: one run per seed wherever randomness plays a part.
        data: folder with the public datasets, or None; bundled datasets need none.
        on_piece: called with the label of each finished piece of work.
        pool: computes independent pieces in parallel; functions and arguments must be picklable.
    """

    device: torch.device
    quick: bool = True
    seeds: tuple[int, ...] = (0, 1, 2)
    data: Path | None = None
    on_piece: Callable[[str], None] = lambda label: None
    pool: Executor | None = None

    def choose(self, quick: T, full: T) -> T:
        """Return the first value in a quick run and the second in a full run."""
        return quick if self.quick else full

    def call(self, label: str, compute: Callable[..., Any], **arguments: Any) -> Any:
        """Return `compute(**arguments, device=...)`, computed in this process.

        Args:
            label: name of the piece on the progress bar.
            compute: returns JSON-serialisable data.
            arguments: of `compute`; `device` is added.
        """
        result = compute(**arguments, device=self.device)
        self.on_piece(label)
        return json_value(result)

    def map(
        self, compute: Callable[..., Any], pieces: Sequence[tuple[str, dict[str, Any]]]
    ) -> list[Any]:
        """Return the results of `call` for pieces (label and arguments each), in their order.

        The pieces must be independent: with a pool they are computed in parallel, by a function at
        the top of a module.
        """
        if self.pool is None:
            return [self.call(label, compute, **arguments) for label, arguments in pieces]
        waiting: dict[Future[Any], str] = {}
        for label, arguments in pieces:
            waiting[self.pool.submit(compute, **arguments, device=self.device)] = label
        try:
            for done in as_completed(waiting):
                done.result()
                self.on_piece(waiting[done])
        finally:
            for piece in waiting:
                piece.cancel()
        return [json_value(piece.result()) for piece in waiting]

    def grid(
        self,
        label: str,
        compute: Callable[..., Any],
        axes: Mapping[str, Iterable[Any]],
        **settings: Any,
    ) -> list[dict[str, Any]]:
        """Return a row for every combination of `axes`, the last axis varying fastest.

        Args:
            label: as for `call`, with names of axes in braces.
            compute: as for `map`; returns the other columns of a row.
            axes: the values of each argument that varies.
            settings: the arguments that all combinations share.
        """
        cases = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
        pieces = [(label.format(**case), case | settings) for case in cases]
        results = self.map(compute, pieces)
        return [case | result for case, result in zip(cases, results, strict=True)]


def device_name(device: torch.device) -> str:
    """Return the model of a GPU, or the type of another device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


@contextmanager
def worker_pool(device: torch.device, count: int | None = None) -> Iterator[Executor | None]:
    """Open a pool of worker processes, or None if a single process is enough.

    A step of a small model is many short operations, for which several threads would wait on each
    other: processes with one thread each have a higher throughput.

    Args:
        device: device that their models run on.
        count: number of processes; default one per CPU thread, or `GPU_WORKERS` for a GPU.
    """
    threads = torch.get_num_threads()
    if count is None:
        count = threads if device.type == "cpu" else GPU_WORKERS
    if count == 1:
        yield None
        return
    pool = ProcessPoolExecutor(
        count,
        mp_context=multiprocessing.get_context("spawn"),  # CUDA does not survive a fork
        initializer=_start_worker,
        initargs=(max(1, threads // count),),
    )
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _start_worker(threads: int) -> None:
    # Ctrl-C is handled by the parent process
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with_parent()
    torch.set_num_threads(threads)
