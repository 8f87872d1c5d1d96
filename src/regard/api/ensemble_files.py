"""The runs of a model: whether they go together, and a copy for the user to keep."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from regard.errors import ArgumentError
from regard.training import RunError, Saved


def check_same_tokens(runs: Sequence[Saved], paths: Sequence[str | Path]) -> None:
    """Raises where runs cannot answer together, since their tokens differ."""
    for other, path in zip(runs[1:], paths[1:], strict=True):
        for side in ("src_tokenizer", "tgt_tokenizer"):
            if getattr(other, side).fingerprint != getattr(runs[0], side).fingerprint:
                raise RunError(
                    f"runs must have the same tokens to answer together, but {path} has another "
                    f"{side} than {paths[0]}: train them on the same data with the same tokenisers."
                )


def copy_run(runs: Sequence[Path], folder: Any) -> Path:
    """Copies all of a run, if it is one, to a folder that is new or empty."""
    if len(runs) > 1:
        raise RunError(
            f"one run can be saved, but this model has {len(runs)}: load and save each of them "
            f"alone."
        )
    (run,) = runs
    if not isinstance(folder, str | Path):
        raise ArgumentError("folder", "be a name", repr(folder), 'as in save("runs/x")')
    path = Path(folder)
    if path.is_dir() and any(path.iterdir()):
        raise ArgumentError("folder", "be new or empty", f"{path}, with files", "choose another")
    if path.exists() and not path.is_dir():
        raise ArgumentError("folder", "be new or empty", f"{path}, a file", "choose another")
    if path.resolve().is_relative_to(run.resolve()):
        raise ArgumentError("folder", f"lie outside of the run, {run}", path, "choose another")
    try:
        shutil.copytree(run, path, dirs_exist_ok=True)
    except OSError as error:
        # several files that could not be copied come as a list
        reason = error.strerror or str(error)[:200]
        raise RunError(
            f"the run must be copied whole, but from {run} to {path} it could not be ({reason}): "
            f"check that both can be read and written, and that there is room."
        ) from None
    return path
