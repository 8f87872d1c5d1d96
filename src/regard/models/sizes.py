"""The tables of sizes that presets pick from."""

from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, TypeVar

from regard.ops.check import check_choice, check_positive

Size = Literal["tiny", "small", "base"]
Cell = Literal["rnn", "gru", "lstm"]


class Recurrent(NamedTuple):
    """Sizes of recurrent models: `hidden` is the width of the decoder and of the memory."""

    embed: int
    hidden: int
    layers: int


class Attentive(NamedTuple):
    """Sizes of Transformers."""

    dim: int
    heads: int
    feed_forward: int
    layers: int


class Convolutional(NamedTuple):
    """Sizes of convolutional models."""

    dim: int
    layers: int
    kernel: int


RECURRENT: Final = {
    "tiny": Recurrent(64, 128, 1),
    "small": Recurrent(128, 256, 1),
    "base": Recurrent(256, 512, 2),
}
ATTENTIVE: Final = {
    "tiny": Attentive(128, 4, 256, 2),
    "small": Attentive(256, 4, 1024, 3),
    "base": Attentive(512, 8, 2048, 6),
}
CONVOLUTIONAL: Final = {
    "tiny": Convolutional(128, 3, 3),
    "small": Convolutional(256, 4, 3),
    "base": Convolutional(512, 8, 3),
}

Row = TypeVar("Row", Recurrent, Attentive, Convolutional)


def row(table: Mapping[str, Row], size: str, **changes: int | None) -> Row:
    """The row called `size`, with the entries that are given in place of its own."""
    check_choice("size", size, table)
    given = {name: value for name, value in changes.items() if value is not None}
    check_positive(**given)
    return table[size]._replace(**given)
