"""Reads pairs for a model, laid out as those that it has learned from."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final

from regard.api.model import Model
from regard.api.request import check_pairs
from regard.data import (
    FrameReader,
    FrameScaler,
    Pair,
    PairReader,
    SourceEncoder,
    base_folder,
    read_pairs,
    require_text,
)
from regard.data.error_hints import PYTHON_HINTS, BadLine, ErrorHints
from regard.data.pair_reader import SourceTransform
from regard.data.pairs import column_names
from regard.data.text_files import is_pipe
from regard.errors import DataError
from regard.kinds.text_source import Source

#: the arguments of `Model.evaluate` and `Model.align`
ARGUMENTS: Final = PYTHON_HINTS._replace(features="", references="", longer="")


def read_for(
    model: Model,
    source: str | os.PathLike[str] | Iterable[Any],
    tgt_file: str | os.PathLike[str] | None = None,
    *,
    columns: Sequence[int | str] | None = None,
    skip_bad: bool = False,
    on_bad: Callable[[DataError], None] | None = None,
    advice: ErrorHints = ARGUMENTS,
    forced: bool = False,
) -> PairReader:
    """Pairs for a model; what follows source and target is features if it knows some, else further
    accepted targets.

    Args:
        model: says how its own data were laid out.
        source: a file with both sides, or the sources; or pairs, as for `regard.fit`.
        tgt_file: the targets, if they are another file.
        columns: names or numbers; those of the run if None.
        skip_bad: whether bad lines are counted and left out.
        on_bad: called with the error of each line that is left out.
        advice: how errors write these options.
        forced: whether the model is made to write the targets, so that these must fit it, too.
    """
    check_pairs(source)
    is_file = isinstance(source, str | os.PathLike)
    if not is_file:
        source, columns = _peeked(model, source, columns)
    elif columns is None and tgt_file is None:
        columns = column_names(model.config.columns)
    layout = tgt_file is None and columns is None
    features = bool(model.features)
    return read_pairs(
        source,
        tgt_file=tgt_file,
        columns=columns,
        features=layout and features,
        references=layout and not features and not (is_file and _is_tagged(source, advice)),
        skip_bad=skip_bad,
        on_bad=on_bad,
        max_chars=model.config.max_chars,
        advice=advice,
        sources=_fitting(model, _sources(model.source, source), forced),
    )


def _sources(side: SourceEncoder, place: Any) -> SourceTransform:
    """What becomes of sources that are read from a place."""
    return (
        FrameReader(base_folder(place), side.features)
        if isinstance(side, FrameScaler)
        else require_text
    )


def source_of(pair: Pair) -> Any:
    """The source of a pair as a model is asked it, with its features beside it."""
    return Source(pair.src, pair.features) if pair.frames is None else pair.frames


def _fitting(model: Model, sources: SourceTransform, forced: bool) -> SourceTransform:
    """The same, where a model has learned so many positions that a pair may not fit."""
    if model.module.src_positions is None and model.module.tgt_positions is None:
        return sources

    def fit(pair: Pair) -> Pair:
        pair = sources(pair)
        try:
            model.check_fit(source_of(_known(model, pair)))
            if forced:
                model.check_target(pair.tgt)
        except DataError as error:
            raise BadLine(error.kind, error.reason, error.fix) from None
        return pair

    return fit


def _known(model: Model, pair: Pair) -> Pair:
    """The pair without features that the model does not know."""
    return pair if model.features else pair._replace(features=())


def pairs_of(model: Model, reader: PairReader) -> list[Pair]:
    """All pairs of a reader, without features that the model does not know."""
    return [_known(model, pair) for pair in reader]


def _peeked(
    model: Model, pairs: Any, columns: Sequence[int | str] | None
) -> tuple[Any, Sequence[int | str] | None]:
    """The pairs again, and the columns of dictionaries, which may have the names of the run's."""
    rest = iter(pairs)
    first = list(islice(rest, 1))
    own = column_names(model.config.columns)
    if columns is None and own is not None and first and isinstance(first[0], Mapping):
        columns = own if all(name in first[0] for name in own) else None
    return chain(first, rest), columns


def _is_tagged(file: Any, advice: ErrorHints) -> bool:
    """Whether a third column looks like features rather than like a further target."""
    return not is_pipe(file) and read_pairs(file, advice=advice).format.features is not None
