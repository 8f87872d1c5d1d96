import errno
import os
import subprocess
import sys

import pytest

from regard.errors import describe_memory_error

SAYS = (
    "import os, sys, regard.cli, regard.__main__ as m; "
    "regard.cli.main = lambda began: print(os.environ.get('GOMP_SPINCOUNT')); m.main()"
)


def run(code, **variables):
    chosen = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}
    kept = {name: value for name, value in os.environ.items() if name not in chosen}
    done = subprocess.run(
        [sys.executable, "-c", code], env=kept | variables, capture_output=True, text=True
    )
    assert not done.returncode, done.stderr
    return done.stdout.strip()


def test_importing_regard_does_not_load_torch():
    assert run("import sys, regard; print('torch' in sys.modules)") == "False"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("variables", "count"),
    [
        ({}, "20000"),
        ({"GOMP_SPINCOUNT": "7"}, "7"),
        ({"OMP_WAIT_POLICY": "PASSIVE"}, "None"),
    ],
)
def test_threads_wait_awake_for_a_short_time_unless_the_user_has_chosen(variables, count):
    assert run(SAYS, **variables) == count


LITTLE_MEMORY = """
import sys
from regard import __main__, standard_streams
class Full:  # the system's answer where no memory is left, at a module that commands need
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise {error}
sys.meta_path.insert(0, Full())
sys.argv = ["regard", "models"]
__main__.main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "error"),
    [
        ("regard.cli", "MemoryError"),
        ("torch", "ImportError('libc10.so: failed to map segment from shared object')"),
    ],
)
def test_lack_of_memory_while_libraries_are_loaded_is_one_sentence(module, error):
    code = LITTLE_MEMORY.format(module=module, error=error)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("regard: the memory must hold the libraries of regard, but")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "is_memory"),
    [
        (ImportError("x.so: failed to map segment from shared object"), True),
        (OSError("libgomp.so.1: failed to map segment from shared object"), True),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), False),  # of a command
        (ImportError("x.so: failed to map segment from shared object: Not permitted"), False),
        (ImportError("No module named 'x'"), False),
    ],
)
def test_errors_of_the_loader_that_mean_a_lack_of_memory(error, is_memory):
    said = describe_memory_error(error) or ""
    assert ("must hold the libraries of regard" in said) == is_memory


def test_lack_of_memory_behind_an_error_of_transformers_is_said():
    """Which wraps what its lazy imports raise, and loads weights in threads."""
    wrapped = ImportError("Could not import module 'GPT2Config'")
    wrapped.__cause__ = MemoryError()
    assert "the memory" in (describe_memory_error(wrapped) or "")
    assert "the memory" in (describe_memory_error(RuntimeError("can't start new thread")) or "")
    assert describe_memory_error(ImportError("no such module")) is None
