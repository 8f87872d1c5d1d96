"""Signals end every command with their code and without a traceback, whatever they fall into."""

import signal
import subprocess
import sys
import threading
from contextlib import suppress

import pytest

from regard.standard_streams import interruptible

pytestmark = pytest.mark.usefixtures("default_signals")

INTERRUPT = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
SIGNAL = "signal.signal(signal.SIGINT, signal.default_int_handler)"
#: while the command line itself is imported
IMPORTING = f"""
import signal, sys
{SIGNAL}

class Finder:
    def find_spec(self, name, path, target=None):
        if name == "regard.cli":
            {INTERRUPT}

sys.meta_path.insert(0, Finder())
from regard.__main__ import main
main()
"""
#: while a command imports what it needs, by a module that makes another error of it
LOADING = f"""
import signal, sys
{SIGNAL}

class Finder:
    def find_spec(self, name, path, target=None):
        if name == "regard.cli.info":
            try:
                {INTERRUPT}
            except KeyboardInterrupt:
                raise ImportError("a part of it is missing")

sys.meta_path.insert(0, Finder())
from regard.__main__ import main
sys.argv = ["regard", "presets"]
main()
"""
#: in a destructor, where python prints an exception and ignores it
LOST = f"""
import signal, sys, types
{SIGNAL}

class Held:
    def __del__(self):
        {INTERRUPT}

def presets(args):
    Held()
    print("done")

sys.modules["regard.cli.info"] = types.SimpleNamespace(presets=presets)
sys.unraisablehook = lambda lost: None
from regard.__main__ import main
sys.argv = ["regard", "presets"]
main()
"""


@pytest.mark.parametrize(
    ("program", "name", "code"),
    [
        *((program, "SIGINT", 130) for program in (IMPORTING, LOADING, LOST)),
        (LOADING, "SIGTERM", 143),
        (LOST, "SIGHUP", 129),
    ],
)
def test_a_signal_ends_with_its_code(program, name, code):
    program = program.replace("os.getpid(), signal.SIGINT", f"os.getpid(), signal.{name}")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert done.stderr == "regard: stopped.\n"


def test_the_outer_of_two_blocks_knows_the_signal():
    blocks = interruptible(signal.SIGHUP), suppress(KeyboardInterrupt), interruptible()
    with pytest.raises(KeyboardInterrupt) as caught, blocks[0], blocks[1], blocks[2]:
        signal.raise_signal(signal.SIGHUP)
    assert caught.value.args == (signal.SIGHUP,)
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL


def test_a_process_that_ignores_the_signal_goes_on_ignoring_it():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with interruptible():
        signal.raise_signal(signal.SIGINT)


def test_other_threads_have_no_signals():
    found = []

    def work():
        with interruptible():
            found.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGINT)]
