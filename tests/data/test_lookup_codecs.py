import pytest

from regard.data.lookup_codecs import WordCodec, cut_word, mark_joins


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


def test_marks_that_a_model_may_put_anywhere():
    codec = WordCodec.train(["a"], 100, 1)
    assert codec.join(["￭.", "a", "￭-￭", "b", "(￭", "￭)", "c", "d￭"]) == ". a-b () c d"
    assert codec.join([]) == ""
