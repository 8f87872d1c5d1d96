"""A model that reads vectors or images, made of one that reads tokens."""

from typing import TypeVar

from regard.errors import ArgumentError
from regard.models.adapters import InputAdapter
from regard.models.encoder_decoder import EncoderDecoder
from regard.models.encoders import Encoder
from regard.models.heads import Classifier, Tagger
from regard.models.pointer import PointerDecoder
from regard.models.protocol import SequenceModel

ModelT = TypeVar("ModelT", bound=SequenceModel | Classifier)


def with_input(model: ModelT, adapter: InputAdapter) -> ModelT:
    """The model itself, whose encoder now reads with the adapter in place of its embedding.

    Args:
        model: an encoder-decoder, a tagger or a classifier, such as a preset makes. How many source
            tokens it was made for does not matter.
        adapter: `VectorInput` or `PatchInput`, as wide as the embedding that it replaces; with
            positions where that had some.
    """
    _check_adapter(adapter)
    encoder = _encoder(model)
    if adapter.dim != encoder.input_size:
        raise ArgumentError(
            "adapter.dim",
            f"be {encoder.input_size}, the width that the encoder reads",
            adapter.dim,
            "change it, or make the model with another embed or dim",
        )
    if getattr(encoder.embedding, "positions", None) is not None and adapter.positions is None:
        raise ArgumentError(
            "adapter.positions",
            "be given, since this encoder gets its order from them",
            None,
            f"pass positions=SinusoidalPositions({adapter.dim}) to {type(adapter).__name__}",
        )
    encoder.embedding = adapter
    return model


def _check_adapter(adapter: object) -> None:
    if not isinstance(adapter, InputAdapter):
        raise ArgumentError(
            "adapter",
            "be an InputAdapter, such as VectorInput(...) or PatchInput(...)",
            f"a {type(adapter).__name__}",
            "make one, or inherit InputAdapter",
        )


def _encoder(model: SequenceModel | Classifier) -> Encoder:
    if not isinstance(model, EncoderDecoder | Tagger | Classifier):
        raise ArgumentError(
            "model",
            "have an encoder that reads a source",
            f"of the class {type(model).__name__}",
            "choose a preset such as bahdanau",
        )
    if isinstance(model, EncoderDecoder) and isinstance(model.decoder, PointerDecoder):
        raise ArgumentError(
            "model",
            "not copy tokens of its source, since an adapter reads none",
            "one with a PointerDecoder",
            "choose the preset bahdanau, which is the same without copying",
        )
    return model.encoder
