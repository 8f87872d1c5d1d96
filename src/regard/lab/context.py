"""The context that experiments run in: a device, seeds, data, and a cache of finished pieces."""

import hashlib
import inspect
import json
import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any, Final, TypeVar

import torch

from regard import safe_read
from regard.atomic_files import atomic_output

T = TypeVar("T")

PACKAGE: Final = Path(__file__).resolve().parents[1]
#: worker processes on a GPU, most of which a small model leaves idle
GPU_WORKERS: Final = 4


@dataclass(frozen=True)
class ExperimentContext:
    """Settings of a lab run, with a cache of finished pieces of work.

    Attributes:
        device: device that models run on.
        quick: smaller sizes and fewer steps, for two cores and a few minutes.
        seeds: one run per seed wherever randomness plays a part.
        data: folder with the public datasets, or None; bundled datasets need none.
        cache_dir: folder for finished pieces, or None to disable the cache.
        fresh: recompute pieces that are in the cache.
        on_piece: called with the label of each finished piece and whether it came from the cache.
        pool: computes independent pieces in parallel; functions and arguments must be picklable.
    """

    device: torch.device
    quick: bool = True
    seeds: tuple[int, ...] = (0, 1, 2)
    data: Path | None = None
    cache_dir: Path | None = None
    fresh: bool = False
    on_piece: Callable[[str, bool], None] = lambda label, cached: None
    pool: Executor | None = None

    def choose(self, quick: T, full: T) -> T:
        """Return the first value in a quick run and the second in a full run."""
        return quick if self.quick else full

    def cached(self, label: str, compute: Callable[..., Any], **arguments: Any) -> Any:
        """Return `compute(**arguments, device=...)`, from the cache if it is there.

        The key is everything that decides the result: the sources of `compute` and of regard, its
        arguments, the name of the device and torch's version.

        Args:
            label: name of the piece on the progress bar.
            compute: a module-level function that returns JSON-serialisable data.
            arguments: JSON-serialisable arguments; `device` is added.
        """
        path = self._path(compute, arguments)
        result = self._load(path)
        found = result is not None
        if not found:
            result = _save(path, compute(**arguments, device=self.device))
        self.on_piece(label, found)
        return result

    def map(
        self, compute: Callable[..., Any], pieces: Sequence[tuple[str, dict[str, Any]]]
    ) -> list[Any]:
        """Return the results of `cached` for pieces (label and arguments each), in their order.

        The pieces must be independent: with a pool they are computed in parallel. If one of them
        fails or the user interrupts, the finished ones are still saved.
        """
        if self.pool is None:
            return [self.cached(label, compute, **arguments) for label, arguments in pieces]
        paths = [self._path(compute, arguments) for _, arguments in pieces]
        results = [self._load(path) for path in paths]
        waiting: dict[Future[Any], int] = {}
        for i, (label, arguments) in enumerate(pieces):
            if results[i] is None:
                waiting[self.pool.submit(compute, **arguments, device=self.device)] = i
            else:
                self.on_piece(label, True)
        try:
            for done in as_completed(waiting):
                i = waiting[done]
                results[i] = _save(paths[i], done.result())
                del waiting[done]
                self.on_piece(pieces[i][0], False)
        finally:
            for piece, i in waiting.items():
                if not piece.cancel() and piece.done() and piece.exception() is None:
                    _save(paths[i], piece.result())
        return results

    def grid(
        self,
        label: str,
        compute: Callable[..., Any],
        axes: Mapping[str, Iterable[Any]],
        **settings: Any,
    ) -> list[dict[str, Any]]:
        """Return a row for every combination of `axes`, the last axis varying fastest.

        Args:
            label: as for `cached`, with names of axes in braces.
            compute: as for `cached`; returns the other columns of a row.
            axes: the values of each argument that varies.
            settings: the arguments that all combinations share.
        """
        cases = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())]
        pieces = [(label.format(**case), case | settings) for case in cases]
        results = self.map(compute, pieces)
        return [case | result for case, result in zip(cases, results, strict=True)]

    def _load(self, path: Path | None) -> Any:
        if path is None or self.fresh:
            return None
        try:
            return safe_read.read_json(path)
        except (OSError, ValueError):  # a missing or unreadable piece is computed again
            return None

    def _path(self, compute: Callable[..., Any], arguments: dict[str, Any]) -> Path | None:
        if self.cache_dir is None:
            return None
        return self.cache_dir / f"{fingerprint(compute, arguments, self.device)}.json"


def to_json_types(value: Any) -> Any:
    """Return `value` as JSON restores it, so that new and cached data are equal.

    Keys become strings and tuples lists; NaN and infinity become None.
    """
    return json.loads(json.dumps(value), parse_constant=lambda _: None)


def _save(path: Path | None, value: Any) -> Any:
    """Write a result to the cache and return it as JSON restores it."""
    result = to_json_types(value)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_output(path) as file:
            file.write(json.dumps(result, allow_nan=False).encode())
    return result


def fingerprint(
    compute: Callable[..., Any], arguments: dict[str, Any], device: torch.device
) -> str:
    """Return a digest of `compute`'s file, regard's sources, the arguments, device and torch."""
    digest = hashlib.blake2b(_package_digest(), digest_size=16)
    digest.update(safe_read.read_bytes(inspect.getfile(compute)))
    key = [compute.__qualname__, arguments, device_name(device), torch.__version__]
    digest.update(json.dumps(key, sort_keys=True).encode())
    return digest.hexdigest()


def device_name(device: torch.device) -> str:
    """Return the model of a GPU, or the type of another device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


@cache
def _package_digest() -> bytes:
    """Return a digest of the sources of the package, any of which may decide a result."""
    digest = hashlib.blake2b(digest_size=16)
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(safe_read.read_bytes(path))
    return digest.digest()


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
    # Ctrl-C is handled by the parent process, which saves the finished pieces
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(threads)
