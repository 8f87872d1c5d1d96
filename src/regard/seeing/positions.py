"""What to call the positions of maps, and which of them are padding."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from regard.errors import ArgumentError
from regard.seeing.trace import Text

Labels = Sequence[str] | Sequence[Sequence[str]]


@dataclass(frozen=True)
class Positions:
    """Names and numbers of the positions of one side.

    Attributes:
        argument: what callers know the names as.
        names: the same for all rows.
        rows: or of each row.
        lengths: how many of each row are real.
    """

    argument: str
    names: tuple[str, ...] | None = None
    rows: tuple[tuple[str, ...], ...] | None = None
    lengths: tuple[int, ...] | None = None

    def named(self, tokens: Labels) -> "Positions":
        """With these names; rows that have their own are cut to them."""
        parts = [] if isinstance(tokens, str | Tensor) else list(tokens)
        if parts and all(isinstance(part, str) for part in parts):
            return replace(self, names=tuple(map(str, parts)), rows=None)
        if not parts or not all(isinstance(part, list | tuple) for part in parts):
            rule = "be a list of strings, or a list of such lists"
            raise ArgumentError("tokens", rule, repr(tokens), "cut the text into tokens first")
        rows = tuple(tuple(map(str, part)) for part in parts)
        lengths = tuple(map(len, rows)) if self.lengths is None else self.lengths
        return replace(self, names=None, rows=rows, lengths=lengths)

    def cut(self, lengths: Sequence[int]) -> "Positions":
        """With so many real positions in each row."""
        if not all(isinstance(length, int) and length >= 0 for length in lengths):
            raise ArgumentError("lengths", "be whole numbers from 0", repr(lengths), "count tokens")
        return replace(self, lengths=tuple(lengths))

    def check_rows(self, batches: set[int]) -> None:
        """Raises where there are names or lengths of each row, but for no batch that was seen."""
        for name, given in ((self.argument, self.rows), ("lengths", self.lengths)):
            if given is not None and len(given) not in batches:
                sizes = " or ".join(map(str, sorted(batches)))
                rule = f"be as many as the rows of a batch, {sizes}"
                raise ArgumentError(name, rule, len(given), "give one for each row")

    def text(self, row: int, batch: int, size: int, main: bool) -> Text:
        """The positions of one row: by name, or where they have none by number.

        Args:
            row: of the batch,
            batch: which has so many rows.
            size: how many positions there are, padding included.
            main: whether the names must fit; they need not for maps that a model makes on the way.
        """
        real = size
        if self.lengths is not None and len(self.lengths) == batch:
            real = min(size, self.lengths[row])
        names = self.names
        if self.rows is not None and len(self.rows) == batch:
            names = self.rows[row]
        if names is not None and len(names) in (size, real):
            return Text.of(names[:real])
        if names is not None and main:
            rule = f"name the {real} positions of row {row}"
            raise ArgumentError(self.argument, rule, f"{len(names)} tokens", "name them all")
        return Text.of([str(i) for i in range(real)])
