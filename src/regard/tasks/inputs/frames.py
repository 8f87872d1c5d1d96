"""Frames: tables of numbers, such as the spectrum of a recording, given as they are or in files.

Recordings become frames as well, and share the settings, the augmentation and CTC.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from math import ceil
from numbers import Number
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, cast

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from regard.data import Corpus, FrameScaler, Pair, SourceEncoder
from regard.data.error_hints import PYTHON_HINTS
from regard.data.frame_tables import FrameArray, FrameReader, TableReader, frames_name, why_frames
from regard.data.pair_reader import SourceTransform, keep_source
from regard.data.text_codec import VectorSource
from regard.errors import ArgumentError
from regard.layers import SpecAugment
from regard.messages import message
from regard.models import (
    STORY_PRESETS,
    TEXT_PRESETS,
    ColumnInput,
    ConvInput,
    EncoderDecoder,
    InputAdapter,
    JointDecoder,
    TimeConvInput,
    VectorInput,
    with_input,
)
from regard.models.embedding import TokenEmbedding
from regard.models.encoder_only import LinearBag, fixed_numbers
from regard.models.encoders import Encoder
from regard.seeing import Text
from regard.seeing.attribution.input_scorer import Replacements, frame_replacements
from regard.seeing.trace.trace import series
from regard.tasks.inputs.array import ArrayInput, tables_of
from regard.tasks.inputs.base import InputDescription, InputFacts, read_pair_files
from regard.tasks.inputs.graph_inputs import FrameInputs, GraphInputs
from regard.tasks.settings import DataPlace, Say, Settings, TaskOptions

#: the most frames of an example
EXAMPLE_FRAMES: Final = 64
#: the most positions of a row of numbers: neighbouring columns are joined to so many
MOST_POSITIONS: Final = 64


class FrameOptions(TaskOptions):
    """Settings of models that read frames."""

    source_columns: tuple[str, ...] = Field(
        default=(),
        description="names of the columns of numbers that make up a source; those of the data are "
        "found",
    )

    linear: bool = Field(
        default=False,
        description="whether a linear map of all numbers has a share of a label or number, where "
        "sources are all of one length",
    )
    subsample: Literal["stack", "conv", "conv1d"] = Field(
        default="stack",
        description="how `stack` frames become one: side by side; conv: by convolutions of stride "
        "2 over time and bands; conv1d: by two convolutions over time, as in Whisper",
    )
    centre: bool = Field(
        default=False,
        description="whether the mean of each feature over a source is subtracted, such as the "
        "sound of a microphone",
    )
    time_masks: int = Field(default=0, description="SpecAugment: masks over time in training", ge=0)
    time_mask_width: int = Field(default=40, description="SpecAugment: most frames of a mask", ge=1)
    band_masks: int = Field(
        default=0, description="SpecAugment: masks over bands, in training", ge=0
    )
    band_mask_width: int = Field(default=8, description="SpecAugment: most bands of a mask", ge=1)
    speed: float = Field(
        default=0.0,
        description="share by which sources are made faster or slower at most, in training",
        ge=0,
        le=0.5,
    )
    ctc: float = Field(
        default=0.0,
        description="weight of the CTC loss of the encoder, added to that of the decoder; 0 "
        "disables it",
        ge=0,
    )
    ctc_search: float = Field(
        default=0.0, description="share of CTC in the scores of a search; 0 disables it", ge=0, lt=1
    )


class FrameInput(ArrayInput):
    """Arrays, tensors or lists (frames, features), or names of .npy files."""

    name = "frames"
    facts = InputFacts(
        "source frames",
        "one table of vectors",
        "vectors",
        request_field="frames",
        caches_parsed=True,
        names_files=True,
        files=("input.npy", "test.jsonl"),
        codec=VectorSource,
    )
    encoder_type: ClassVar[Any] = FrameScaler
    options_type: ClassVar[type[TaskOptions]] = FrameOptions

    other_presets: ClassVar[Set[str]] = frozenset({*TEXT_PRESETS, *STORY_PRESETS})

    @classmethod
    def why(cls, pairs: Sequence[Pair]) -> str:
        """Return that the sources are tables or .npy files, and how that is known; "" if not."""
        return why_frames(pairs)

    @classmethod
    def check_settings(cls, settings: Settings) -> None:
        """Raise ArgumentError for settings that are only for text, or do not fit each other."""
        super().check_settings(settings)
        options = FrameOptions.of(settings)
        power = settings.stack & (settings.stack - 1) == 0 and settings.stack > 1
        if options.subsample == "conv" and not power:
            rule = (
                "be 2, 4 or another power of 2 with subsample=conv, since each convolution halves "
                "time"
            )
            raise ArgumentError("stack", rule, settings.stack, "say stack=4")
        if options.subsample == "conv1d" and settings.stack != 2:
            rule = "be 2 with subsample=conv1d, whose convolutions halve time once"
            raise ArgumentError("stack", rule, settings.stack, "say stack=2")
        if options.ctc_search and not options.ctc:
            value = f"{options.ctc_search:g} with ctc=0"
            raise ArgumentError("ctc_search", "be 0 unless CTC is trained", value, "add ctc=0.3")

    @classmethod
    def reader(cls, settings: Settings, place: DataPlace) -> SourceTransform:
        """Return a reader of tables of one width, or of names of .npy files."""
        width = None if place.encoder is None else place.encoder.frame_size
        return FrameReader(place.folder, width, FrameOptions.of(settings).source_columns)

    @classmethod
    def choose_options(cls, settings: Settings, source: Any, say: Say) -> dict[str, Any]:
        """Return the columns of numbers, if the first source is made up of some."""
        place = DataPlace(source, settings.tgt, PYTHON_HINTS, Path())
        first = next(read_pair_files(settings, place, keep_source)).frames
        return {"source_columns": tuple(map(str, first))} if isinstance(first, Mapping) else {}

    @classmethod
    def learn(
        cls, settings: Settings, pairs: Iterable[Pair], *, file: str, why: str, say: Say
    ) -> SourceEncoder:
        """Learn the scale of each feature."""
        options = FrameOptions.of(settings)
        columns = options.source_columns
        stack = max(settings.stack, ceil(len(columns) / MOST_POSITIONS))
        found = FrameScaler.measure(
            tables_of(pairs, file),
            stack=stack if columns else settings.stack,
            scaled=settings.scale_vectors,
            centred=options.centre,
            columns=columns,
        )
        say(message("train.source", source=found.summary, why=why))
        if settings.scale_vectors:
            say(message("train.scaled-features"))
        return found

    @property
    def scaler(self) -> FrameScaler:
        """Brings features to mean 0 and deviation 1."""
        return cast(FrameScaler, self.encoder)

    def attach(self, model: Any) -> Any:
        """Let the encoder of a model read frames, with CTC beside the decoder if asked for."""
        model = with_frame_input(model, self.scaler, self.options)
        if self.options.linear and self.scaler.frames:
            classifier, one = model.classifier, self.scaler
            numbers = fixed_numbers(torch.zeros(1, one.frames, one.features), one.frames).shape[1]
            classifier.bag = LinearBag(numbers, classifier.output.out_features, one.frames)
            classifier.encoder.embedding.keeps_source = True
        options, preset = self.options, self.settings.preset
        if not options.ctc:
            return model
        if not isinstance(model, EncoderDecoder):
            rule = "be 0 for a preset that writes no sequence"
            raise ArgumentError("ctc", rule, f"{options.ctc:g} with {preset}", "leave it out")
        decoder = JointDecoder(
            model.decoder,
            memory_size=model.encoder.output_size,
            weight=options.ctc,
            search_weight=options.ctc_search,
        )
        return EncoderDecoder(model.encoder, decoder)

    def table_reader(self, folder: Path) -> TableReader:
        """Return a reader of tables with the features of the run."""
        return FrameReader(folder, self.scaler.features, self.scaler.columns)

    def starter(self, output: str) -> Mapping[str, Any]:
        """Return a small network for rows of numbers, beside which a linear map has a share."""
        if output not in ("label", "number") or not self.scaler.columns:
            return {}
        # the votes of numbers know no weights of labels
        linear = self.settings.task_options.get("class_weights") is None
        sizes = {"dim": 64, "heads": 4, "feed_forward": 128, "layers": 2}
        return {"preset": "classifier-transformer", **sizes, "dropout": 0.1, "linear": linear}

    def notes(self, text: Text) -> tuple[str, ...]:
        """Return a sentence about the linear map, if there is one."""
        return (message("trace.linear"),) if self.options.linear else ()

    def is_one(self, given: Any) -> bool:
        """Return whether this is a file name, a row, or numbers nested less than three deep."""
        if isinstance(given, str | Path | Mapping):
            return True
        if self.scaler.columns:
            return not isinstance(given, Iterator) and all(isinstance(n, Number) for n in given)
        if isinstance(given, np.ndarray | Tensor):
            return given.ndim < 3
        return isinstance(given, list | tuple) and bool(given) and _is_row(given[0])

    def parse(self, source: Any, *, line: bool = False) -> Any:
        """Return the table of a source; a client sends numbers, and no file."""
        if isinstance(source, bytes):
            raise ArgumentError("file", "be left out for this model", "given", "send frames")
        return super().parse(source, line=line)

    def labels(self, row: FrameArray) -> list[str]:
        """Return the numbers of the frames."""
        return self.scaler.labels(len(row))

    def text(self, source: Any, row: FrameArray) -> Text:
        """Return the name of the file, or a hash of the numbers, with the curves of the frames."""
        named = isinstance(source, str | Path)
        name = str(source) if named else frames_name(self.table(source))
        return Text(name, self.tokens(row), series(row, self.scaler.stack))

    def replacements(self, row: FrameArray) -> Replacements:
        """Return other frames of the same source."""
        return frame_replacements(row, self.scaler.stack)

    def describe(self) -> InputDescription:
        """Return the numbers per frame, and the frames that are joined to one."""
        one, number = self.scaler, "number" if self.scaler.frame_size == 1 else "numbers"
        count = message(f"reads.{number}", count=one.frame_size)
        sizes = {"features": one.features, "stack": one.stack}
        info = {"tokenizer": one.kind, "numbers": one.features, "stack": one.stack}
        said = message("reads.frames", count=count)
        return InputDescription(said, info, {"kind": one.kind, **sizes}, sizes)

    def examples(self, card: str, dev: Path) -> list[list[list[float]]]:
        """Return the first dev source before scaling, rounded."""
        if not dev.exists():
            return []
        try:
            table = Corpus(dev).frames(0)[:EXAMPLE_FRAMES]
        except (OSError, ValueError, IndexError):
            return []
        mean, scale = self.scaler.moments
        numbers: Any = table * scale + mean
        return [[[float(f"{number:.4g}") for number in row] for row in numbers.tolist()]]

    def graph_inputs(self) -> GraphInputs:
        """Return frames before scaling; raises ArgumentError for rows of columns."""
        if self.scaler.columns or self.options.linear:
            rule, fix = (
                "have frames as sources to be exported",
                "use regard predict or regard serve",
            )
            raise ArgumentError("the run", rule, f"{self.scaler.frames} columns", fix)
        return FrameInputs(self.scaler)


def with_frame_input(model: Any, scaler: FrameScaler, options: FrameOptions) -> Any:
    """Let the encoder of a model read frames, with the positions that it has."""
    encoder = cast(Encoder, model.encoder)
    before = encoder.embedding
    assert isinstance(before, TokenEmbedding)
    sizes = scaler.features, encoder.input_size
    parts: dict[str, Any] = {
        "dropout": before.dropout.p,
        "augment": _augmentation(options),
    }
    if options.subsample == "conv1d":
        return with_input(model, TimeConvInput(*sizes, **parts))
    if scaler.columns:
        count, dropout = len(scaler.columns), before.dropout.p
        own = ColumnInput(count, encoder.input_size, stack=scaler.stack, dropout=dropout)
        return with_input(model, own)
    parts["positions"] = before.positions
    adapter: InputAdapter = (
        ConvInput(*sizes, layers=scaler.stack.bit_length() - 1, **parts)
        if options.subsample == "conv"
        else VectorInput(*sizes, stack=scaler.stack, **parts)
    )
    return with_input(model, adapter)


def _augmentation(options: FrameOptions) -> SpecAugment | None:
    if not (options.time_masks or options.band_masks or options.speed):
        return None
    return SpecAugment(
        time_masks=options.time_masks,
        time_width=options.time_mask_width,
        band_masks=options.band_masks,
        band_width=options.band_mask_width,
        speed=options.speed,
    )


def _is_row(value: Any) -> bool:
    """Return whether it is a number, or the numbers of one frame."""
    if isinstance(value, np.ndarray | Tensor):
        return value.ndim < 2
    if isinstance(value, list | tuple):
        return bool(value) and isinstance(value[0], int | float | np.number)
    return isinstance(value, int | float | np.number)
