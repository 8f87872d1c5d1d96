"""Reads pairs for a model that has learned from such pairs, or texts for one of texts."""

import itertools
import shlex
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from rich.console import Console

from regard import api
from regard.api.read_pairs import pairs_of, read_for
from regard.cli.features import tell_of_features
from regard.data import (
    BadLines,
    FrameScaler,
    Pair,
    PairReader,
    join_lines,
    read_frame_sources,
    read_lines,
    read_texts,
)
from regard.data.error_hints import ErrorHints, with_commas
from regard.data.pairs import column_names
from regard.data.text_files import display_name
from regard.errors import ArgumentError, DataError

#: the options of the verbs that read pairs for a run
OPTIONS: Final = ErrorHints(
    tgt="TGT",
    targets="name the second of two parallel files after it",
    columns=lambda columns: f"--columns {shlex.quote(with_commas(columns))}",
    skip="--skip-bad",
)


def pairs_for(
    model: api.Model,
    file: str,
    tgt: str | None,
    *,
    columns: str | None = None,
    skip_bad: bool = False,
    on_bad: Callable[[DataError], None] | None = None,
    forced: bool = False,
) -> list[Pair]:
    """The pairs of a file that is laid out like the one that the model has learned from.

    Args:
        model: says how its own file was laid out, and whether it knows features.
        file: one file with both sides, or the sources.
        tgt: the targets, if they are another file.
        columns: comma-separated names or numbers; those of the run if None.
        skip_bad: whether bad lines are counted and left out.
        on_bad: called with the error of each line that is left out.
        forced: whether the model is made to write the targets.
    """
    words = [word.strip() for word in columns.split(",")] if columns else None
    reader = read_for(
        model,
        file,
        tgt,
        columns=column_names(words),
        skip_bad=skip_bad,
        on_bad=on_bad,
        advice=OPTIONS,
        forced=forced,
    )
    pairs = pairs_of(model, reader)
    _tell(reader)
    bare = next((pair.src for pair in pairs if not pair.features), None)
    if bare is not None:
        tell_of_features(model, bare)
    return pairs


def texts_for(model: api.Model, file: str, *, skip_bad: bool = False) -> list[str]:
    """The texts of a file, lines joined as those that the model has learned from."""
    limit = model.config.max_chars
    reader = read_texts(file, skip_bad=skip_bad, max_chars=limit, advice=OPTIONS)
    texts = [pair.tgt for pair in join_lines(reader, model.config.join_lines)]
    _tell(reader)
    return texts


def _tell(reader: PairReader) -> None:
    for said in (reader.note, str(reader.bad) if reader.bad.total else ""):
        if said:
            Console(stderr=True).print(said, highlight=False, markup=False, soft_wrap=True)


def source_lines(model: api.Model, file: str) -> Iterator[Any]:
    """The lines of a file, checked as sources of a model; or its tables of vectors."""
    if isinstance(model.source, FrameScaler):
        features, bad = model.source.features, BadLines(advice=OPTIONS._replace(skip=""))
        return read_frame_sources(file, features=features, bad=bad, name=source_name(model))
    return _checked(model, file, read_lines(file, max_chars=model.config.max_chars, advice=OPTIONS))


def _checked(model: api.Model, file: str, lines: Iterable[str]) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        try:
            model.check_source(line)
        except DataError as error:
            fix, kind = error.fix, error.kind
            raise DataError(display_name(file), number, error.reason, fix, kind=kind) from None
        yield line


def one_source(model: api.Model, text: str) -> Any:
    """The text itself; of a run that reads vectors, the only table of the file that it names."""
    if not isinstance(model.source, FrameScaler):
        model.check_source(text)
        return text
    found = list(itertools.islice(source_lines(model, text), 2))
    if len(found) != 1:
        many = f"{display_name(text)}, which has {'several' if found else 'none'}"
        raise ArgumentError("TEXT", "be a file of one source", many, "write it as a .npy file")
    return found[0]


def source_name(model: api.Model) -> str | None:
    """What the run's data call a source, where that was chosen."""
    columns = column_names(model.config.columns) or (None,)
    return columns[0] if isinstance(columns[0], str) else None
