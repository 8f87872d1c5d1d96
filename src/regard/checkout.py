"""The git commit of this code, which results name."""

import os
import subprocess
from pathlib import Path
from typing import Final

#: environment variable with the commit of a copy that is not a checkout
COMMIT_VARIABLE: Final = "REGARD_COMMIT"
HERE: Final = Path(__file__).resolve()


def given() -> str | None:
    """Return the commit that the environment names."""
    return os.environ.get(COMMIT_VARIABLE)


def git(*words: str) -> str | None:
    """Return the output of a git command, or None if this code is not in a git tree."""
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
