"""Augmentation of frames for training: random speed, and masks over time and bands."""

from typing import Final, NamedTuple, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from regard import masks
from regard.ops.check import check_share

#: share of a source that one time mask covers at most
LONGEST_MASK: Final = 0.2


class AugmentedFrames(NamedTuple):
    """Frames (batch, frames, features) and their lengths (batch,)."""

    frames: Tensor
    lengths: Tensor


@final
class SpecAugment(nn.Module):
    """Masks random spans of frames and of bands (Park et al., 2019).

    https://arxiv.org/abs/1904.08779, with policies of several masks, and a random speed in place of
    its time warping: each source is resampled along time, as Ko et al. (2015),
    https://www.isca-archive.org/interspeech_2015/ko15_interspeech.html, do with samples. Masked
    numbers are 0, the mean of standardised features. Numbers are drawn by torch's generator, whose
    state a checkpoint has.

    Args:
        time_masks: number of masks over time.
        time_width: most frames of one, of which it has `LONGEST_MASK` of the source at most.
        band_masks: number of masks over bands, the features of a frame.
        band_width: most bands of one.
        speed: sources become faster or slower by this share at most.

    Examples:
        >>> augment = regard.layers.SpecAugment(time_masks=1, band_masks=1)
        >>> augment(torch.randn(2, 50, 16), torch.tensor([50, 40])).frames.shape
        torch.Size([2, 50, 16])
    """

    def __init__(
        self,
        *,
        time_masks: int = 0,
        time_width: int = 40,
        band_masks: int = 0,
        band_width: int = 8,
        speed: float = 0.0,
    ) -> None:
        super().__init__()
        check_share(speed=speed)
        self.time_masks, self.time_width = time_masks, time_width
        self.band_masks, self.band_width = band_masks, band_width
        self.speed = speed

    def forward(
        self, src: Float[Tensor, "batch frames features"], lengths: Int[Tensor, " batch"]
    ) -> AugmentedFrames:
        """Return other frames in training, and the same ones otherwise."""
        if not self.training:
            return AugmentedFrames(src, lengths)
        if self.speed:
            factors = 1 + self.speed * (2 * torch.rand(len(src), device=src.device) - 1)
            src, lengths = resample(src, lengths, factors, longest=1 / (1 - self.speed))
        batch, frames, bands = src.shape
        if self.time_masks:
            most = (lengths * LONGEST_MASK).clamp(max=self.time_width)
            hidden = random_spans(self.time_masks, most, lengths, frames)
            src = src.masked_fill(hidden[:, :, None], 0.0)
        if self.band_masks:
            every = lengths.new_full((batch,), bands)
            hidden = random_spans(self.band_masks, every.clamp(max=self.band_width), every, bands)
            src = src.masked_fill(hidden[:, None, :], 0.0)
        return AugmentedFrames(src, lengths)


def random_spans(
    count: int,
    most: Float[Tensor, " batch"] | Int[Tensor, " batch"],
    lengths: Int[Tensor, " batch"],
    size: int,
) -> Bool[Tensor, "batch size"]:
    """Return True inside spans of random places and of widths from 0 to `most`.

    Args:
        count: number of spans of each row.
        most: greatest width, at most the length.
        lengths: spans end before these.
        size: of the second axis.
    """
    draws = torch.rand(2, len(lengths), count, device=lengths.device)
    widths = (draws[0] * (most.floor()[:, None] + 1)).floor()
    starts = (draws[1] * (lengths[:, None] - widths + 1)).floor()
    places = torch.arange(size, device=lengths.device)
    inside = (places >= starts[..., None]) & (places < (starts + widths)[..., None])
    return inside.any(dim=1)


def resample(
    src: Float[Tensor, "batch frames features"],
    lengths: Int[Tensor, " batch"],
    factors: Float[Tensor, " batch"],
    *,
    longest: float,
) -> AugmentedFrames:
    """Return sources that are `factors` times as fast, by linear interpolation of their frames.

    Args:
        src: padded to the longest.
        lengths: number of real frames.
        factors: below 1, a source becomes longer.
        longest: reciprocal of the least factor, by which the result is padded: no size depends on
            what was drawn.
    """
    after = (lengths / factors).round().clamp(min=1).to(lengths.dtype)
    size = int(src.shape[1] * longest) + 1
    places = torch.arange(size, device=src.device) + 0.5
    last = (lengths - 1).clamp(min=0)[:, None]
    at = (places * (lengths / after)[:, None] - 0.5).clamp(min=0).minimum(last)
    below = at.floor().long()
    above = torch.minimum(below + 1, last)
    share = (at - below)[..., None].to(src.dtype)

    def taken(index: Tensor) -> Tensor:
        return src.gather(1, index[..., None].expand(-1, -1, src.shape[2]))

    mixed = taken(below).lerp(taken(above), share)
    real = masks.padding(after, size)[:, 0, 0, :, None]
    return AugmentedFrames(mixed.where(real, 0.0), after)
