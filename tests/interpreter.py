"""Run scripts in forks of a server that has imported torch, which takes seconds.

Kernels in triton's interpreter need processes of their own, since triton reads its switch once.
"""

import atexit
import contextlib
import functools
import importlib
import json
import os
import runpy
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

INTERPRETED = {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
#: imported before a fork: modules of many scripts, and those of torch's check of an operator
SHARED = ("ops.conftest", "triton.runtime.interpreter", "regard.decoding", "regard.training.losses")
FOR_OPCHECK = ("torch.testing._internal.optests", "torch._dynamo", "torch.export._trace")


def check_kept(script: Path, cases: int) -> None:
    """Runs a script that prints a line for each case which keeps the rule of acceptance."""
    code, printed = run_script(script)
    assert code == 0, printed
    assert printed.count(": kept\n") == cases


def run_script(script: Path) -> tuple[int, str]:
    """Return the exit code of a script that the server runs, and what it printed."""
    server = start_server()
    print(script, file=server.stdin, flush=True)
    answer = server.stdout.readline()
    assert answer, "the server of scripts has ended"
    return tuple(json.loads(answer))


@functools.cache
def start_server() -> subprocess.Popen[str]:
    """Return the process of this file that runs scripts; it ends with the process of the tests."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    command = [sys.executable, __file__]
    server = subprocess.Popen(command, env=os.environ | INTERPRETED, text=True, **pipes)
    atexit.register(server.communicate)  # closes its input, and waits
    return server


def serve() -> None:
    """Run the script of each line of stdin in a fork; write its exit code and what it printed."""
    for line in sys.stdin:
        script = Path(line.rstrip("\n"))
        checks = "opcheck" in script.read_text(encoding="utf-8")
        for name in SHARED + FOR_OPCHECK * checks:
            with contextlib.suppress(ModuleNotFoundError):  # triton is not everywhere
                importlib.import_module(name)
        print(json.dumps(run_in_fork(script)), flush=True)


def run_in_fork(script: Path) -> tuple[int, str]:
    """Return the exit code of a script that a fork of this process runs, and what it printed."""
    with tempfile.TemporaryFile() as printed:
        child = os.fork()
        if not child:
            _run_and_exit(script, printed.fileno())
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        printed.seek(0)
        return code, printed.read().decode(errors="replace")


def _run_and_exit(script: Path, output: int) -> NoReturn:
    """Run a script with its output in a file, and end this process with its exit code."""
    code = 1
    try:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        for stream in (1, 2):
            os.dup2(output, stream)
        # the streams of pytest are not those of the process
        sys.stdout, sys.stderr = (open(stream, "w", buffering=1) for stream in (1, 2))  # noqa: SIM115
        runpy.run_path(str(script), run_name="__main__")
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        os._exit(code)


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


if __name__ == "__main__":
    serve()
