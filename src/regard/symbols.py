"""The four special tokens, with the same ids in every vocabulary."""

from typing import Final

PAD: Final = 0
BOS: Final = 1
EOS: Final = 2
UNK: Final = 3

SYMBOLS: Final = ("<pad>", "<s>", "</s>", "<unk>")
