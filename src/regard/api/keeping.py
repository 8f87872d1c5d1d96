"""Copies a run to a folder of the user's."""

import shutil
from pathlib import Path
from typing import Any

from regard.errors import ArgumentError
from regard.training import RunError


def copy_run(run: Path, folder: Any) -> Path:
    """Copies all of a run to a folder that is new or empty."""
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
