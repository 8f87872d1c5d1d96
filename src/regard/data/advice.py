"""What a reader of an error can type to mend it, which depends on where the reader stands."""

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

Columns = Sequence[int | str]


class Advice(NamedTuple):
    """The options of reading as they are written by whoever asked for it.

    Attributes:
        tgt: what the file of targets is called.
        targets: how to name that file, if the sides are two files.
        columns: writes the option that chooses these columns.
        skip: the option that leaves bad lines out; empty if there is none.
        features: the option that takes a third column as features; empty if there is none.
        references: the option that takes further columns as targets; empty if there is none.
        longer: how to allow longer lines; empty if there is no way.
        vectors: how to have numbers read as vectors; empty if there is no way.
    """

    tgt: str
    targets: str
    columns: Callable[[Columns], str]
    skip: str
    features: str = ""
    references: str = ""
    longer: str = ""
    vectors: str = ""

    def choose(self, first: str, names: Columns) -> str:
        """`first`, or else two of these names, if there are two."""
        chosen = f"choose two of these, as in {self.columns(names[:2])}"
        return f"{first}, or {chosen}" if len(names) > 1 else first

    def shorter(self, first: str) -> str:
        """`first`, or else a higher limit, if it can be raised."""
        return f"{first}, or {self.longer}" if self.longer else first

    def numbers(self, first: str) -> str:
        """`first`, or else that numbers are read as vectors, if they can be."""
        return f"{first}, or {self.vectors}" if self.vectors else first


def with_commas(columns: Columns) -> str:
    """Columns as settings and options have them: `0,1`."""
    return ",".join(map(str, columns))


#: for those who call `read_pairs` or `read_texts`
IN_PYTHON: Final = Advice(
    tgt="tgt_file",
    targets="name the second of two parallel files as tgt_file",
    columns=lambda columns: f"columns={tuple(columns)}",
    skip="skip_bad=True",
    features="features=True",
    references="references=True",
    longer="raise max_chars",
)
