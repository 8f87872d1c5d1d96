"""Sources that do not fit a model, and sources with a tab of their own."""

import json

import pytest

import regard as package
from cli.tools import done, regard, sentence
from regard.api import Source
from regard.errors import DataError

SMALL = {"size": "tiny", "steps": 1, "quiet": True, "device": "cpu", "report": False}
WORDS = ["abc", "ba", "cab", "acc", "bb", "cba", "aab", "bca", "ac", "cc", "abca", "bab"]
#: of the model, `eos` among them
POSITIONS = 12
LONG = "abc" * 4


@pytest.fixture(scope="module")
def conv(tmp_path_factory):
    folder = tmp_path_factory.mktemp("conv") / "run"
    limits = {"max_len": POSITIONS, "max_src_len": 10, "max_tgt_len": 10}
    return package.fit([(w, w) for w in WORDS], preset="conv", output=folder, **limits, **SMALL)


@pytest.mark.slow
def test_a_source_that_is_too_long_loses_no_other_answer(conv):
    outputs = conv.predict([*WORDS[:3], LONG])
    assert [next(outputs).text for _ in range(3)] == [output.text for output in conv(WORDS[:3])]
    with pytest.raises(DataError, match=r"source must have at most 12 tokens.* it has 13"):
        next(outputs)
    assert conv(LONG[:-1]).text is not None
    for ask in (conv.trace, conv.check):
        with pytest.raises(DataError, match="source must have at most 12 tokens"):
            ask(LONG)
        with pytest.raises(DataError, match=r"target must have at most 11 tokens.* it has 12"):
            ask("abc", LONG)


@pytest.fixture(scope="module")
def tabbed(tmp_path_factory):
    """A run whose sources have tabs, and their file."""
    folder = tmp_path_factory.mktemp("tabbed")
    rows = [{"src": f"{w}\t{w[::-1]}" if i % 2 else w, "tgt": w} for i, w in enumerate(WORDS)]
    (folder / "tab.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return package.fit(str(folder / "tab.jsonl"), output=folder / "run", **SMALL), folder


def test_what_was_trained_with_a_tab_is_answered_and_judged_with_it(tabbed):
    model, folder = tabbed
    text = f"{WORDS[1]}\t{WORDS[1][::-1]}"
    expected = model.src_tokenizer.encode(text)
    assert model.source_ids([text]) == [[*expected, 2]]
    output = model(text)
    assert output.unknown == ()
    assert output.trace.source.text == text
    assert model.evaluate(folder / "tab.jsonl").pairs == len(WORDS)
    assert len(model.align(folder / "tab.jsonl")) == len(WORDS)
    assert model(Source(text)).text == output.text
    assert done(regard("predict", model.path, folder / "tab.jsonl")).count("\n") == len(WORDS)
    # in a line of text a tab stands before features or targets, as it does in TSV files
    said = sentence(regard("predict", model.path, "-", stdin=f"{text}\n"), 1)
    assert "stdin, line 1: a source must have no tab" in said
