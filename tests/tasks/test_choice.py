"""The task follows from the settings, the data, or what a run folder holds."""

from itertools import product

import numpy as np
import pytest
from pydantic import Field

from regard.data import FrameScaler, NumberTargets, Pair, Tokenizer
from regard.errors import ArgumentError
from regard.tasks import (
    INPUTS,
    OUTPUTS,
    TaskOptions,
    check_settings,
    choose_task,
    load_encoder,
    open_task,
    possible_tasks,
    refusal,
    task_options,
)
from regard.training.config import (
    Config,
    make_config,
    preset_options,
    task_settings,
    with_preset_of,
)

TEXTS = [Pair("ab", "cd", 1)]
TABLES = [Pair("", "cd", 1, frames=[[1.0, 2.0], [3.0, 4.0]])]
FILES = [Pair("a.npy", "cd", 1)]
TEXT, FRAMES = Tokenizer.train("char", ["abc"]), FrameScaler.measure([np.ones((2, 3), np.float32)])
LABELS = Tokenizer.train("label", ["a", "b"])
NUMBER = NumberTargets(("number",), (0.0,), (1.0,))


def names(task):
    return task.input.name, task.output.name


def never():
    raise AssertionError("the settings decide")


@pytest.mark.parametrize(
    ("settings", "first", "task", "why"),
    [
        ({}, lambda: TEXTS, ("text", "tokens"), "the sources are text"),
        ({}, lambda: TABLES, ("frames", "tokens"), "the sources are tables of numbers"),
        ({}, lambda: FILES, ("frames", "tokens"), "the sources are names of .npy files"),
        ({"src_tokenizer": "vectors"}, never, ("frames", "tokens"), "it was asked for"),
        ({"src_tokenizer": "char"}, lambda: TEXTS, ("text", "tokens"), "the sources are text"),
        ({"preset": "lm-rnn"}, never, ("nothing", "tokens"), "the preset lm-rnn is a language"),
        ({"preset": "rnn"}, lambda: TEXTS, ("text", "tags"), "the sources are text"),
        ({"preset": "rnn"}, lambda: TABLES, ("frames", "tags"), "the sources are tables"),
        ({"tgt_tokenizer": "label"}, lambda: TABLES, ("frames", "label"), "the sources are tables"),
        ({"numbers": True}, lambda: FILES, ("frames", "number"), "the sources are names"),
        ({"numbers": True, "patch": 2}, never, ("picture", "number"), ""),
        ({"horizon": 3}, never, ("series", "forecast"), "horizon was given"),
    ],
)
def test_it_is_chosen_once(settings, first, task, why):
    config = make_config({"data": "x", **settings})
    if not why:
        assert [names(one) for one in possible_tasks(config)] == [task]
        return
    chosen = choose_task(config, first)
    assert names(chosen.task) == task
    assert chosen.why.startswith(why)


def test_what_was_recognised_must_suit_the_settings():
    config = make_config({"data": "x", "stack": 2})
    check_settings(config)  # sources may be frames
    with pytest.raises(ArgumentError, match="stack must be left out where sources are text"):
        choose_task(config, lambda: TEXTS)
    with pytest.raises(ArgumentError, match="preset must be one that reads vectors"):
        choose_task(make_config({"data": "x", "preset": "pointer"}), lambda: TABLES)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"preset": "lm-rnn", "metric": "bleu"}, "metric must be perplexity or loss for texts"),
        ({"preset": "lm-rnn", "src_tokenizer": "vectors"}, "src_tokenizer must be auto for texts"),
        ({"preset": "lm-rnn", "src_case": "lower"}, "src_case must be keep"),
        ({"src_tokenizer": "char", "stack": 2}, "stack must be left out where sources are text"),
        ({"src_tokenizer": "vectors", "src_case": "lower"}, "src_case must be left out where sou"),
    ],
)
def test_settings_that_make_no_sense(settings, said):
    with pytest.raises(ArgumentError, match=said):
        check_settings(make_config({"data": "x", **settings}))


@pytest.mark.parametrize(
    ("settings", "source", "target", "task"),
    [
        ({}, TEXT, TEXT, ("text", "tokens")),
        ({}, FRAMES, TEXT, ("frames", "tokens")),
        ({"preset": "lm-rnn"}, TEXT, TEXT, ("nothing", "tokens")),
        ({"preset": "rnn"}, TEXT, TEXT, ("text", "tags")),
        ({}, TEXT, LABELS, ("text", "label")),
        ({"preset": "classifier-rnn"}, FRAMES, LABELS, ("frames", "label")),
        ({"numbers": True}, FRAMES, NUMBER, ("frames", "number")),
    ],
)
def test_it_is_opened_from_preset_and_encoders(settings, source, target, task, tmp_path):
    source.save(tmp_path / "tokenizer.src.json")
    found = load_encoder(tmp_path / "tokenizer.src.json")
    assert found.fingerprint == source.fingerprint
    opened = open_task(make_config({"data": "x", **settings}), found, target)
    assert names(opened) == task
    assert opened.encoders == (found, target)


def test_combinations_are_of_parts_that_exist_and_have_reasons():
    assert all(one.facts.only is None or one.facts.only[0] in OUTPUTS for one in INPUTS.values())
    named = [{one.only[0]} if one.only else {*one.refuses} for one in OUTPUTS.values()]
    assert all(names <= INPUTS.keys() for names in named)
    reasons = [*filter(None, (refusal(*pair) for pair in product(INPUTS, OUTPUTS)))]
    assert len({*reasons}) == 5
    assert all(reason[0].islower() for reason in reasons)


class Windows(TaskOptions):
    window: int = Field(25, description="milliseconds of a window", ge=5)
    shape: str = Field("hann", description="shape of a window")


class Reaches(TaskOptions):
    reach: int = Field(96, description="steps to look ahead", ge=1)


@pytest.fixture
def options(monkeypatch):
    monkeypatch.setattr(INPUTS["frames"], "options_type", Windows)
    monkeypatch.setattr(INPUTS["text"], "options_type", Reaches)


@pytest.mark.usefixtures("options")
def test_options_of_a_part_are_settings_of_a_run():
    config = make_config({"window": "30"})
    assert config.task_options == {"window": 30}
    assert Windows.of(config) == Windows(window=30, shape="hann")
    assert make_config({"shape": "box"}, config).task_options == {"window": 30, "shape": "box"}
    assert make_config(config.model_dump(exclude_unset=True)) == config
    old = {"kind_options": {"window": 30}}  # as run folders called them before
    assert make_config(old) == config


@pytest.mark.usefixtures("options")
def test_options_leave_the_tasks_that_have_them():
    assert {task.input.name for task in possible_tasks(make_config({"window": 30}))} == {"frames"}
    assert choose_task(make_config({"reach": 3}), list).task.input is INPUTS["text"]
    with pytest.raises(ArgumentError, match=r"window \(of frames\), reach \(of text\)"):
        possible_tasks(make_config({"window": 30, "reach": 3}))


@pytest.mark.usefixtures("options")
def test_options_against_their_rules_and_unknown_ones_are_refused():
    with pytest.raises(ArgumentError, match="window must be at least 5, but it is 2"):
        make_config({"window": 2})
    with pytest.raises(ArgumentError, match="task_options must be a table"):
        make_config({"task_options": 3})
    with pytest.raises(ArgumentError, match="perhaps 'window' is meant"):
        make_config({"windows": 3})
    with pytest.raises(ArgumentError, match="have a name that regard knows"):
        make_config({"task_options": {"height": 3}})
    assert task_settings()["text"][0] == ("reach", "96", "steps to look ahead")


def test_every_option_has_a_description_and_no_second_meaning():
    for fields in task_options().values():
        for name, field in fields.items():
            assert field.description
            assert name not in Config.model_fields
            assert name not in preset_options("transformer")


def test_the_output_picks_the_preset_unless_one_is_given():
    labels, texts = open_task(make_config({}), TEXT, LABELS), open_task(make_config({}), TEXT, TEXT)
    assert with_preset_of(make_config({"hidden": 8}), labels).preset == "classifier-rnn"
    assert with_preset_of(make_config({"hidden": 8}), texts).preset == "bahdanau"
    assert with_preset_of(make_config({"preset": "bahdanau"}), labels).preset == "bahdanau"
    assert with_preset_of(make_config({"tied": "output"}), labels).preset == "bahdanau"
    chosen = with_preset_of(make_config({"hidden": 8, "beam": 2}), labels)
    assert (chosen.model["hidden"], chosen.beam, chosen.label_smoothing) == (8, 2, 0.1)
    assert "ngrams" not in make_config({"preset": "classifier-rnn"}).model
    assert make_config(chosen.model_dump(exclude_unset=True)).preset == "classifier-rnn"
