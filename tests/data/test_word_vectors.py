"""Files of word vectors: every form that they come in, and what is wrong with a line."""

import gzip

import pytest

from regard.data.word_vectors import open_word_vectors
from regard.errors import DataError

GLOVE = "the 0.25 -1.5 3\n, 1e-3 0.1 -0.0\ncat 1 2 3\n"


@pytest.fixture
def write(tmp_path):
    def make(content, name="vectors.txt"):
        path = tmp_path / name
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return make


def found(path, *words):
    vectors = open_word_vectors(path).vectors(words)
    return {word: vector.tolist() for word, vector in vectors.items()}


@pytest.mark.parametrize(
    "content",
    [
        "3 3\n" + GLOVE,  # word2vec and fastText
        GLOVE.replace("\n", " \n"),  # fastText ends its lines with a space
        GLOVE.replace("\n", "\r\n"),
        GLOVE.replace(" ", "\t"),
        GLOVE.replace("the ", "the\t"),
        GLOVE.replace(" ", "  "),
        "\ufeff" + GLOVE,
        "\n" + GLOVE.replace("\n", "\n\n  \n"),
        GLOVE.rstrip("\n"),
    ],
)
def test_every_form_is_the_same_file(write, content):
    path = write(content)
    assert list(open_word_vectors(path).words()) == ["the", ",", "cat"]
    assert found(path, "the", "cat") == {"the": [0.25, -1.5, 3.0], "cat": [1.0, 2.0, 3.0]}


def test_the_last_numbers_are_the_vector_where_words_have_spaces(write):
    path = write(GLOVE + ". . . 4 5 6\nat name@domain.com 7 8 9\nroute 66 1 2 3\n")
    words = [". . .", "at name@domain.com", "route 66"]
    assert list(open_word_vectors(path).words())[3:] == words
    assert found(path, *words)[". . ."] == [4.0, 5.0, 6.0]
    assert found(path, *words)["route 66"] == [1.0, 2.0, 3.0]


def test_the_first_of_two_vectors_counts(write):
    assert found(write(GLOVE + "the 9 9 9\n"), "the") == {"the": [0.25, -1.5, 3.0]}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (GLOVE + "dog 1 2\n", "line 4: .* 3 finite ones as in the first line, but this one is not"),
        (GLOVE + "dog 0.1 2 3 0.4 5\n", "line 4: .* but this one is not: mend or delete the line"),
        ("3 2\n" + GLOVE, "line 2: .* 2 finite ones"),
        ("3 4\n" + GLOVE, "line 2: .* 4 finite ones"),
        (GLOVE + "dog 1 1_0 3\n", "line 4: .* but this one is not"),
        (GLOVE + "dog 1 x 3\n", "line 4: .* but this one is not"),
        (GLOVE + "dog 1 nan 3\n", "line 4: .* but this one is not"),
        (GLOVE + "dog 1 1e50 3\n", "line 4: .* but this one is not"),
        (GLOVE + "dog 1  3\n", "line 4: .* but this one is not"),
        ("a good film\tpos\n", "line 1: a line must be a word and its numbers, .* 3 finite ones"),
        ("", r"vectors\.txt: there are no vectors in it: name a file of word vectors"),
        ("\n\n", "there are no vectors in it"),
        ("400000 300\n", "there are no vectors in it"),
        ("2 0\na\nb\n", "there are no vectors in it"),
        ("the\n", "there are no vectors in it"),
        ("2 3\nthe \x00\x01\x02\n", "line 2: .* or save the vectors as text"),
        (b"2 3\nthe \xff\xfe\x3e\n", "line 2: .* or save the vectors as text"),
        (gzip.compress(GLOVE.encode() * 50, mtime=0)[:-9], "cut off or damaged"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(write, content, words):
    with pytest.raises(DataError, match=words):
        found(write(content), "the", "dog")
