"""Rows of a corpus as padded tensors."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float32, Int, Int64
from torch import Tensor

from regard.data.corpus import EncodedPairs, FrameRows
from regard.data.tables import Table
from regard.errors import ArgumentError
from regard.symbols import BOS, EOS, PAD


class Shape(NamedTuple):
    """Sizes that a batch is to have, whatever its pairs are."""

    rows: int
    src_len: int
    tgt_len: int


class Batch(NamedTuple):
    """Some pairs, padded to the longest of them, or to a shape.

    Attributes:
        src: source ids, as the corpus has them; or frames, with zeros beyond their lengths.
        src_lengths: number of real ids or frames of each source.
        tgt_in: bos and the target: what the model is given.
        tgt_out: the target and eos: what it is to say.
        tgt_lengths: number of real ids of each row of both.
        tgt_places: where the real ids of both are, counted through all rows; all places in a batch
            that has a shape.
        rows: the numbers of the pairs in the corpus.
    """

    src: Int64[Tensor, "batch src_len"] | Float32[Tensor, "batch src_len features"]
    src_lengths: Int64[Tensor, " batch"]
    tgt_in: Int64[Tensor, "batch tgt_len"]
    tgt_out: Int64[Tensor, "batch tgt_len"]
    tgt_lengths: Int64[Tensor, " batch"]
    tgt_places: Int64[Tensor, " tokens"]
    rows: Int[np.ndarray, " batch"]

    @property
    def tokens(self) -> int:
        """Number of real source and target tokens, eos among them."""
        return int(self.src_lengths.sum() + self.tgt_lengths.sum())

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Batch":
        """The batch with its tensors on another device.

        Args:
            device: which.
            non_blocking: whether to go on before they have arrived. A GPU then gets them from
                memory that cannot be moved, or it would be waited for all the same.
        """
        pinned = non_blocking and torch.device(device).type == "cuda"
        parts = (part.pin_memory() if pinned else part for part in self[:-1])
        return Batch._make((*(part.to(device, non_blocking=pinned) for part in parts), self.rows))


def collate(
    corpus: EncodedPairs, rows: Int[np.ndarray, " batch"], shape: Shape | None = None
) -> Batch:
    """The pairs with these numbers, in this order.

    Args:
        corpus: what they are taken from.
        rows: their numbers.
        shape: what they are padded to; None is what the longest of them need. Rows that are missing
            are the first source once more, with padding for a target.
    """
    src, src_lengths = corpus.gather("src", rows).padded(shape.src_len if shape else 0)
    tgt, tgt_lengths = corpus.gather("tgt", rows).padded(shape.tgt_len - 1 if shape else 0)
    batch = len(rows)
    tgt_in = np.full((batch, tgt.shape[1] + 1), PAD, np.int64)
    tgt_out = tgt_in.copy()
    tgt_in[:, 0] = BOS
    tgt_in[:, 1:] = tgt
    tgt_out[:, :-1] = tgt
    tgt_out[np.arange(batch), tgt_lengths] = EOS
    sides = [src, src_lengths, tgt_in, tgt_out, tgt_lengths + 1]
    if shape is None:
        places = np.flatnonzero(tgt_out != PAD)
    else:
        sides, places = _filled(sides, shape.rows - batch), np.arange(shape.rows * shape.tgt_len)
    return Batch._make((*map(torch.from_numpy, (*sides, places)), rows))


def _filled(sides: list[np.ndarray], more: int) -> list[np.ndarray]:
    """The parts of a batch with stand-ins for rows that it lacks."""
    if more < 0:
        raise ArgumentError(
            "shape",
            f"have at least {len(sides[0])} rows",
            len(sides[0]) + more,
            "take a larger one",
        )
    sides = [np.concatenate([side, np.repeat(side[:1], more, axis=0)]) for side in sides]
    sides[3][len(sides[3]) - more :] = PAD
    return sides


def pad(
    sequences: Sequence[Sequence[int]],
) -> tuple[Int64[Tensor, "batch length"], Int64[Tensor, " batch"]]:
    """Ids of any lengths, padded to the longest, and their lengths."""
    lengths = np.array([len(sequence) for sequence in sequences], np.int64)
    padded = np.full((len(sequences), lengths.max(initial=0)), PAD, np.int64)
    for row, sequence in zip(padded, sequences, strict=True):
        row[: len(sequence)] = sequence
    return torch.from_numpy(padded), torch.from_numpy(lengths)


def pad_frames(
    tables: Sequence[Table],
) -> tuple[Float32[Tensor, "batch frames features"], Int64[Tensor, " batch"]]:
    """Tables of any lengths and of one width, zeros beyond the end of each, and their lengths."""
    sizes = np.array([table.size for table in tables], np.int64)
    lengths = np.array([len(table) for table in tables], np.int32)
    numbers = np.concatenate([table.ravel() for table in tables])
    rows = FrameRows(np.cumsum(sizes) - sizes, lengths, numbers, tables[0].shape[1])
    padded, real = rows.padded(0)
    return torch.from_numpy(padded), torch.from_numpy(real)
