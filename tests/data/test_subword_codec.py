import pytest
from tokenizers import Tokenizer as HFTokenizer

from data.tools import SCRIPTS
from regard.data import Tokenizer

TEXTS = ["the low lower lowest tide", "new newer newest tide", "wide wider widest tide"] * 3


def test_byte_pair_encoding_by_hand():
    # in ▁aab ▁aab ▁ac, only ▁ and a are neighbours three times
    tokenizer = Tokenizer.train("bpe", ["aab aab ac"], min_count=3)
    assert tokenizer.tokens(range(4, tokenizer.vocab_size)) == ["a", "b", "c", "▁", "▁a"]
    assert tokenizer.tokens(tokenizer.encode("aab c")) == ["▁a", "a", "b", "▁", "c"]


@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_words_one_by_one_are_the_lines(kind):
    """Asking for each word and remembering it gives what the whole line gives."""
    tokenizer = Tokenizer.train(kind, [*TEXTS, *SCRIPTS.values()])
    whole = HFTokenizer.from_str(tokenizer._codec._model.to_str())
    for text in TEXTS:
        line = "▁" + text.replace(" ", " ▁")
        pieces = [piece for word in line.split(" ") for piece in whole.encode(word).tokens]
        assert tokenizer.tokens(tokenizer.encode(text)) == pieces
