"""Kernels in triton's interpreter: a script of their own, since triton reads its switch once."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NoReturn


def check_kept(script: Path, cases: int) -> None:
    """Runs a script that prints a line for each case which keeps the rule of acceptance."""
    done = subprocess.run(
        [sys.executable, script],
        env=os.environ | {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(": kept\n") == cases


def report(found: dict[str, list[str]]) -> NoReturn:
    """Print a line for each case, as `check_kept` counts them, and end the script."""
    for name, broken in found.items():
        print(f"{name}: {'; '.join(broken) or 'kept'}")
    sys.exit(any(found.values()))
