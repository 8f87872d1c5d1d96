"""Models of transformers at the command line."""

import json

import pytest

from cli.tools import done, regard, sentence
from regard.seeing import Trace

pytestmark = pytest.mark.slow  # transformers takes seconds to load

TEXT = "the cat sat on a mat"


@pytest.mark.parametrize(
    ("family", "options", "title", "rows"),
    [
        ("llama", ("--max-len", 3), "decoder self-attention", ["<s>", "the", "cat"]),
        ("t5", ("--max-len", 3, "--beam", 2), "cross-attention", []),
        ("t5", ("--target", "the mat"), "cross-attention", ["<s>", "the", "mat"]),
        ("bert", (), "encoder self-attention", ["<s>", "the", "cat", "sat", "on", "a", "mat"]),
    ],
)
def test_show_draws_the_maps_of_a_text(saved, family, options, title, rows, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")  # a narrower terminal gets lists in place of maps
    shown = done(regard("show", saved(family), TEXT, *options))
    first, header, *drawn = shown.splitlines()
    assert title in first
    assert [line.split()[0] for line in drawn[: len(rows)]] == rows
    assert header.split()[:4] == ["<s>", "the", "cat", "sat"]


def test_show_writes_files_and_json(saved, tmp_path):
    for name in ("x.html", "x.svg", "x.json"):
        done(regard("show", saved("gpt2"), TEXT, "--max-len", 2, "-o", tmp_path / name))
    trace = Trace.load(tmp_path / "x.json")
    assert trace.model.name == "gpt2"
    assert trace.target.text.startswith(TEXT)
    assert "decoder-self" in (tmp_path / "x.html").read_text()
    shown = json.loads(done(regard("show", saved("gpt2"), TEXT, "--max-len", 2, "--json")))
    assert shown["target"]["text"] == trace.target.text


def test_predict_writes_json_and_traces(saved, tmp_path):
    told = ("predict", saved("t5"), "--max-len", 3, "--jsonl", "--trace", tmp_path / "t.jsonl")
    (line,) = done(regard(*told, stdin="the cat\n")).splitlines()
    found = json.loads(line)
    assert list(found["attention"]) == ["cross"]
    assert len(found["token_log_probs"]) == len(found["tokens"]) == 3
    assert found["src_tokens"] == ["<s>", "▁the", "▁cat"]
    shown = done(regard("show", tmp_path / "t.jsonl", "--kind", "encoder-self"))
    assert "encoder self-attention" in shown


def test_predict_answers_a_chat_alone(saved):
    told = ("predict", saved("llama"), "--max-len", 3)
    answer = done(regard(*told, "--chat", stdin="the cat\n"))
    assert "the cat" not in answer
    shown = done(regard("show", saved("llama"), "the cat", "--chat", "--max-len", 2))
    assert "<|user|>" in shown


def test_predict_names_unknown_words_and_skips_bad_lines(saved):
    result = regard("predict", saved("gpt2"), "--max-len", 2, stdin="the Ω\n")
    assert "the model does not know 'Ω'" in result.stderr
    lines = f"the cat\n{'the ' * 60}\nthe dog\n"
    told = ("predict", saved("gpt2"), "--max-len", 2)
    result = regard(*told, "--skip-bad", stdin=lines)
    assert [bool(line) for line in done(result).splitlines()] == [True, False, True]
    assert "stdin, line 2: the text must have at most 50 tokens" in sentence(
        regard(*told, stdin=lines), 1, written=1
    )


@pytest.mark.parametrize(
    ("family", "words", "match"),
    [
        ("bert", ("show", "MODEL", "the", "--beam", 5), "beam must be left out for a"),
        ("bert", ("show", "MODEL", "the", "--max-len", 5), "max_len must be left out"),
        ("bert", ("show", "MODEL", "the", "--target", "x"), "target must be left out"),
        ("bert", ("show", "MODEL", "the", "--chat"), "chat must be left out"),
        ("gpt2", ("show", "MODEL", "the", "--line", 2), "--line must be left out for a run"),
        ("gpt2", ("show", "MODEL"), "TEXT must be given"),
        ("gpt2", ("show", "MODEL", "the", "--chat"), "for a tokenizer without a chat template"),
        ("gpt2", ("predict", "MODEL", "--prefix", "x"), "--prefix must be left out for a model of"),
        ("gpt2", ("predict", "MODEL", "--length-penalty", 1), "length_penalty must be left"),
        ("gpt2", ("show", "g2p", "the", "--chat"), "--chat must be left out for a run"),
        ("gpt2", ("predict", "g2p", "--chat"), "--chat must be left out for a run"),
    ],
)
def test_options_that_make_no_sense_are_refused(saved, family, words, match):
    words = [saved(family) if word == "MODEL" else word for word in words]
    assert match in sentence(regard(*words, stdin="the <mask>\n"), 2)
