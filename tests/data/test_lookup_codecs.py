import pytest

from regard.data.lookup_codecs import cut_word, mark_joins


@pytest.mark.parametrize(
    ("word", "pieces"),
    [
        ("dog", ["dog"]),
        ("dog.", ["dog", "￭."]),
        ("dog...", ["dog", "￭..."]),
        ("(dog)", ["(￭", "dog", "￭)"]),
        ("don't", ["don", "￭'￭", "t"]),
        ('"go!",', ['"￭', "go", "￭!", '￭"', "￭,"]),
        ("--", ["--"]),
        ("?!", ["?", "￭!"]),
        ("3.5€", ["3", "￭.￭", "5", "￭€"]),
        ("snake_case", ["snake_case"]),
        ("हिन्दी।", ["हिन्दी", "￭।"]),
        ("می‌خواهم", ["می‌خواهم"]),
    ],
)
def test_pieces_of_a_word(word, pieces):
    assert "".join(cut_word(word)) == word
    assert mark_joins(cut_word(word)) == pieces
