"""Conversations in chat format."""

import json

import pytest

from regard.data import read_pairs
from regard.errors import DataError

TURNS = [
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello\nthere"},
    {"role": "user", "content": "Who are you?"},
    {"role": "assistant", "content": "A model."},
]


def lines(tmp_path, *records):
    path = tmp_path / "chat.jsonl"
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_the_last_message_is_the_target(tmp_path):
    (pair,) = read_pairs(lines(tmp_path, {"id": 1, "messages": TURNS}))
    assert pair.src == "user: Hi | assistant: Hello there | user: Who are you?"
    assert pair.tgt == "A model."
    assert next(read_pairs([{"messages": TURNS}])).src == pair.src


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        (TURNS[:1], "line 1: a conversation must have two messages or more"),
        ("Hi", "a conversation must have two messages or more, but it is 'Hi'"),
        ([*TURNS, {"role": "user"}], "message 5 must have a text as its content, but it is None"),
        ([*TURNS, {"role": "", "content": "x"}], "message 5 must have a text as its role"),
        ([*TURNS, "x"], "message 5 must have a text as its role, but it is None"),
    ],
)
def test_bad_conversations(tmp_path, messages, words):
    with pytest.raises(DataError, match=words):
        list(read_pairs(lines(tmp_path, {"messages": messages})))
