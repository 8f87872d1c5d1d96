"""Check a model of pictures or sound: which parts of its input mattered to its outputs.

A picture is cut into cells, each of some patches, and a recording into slices of time. A part is
not known where another part of the same source stands in its place, as for frames of regard's own
models; attribution methods and their faithfulness are those of `seeing.attribution.methods`.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, final

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from regard.models.protocol import evaluating
from regard.seeing.attribution.input_scorer import (
    Array,
    AttentionRecord,
    Change,
    InputScorer,
    MethodUnavailableError,
    rows_at_once,
    token_replacements,
)
from regard.seeing.attribution.transformers_check import (
    RecordedAttention,
    head_scale,
    label_logits,
    layer_weights,
    recorded_attention,
)

#: cells along a side of a picture, and slices of a recording, at most: each takes several passes
MAX_CELLS: Final = 8
MAX_SLICES: Final = 24
#: other parts that are tried in the place of one
TRIED: Final = 4

#: turns attention calls of one pass into a record over the parts
ReadCalls = Callable[[Sequence[RecordedAttention]], AttentionRecord]


@final
class PartScorer(InputScorer):
    """One picture or recording in parts, and the outputs of its model.

    Args:
        model: of `transformers`.
        parts: the numbers of each part; the first `fixed` are positions of the model's own, such
            as a class token, which are never replaced and whose numbers are not read.
        run: returns the logits of the outputs, (batch, outputs, vocab), given all parts.
        written: token or class of each output.
        read_calls: returns the record of attention.
        fixed: number of positions before the first part.
        note: remark for readers about the parts.
        cost: positions of one pass, by which rows are batched.
        encoder: module whose attention is marked as that of the encoder; None for none.
    """

    def __init__(
        self,
        model: nn.Module,
        parts: Float[Tensor, "inputs dim"],
        run: Callable[[Tensor], Tensor],
        written: Sequence[int],
        read_calls: ReadCalls,
        *,
        fixed: int = 0,
        note: str,
        cost: int,
        encoder: nn.Module | None = None,
    ) -> None:
        self.model, self.parts, self.written, self.inputs = model, parts, list(written), len(parts)
        self._run, self._read_calls, self._cost, self._encoder = run, read_calls, cost, encoder
        found = token_replacements(range(len(parts)), _other_parts(len(parts), fixed))
        self.replacements = found._replace(notes=(note,))

    @property
    def rows_at_once(self) -> int:
        """Number of rows of a batch."""
        return rows_at_once(self._cost)

    def vectors(self) -> Float[Tensor, "inputs dim"]:
        """Return the parts."""
        return self.parts

    def origin(self) -> Float[Tensor, "inputs dim"]:
        """Return zeros: positions are added by the model."""
        return torch.zeros_like(self.parts)

    def baseline(self) -> Float[Tensor, "inputs dim"]:
        """Return the mean over all parts."""
        return self.parts.mean(dim=0, keepdim=True).expand_as(self.parts)

    def logits(
        self, vectors: Float[Tensor, "batch inputs dim"]
    ) -> Float[Tensor, "batch outputs vocab"]:
        """Score the outputs, given parts."""
        return self._run(vectors)

    def replaced_logits(self, changes: Sequence[Change]) -> Float[Tensor, "batch outputs vocab"]:
        """Score the outputs with some parts replaced by others."""
        places = [self.replacements.put(range(self.inputs), change) for change in changes]
        return self._run(self.parts[torch.tensor(places, device=self.parts.device)])

    def attention(self) -> AttentionRecord:
        """Return the attention of one pass, summed over the positions of each part."""
        recording = recorded_attention(self.model, self._encoder)
        with evaluating(self.model), torch.no_grad(), recording as calls:
            self._run(self.parts[None])
        if not calls:
            raise MethodUnavailableError("the attention of this model cannot be seen")
        return self._read_calls(calls)


def _other_parts(count: int, fixed: int) -> list[list[int]]:
    """Return the parts that may stand in the place of each, the same ones in each call."""
    rng, found = np.random.default_rng(0), [[i] for i in range(fixed)]
    for own in range(fixed, count):
        others = [i for i in range(fixed, count) if i != own]
        tried = rng.permutation(others)[:TRIED].tolist()
        found.append(tried or [own])
    return found


class PictureCells(NamedTuple):
    """A picture in cells of patches, those at the right and at the bottom maybe smaller.

    Attributes:
        grid: rows and columns of cells.
        patches: rows and columns of patches.
        across: patches along a side of a cell.
        size: height and width of a cell in pixels.
        picture: height and width of the picture.
        fixed: positions before the first patch.
    """

    grid: tuple[int, int]
    patches: tuple[int, int]
    across: int
    size: tuple[int, int]
    picture: tuple[int, int]
    fixed: int

    @staticmethod
    def of(pixels: Tensor, patches: tuple[int, int], fixed: int) -> "PictureCells":
        """Return at most `MAX_CELLS` cells along a side of pixels (channels, height, width)."""
        across = -(-max(patches) // MAX_CELLS)
        rows, columns = (-(-side // across) for side in patches)
        height, width = pixels.shape[-2:]
        size = (height // patches[0] * across, width // patches[1] * across)
        return PictureCells((rows, columns), patches, across, size, (height, width), fixed)

    def pad(
        self, pixels: Float[Tensor, "channels height width"]
    ) -> Float[Tensor, "channels cells_height cells_width"]:
        """Return the pixels with zeros at the right and at the bottom: all cells are whole."""
        (rows, columns), (down, across) = self.grid, self.size
        missing = (columns * across - pixels.shape[2], rows * down - pixels.shape[1])
        return F.pad(pixels, (0, missing[0], 0, missing[1]))

    def cut(self, pixels: Float[Tensor, "channels height width"]) -> Float[Tensor, "inputs dim"]:
        """Return the pixels of each cell, zeros first for the fixed positions."""
        flat = F.unfold(self.pad(pixels)[None], self.size, stride=self.size)[0].mT
        return torch.cat([flat.new_zeros(self.fixed, flat.shape[1]), flat])

    def join(
        self, parts: Float[Tensor, "batch inputs dim"]
    ) -> Float[Tensor, "batch channels height width"]:
        """Return pictures of their cells."""
        padded = (self.size[0] * self.grid[0], self.size[1] * self.grid[1])
        whole = F.fold(parts[:, self.fixed :].mT, padded, self.size, stride=self.size)
        height, width = self.picture
        return whole[..., :height, :width]

    def groups(self) -> list[int]:
        """Return the part of each position of the model."""
        rows, columns = self.patches
        cells = [
            (row // self.across) * self.grid[1] + column // self.across
            for row in range(rows)
            for column in range(columns)
        ]
        return [*range(self.fixed), *(self.fixed + cell for cell in cells)]


def picture_scorer(
    model: nn.Module,
    pixels: Float[Tensor, "channels height width"],
    cells: PictureCells,
    label: int,
) -> PartScorer:
    """Score a class of a picture, which a model reads from its first position."""
    alone = head_scale(model.config) == "sigmoid"

    def run(parts: Tensor) -> Tensor:
        logits: Tensor = model(pixel_values=cells.join(parts)).logits
        return (label_logits(logits, label) if alone else logits)[:, None]

    def read_calls(calls: Sequence[RecordedAttention]) -> AttentionRecord:
        if not cells.fixed:
            raise MethodUnavailableError("its class is not read from one position")
        groups = cells.groups()
        own, norms = layer_weights(calls, (len(groups), len(groups)))
        summed = _Grouping(groups)
        layers = None if norms is None else [summed.square(layer) for layer in norms]
        return AttentionRecord([], [summed.square(heads) for heads in own], [0], None, layers)

    side = "" if cells.across == 1 else f", each of {cells.across} x {cells.across} patches"
    note = (
        f"Inputs are cells of the picture, by row and column{side}: one is not known where another "
        "of the same picture stands in its place."
    )
    cost = cells.patches[0] * cells.patches[1]
    return PartScorer(
        model,
        cells.cut(pixels),
        run,
        [0 if alone else label],
        read_calls,
        fixed=cells.fixed,
        note=note,
        cost=cost,
    )


class SoundSlices(NamedTuple):
    """The beginning of a recording in slices of equal duration; the rest is padding.

    Attributes:
        number: of slices.
        positions: of the encoder in a slice.
        frames: of the model's input in a slice.
        seconds: of a slice.
    """

    number: int
    positions: int
    frames: int
    seconds: float

    @staticmethod
    def of(frames: int, positions: int, real: int, seconds: float) -> "SoundSlices":
        """Return at most `MAX_SLICES` slices."""
        each = -(-real // MAX_SLICES)
        count = -(-real // each)
        while count * each > positions:  # the last one would reach past the end
            count -= 1
        return SoundSlices(count, each, each * (frames // positions), each * seconds)


def sound_scorer(
    model: Any,
    features: Float[Tensor, "bands frames"],
    slices: SoundSlices,
    decoder_ids: Sequence[int],
    written: Sequence[int],
) -> PartScorer:
    """Score the tokens that an encoder-decoder writes of a recording."""
    bands, end = len(features), slices.number * slices.frames
    rest = features[None, :, end:]
    read = torch.tensor([list(decoder_ids)], device=features.device)
    places = range(len(decoder_ids) - len(written), len(decoder_ids))

    def run(parts: Tensor) -> Tensor:
        cut = parts.reshape(len(parts), slices.number, bands, slices.frames)
        front = cut.transpose(1, 2).flatten(2)
        whole = torch.cat([front, rest.expand(len(parts), -1, -1)], dim=2)
        logits: Tensor = model(
            input_features=whole, decoder_input_ids=read.expand(len(parts), -1), use_cache=False
        ).logits
        return logits[:, list(places)]

    def read_calls(calls: Sequence[RecordedAttention]) -> AttentionRecord:
        outside = [call for call in calls if not call.inside][1::2]
        if not outside:
            raise MethodUnavailableError("the attention of its decoder cannot be seen")
        positions = outside[0].weights.shape[-1]
        cross, norms = layer_weights(outside, (len(decoder_ids), positions))
        # what lies on the padding belongs to no slice
        groups = [min(i // slices.positions, slices.number) for i in range(positions)]
        summed, kept = _Grouping(groups), slice(0, slices.number)
        return AttentionRecord(
            [summed.columns(heads[:, list(places)])[..., kept] for heads in cross],
            [],
            [],
            None
            if norms is None
            else [summed.columns(layer[list(places)])[..., kept] for layer in norms],
        )

    parts = features[:, :end].reshape(bands, slices.number, slices.frames)
    note = (
        f"Inputs are slices of {slices.seconds:.3g} s: one is not known where another of the same "
        "recording stands in its place."
    )
    return PartScorer(
        model,
        parts.transpose(0, 1).flatten(1).contiguous(),
        run,
        written,
        read_calls,
        note=note,
        cost=features.shape[1] // 2 + len(decoder_ids),
        encoder=model.get_encoder(),
    )


class _Grouping:
    """Sums over the positions of a part, the last axis, and means over those that look."""

    def __init__(self, groups: Sequence[int]) -> None:
        self._sums = np.eye(max(groups) + 1)[list(groups)]  # (positions, parts)

    def columns(self, weights: Array) -> Array:
        """Return (..., parts) of (..., positions)."""
        found: Array = weights @ self._sums
        return found

    def square(self, weights: Array) -> Array:
        """Return (..., parts, parts) of (..., positions, positions)."""
        means = self._sums / self._sums.sum(axis=0)
        found: Array = means.T @ self.columns(weights)
        return found
