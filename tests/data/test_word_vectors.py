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
        (GLOVE + "dog 1 2\n", r"line 4: there must be 3 numbers .* but there are 2: mend or"),
        (GLOVE + "dog 0.1 2 3 0.4 5\n", r"line 4: there must be 3 numbers .* but there are 5"),
        ("3 2\n" + GLOVE, r"line 2: there must be 2 numbers after the word, .* there are 3"),
        ("3 4\n" + GLOVE, r"line 2: there must be 4 numbers after the word, .* there are 3"),
        (GLOVE + "dog 1 1_0 3\n", r"line 4: .* but '1_0' is no number"),
        (GLOVE + "dog 1 x 3\n", r"line 4: .* but 'x' is no number: mend or delete the line\.$"),
        (GLOVE + "dog 1 nan 3\n", r"line 4: numbers must be finite in 32 bits, but nan is not"),
        (GLOVE + "dog 1 1e50 3\n", r"line 4: numbers must be finite in 32 bits, but 1e50 is not"),
        (GLOVE + "dog 1  3\n", r"line 4: .* but here are two spaces"),
        ("a good film\tpos\n", r"line 1: a line must be a word and its numbers, .* 'good' is no"),
        ("", r"vectors\.txt: there are no vectors in it: name a file of word vectors"),
        ("\n\n", "there are no vectors in it"),
        ("400000 300\n", "there are no vectors in it"),
        ("2 0\na\nb\n", "there are no vectors in it"),
        ("the\n", "there are no vectors in it"),
        (
            "2 3\nthe \x00\x01\x02\n",
            "line 2: .* but this is no UTF-8 text: save the vectors as text",
        ),
        (
            b"2 3\nthe \xff\xfe\x3e\n",
            "line 2: .* but this is no UTF-8 text: save the vectors as text",
        ),
        (b"PK\x03\x04\n", "this is a zip archive: unpack it, and name one of the files in it"),
        (gzip.compress(GLOVE.encode() * 50, mtime=0)[:-9], "cut off or damaged"),
    ],
)
def test_what_is_wrong_is_said_with_its_line(write, content, words):
    with pytest.raises(DataError, match=words):
        found(write(content), "the", "dog")
