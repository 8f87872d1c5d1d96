import errno
import json

import pytest
import torch

from cli.tools import done, regard, sentence
from regard import __version__
from regard.cli import app
from regard.models import PRESETS

VERBS = [one.callback.__name__.replace("_", "-") for one in app.registered_commands]


def test_version():
    assert done(regard("--version")) == f"regard {__version__}\n"


def test_presets_as_json():
    found = json.loads(done(regard("presets", "--json")))
    assert [preset["name"] for preset in found] == list(PRESETS)
    assert all(len(preset["description"]) > 10 for preset in found)


@pytest.mark.parametrize("verb", ["train", "predict", "evaluate"])
def test_a_verb_without_arguments_prints_its_help(verb):
    result = regard(verb)
    assert result.exit_code == 2
    assert result.output.strip() == regard(verb, "--help").output.strip()
    assert "default:" in result.output


@pytest.mark.parametrize("verb", VERBS)
def test_help_fits_80_columns(verb, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    out = done(regard(verb, "--help"))
    assert f"regard {verb}" in out
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out


def test_a_full_disk(monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("regard.cli.info.print_table", full)
    assert "No space left on device" in sentence(regard("presets"), 1)


def test_a_file_that_cannot_be_opened_says_what_to_do(monkeypatch, tmp_path):
    for path, fix in {
        tmp_path / "no" / "x": f"its folder must exist, make {tmp_path / 'no'} first.",
        tmp_path / "x": "check its name.",
    }.items():
        monkeypatch.setattr("regard.cli.info.print_table", lambda *_, path=path: path.read_text())
        said = sentence(regard("presets"), 1)
        assert said.startswith(f"{path}: it cannot be read or written (No such file")
        assert said.endswith(fix)


def test_an_output_that_cannot_hold_a_letter(monkeypatch):
    monkeypatch.setattr("regard.cli.info.print_table", lambda *_: "a我b".encode("latin-1"))
    assert sentence(regard("presets"), 1) == (
        "the output must be able to hold all letters, but its encoding latin-1 has no '\\u6211': "
        "set PYTHONIOENCODING=utf-8."
    )


def too_large():
    torch.empty(2**50)


def too_large_for_a_gpu():
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.50 GiB. GPU 0 has ...")


def too_large_for_numpy():
    raise MemoryError("Unable to allocate 7.11 PiB for an array with shape (7,)")


def too_large_to_fork():
    raise OSError(errno.ENOMEM, "Cannot allocate memory")


@pytest.mark.parametrize(
    ("allocate", "says"),
    [
        (too_large, "the memory of the CPU must hold a batch, but 4,194,304.00 GiB more could"),
        (too_large_for_a_gpu, "the memory of the GPU must hold a batch, but 20.5 GiB more could"),
        (too_large_for_numpy, "the memory of the CPU must hold a batch, but 7.11 PiB more could"),
        (too_large_to_fork, "the memory of the CPU must hold a batch, but it is used up: "),
    ],
)
def test_too_little_memory_is_told_with_what_to_lower(monkeypatch, allocate, says):
    monkeypatch.setattr("regard.cli.info.print_table", lambda *_: allocate())
    said = sentence(regard("presets"), 1)
    assert said.startswith(says)
    assert "batch_tokens" in said
