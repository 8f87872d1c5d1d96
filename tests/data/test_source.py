from regard.data import Tokenizer, source_ids
from regard.symbols import EOS


def test_sources_end():
    tokenizer = Tokenizer.train("char", ["ab"], features=["V"])
    assert source_ids(tokenizer, ["ab", "", "b"]) == [[4, 5, EOS], [EOS], [5, EOS]]
    assert source_ids(tokenizer, ["a", "b"], [["V"], []]) == [[4, 6, EOS], [5, EOS]]
