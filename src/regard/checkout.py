"""The git tree that this code lies in, if it lies in one: results name the commit they are of."""

import os
import subprocess
from pathlib import Path
from typing import Final

#: a copy that is no checkout of its own gets its commit by this variable of the environment
GIVEN: Final = "REGARD_COMMIT"
HERE: Final = Path(__file__).resolve()


def given() -> str | None:
    """The commit that the environment names."""
    return os.environ.get(GIVEN)


def git(*words: str) -> str | None:
    """What git says; None where there is no git, or its tree does not have this code."""
    if _run("ls-files", "--error-unmatch", HERE.name) is None:
        return None
    return _run(*words)


def _run(*words: str) -> str | None:
    command = ["git", "-C", str(HERE.parent), *words]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
