"""Stories with questions: their text form, and how files lay them out."""

import json

import numpy as np
import pytest

from regard.atomic_files import read_checksummed
from regard.data import Story, StoryEncoder, Tokenizer, read_pairs
from regard.data.stories import split_sentences
from regard.data.story_encoder import MARKS
from regard.errors import DataError

STORY = "Mary went out. John stayed."


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("Mary went out. John stayed.", ["Mary went out.", "John stayed."]),
        ("mary went | john stayed", ["mary went", "john stayed"]),
        ("It cost 3.5 euros. Why?", ["It cost 3.5 euros.", "Why?"]),
        ('He said "go." Then he left.', ['He said "go."', "Then he left."]),
        ("One etc. of many", ["One etc. of many"]),
        ("", []),
    ],
)
def test_sentences(text, sentences):
    assert split_sentences(text) == sentences


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("A b. C d.", "must have a question, but 'A b. C d.' has none: write it after a tab"),
        ("", "must have a question"),
        ("\tWhere?", "the story is empty"),
        (" | \tWhere?", "the story is empty"),
        ("Where?", "the story is empty"),
        ("A b.\t ", "the question is empty"),
        ("A b.\tWhere?\there", "2 tabs cut it in more: leave the answer out"),
    ],
)
def test_sources_without_a_story_or_a_question(source, words):
    with pytest.raises(DataError, match=words):
        Story.of(source)


def write(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return str(path)


def test_a_header_makes_a_table_of_questions(tmp_path):
    path = write(tmp_path, "a.tsv", f"task\tstory\tquestion\tanswer\n1\t{STORY}\tWho?\tJohn\n")
    (pair,) = read_pairs(path)
    assert (pair.src, pair.tgt, pair.line) == (f"{STORY}\tWho?", "John", 2)


@pytest.mark.parametrize("columns", [("0+2", "1"), ("text+ask", "reply")])
def test_columns_may_be_joined(tmp_path, columns):
    header = "" if columns[0] == "0+2" else "text\treply\task\n"
    path = write(tmp_path, "a.tsv", f"{header}{STORY}\tJohn\tWho?\n")
    (pair,) = read_pairs(path, columns=columns)
    assert (pair.src, pair.tgt) == (f"{STORY}\tWho?", "John")


def test_lines_of_json_have_lists_and_the_answers_of_squad(tmp_path):
    rows = [
        {"story": ["Mary went out.", "John stayed."], "question": "Who?", "answer": "John"},
        {"story": STORY, "question": "Who?", "answer": ["John", "he", "John"]},
        {"story": STORY, "question": "Who?", "answer": {"text": ["John"], "answer_start": [15]}},
    ]
    path = write(tmp_path, "a.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    first, second, third = read_pairs(path)
    assert first.src == "Mary went out. | John stayed.\tWho?"
    assert (second.tgt, second.more) == ("John", ("he",))
    assert (third.tgt, third.more) == ("John", ())
    assert [pair.src for pair in read_pairs(rows)] == [first.src, second.src, third.src]


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"story": [], "question": "Who?", "answer": "a"}, "line 1: the story is empty: fill it"),
        ({"story": ["a", ""], "question": "Who?", "answer": "a"}, "the sentence is empty"),
        ({"story": STORY, "question": " ", "answer": "a"}, "line 1: the question is empty"),
        ({"story": STORY, "question": None, "answer": "a"}, "the question is empty"),
        ({"story": 7, "question": "Who?", "answer": "a"}, "the story must be a string, but it is"),
        ({"story": STORY, "question": "Who?", "answer": []}, "the target"),
        ({"story": STORY, "question": "Who?", "answer": {"text": []}}, "the target"),
        ({"story": ["A b."] * 10_000, "question": "W?", "answer": "a"}, "limit is 10,000: shorten"),
        ({"story": "a\0", "question": "W?", "answer": "a"}, "NUL character at position 1 of the s"),
    ],
)
def test_bad_lines(tmp_path, row, words):
    path = write(tmp_path, "a.jsonl", json.dumps(row) + "\n")
    with pytest.raises(DataError, match=words):
        list(read_pairs(path))


def encoder(width=0):
    texts = ["mary went out", "john stayed", "who stayed"]
    return StoryEncoder(Tokenizer.train("word", texts, features=MARKS), width)


def test_rows_of_tokens_have_marks():
    found = encoder()
    (row,) = found.encode(["mary went | john stayed\twho stayed"])
    assert found.tokenizer.tokens(row) == [
        *("mary", "went", "[|]", "john", "stayed", "[||]", "who", "stayed", "</s>"),
    ]
    (row,) = found.encode(["mary went\twho"])
    assert found.tokenizer.tokens(row) == ["mary", "went", "[||]", "who", "</s>"]


def test_tables_have_a_row_for_each_sentence_and_the_question():
    found = StoryEncoder.measure(encoder().tokenizer, ["mary went out. John\twho?"])
    assert found.width == 3
    (table,) = found.encode(["mary went out. | john.\twho?"])
    words = [found.tokenizer.tokens(int(i) for i in row if i) for row in table]
    assert words == [["mary", "went", "out"], ["john"], ["who"]]
    assert table.dtype == np.float32
    with pytest.raises(DataError, match="a sentence must have at most 3 words, as those"):
        found.check("mary went out john\twho")


@pytest.mark.parametrize("change", [{"width": -1}, {"width": 2**20}, {"tokenizer": {}}])
def test_a_damaged_encoder_is_refused(tmp_path, change):
    encoder(3).save(tmp_path / "a.json")
    content = {**read_checksummed(tmp_path / "a.json"), **change}
    with pytest.raises(DataError, match=r"a\.json"):
        StoryEncoder.from_json(tmp_path / "a.json", content)
