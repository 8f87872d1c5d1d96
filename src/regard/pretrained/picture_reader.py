"""Pictures that a model of transformers reads, and its answers to them."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, final

import torch
import torch.nn.functional as F
from torch import Tensor

from regard.data.media_files import read_picture
from regard.pretrained.folder_checks import PretrainedError
from regard.pretrained.output import (
    PretrainedOutput,
    Recording,
    classes_note,
    classified,
    run_once,
)
from regard.pretrained.text_reader import Reader
from regard.seeing.trace import DecodingInfo, Text, Token, Trace
from regard.seeing.trace.trace import PICTURE_SIDE, Backdrop

#: names of the first positions of a picture; DeiT has both
SPECIAL: Final = ("[CLS]", "[DIST]")
#: positions that are no patches, at most
MAX_SPECIAL: Final = 16
#: how an output is computed that is not decoded step by step
ONE_PASS: Final = DecodingInfo("one pass")


@final
class ImageReader(Reader):
    """Pictures that a transformer of patches reads in one pass."""

    reads = "picture"

    @property
    def classifies(self) -> bool:
        """True if it names the class of a picture."""
        return self.task == "image-classification"

    def check(self, source: Any) -> None:
        """Raise DataError unless it is a picture."""
        read_picture(source)

    def _pixels(self, source: Any) -> tuple[str, Tensor]:
        """Return the name of a picture and what the image processor makes of it."""
        name, image = read_picture(source)
        return name, self.processor(image, return_tensors="pt")["pixel_values"][0]

    def answer(
        self, source: Any, settings: dict[str, Any], recording: Recording | None
    ) -> PretrainedOutput:
        """Return the class of a picture; nothing if the model has no classes."""
        name, pixels = self._pixels(source)
        given = pixels[None].to(self.module.device, self.module.dtype)
        try:
            output, seen = run_once(self.module, recording, pixel_values=given)
        except ValueError as error:
            raise PretrainedError(
                f"the image processor in {self.path} must make pictures that its model takes, "
                f"but it makes {tuple(pixels.shape[-2:])} ({str(error).splitlines()[0]:.120}): "
                f"save the one that the model was trained with."
            ) from None
        found = PretrainedOutput(prompt=name)
        if self.classifies:
            found = replace(classified(self.module.config, output.logits[0].float()), prompt=name)
        if recording is None:
            return found
        return replace(found, recorded=self._named(found, recording.first_trace(seen), pixels))

    def trace(
        self, source: Any, target: str | None, recording: Recording, *, chat: bool = False
    ) -> Any:
        """Return the trace of one pass."""
        return self.answer(source, {}, recording).trace

    def _named(self, found: PretrainedOutput, recorded: Trace, pixels: Tensor) -> Trace:
        """Return a trace whose positions are patches by row and column, over the picture."""
        grid = self._grid(pixels)
        first = len(recorded.source.tokens) - grid[0] * grid[1]
        if not 0 <= first <= MAX_SPECIAL or recorded.kinds != ["encoder-self"]:
            raise PretrainedError(
                f"a model of pictures must attend over all of its patches, {grid[0]} x {grid[1]} "
                f"here, but {self.path} is a {type(self.module).__name__}, whose first attention "
                f"has {len(recorded.source.tokens)} positions: look at it with regard.capture."
            )
        backdrop = Backdrop.of("picture", self._seen_picture(pixels), grid=grid, first=first)
        text = Text(Path(found.prompt).name, tuple(_patch_tokens(grid, first)), backdrop)
        notes = list(recorded.notes)
        notes.insert(0, "patches are named by row and column, counted from 1 at the top left")
        if self.classifies:
            notes.insert(0, classes_note(found))
        return Trace(text, text, recorded.maps, decoded=ONE_PASS, notes=tuple(notes))

    def _grid(self, pixels: Tensor) -> tuple[int, int]:
        size = getattr(self.module.config, "patch_size", None)
        if size is None:
            raise PretrainedError(
                f"a model of pictures must read patches, but {self.path} is a "
                f"{type(self.module).__name__}, which has no patch_size: look at it with "
                f"regard.capture."
            )
        down, across = (size, size) if isinstance(size, int) else tuple(size)[-2:]
        return pixels.shape[-2] // down, pixels.shape[-1] // across

    def _seen_picture(self, pixels: Tensor) -> Any:
        """Return what the model was given as bytes: cropped and resized, but not normalised."""
        found = pixels.float()
        mean, std = (getattr(self.processor, name, None) for name in ("image_mean", "image_std"))
        if getattr(self.processor, "do_normalize", True) and mean is not None and std is not None:
            found = found * torch.tensor(std)[:, None, None] + torch.tensor(mean)[:, None, None]
        if not getattr(self.processor, "do_rescale", True):
            found = found / 255
        scale = PICTURE_SIDE / max(found.shape[-2:])
        if scale < 1:
            size = [max(1, round(side * scale)) for side in found.shape[-2:]]
            found = F.interpolate(found[None], size=size, mode="area")[0]
        return (found.clamp(0, 1) * 255).round().permute(1, 2, 0).byte().numpy()


def _patch_tokens(grid: tuple[int, int], first: int) -> Iterator[Token]:
    for i in range(first):
        yield Token(SPECIAL[i] if i < len(SPECIAL) else f"[REG {i}]", special=True)
    for row in range(grid[0]):
        yield from (Token(f"patch {row + 1},{column + 1}") for column in range(grid[1]))
