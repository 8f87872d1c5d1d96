"""The bench that experiments run on: a device, seeds, data, and a memory of what was measured."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import torch

from regard.data.files import write_atomically
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
    """

    device: torch.device
    quick: bool = True
    seeds: tuple[int, ...] = (0, 1, 2)
    data: Path | None = None
    memory: Path | None = None
    fresh: bool = False
    finished: Callable[[str, bool], None] = field(default=_nobody)

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
        result = None if place is None or self.fresh else _kept(place)
        known = result is not None
        if not known:
            result = plain(compute(**arguments, device=self.device))
            if place is not None:
                _keep(place, result)
        self.finished(label, known)
        return result

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


def _keep(place: Path, result: Any) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    with write_atomically(place) as file:
        file.write(json.dumps(result, allow_nan=False).encode())
