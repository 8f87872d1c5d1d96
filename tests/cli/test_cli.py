import subprocess
import sys

import pytest
from typer.testing import CliRunner

from regard import __version__
from regard.cli import app
from regard.models import PRESETS


def run(*args):
    return CliRunner().invoke(app, list(args))


def test_version():
    assert run("--version").output == f"regard {__version__}\n"


def test_presets_lists_every_preset():
    result = run("presets")
    assert result.exit_code == 0
    assert all(name in result.output for name in PRESETS)


def test_doctor_names_torch_and_the_paths():
    result = run("doctor")
    assert result.exit_code == 0
    for word in ("torch", "cuda", "additive_attention", "reference"):
        assert word in result.output


@pytest.mark.parametrize("args", [(), ("--help",)])
def test_help_lists_the_verbs(args):
    output = run(*args).output
    assert "presets" in output
    assert "doctor" in output


def test_an_unknown_verb_is_bad_usage():
    result = run("regret")
    assert result.exit_code == 2
    assert "regret" in result.output


def test_piped_output_has_no_colour():
    result = subprocess.run(
        [sys.executable, "-c", "from regard.cli import main; main()", "presets"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "\x1b" not in result.stdout
    assert result.stderr == ""
