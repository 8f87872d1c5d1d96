"""The kind of data follows from the settings, the data, or what a run folder holds."""

import numpy as np
import pytest

from regard.data import FrameScaler, Pair, Tokenizer
from regard.errors import ArgumentError
from regard.kinds import (
    KINDS,
    FramePairs,
    PlainTexts,
    TaggedPairs,
    TextPairs,
    check_settings,
    choose_kind,
    load_encoder,
    open_kind,
)
from regard.kinds.data_kind import Encoders
from regard.training import make_config

TEXTS = [Pair("ab", "cd", 1)]
TABLES = [Pair("", "cd", 1, frames=[[1.0, 2.0], [3.0, 4.0]])]
FILES = [Pair("a.npy", "cd", 1)]


def never():
    raise AssertionError("the settings decide")


@pytest.mark.parametrize(
    ("settings", "first", "kind", "why"),
    [
        ({}, lambda: TEXTS, TextPairs, "the sources are text"),
        ({}, lambda: TABLES, FramePairs, "the sources are tables of numbers"),
        ({}, lambda: FILES, FramePairs, "the sources are names of .npy files"),
        ({"src_tokenizer": "vectors"}, never, FramePairs, "it was asked for"),
        ({"src_tokenizer": "char"}, lambda: TEXTS, TextPairs, "the sources are text"),
        ({"preset": "lm-rnn"}, never, PlainTexts, "the preset lm-rnn is a language model"),
        ({"preset": "rnn"}, lambda: TEXTS, TaggedPairs, "the preset rnn writes one token for each"),
    ],
)
def test_it_is_chosen_once(settings, first, kind, why):
    chosen = choose_kind(make_config({"data": "x", **settings}), first)
    assert chosen.kind is kind
    assert chosen.why.startswith(why)


def test_what_was_recognised_must_suit_the_settings():
    config = make_config({"data": "x", "stack": 2})
    check_settings(config)  # sources may be frames
    with pytest.raises(ArgumentError, match="stack must be left out where sources are text"):
        choose_kind(config, lambda: TEXTS)
    with pytest.raises(ArgumentError, match="preset must be one that reads vectors"):
        choose_kind(make_config({"data": "x", "preset": "rnn"}), lambda: TABLES)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"join_lines": 2}, "join_lines must be 1 for pairs, but it is 2: the preset bahdanau"),
        ({"preset": "lm-rnn", "metric": "bleu"}, "metric must be perplexity or loss for texts"),
        ({"preset": "lm-rnn", "src_tokenizer": "vectors"}, "src_tokenizer must be auto for texts"),
        ({"preset": "lm-rnn", "src_case": "lower"}, "src_case must be keep"),
        ({"src_tokenizer": "char", "stack": 2}, "stack must be left out where sources are text"),
        ({"src_tokenizer": "vectors", "src_case": "lower"}, "src_case must be left out where sou"),
        ({"preset": "rnn", "bpe_dropout": 0.1}, "bpe_dropout must be 0 for the preset rnn"),
    ],
)
def test_settings_that_make_no_sense(settings, said):
    with pytest.raises(ArgumentError, match=said):
        check_settings(make_config({"data": "x", **settings}))


def test_it_is_opened_from_preset_and_encoder(tmp_path):
    text = Tokenizer.train("char", ["abc"])
    frames = FrameScaler.measure([np.ones((2, 3), np.float32)])
    for settings, source, kind in (
        ({}, text, TextPairs),
        ({}, frames, FramePairs),
        ({"preset": "lm-rnn"}, text, PlainTexts),
        ({"preset": "rnn"}, text, TaggedPairs),
    ):
        source.save(tmp_path / "tokenizer.src.json")
        found = load_encoder(tmp_path / "tokenizer.src.json")
        assert found.fingerprint == source.fingerprint
        opened = open_kind(make_config({"data": "x", **settings}), found, text)
        assert type(opened) is kind
        assert opened.encoders == (found, text)
        assert KINDS[opened.name] is kind


@pytest.mark.parametrize(
    ("targets", "metric"),
    [("我们有罢工。,你好吗？,他在学校。", "chrf"), ("伦敦,巴黎,柏林", "exact")],
)
def test_sentences_of_characters_are_not_selected_by_exact_matches(targets, metric):
    """English to Chinese: none of the dev sentences is right to the last character for long."""
    tokenizer = Tokenizer.train("char", targets.split(","))
    kind = TextPairs(make_config({}), Encoders(tokenizer, tokenizer))
    assert kind.default_metric() == metric
    assert (kind.metrics()[0] == "chrf") == (metric == "chrf")
