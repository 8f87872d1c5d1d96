import pytest
import torch

from regard.decoding import replace_unknown
from regard.errors import ArgumentError

SRC = ["die", "Katze", "schnurrt"]

# two layers, of which the last counts; of its two heads neither alone looks where both do
FIRST = torch.tensor([[[1.0, 0.0, 0.0]] * 4])
LAST = torch.tensor(
    [
        [[0.9, 0.1, 0.0], [0.0, 0.4, 0.6], [0.5, 0.1, 0.4], [0.2, 0.2, 0.6]],
        [[0.8, 0.2, 0.0], [0.1, 0.8, 0.1], [0.0, 0.1, 0.9], [0.2, 0.2, 0.6]],
    ]
)
ATTENTION = {"cross": (FIRST, LAST)}


def test_unknown_words_become_the_source_words_most_looked_at():
    out = replace_unknown(["the", "<unk>", "<unk>"], ATTENTION, SRC)
    assert out == ["the", "Katze", "schnurrt"]


def test_a_dictionary_translates_them():
    words = {"Katze": "cat"}
    out = replace_unknown(["the", "<unk>", "<unk>"], ATTENTION, SRC, dictionary=words)
    assert out == ["the", "cat", "schnurrt"]


def test_an_end_symbol_in_the_source_is_not_copied():
    # the map has a column for it, and it is the most looked at
    out = replace_unknown(["the", "<unk>", "<unk>"], ATTENTION, SRC[:2])
    assert out == ["the", "Katze", "die"]


def test_nothing_to_replace_or_nothing_to_replace_it_by():
    assert replace_unknown(["a", "b"], {}, SRC) == ["a", "b"]
    assert replace_unknown(["<unk>"], {}, []) == ["<unk>"]


@pytest.mark.plain
def test_a_model_without_attention():
    with pytest.raises(ArgumentError, match=r"^attention must have a map `cross`.*need_weights"):
        replace_unknown(["<unk>"], {}, SRC)


@pytest.mark.plain
def test_words_of_another_source():
    with pytest.raises(ArgumentError, match=r"column for each of 4 source tokens.*3 columns"):
        replace_unknown(["<unk>"], ATTENTION, [*SRC, "laut"])
