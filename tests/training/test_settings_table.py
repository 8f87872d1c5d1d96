"""Defaults and bounds of all settings, as a table, and the numbers of the default policy."""

import json

import pytest

from regard.errors import ArgumentError, DataError
from regard.training import config as settings
from regard.training import defaults
from regard.training.config import (
    Config,
    check_model,
    config_settings,
    make_config,
    parse_overrides,
    preset_settings,
    read_toml,
    task_settings,
)
from regard.training.defaults import Facts, describe_defaults, evaluation_interval, fill_settings
from regard.training.progress import Progress

#: settings that a resumed run must keep: default, and bounds
FIXED = {
    "data": ("", {}),
    "tgt": (None, {}),
    "dev": (None, {}),
    "dev_tgt": (None, {}),
    "columns": (None, {"min_length": 2, "max_length": 3}),
    "features": (None, {}),
    "skip_bad": (False, {}),
    "max_chars": (10_000, {"ge": 1}),
    "deduplicate": (False, {}),
    "join_lines": (1, {"ge": 1}),
    "preset": ("bahdanau", {}),
    "size": ("auto", {}),
    "model": ({}, {}),
    "task_options": ({}, {}),
    "src_tokenizer": ("auto", {}),
    "tgt_tokenizer": ("auto", {}),
    "src_case": ("keep", {}),
    "stack": (1, {"ge": 1}),
    "scale_vectors": (True, {}),
    "shared_vocab": (False, {}),
    "vocab_size": (8_000, {"ge": 8}),
    "src_vectors": (None, {}),
    "tgt_vectors": (None, {}),
    "bpe_dropout": (0.0, {"ge": 0, "lt": 1}),
    "max_src_len": (256, {"ge": 1}),
    "max_tgt_len": (256, {"ge": 1}),
    "batch_tokens": (None, {"ge": 1}),
    "batch_sentences": (None, {"ge": 1}),
    "teacher": ((), {}),
    "ema": (0.0, {"ge": 0, "lt": 1}),
    "metric": ("auto", {}),
    "seed": (1, {"ge": 0, "lt": 9_223_372_036_854_775_808}),
}
#: settings that may change when a run is resumed
FREE = {
    "encode_processes": (None, {"ge": 1}),
    "vectors_rate": (1.0, {"ge": 0}),
    "accumulate": (1, {"ge": 1}),
    "lr": (None, {"gt": 0}),
    "schedule": ("auto", {}),
    "warmup": (None, {"ge": 0}),
    "weight_decay": (0.01, {"ge": 0}),
    "clip": (1.0, {"gt": 0}),
    "label_smoothing": (0.1, {"ge": 0, "lt": 1}),
    "rdrop": (0.0, {"ge": 0}),
    "teacher_weight": (0.5, {"gt": 0, "le": 1}),
    "steps": (None, {"ge": 1}),
    "epochs": (None, {"ge": 1}),
    "minutes": (None, {"gt": 0}),
    "eval_every": (None, {}),
    "eval_pairs": (None, {"ge": 1}),
    "patience": (None, {"ge": 1}),
    "average": (5, {"ge": 1}),
    "save_every": (500, {"ge": 1}),
    "device": ("auto", {}),
    "precision": ("auto", {}),
    "strategy": ("auto", {}),
    "recompute": (False, {}),
    "graphs": (True, {}),
    "threads": (None, {"ge": 1}),
    "beam": (5, {"ge": 1, "le": 10_000}),
    "report": (True, {}),
    "baseline": (True, {}),
    "tensorboard": (False, {}),
}
LANGUAGE_MODEL = {"label_smoothing": 0.0, "metric": "perplexity", "beam": 1}
#: defaults that differ for a preset
OF_PRESETS = {
    "lm-rnn": LANGUAGE_MODEL,
    "lm-self-attentive": LANGUAGE_MODEL,
    "lm-transformer": LANGUAGE_MODEL,
    "pointer": {"shared_vocab": True},
    "span": {"shared_vocab": True, "label_smoothing": 0.0},
    "story-transformer": {"label_smoothing": 0.0, "beam": 1},
    "memory-network": {"label_smoothing": 0.0, "beam": 1},
}


def bounds(field):
    rules = {}
    for rule in field.metadata:
        rules |= {name: getattr(rule, name) for name in rule.__slots__}
    return rules


def test_a_value_at_its_bound():
    """Each bound is where the table has it: a value on it is accepted, and one beyond it is not."""
    for name, (default, rules) in (FIXED | FREE).items():
        step = 0.5 if isinstance(default, float) or name in ("lr", "minutes") else 1
        for rule, bound in rules.items():
            if rule in ("ge", "le"):
                make_config({name: bound})
            if rule in ("gt", "lt", "ge", "le"):
                beyond = {"gt": bound, "lt": bound, "ge": bound - step, "le": bound + step}[rule]
                with pytest.raises(ArgumentError, match=f"^{name} must be .*: see `regard settin"):
                    make_config({name: beyond})


def test_defaults_and_bounds():
    fields = Config.model_fields
    assert {name: (field.default, bounds(field)) for name, field in fields.items()} == FIXED | FREE
    assert {*Config.fixed_on_resume()} == FIXED.keys()
    assert settings.DEFAULTS == OF_PRESETS
    assert settings.MAX_TOML == 1_048_576


def test_presets_change_defaults_that_are_not_given():
    assert make_config({"preset": "lm-rnn"}).beam == 1
    assert make_config({"preset": "lm-rnn", "beam": 7}).beam == 7
    assert make_config({"preset": "lm-rnn"}, make_config({"beam": 7})).beam == 7
    assert config_settings("lm-rnn") != config_settings()
    shown = {row.name: row.default for row in config_settings("lm-rnn")}
    assert (shown["beam"], shown["metric"], shown["report"]) == ("1", "perplexity", "true")
    assert "model" not in shown
    assert "task_options" not in shown


def test_sizes_are_listed_with_those_of_small():
    rows = {row.name: row for row in preset_settings("transformer")}
    assert rows["dim"].default == "256"
    assert rows["dim"].description == "width of the layers (tiny 128, small 256, base 512)"
    assert rows["encoder_layers"].default == "none"
    assert rows["norm_first"].default == "true"
    assert rows["tied"].description.endswith("as well: none, output, all")
    rows = {row.name: row for row in preset_settings("bahdanau")}
    assert (rows["embed"].default, rows["hidden"].default, rows["layers"].default) == (
        *("128", "256"),
        "1",
    )
    assert all(row.description for rows in task_settings().values() for row in rows)


def test_properties():
    config = make_config({"max_tgt_len": 7, "join_lines": 3, "batch_tokens": 99})
    assert (config.longest_tgt, config.model_size, config.max_tokens) == (21, "small", 99)
    config = make_config({"size": "base", "batch_tokens": 99, "batch_sentences": 5})
    assert (config.model_size, config.max_tokens) == ("base", None)


def test_lists_of_names():
    assert make_config({"teacher": "a, b,"}).teacher == ("a", "b")
    assert make_config({"columns": " en, fr "}).columns == ("en", "fr")
    with pytest.raises(ArgumentError, match="columns must name two or three columns"):
        make_config({"columns": 1})
    with pytest.raises(ArgumentError, match="columns must name two or three columns"):
        make_config({"columns": "a,b,c,d"})


WRONG = [
    ({"stepps": 5}, "'stepps': perhaps 'steps' is meant."),
    ({"zzzz": 5}, "'zzzz': `regard settings bahdanau` lists them all."),
    ({"slots": 4}, "'slots', which memory knows: `regard settings bahdanau`"),
    ({"max_len": 4}, "'max_len', which conv"),
    ({"preset": "transformr"}, "'transformr': perhaps 'transformer' is meant."),
    ({"preset": "zzzz"}, "'zzzz': `regard presets` says what they are."),
    ({"model": [5]}, "model must be a table of settings of the preset, but it is [5]"),
    ({"model": {"hiden": 5}}, "'hiden': perhaps 'hidden' is meant."),
    ({"task_options": 5}, "task_options must be a table of settings of a kind of data"),
    ({"task_options": {"zzzz": 5}}, "'zzzz': `regard settings bahdanau` lists them all."),
    ({"minutes": float("nan")}, "minutes must be a finite number"),
    ({"hidden": 1.5}, "hidden must be a whole number, but it is 1.5"),
    ({"cell": "huge"}, "cell must be 'rnn', 'gru' or 'lstm', but it is 'huge'"),
    ({"eval_every": 0}, "eval_every must be at least 1, but it is 0"),
]


def test_wrong_settings():
    for wrong, words in WRONG:
        with pytest.raises(ArgumentError) as caught:
            make_config(wrong)
        assert words in str(caught.value)


def test_a_word_without_a_name_or_a_value():
    for word in ("steps", "=5", ""):
        with pytest.raises(ArgumentError, match=r"^setting must have the form key=value"):
            parse_overrides([word])


def test_a_value_may_be_empty():
    assert parse_overrides(["dev=", "lr=none", "report=False"]) == {
        "dev": "",
        "lr": None,
        "report": False,
    }


def test_a_model_needs_a_position_more_than_its_tokens():
    check_model(make_config({"preset": "conv", "max_len": 257}))
    for wrong in (
        {"max_len": 256},
        {"max_len": 300, "max_src_len": 300},
        {"max_len": 300, "max_tgt_len": 300},
    ):
        with pytest.raises(ArgumentError, match=r"^max_len must be more than max_src_len and max_"):
            check_model(make_config({"preset": "conv", **wrong}))
    with pytest.raises(ArgumentError, match="the settings of the preset bahdanau must fit toget"):
        check_model(make_config({"dropout": 2.0}))
    with pytest.raises(ArgumentError, match="hidden must be at least 1"):
        check_model(make_config({"hidden": -1}))


def test_a_file_of_settings_is_no_longer_than_a_mebibyte(tmp_path):
    path = tmp_path / "run.toml"
    path.write_bytes(b"steps = 5\n" + b"#" * (1_048_576 - 10))
    assert read_toml(path) == {"steps": 5}
    path.write_bytes(path.read_bytes() + b"#")
    with pytest.raises(DataError):
        read_toml(path)


def test_records_of_settings_are_read_again():
    given = {"columns": "en,fr", "hidden": 64, "teacher": "a,b", "precision": 32}
    config = make_config(given)
    assert make_config(json.loads(json.dumps(config.model_dump()))) == config


CPU = Facts(examples=4_000, tokens=17.3, on_gpu=False)


CHOSEN = [
    # 32 pairs of 17.3 tokens are 553.6, and a CPU without a budget decodes 1,000
    ({}, {}, {"size": "small", "batch_tokens": 554, "eval_pairs": 1_000, "lr": None}),
    # a GPU has 64 batches in an epoch: 4,000 // 64 is 62 pairs, of 1,072.6 tokens
    ({}, {"on_gpu": True}, {"batch_tokens": 1_073}),
    # 32 pairs up to 64 * 33 - 1 of them
    ({}, {"on_gpu": True, "examples": 2_111}, {"batch_tokens": 554}),
    ({}, {"on_gpu": True, "examples": 2_112}, {"batch_tokens": 571}),
    ({}, {"tokens": 128.0}, {"batch_tokens": 4_096}),
    ({}, {"tokens": 127.9}, {"batch_tokens": 4_093}),
    ({}, {"scales_batches": False}, {"batch_tokens": 4_096}),
    ({"batch_tokens": 9}, {}, {"batch_tokens": 9}),
    ({"batch_sentences": 9}, {}, {"batch_tokens": None, "batch_sentences": 9}),
    # 100 dev pairs a minute, from 200 to 1,000
    ({"minutes": 1.9}, {}, {"eval_pairs": 200}),
    ({"minutes": 2.5}, {}, {"eval_pairs": 250}),
    ({"minutes": 9.9}, {}, {"eval_pairs": 990}),
    ({"minutes": 11}, {}, {"eval_pairs": 1_000}),
    ({"minutes": 2}, {"on_gpu": True}, {"eval_pairs": 1_000}),
    ({"minutes": 2}, {"labels": True}, {"eval_pairs": 1_000}),
    ({"minutes": 2}, {"has_sources": False}, {"eval_pairs": None}),
    ({"minutes": 2, "eval_pairs": 7}, {}, {"eval_pairs": 7}),
    # deep presets are tiny below ten minutes of a CPU
    ({"preset": "transformer", "minutes": 9.9}, {}, {"size": "tiny", "lr": 0.002}),
    ({"preset": "transformer", "minutes": 9.9, "lr": 0.1}, {}, {"size": "tiny", "lr": 0.1}),
    ({"preset": "transformer", "minutes": 10.0}, {}, {"size": "small", "lr": None}),
    ({"preset": "transformer", "minutes": 9.9}, {"on_gpu": True}, {"size": "small"}),
    ({"preset": "transformer", "minutes": 9.9, "heads": 4}, {}, {"size": "small"}),
    ({"preset": "transformer", "minutes": 9.9, "size": "base"}, {}, {"size": "base"}),
    ({"preset": "conv", "minutes": 9.9}, {}, {"size": "tiny", "lr": None}),
    ({"minutes": 9.9}, {}, {"size": "small", "lr": None}),
]


def test_chosen_settings():
    for given, facts, chosen in CHOSEN:
        filled = fill_settings(make_config(given), CPU._replace(**facts))
        assert {name: getattr(filled, name) for name in chosen} == chosen


INTERVALS = [
    # an epoch, from 200 to 2,000 steps
    ({"minutes": 5}, 199, 0.05, 200),
    ({"minutes": 5}, 201, 0.05, 201),
    ({"minutes": 5}, 2_001, 0.05, 2_000),
    ({"eval_every": "epoch", "steps": 100}, 300, 0.05, 300),
    # ten evaluations, if they cost no more than a tenth of the time: 125 * 0.05 / 0.1 is 62.5
    ({"steps": 1_000}, 125, 0.05, 100),
    ({"steps": 500}, 125, 0.05, 63),
    ({"epochs": 4}, 125, 0.01, 50),
    ({"epochs": 4, "steps": 300}, 125, 0.01, 30),
    ({"steps": 5}, 125, 0.0, 1),
    ({"eval_every": 3}, 125, 0.5, 3),
]


def test_steps_between_evaluations():
    for given, per_epoch, dev_share, interval in INTERVALS:
        assert evaluation_interval(make_config(given), per_epoch, dev_share) == interval


def test_evaluations_by_the_clock():
    """A tenth of two minutes is twelve seconds; one that costs 1 s is worth 9 s of training."""

    def due(step, since, costs):
        progress = Progress(step=step)
        for cost in costs:
            progress.took_evaluation(cost)
        progress.seconds += since
        return defaults.evaluation_is_due(progress, interval=50, minutes=2.0)

    assert [due(51, since, [0.1, 0.1]) for since in (11.9, 12.0)] == [False, True]
    assert [due(50, since, [1.0, 1.0]) for since in (8.9, 9.1)] == [False, True]
    assert [due(50, since, [1.0]) for since in (2.9, 3.1)] == [False, True]
    assert due(50, 0.0, [])


def test_a_run_has_stalled_after_two_fifths_of_the_budget():
    progress = Progress(step=100, evaluated=100, improved=50)
    assert not defaults.has_stalled(progress, 0.79, None)
    assert defaults.has_stalled(progress, 0.81, None)
    progress = Progress(step=100, evaluated=1, improved=-99)
    assert defaults.has_stalled(progress, 0.4, None), "one evaluation is enough to tell"
    progress.stale = 3
    assert defaults.has_stalled(progress, 0.0, 3)
    assert not defaults.has_stalled(progress, 1.0, 4)


def test_the_line_about_defaults_names_what_was_chosen():
    given = make_config({"preset": "transformer", "minutes": 5, "batch_tokens": 9})
    used = fill_settings(given, CPU)
    assert describe_defaults(given, used, CPU, 300, "pairs") == (
        "defaults for 4,000 pairs: size tiny, learning rate 0.002, warm-up over 200 steps or 10% "
        "of the budget, an evaluation every 300 steps or 30 seconds."
    )
    given = make_config({"warmup": 5, "size": "base", "steps": 9, "lr": 0.1})
    used = fill_settings(given, CPU)
    assert describe_defaults(given, used, CPU, 300, "pairs") == (
        "defaults for 4,000 pairs: about 32 per batch (554 tokens), an evaluation every 300 steps."
    )
    given = make_config({"warmup": 5, "size": "base", "lr": 0.1, "eval_every": 3})
    used = fill_settings(given, CPU._replace(tokens=9_000.0))
    assert describe_defaults(given, used, CPU._replace(tokens=9_000.0), 3, "pairs") == (
        "defaults for 4,000 pairs: about 1 per batch (4,096 tokens)."
    )
