"""DNA reads as tables: a column for each base, and the chance that the base is right.

A read is its bases and as many qualities, with a space between them: `ACGTN IIH5!`. A quality is a
character from `!` on, as in FASTQ files. This file needs numpy alone, and is copied into exported
folders.
"""

from pathlib import Path
from typing import Any

import numpy as np

BASES = "ACGT"


def read_table(read: Any) -> np.ndarray:
    """Return the table of a read, (bases, 5); raises ValueError if it is none."""
    bases, _, qualities = str(read).strip().partition(" ")
    if not bases or set(bases) - {*BASES, "N"} or len(bases) != len(qualities):
        raise ValueError(
            f"a read must be letters of ACGTN, a space and as many qualities, but it is "
            f"{read!r:.40}"
        )
    table = np.zeros((len(bases), 5), np.float32)
    table[:, :4] = np.array(list(bases))[:, None] == np.array(list(BASES))
    table[:, 4] = 1 - 10 ** (-0.1 * np.array([ord(sign) - ord("!") for sign in qualities]))
    return table


class DnaCodec:
    """Sources of an exported graph."""

    dtype = np.float32

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        pass

    def encode(self, source: str) -> np.ndarray:
        """Return the table of a read."""
        return read_table(source)

    def positions(self, length: int) -> int:
        """Return the number of vectors that the model makes of so many bases: as many."""
        return length
