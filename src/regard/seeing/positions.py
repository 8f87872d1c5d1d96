"""Names of the positions of maps, and which of them are padding."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from regard.errors import ArgumentError
from regard.seeing.trace import Text

Labels = Sequence[str] | Sequence[Sequence[str]]
#: Takes a start and an end; whether all weight of these positions falls on themselves.
Fits = Callable[[int, int], bool]


@dataclass(frozen=True)
class RowPositions:
    """The real positions of one row, from `start` to `end`, and their names."""

    start: int
    end: int
    text: Text

    @property
    def cut(self) -> slice:
        """Their place among all positions."""
        return slice(self.start, self.end)


@dataclass(frozen=True)
class PositionNames:
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

    def named(self, tokens: Labels) -> "PositionNames":
        """With these names; rows that have their own are cut to them."""
        parts = [] if isinstance(tokens, str | Tensor) else list(tokens)
        if parts and all(isinstance(part, str) for part in parts):
            return replace(self, names=tuple(map(str, parts)), rows=None)
        if not parts or not all(isinstance(part, list | tuple) for part in parts):
            rule = "be a list of strings, or a list of such lists"
            raise ArgumentError("tokens", rule, repr(tokens), "cut the text into tokens first")
        rows = tuple(tuple(map(str, part)) for part in parts)
        return replace(self, names=None, rows=rows)

    def cut(self, lengths: Sequence[int]) -> "PositionNames":
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

    def place(
        self, row: int, batch: int, size: int, fits: Fits, *, main: bool, spare: bool
    ) -> RowPositions:
        """Find the real positions of one row, and name them; by number if they have no names.

        Fewer positions than the row has are the first ones, with padding after them, unless only
        others fit, as where padding is on the left.

        Args:
            row: of the batch,
            batch: which has so many rows.
            size: how many positions there are, padding included.
            fits: whether all weight of some positions falls on themselves.
            main: whether the names must fit; they need not for maps that a model makes on the way.
            spare: whether there may be a name for a last token, which was written but never read.
        """
        own = self.rows is not None and len(self.rows) == batch
        names = self.rows[row] if own and self.rows is not None else self.names
        real: int | None = None
        if self.lengths is not None and len(self.lengths) == batch:
            real = min(size, self.lengths[row])
        counts = [size] if real is None else [real]
        if names is not None and own and real is None:
            counts = [count for count in (len(names), len(names) - spare) if count <= size]
        for count in counts:
            start = _start(count, size, fits)
            if start is not None:
                break
        else:
            count, start = (counts or [size])[0], 0
        if names is None:
            return _placed(start, [str(i) for i in range(count)])
        if len(names) == size:
            return _placed(start, names[start : start + count])
        if len(names) == count or (spare and len(names) == count + 1):
            return _placed(start, names[:count])
        if main:
            rule = f"name the {count} positions of row {row}"
            raise ArgumentError(self.argument, rule, f"{len(names)} tokens", "name them all")
        return _placed(0, [str(i) for i in range(size if real is None else real)])


def _start(count: int, size: int, fits: Fits) -> int | None:
    """Where `count` of `size` positions start, tried at the front, at the end, and between."""
    starts = [0, size - count, *range(1, size - count)]
    if count in (0, size):
        return 0
    return next((start for start in starts if fits(start, start + count)), None)


def _placed(start: int, names: Sequence[str]) -> RowPositions:
    return RowPositions(start, start + len(names), Text.of(names))
