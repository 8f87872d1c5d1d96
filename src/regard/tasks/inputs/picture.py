"""Pictures, cut into patches at their rows and columns."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, cast

import numpy as np
from pydantic import Field
from torch import Tensor

from regard.data import Pair, PictureEncoder, SourceEncoder
from regard.data.frame_tables import FrameArray
from regard.data.media_files import PICTURES
from regard.data.pair_reader import SourceTransform
from regard.data.pictures import (
    COLOUR,
    MAX_READ,
    Levels,
    PictureReader,
    PictureSize,
    PixelRows,
    picture_name,
    why_pictures,
)
from regard.data.text_codec import PictureCodec
from regard.errors import ArgumentError
from regard.messages import message
from regard.models import with_input
from regard.models.adapters import ConvStem, PictureInput, SplitStem, patch_stem
from regard.models.embedding import TokenEmbedding
from regard.seeing import Text
from regard.seeing.attribution.input_scorer import Replacements, patch_replacements
from regard.seeing.trace.trace import picture_backdrop
from regard.tasks.inputs.array import ArrayInput
from regard.tasks.inputs.base import InputDescription, InputFacts
from regard.tasks.inputs.graph_inputs import GraphInputs, PictureInputs
from regard.tasks.settings import (
    FRAMES_ONLY,
    DataPlace,
    Say,
    Settings,
    SourceFiles,
    TaskOptions,
    refuse_settings,
)

#: side of a picture for each pixel that training pictures are shifted by, by default
SHIFT: Final = 14
#: how a patch becomes a vector
STEMS: Final = {"patch": patch_stem, "conv": ConvStem, "split": SplitStem}


class PictureOptions(TaskOptions):
    """Settings of runs that read pictures."""

    picture_size: int | str | None = Field(
        None,
        description="pixels that pictures are resized to, as in 32 or 48x32 (width x height); "
        "default: the size of the first, its longer side 64 at most",
    )
    channels: Literal[1, 3] | None = Field(
        None, description="1 for grey, 3 for colour; default 1 if all training pictures are grey"
    )
    patch: int | None = Field(
        None,
        description="side of a patch in pixels; default about an eighth of the longer side",
        ge=1,
        le=1024,
    )
    stem: Literal["patch", "conv", "split"] = Field(
        "conv",
        description="patch: a linear layer of each patch; conv: small convolutions; split: "
        "convolutions over grey levels for form, and colour apart",
    )
    shift: int = Field(
        0, description="training pictures are shifted by up to so many pixels", ge=0, le=1024
    )
    flip: bool = Field(False, description="half of the training pictures are mirrored")

    @property
    def size(self) -> PictureSize | None:
        """Size that pictures are brought to; None if the first decides."""
        if self.picture_size is None:
            return None
        width, _, height = str(self.picture_size).lower().partition("x")
        parts = (height or width, width)
        fits = all(part.isascii() and part.isdecimal() and len(part) < 5 for part in parts)
        if not fits or not all(map(int, parts)) or int(parts[0]) * int(parts[1]) > MAX_READ:
            rule = f"be pixels as in 32, or 48x32 for width and height, {MAX_READ:,} at most"
            value = repr(self.picture_size)
            raise ArgumentError("picture_size", rule, value, "write one number or two")
        return PictureSize(*map(int, parts))


class PixelInput(ArrayInput):
    """Paths of picture files, images of Pillow, or arrays (height, width, channels)."""

    name = "picture"
    facts = InputFacts(
        "source patches",
        "one picture",
        "pictures",
        caches_parsed=True,
        names_files=True,
        files=("picture.png", "test.tsv"),
        codec=PictureCodec,
    )
    encoder_type: ClassVar[Any] = PictureEncoder
    options_type: ClassVar[type[TaskOptions]] = PictureOptions

    @classmethod
    def why(cls, pairs: Sequence[Pair]) -> str:
        """Return that the sources are pictures, and how that is known; "" if not."""
        return why_pictures(pairs)

    @classmethod
    def check_settings(cls, settings: Settings) -> None:
        """Raise ArgumentError for a preset or a setting that pictures have no use for."""
        super().check_settings(settings)
        rule, fix = "be left out where sources are pictures", "choose patches by patch="
        refuse_settings(settings, FRAMES_ONLY, rule, fix)
        options: PictureOptions = PictureOptions.of(settings)
        size, patch = options.size, options.patch
        if size is not None and patch is not None and (size.height % patch or size.width % patch):
            fix = "change one of the two"
            raise ArgumentError("patch", f"divide both sides of picture_size, {size}", patch, fix)

    @classmethod
    def reader(cls, settings: Settings, place: DataPlace) -> SourceTransform:
        """Return a reader of pictures, which are all brought to one size."""
        if isinstance(place.encoder, PictureEncoder):
            return place.encoder.reader(place.folder)
        options: PictureOptions = PictureOptions.of(settings)
        return PictureReader(
            place.folder,
            size=options.size,
            patch=options.patch,
            channels=options.channels or COLOUR,
        )

    @classmethod
    def learn(
        cls, settings: Settings, pairs: Iterable[Pair], *, file: str, why: str, say: Say
    ) -> SourceEncoder:
        """Learn the scale of each channel."""
        options: PictureOptions = PictureOptions.of(settings)
        found = PictureEncoder.measure(
            (pair.frames for pair in pairs),
            read_channels=options.channels or COLOUR,
            channels=options.channels,
            patch=options.patch,
        )
        say(message("train.source", source=found.summary, why=why))
        say(message("train.scaled-pictures"))
        return found

    def starter(self, output: str) -> Mapping[str, Any]:
        """Return a small network that learns in minutes, from pictures that are shifted a little.

        Dropout takes a quarter of the time of a step on a CPU.
        """
        if output not in ("label", "number"):
            return {}
        sizes = {"dim": 64, "heads": 4, "feed_forward": 128, "layers": 2}
        shift = round(min(self.encoder.size) / SHIFT)
        own = {"dropout": 0.0, "shift": shift}
        return {"preset": "classifier-transformer", **sizes, **own}

    def attach(self, model: Any) -> Any:
        """Let the encoder of a model read patches at their rows and columns."""
        source, options, encoder = self.encoder, self.options, model.encoder
        before: TokenEmbedding = encoder.embedding
        adapter = PictureInput(
            STEMS[options.stem](source.channels, source.patch, encoder.input_size),
            source.grid,
            source.patch,
            source.channels,
            encoder.input_size,
            dropout=before.dropout.p,
            shift=options.shift,
            flip=options.flip,
            class_token=source.class_token,
        )
        return with_input(model, adapter)

    def table_reader(self, folder: Path) -> PictureReader:
        """Return a reader of pictures, which resizes them."""
        return cast(PictureEncoder, self.encoder).reader(folder)

    def is_one(self, given: Any) -> bool:
        """Return whether this is a path, the content of a file, an image or the array of one."""
        if isinstance(given, np.ndarray | Tensor):
            return given.ndim < 3 or (given.ndim == 3 and given.shape[2] in (1, 3, 4))
        if isinstance(given, list | tuple):
            return bool(given) and isinstance(given[0], list | tuple)
        return not isinstance(given, Iterable) or isinstance(given, str | bytes | Path)

    def parse(self, source: Any, *, line: bool = False) -> Levels:
        """Return the picture in a file or an array, resized."""
        return self._array(self.table(source))

    def labels(self, row: FrameArray) -> list[str]:
        """Return the names of the patches, such as r2c3."""
        return cast(PictureEncoder, self.encoder).labels()

    def text(self, source: Any, row: FrameArray) -> Text:
        """Return the name of the file, or a hash of the pixels, with the picture itself."""
        encoder = self.encoder
        named = isinstance(source, str | Path)
        name = str(source) if named else picture_name(self.table(source), encoder.channels)
        picture = picture_backdrop(encoder.decode(row), encoder.grid, int(encoder.class_token))
        return Text(name, self.tokens(row), picture)

    def notes(self, text: Text) -> tuple[str, ...]:
        """Return how patches are named."""
        return (message("picture.named"),)

    def replacements(self, row: FrameArray) -> Replacements:
        """Return other patches of the same picture."""
        return patch_replacements(row)

    def of_pair(self, pair: Pair) -> Levels:
        """Return the picture, whose pixels are read already."""
        return self._array(pair.frames)

    def read(self, given: SourceFiles) -> Iterator[Any]:
        """Read the pictures of several files; each is checked when it is read."""
        for source in super().read(given):
            yield source if isinstance(source, str) else self._array(source)

    def describe(self) -> InputDescription:
        """Return size, patches and channels of a picture, and what opens its files."""
        one = self.encoder
        sizes = {"height": one.height, "width": one.width}
        sizes |= {"channels": one.channels, "patch": one.patch}
        return InputDescription(
            message("reads.pictures", size=one.size),
            {"tokenizer": one.kind, **sizes, "files": list(PICTURES)},
            {"kind": one.kind, **sizes, "features": one.frame_size, "needs": ["pillow"]},
            sizes,
        )

    def graph_inputs(self) -> GraphInputs:
        """Return patches before scaling."""
        return PictureInputs(self.encoder)

    def _array(self, rows: PixelRows) -> Levels:
        height, width = self.encoder.size
        levels: Levels = rows.reshape(height, width, -1).astype(np.uint8)
        return levels
