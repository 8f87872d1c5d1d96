"""The context that experiments run in: a device, seeds, data, and a pool of processes."""

import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final, TypeVar

import torch

from regard.worker_processes import end_with_parent

T = TypeVar("T")
Budget = tuple[int, int, float]

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

    def budget(self, quick: Budget, full: Budget) -> dict[str, Any]:
        """Return steps, batch and learning rate of a training, by name."""
        return dict(zip(("steps", "batch", "rate"), self.choose(quick, full), strict=True))

    def folder_with(self, name: str) -> str | None:
        """Return the folder of public datasets if it has the named one, else None."""
        return str(self.data) if self.data is not None and (self.data / name).is_dir() else None

    def call(self, label: str, compute: Callable[..., Any], **arguments: Any) -> Any:
        """Return `compute(**arguments, device=...)`, computed in this process.

        Args:
            label: name of the piece on the progress bar.
            compute: returns JSON-serialisable data.
            arguments: of `compute`; `device` is added.
        """
        result = compute(**arguments, device=self.device)
        self.on_piece(label)
        return result

    def grid(
        self,
        label: str,
        compute: Callable[..., Any],
        axes: Mapping[str, Iterable[Any]],
        **settings: Any,
    ) -> list[dict[str, Any]]:
        """Return a row for every combination of `axes`, the last axis varying fastest.

        With a pool they are computed in parallel, by a function at the top of a module.

        Args:
            label: as for `call`, with names of axes in braces.
            compute: returns the other columns of a row.
            axes: the values of each argument that varies.
            settings: the arguments that all combinations share.
        """
        cases = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
        if self.pool is None:
            return [
                case | self.call(label.format(**case), compute, **case, **settings)
                for case in cases
            ]
        pieces = [
            self.pool.submit(compute, **case, **settings, device=self.device) for case in cases
        ]
        labels = dict(zip(pieces, (label.format(**case) for case in cases), strict=True))
        try:
            for done in as_completed(pieces):
                done.result()
                self.on_piece(labels[done])
        finally:
            for piece in pieces:
                piece.cancel()
        return [case | piece.result() for case, piece in zip(cases, pieces, strict=True)]


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
