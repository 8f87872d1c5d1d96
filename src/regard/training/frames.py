"""Runs whose sources are vectors: which settings they have, and the model that reads them."""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Final

from regard.data import FrameScaler, Pair
from regard.data.frame_tables import FrameArray, are_tables
from regard.errors import ArgumentError, DataError
from regard.models import EncoderDecoder, SequenceModel, VectorInput, with_input
from regard.models.embedding import TokenEmbedding
from regard.training.config import Config

#: sources that are looked at to tell vectors from text
LOOKED_AT: Final = 100
#: settings that are for text, with what they are then, and what else to do
TEXT_ONLY: Final = {
    "features": "join them to the frames as numbers",
    "src_case": "leave it out",
    "shared_vocab": "leave it out",
    "src_vectors": "leave it out; the frames are vectors already",
    "bpe_dropout": "leave it out",
}


def why_vectors(config: Config, given: Callable[[], Iterator[Pair]]) -> str:
    """Why sources are read as vectors; empty if they are read as text.

    Args:
        config: may have settled it.
        given: reads the pairs with their sources as they are.
    """
    if config.src_tokenizer == "vectors":
        return "it was asked for"
    if config.src_tokenizer != "auto" or config.reads_texts:
        return ""
    return are_tables(list(islice(given(), LOOKED_AT)))


def check_frames(config: Config) -> None:
    """Raises where a setting has no meaning for sources that are vectors."""
    if config.copies or config.tags or config.reads_texts:
        does = "writes a token for each it reads"
        if config.copies:
            does = "copies tokens of the source"
        elif config.reads_texts:
            does = "reads texts alone"
        raise ArgumentError(
            "preset",
            "be one that reads vectors",
            f"{config.preset}, which {does}",
            "choose bahdanau or another one, or a src_tokenizer for text",
        )
    if config.model.get("tied") == "all":
        raise ArgumentError(
            "tied", "not be 'all' where sources are vectors", "'all'", "say tied=output"
        )
    for name, fix in TEXT_ONLY.items():
        value = getattr(config, name)
        if value and value != Config.model_fields[name].default:
            raise ArgumentError(name, "be left out where sources are vectors", repr(value), fix)


def check_no_frames(config: Config) -> None:
    """Raises where a setting has no meaning for sources that are text."""
    for name in ("stack", "scale_vectors"):
        value, default = getattr(config, name), Config.model_fields[name].default
        if value != default:
            raise ArgumentError(
                name,
                "be left out where sources are text",
                repr(value),
                "add src_tokenizer=vectors if they are vectors",
            )


def measured(config: Config, pairs: Iterable[Pair], name: str) -> FrameScaler:
    """What is known of the sources of training pairs, which are read once.

    Args:
        config: the settings.
        pairs: with tables for sources.
        name: what messages call the file they come from.
    """
    tables = (_table(pair, name) for pair in pairs)
    return FrameScaler.measure(tables, stack=config.stack, scaled=config.scale_vectors)


def _table(pair: Pair, name: str) -> FrameArray:
    if pair.features:
        raise DataError(
            name,
            pair.line,
            f"the source is vectors, which no features join, but it has {pair.features[0]!r}",
            "join them to the frames as numbers, or leave them out with features=False",
        )
    table: FrameArray = pair.frames
    return table


def reading_frames(model: SequenceModel, frames: FrameScaler) -> SequenceModel:
    """The model itself, whose encoder now reads vectors, with the positions that it had."""
    assert isinstance(model, EncoderDecoder)
    encoder = model.encoder
    before = encoder.embedding
    assert isinstance(before, TokenEmbedding)
    adapter = VectorInput(
        frames.features,
        encoder.input_size,
        positions=before.positions,
        dropout=before.dropout.p,
        stack=frames.stack,
    )
    return with_input(model, adapter)
