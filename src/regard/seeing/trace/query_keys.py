"""Queries and keys of a map, kept on demand: a score is `scale * q.k`."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from regard.errors import ArgumentError

Vectors = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class QueryKeys:
    """The vectors that the weights of one map are computed from.

    Attributes:
        kind: of the map.
        layer: of the map.
        queries: (heads, rows, dim).
        keys: (heads, columns, dim).
        scale: factor of their product, before the softmax over the columns that are not masked.
    """

    kind: str
    layer: int
    queries: Vectors
    keys: Vectors
    scale: float

    def __post_init__(self) -> None:
        q, k = self.queries.shape, self.keys.shape
        if len(q) != 3 or len(k) != 3 or q[0] != k[0] or q[2] != k[2]:
            rule = "be (heads, rows, dim) and (heads, columns, dim)"
            raise ArgumentError("queries and keys", rule, f"{q} and {k}", "check their shapes")

    def __repr__(self) -> str:
        q, k = self.queries.shape, self.keys.shape
        return f"QueryKeys({self.kind!r}, layer={self.layer}, queries={q}, keys={k})"

    @staticmethod
    def of(kind: str, layer: int, queries: Any, keys: Any, scale: float) -> "QueryKeys":
        """Make them from anything that numpy takes."""
        q, k = (np.ascontiguousarray(part, dtype=np.float32) for part in (queries, keys))
        return QueryKeys(kind, layer, q, k, float(scale))

    @property
    def size(self) -> int:
        """Number of numbers."""
        return int(self.queries.size + self.keys.size)

    def scores(self, head: int) -> Vectors:
        """Return the scores of a head, (rows, columns), before its mask and softmax."""
        found: Vectors = self.queries[head] @ self.keys[head].T * np.float32(self.scale)
        return found

    def contributions(self, head: int, row: int, column: int) -> Vectors:
        """Return the share of each dimension in the score of a cell: they sum to it."""
        found: Vectors = self.queries[head, row] * self.keys[head, column] * np.float32(self.scale)
        return found
