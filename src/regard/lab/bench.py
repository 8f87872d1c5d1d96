"""The bench that experiments run on: a device, seeds, data, and a memory of what was measured."""

import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor, Future, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from regard.atomic_files import atomic_output
from regard.lab.fingerprint import fingerprint

Chosen = TypeVar("Chosen")


def _nobody(label: str, kept: bool) -> None:
    """Nobody is told how far the work is."""


@dataclass(frozen=True)
class Bench:
    """Where and how thoroughly experiments run.

    Attributes:
        device: Where models run.
        quick: Smaller sizes and fewer steps, for two cores and a few minutes.
        seeds: One run per seed, where chance plays a part.
        data: A folder with the public data sets, or None; the bundled sets need none.
        memory: A folder where finished pieces are kept, or None to keep nothing.
        fresh: Computes every piece, also those that are kept.
        finished: Is told of each finished piece, and whether it was kept from before.
        pool: Computes pieces that do not need each other side by side; without one they come one
            after another. Functions and arguments reach it by pickle.
    """

    device: torch.device
    quick: bool = True
    seeds: tuple[int, ...] = (0, 1, 2)
    data: Path | None = None
    memory: Path | None = None
    fresh: bool = False
    finished: Callable[[str, bool], None] = field(default=_nobody)
    pool: Executor | None = None

    def choose(self, quick: Chosen, full: Chosen) -> Chosen:
        """One of two values: for a quick run, and for a full one."""
        return quick if self.quick else full

    def once(self, label: str, compute: Callable[..., Any], **arguments: Any) -> Any:
        """The result of `compute(**arguments, device=...)`, kept from before or computed now.

        A piece is known by what decides its result: the source of `compute` and of all of regard
        that it stands on, its arguments, the device's name and torch's version.

        Args:
            label: What the progress bar calls this piece.
            compute: A function of a module (no closure) that returns what JSON can hold.
            arguments: Its arguments, which JSON can hold too; `device` is given to it besides.
        """
        place = self._place(compute, arguments)
        result = self._before(place)
        known = result is not None
        if not known:
            result = _keep(place, compute(**arguments, device=self.device))
        self.finished(label, known)
        return result

    def each(
        self, compute: Callable[..., Any], pieces: Sequence[tuple[str, dict[str, Any]]]
    ) -> list[Any]:
        """What `once` gives for each of several pieces, a label and arguments each, in their order.

        They must not need each other: a bench with a pool computes them side by side. What is
        finished when one of them fails, or the user stops it, is kept.
        """
        if self.pool is None:
            return [self.once(label, compute, **arguments) for label, arguments in pieces]
        places = [self._place(compute, arguments) for _, arguments in pieces]
        results = [self._before(place) for place in places]
        waiting: dict[Future[Any], int] = {}
        for i, (label, arguments) in enumerate(pieces):
            if results[i] is None:
                waiting[self.pool.submit(compute, **arguments, device=self.device)] = i
            else:
                self.finished(label, True)
        try:
            for done in as_completed(waiting):
                i = waiting[done]
                results[i] = _keep(places[i], done.result())
                del waiting[done]
                self.finished(pieces[i][0], False)
        finally:
            for piece, i in waiting.items():
                if not piece.cancel() and piece.done() and piece.exception() is None:
                    _keep(places[i], piece.result())
        return results

    def by_seed(
        self, compute: Callable[..., Any], names: Iterable[str], settings: dict[str, Any]
    ) -> dict[str, list[Any]]:
        """What `each` gives for every name with every seed, by name; both are arguments, too."""
        cases = [(name, seed) for name in names for seed in self.seeds]
        found = self.each(
            compute,
            [
                (f"{name}, seed {seed}", {"name": name, "seed": seed, **settings})
                for name, seed in cases
            ],
        )
        runs: dict[str, list[Any]] = {}
        for (name, _), result in zip(cases, found, strict=True):
            runs.setdefault(name, []).append(result)
        return runs

    def _before(self, place: Path | None) -> Any:
        return None if place is None or self.fresh else _kept(place)

    def _place(self, compute: Callable[..., Any], arguments: dict[str, Any]) -> Path | None:
        if self.memory is None:
            return None
        return self.memory / f"{fingerprint(compute, arguments, self.device)}.json"


def plain(found: Any) -> Any:
    """What JSON gives back of it, so that new data and kept data are the same.

    Keys become strings and tuples lists; what is not a number, or infinite, becomes None.
    """
    return json.loads(json.dumps(found), parse_constant=lambda _: None)


def _kept(place: Path) -> Any:
    """What was kept; None where nothing was, or where the file is broken."""
    try:
        return json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError):  # a piece that cannot be read is computed again
        return None


def _keep(place: Path | None, found: Any) -> Any:
    """The result as JSON gives it back, which is also what is kept of it."""
    result = plain(found)
    if place is not None:
        place.parent.mkdir(parents=True, exist_ok=True)
        with atomic_output(place) as file:
            file.write(json.dumps(result, allow_nan=False).encode())
    return result
