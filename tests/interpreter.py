"""Run kernels in triton's interpreter: in processes of their own, as triton reads its switch once.

Those processes are forks of a server that has imported torch and triton, which takes seconds.
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
#: modules of the scripts, and those that torch imports for its check of an operator
SHARED = ("ops.conftest", "triton.runtime.interpreter", "regard.decoding", "regard.training.losses")
FOR_OPCHECK = ("torch.testing._internal.optests", "torch._dynamo", "torch.export._trace")


def check_kept(script: Path, cases: int) -> None:
    """Runs a script that prints a line for each case which keeps the rule of acceptance."""
    server = start_server()
    print(script, file=server.stdin, flush=True)
    answer = server.stdout.readline()
    assert answer, "the server of interpreted scripts has ended"
    code, printed = json.loads(answer)
    assert code == 0, printed
    assert printed.count(": kept\n") == cases


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
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        script = line.rstrip("\n")
        checks = "opcheck" in Path(script).read_text(encoding="utf-8")
        for name in SHARED + FOR_OPCHECK * checks:
            importlib.import_module(name)
        with tempfile.TemporaryFile() as printed:
            child = os.fork()
            if not child:
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                for stream in (1, 2):
                    os.dup2(printed.fileno(), stream)
                run_and_exit(script)
            code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
            printed.seek(0)
            text = printed.read().decode(errors="replace")
        print(json.dumps([code, text]), file=answers, flush=True)


def run_and_exit(script: str) -> NoReturn:
    """Run a script as if it were called, and end this process with its exit code."""
    code = 1
    try:
        runpy.run_path(script, run_name="__main__")
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
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
