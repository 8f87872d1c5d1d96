import os
import subprocess
import sys

import pytest

SAYS = (
    "import os, sys, regard.cli, regard.__main__ as m; "
    "regard.cli.main = lambda: print(os.environ.get('GOMP_SPINCOUNT')); m.main()"
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
