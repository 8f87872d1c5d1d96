"""The four token ids that mean the same in every vocabulary."""

from typing import Final

PAD: Final = 0
BOS: Final = 1
EOS: Final = 2
UNK: Final = 3

SYMBOLS: Final = ("<pad>", "<s>", "</s>", "<unk>")
