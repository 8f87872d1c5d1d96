"""Reading of examples as the settings of a run lay them out."""

from collections.abc import Mapping

from regard.data import PairReader, read_pairs, read_texts
from regard.data.pair_reader import SourceTransform
from regard.data.pairs import column_names, run_columns
from regard.tasks.settings import DataPlace, Settings


def read_pair_files(settings: Settings, place: DataPlace, sources: SourceTransform) -> PairReader:
    """Read pairs, whose sources are parsed by a function."""
    source = place.source
    # beside tuples, columns are meant for the file of dev pairs
    tuples = not isinstance(source, str) and not isinstance(next(iter(source), ()), Mapping)
    columns = None if tuples and settings.dev is not None else settings.columns
    if source == settings.dev:
        columns = run_columns(columns)
    return read_pairs(
        source,
        tgt_file=place.tgt_file,
        columns=column_names(columns),
        features=bool(settings.features),
        skip_bad=settings.skip_bad,
        max_chars=settings.max_chars,
        advice=place.hints,
        sources=sources,
    )


def read_plain_texts(settings: Settings, place: DataPlace) -> PairReader:
    """Read one text per line; in Python, a text may stand alone in a tuple."""
    source = place.source
    texts = source
    if not isinstance(source, str):  # reading complains of what is no text
        texts = (one[0] if isinstance(one, tuple) and len(one) == 1 else one for one in source)
    return read_texts(
        texts, skip_bad=settings.skip_bad, max_chars=settings.max_chars, advice=place.hints
    )
