"""Models that read frames: settings, augmentation, subsampling in time and CTC.

Tables of numbers and recordings have these in common.
"""

from typing import Any, Final, Literal, cast

from pydantic import Field

from regard.data import FrameScaler
from regard.errors import ArgumentError
from regard.kinds.data_kind import KindOptions, Settings
from regard.layers import SpecAugment
from regard.models import (
    PRESETS,
    ConvInput,
    EncoderDecoder,
    InputAdapter,
    JointDecoder,
    SequenceModel,
    VectorInput,
    with_input,
)
from regard.models.embedding import TokenEmbedding
from regard.models.encoders import Encoder


class FrameOptions(KindOptions):
    """Settings of models that read frames."""

    subsample: Literal["stack", "conv"] = Field(
        default="stack",
        description="how `stack` frames become one: side by side, or by convolutions of stride 2 "
        "over time and bands",
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
    warp: float = Field(
        default=0.0,
        description="share by which bands are stretched or squeezed at most, in training, as other "
        "voices would",
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


DEFAULTS: Final = FrameOptions()


def check_frame_options(settings: Settings, options: FrameOptions) -> None:
    """Raise ArgumentError for settings that do not fit each other."""
    power = settings.stack & (settings.stack - 1) == 0 and settings.stack > 1
    if options.subsample == "conv" and not power:
        raise ArgumentError(
            "stack",
            "be 2, 4 or another power of 2 with subsample=conv, since each convolution halves time",
            settings.stack,
            "say stack=4",
        )
    if options.ctc_search and not options.ctc:
        raise ArgumentError(
            "ctc_search",
            "be 0 unless CTC is trained",
            f"{options.ctc_search:g} with ctc=0",
            "add ctc=0.3",
        )


def build_frame_model(
    settings: Settings, options: FrameOptions, scaler: FrameScaler, tgt_vocab: int
) -> SequenceModel:
    """Build the preset, whose encoder reads frames, with CTC if the options ask for it."""
    # the embedding of a source vocabulary is replaced
    model = PRESETS[settings.preset](1, tgt_vocab, settings.model_size, **settings.model)
    model = with_frame_input(model, scaler, options)
    if not options.ctc:
        return model
    if not isinstance(model, EncoderDecoder):
        raise ArgumentError(
            "ctc",
            "be 0 for a preset that writes no sequence",
            f"{options.ctc:g} with {settings.preset}",
            "leave it out",
        )
    decoder = JointDecoder(
        model.decoder,
        memory_size=model.encoder.output_size,
        weight=options.ctc,
        search_weight=options.ctc_search,
    )
    return EncoderDecoder(model.encoder, decoder)


def with_frame_input(
    model: SequenceModel, scaler: FrameScaler, options: FrameOptions = DEFAULTS
) -> SequenceModel:
    """Let the encoder of a model read frames, with the positions that it has."""
    encoder = cast(Encoder, model.encoder)
    before = encoder.embedding
    assert isinstance(before, TokenEmbedding)
    sizes = scaler.features, encoder.input_size
    parts: dict[str, Any] = {
        "positions": before.positions,
        "dropout": before.dropout.p,
        "augment": _augmentation(options),
    }
    adapter: InputAdapter = (
        ConvInput(*sizes, layers=scaler.stack.bit_length() - 1, **parts)
        if options.subsample == "conv"
        else VectorInput(*sizes, stack=scaler.stack, **parts)
    )
    return with_input(model, adapter)


def _augmentation(options: FrameOptions) -> SpecAugment | None:
    if not (options.time_masks or options.band_masks or options.speed or options.warp):
        return None
    return SpecAugment(
        time_masks=options.time_masks,
        time_width=options.time_mask_width,
        band_masks=options.band_masks,
        band_width=options.band_mask_width,
        speed=options.speed,
        warp=options.warp,
    )
