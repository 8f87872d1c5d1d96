"""Kernels in triton's interpreter: a script of their own, since triton reads its switch once."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn


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


def patch_language_once() -> None:
    """Make the interpreter twice as fast, with the same results.

    Triton replaces the functions of its language at each launch and again at each call of a device
    function, though nothing else in the process uses them. It also computes whether integers
    overflow, and then drops the assertion unless debugging is on.
    """
    from triton.runtime import interpreter

    builder: Any = interpreter.interpreter_builder
    builder.options = replace(builder.options, sanitize_overflow=False)
    original: Callable[[Any], object] = interpreter._patch_lang
    patched = set()

    def patch(fn: Any) -> object:
        if fn.__module__ not in patched:
            patched.add(fn.__module__)
            original(fn)
        return SimpleNamespace(restore=lambda: None)

    interpreter._patch_lang = patch


def report(found: dict[str, list[str]]) -> NoReturn:
    """Print a line for each case, as `check_kept` counts them, and end the script."""
    for name, broken in found.items():
        print(f"{name}: {'; '.join(broken) or 'kept'}")
    sys.exit(any(found.values()))
