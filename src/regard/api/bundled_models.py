"""Models that come with the package, by name."""

import sys
from pathlib import Path
from typing import Final

from regard.api.bundled_card import BundledCard
from regard.errors import ArgumentError
from regard.pretrained import is_pretrained
from regard.training import RunError, RunFolder
from regard.training.run_folder import BUNDLED

HOME: Final = BUNDLED
#: the model of commands that name none
DEFAULT: Final = "g2p"


def names() -> list[str]:
    """Return the names of the bundled models."""
    return sorted(folder.name for folder in HOME.iterdir() if RunFolder(folder).started)


def find(run: str | Path) -> Path:
    """Return the folder of a run: the user's own, or that of a bundled model of this name.

    A folder of the user goes before a bundled model of the same name, with a note on stderr.
    Raises RunError for a folder of a model of transformers, and for what does not exist.
    """
    path, bundled = Path(run), names()
    is_bundled = str(path) in bundled
    if path.is_dir():
        if is_bundled:
            print(
                f"regard: {path} is a folder here, which is used; the bundled model is in "
                f"{HOME / path}.",
                file=sys.stderr,
            )
        if is_pretrained(path):
            raise RunError(
                f"a run folder must be given here, but {path} holds a model of transformers: use "
                f"it with `regard show`, `predict`, `check`, `heads` or `compare`, or in Python "
                f"with regard.load({str(path)!r})."
            )
        return path
    if is_bundled:
        return HOME / path
    if not bundled:
        return path
    raise RunError(
        f"{path} must be a run folder or a bundled model, but it is no folder: give the folder "
        f"that `regard train` or `save_pretrained` of transformers has written, or one of "
        f"{', '.join(bundled)}."
    )


def is_run(run: str | Path) -> bool:
    """Return whether this can be a run, rather than a file of sources."""
    path = Path(run)
    return path.is_dir() or (not path.exists() and str(path) in names())


def is_run_folder(run: str | Path) -> bool:
    """Return whether this is a run folder, or a bundled model; a folder of data is not."""
    path = Path(run)
    return RunFolder(path).started if path.is_dir() else is_run(path)


def default() -> str:
    """Return the name of the model that is used if none is named."""
    bundled = names()
    if not bundled:
        raise ArgumentError(
            "RUN", "be given, since no model is bundled", "missing", "name a run folder"
        )
    return DEFAULT if DEFAULT in bundled else bundled[0]


def card(name: str) -> BundledCard | None:
    """Return the card of a bundled model; None if it has none."""
    return BundledCard.read(HOME / name)


def size(name: str) -> int:
    """Return the bytes of a bundled model."""
    return sum(file.stat().st_size for file in (HOME / name).iterdir())
