"""Options of commands that work on shards: which names stand for shards, and what they exclude."""

import glob
import os

from regard.errors import ArgumentError


def names_shards(file: str, ray: str | None) -> bool:
    """Return whether a file name stands for shards: a pattern, or anything with `--ray`."""
    return ray is not None or (glob.has_magic(file) and not os.path.exists(file))


def check_no_workers(ray: str | None, workers: int | None) -> None:
    """Raise if workers are asked for without a cluster."""
    if workers is not None and ray is None:
        raise ArgumentError(
            "--workers", "stand beside --ray", workers, "add --ray, or leave it out"
        )


def refuse(reason: str, **given: object) -> None:
    """Raise for an option that a job over shards does not have."""
    for name, value in given.items():
        if value not in (None, False):
            option = name if name.isupper() else f"--{name.replace('_', '-')}"
            raise ArgumentError(option, f"be left out {reason}", value, "leave it out")
