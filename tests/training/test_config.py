"""Settings: names, values, and what is said of wrong ones."""

import json

import pytest

from regard.errors import ArgumentError, DataError
from regard.models import PRESETS
from regard.training.config import (
    check_model,
    make_config,
    parse_overrides,
    read_toml,
)


def test_what_is_recorded_is_read_again():
    config = make_config({"columns": "en,fr", "hidden": 64, "lr": 1e-3, "dev": "dev.tsv"})
    assert make_config(json.loads(json.dumps(config.model_dump()))) == config


@pytest.mark.parametrize("given", ["0,2", ["0", "2"], [0, 2], (0, 2), "0, 2"])
def test_columns(given):
    assert make_config({"columns": given}).columns == ("0", "2")


WRONG = {
    "a typo": ({"stepps": 5}, "'stepps': perhaps 'steps' is meant."),
    "a typo of the preset's": ({"hiden": 5}, "'hiden': perhaps 'hidden' is meant."),
    "a typo in the table": ({"model": {"hiden": 5}}, "'hiden': perhaps 'hidden' is meant."),
    "nothing near": ({"zzzz": 5}, "`regard settings bahdanau` lists them all."),
    "of others": (
        {"heads": 4},
        "'heads', which transformer, lm-transformer, classifier-transformer, story-transfo",
    ),
    "of one other": ({"slots": 4}, "'slots', which memory knows"),
    "preset": ({"preset": "transformr"}, "'transformr': perhaps 'transformer' is meant."),
    "no number": ({"steps": "x"}, "steps must be a whole number, but it is 'x'"),
    "no whole number": ({"hidden": 1.5}, "hidden must be a whole number, but it is 1.5"),
    "no interval": (
        {"eval_every": "often"},
        "eval_every must be a whole number, but it is 'often'",
    ),
    "no interval at all": ({"eval_every": 0}, "eval_every must be at least 1, but it is 0"),
    "too small": ({"steps": 0}, "steps must be at least 1, but it is 0"),
    "too large a seed": ({"seed": 2**64}, "seed must be less than 9.22337e+18"),
    "not more": ({"clip": 0}, "clip must be more than 0, but it is 0"),
    "not less": ({"label_smoothing": 1}, "label_smoothing must be less than 1, but it is 1"),
    "infinite": ({"minutes": float("inf")}, "minutes must be a finite number"),
    "not a switch": ({"skip_bad": "maybe"}, "skip_bad must be true or false, but it is 'maybe'"),
    "not a text": ({"dev": ["x"]}, "dev must be a text, but it is ['x']"),
    "not a choice": ({"size": "huge"}, "size must be 'auto', 'tiny', 'small' or 'base'"),
    "not a choice of the preset": ({"cell": "huge"}, "cell must be 'rnn', 'gru' or 'lstm'"),
    "columns": ({"columns": "0"}, "columns must name two or three columns"),
    "no table": ({"model": [5]}, "model must be a table"),
}


@pytest.mark.plain
@pytest.mark.parametrize("case", WRONG)
def test_what_is_said_of_wrong_settings(case):
    settings, words = WRONG[case]
    with pytest.raises(ArgumentError) as caught:
        make_config(settings)
    assert words in str(caught.value)
    assert str(caught.value).endswith(".")
    assert "\n" not in str(caught.value)


@pytest.mark.sample(20)
@pytest.mark.parametrize("size", ["tiny", "small", "base"])
@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_can_be_made(preset, size):
    check_model(make_config({"preset": preset, "size": size}))


@pytest.mark.parametrize("preset", ["gnmt", "location", "span"])
def test_a_width_that_is_halved_must_be_even(preset):
    with pytest.raises(ArgumentError, match="hidden must be even, half for each of two parts"):
        check_model(make_config({"preset": preset, "hidden": 33}))


def test_overrides():
    words = ["steps=5", "lr=1e-3", "skip_bad=true", "dev=a=b.tsv", "label-smoothing=0.2"]
    words += ["lr=none", "columns=0,2", "preset=luong", "tensorboard=True", "dev_tgt=null"]
    assert parse_overrides(words) == {
        "steps": 5,
        "skip_bad": True,
        "dev": "a=b.tsv",
        "label_smoothing": 0.2,
        "lr": None,
        "columns": "0,2",
        "preset": "luong",
        "tensorboard": True,
        "dev_tgt": None,
    }


def test_toml(tmp_path):
    path = tmp_path / "run.toml"
    path.write_bytes(b'\xef\xbb\xbfdata = "x.tsv"\n[model]\nhidden = 32\n')
    assert read_toml(path) == {"data": "x.tsv", "model": {"hidden": 32}}


@pytest.mark.parametrize(
    ("content", "words"), [(b"data = \n", "line 1"), (b"a = '\xff'", "must be TOML")]
)
def test_broken_toml(tmp_path, content, words):
    path = tmp_path / "run.toml"
    path.write_bytes(content)
    with pytest.raises(DataError, match=words) as caught:
        read_toml(path)
    assert str(path) in str(caught.value)
