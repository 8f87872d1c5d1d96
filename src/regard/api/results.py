"""What was found when a model was judged by pairs."""

from typing import NamedTuple

from regard.evaluation import Comparison, LengthRow


class Row(NamedTuple):
    """A metric with its interval, and how it was computed."""

    name: str
    value: float
    low: float
    high: float
    signature: str


class Result(NamedTuple):
    """What was found, on how many pairs."""

    pairs: int
    rows: list[Row]
    lengths: list[LengthRow]
    against: Comparison | None

    def __repr__(self) -> str:
        rows = "".join(f", {row.name}={row.value:.4g}" for row in self.rows)
        return f"Result(pairs={self.pairs}{rows})"
