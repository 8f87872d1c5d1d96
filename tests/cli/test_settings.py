"""`regard settings`: every setting, its default, and what it is."""

import re
from functools import cache

import pytest

from cli.tools import done, regard, sentence
from regard.models import PRESETS
from regard.tasks import task_options
from regard.training.config import Config, preset_options


@cache
def rows(*args):
    """Default and description by name."""
    lines = [
        re.split(r"\s{2,}", line.strip()) for line in done(regard("settings", *args)).split("\n")
    ]
    return {line[0]: line[1:] for line in lines if len(line) > 1}


def test_every_setting_of_a_run_is_listed():
    shown = rows()
    for name, field in Config.model_fields.items():
        if name in ("model", "task_options"):  # given by the names in them
            continue
        assert field.description, name
        assert any(field.description in cell for cell in shown[name]), name


@pytest.mark.sample(6)
@pytest.mark.parametrize("preset", PRESETS)
def test_every_option_of_a_preset_is_listed(preset):
    shown = rows(preset)
    for name in preset_options(preset):
        default, description = shown[name]
        told = "default: " in description or name in ("tied", "embed", "rotary_scaling")
        assert default != "none" or told
        assert len(description) > 10


@pytest.mark.slow
def test_what_is_listed_can_be_given_to_train(in_folder):
    """Each name, with its own default, is taken; settings of other kinds of data are not given."""
    others = {name for fields in task_options().values() for name in fields}
    for preset in ("pointer", "transformer", "classifier-rnn"):
        listed = {name: cells for name, cells in rows(preset).items() if name not in others}
        given = [f"{name}={cells[0]}" for name, cells in listed.items() if len(cells) == 2]
        given = [word for word in given if not word.startswith(("setting=", "preset="))]
        said = sentence(regard("train", "missing.tsv", "-p", preset, *given), 1)
        assert said.startswith("missing.tsv: there is no such file")
