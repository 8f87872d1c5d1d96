"""Choice of the source and the target among the columns of a table: by names, or by content."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

from regard.data.row_parsers import NUMBER
from regard.data.stories import question_columns

Cells = Sequence[str]

KEYS: Final = (("src", "tgt"), ("source", "target"), ("input", "output"))
#: names of columns in public datasets, in lower case; one source and one target are recognised
SOURCE_NAMES: Final = """
    src source input text sentence review tweet comment content message utterance question query
    prompt instruction article document word image picture file filename file_name path audio
"""
TARGET_NAMES: Final = """
    tgt target output label labels class category sentiment intent emotion topic answer summary
    headline translation transcript transcription completion response pronunciation phonemes tags
    score rating stars
"""
LANGUAGES: Final = """
    en de fr es it pt nl ru zh ja ko ar hi tr pl cs sv da fi el he vi th id uk ro hu english german
    french spanish italian portuguese dutch russian chinese japanese korean arabic
"""
#: rows besides the first, from which on targets that come again make a first one that does not odd
ENOUGH_ROWS: Final = 6
#: characters of a name at most
LONGEST_NAME: Final = 40
#: names of columns that number or name the rows
ID_NAMES: Final = ("", "id", "idx", "index", "no", "nr", "row", "uuid", "guid", "key", "unnamed: 0")
UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0-9a-f]{24,64}")
DATE: Final = re.compile(
    r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})([ T].{4,})?", re.ASCII
)
#: labels at most, where the first of two columns is the target
FEW_LABELS: Final = 10
#: characters of a label at most, and rows of each on average at least
LONGEST_LABEL: Final = 60
ROWS_OF_LABEL: Final = 3
#: the source is this many times as long as any other text
LONGER: Final = 2.0


def choose_columns(names: Sequence[str]) -> tuple[str, str] | None:
    """Return the names of source and target if they are known ones, and one of each."""
    lower = {name.strip().lower(): name for name in reversed(names)}
    for src, tgt in KEYS:
        if src in lower and tgt in lower:
            return lower[src], lower[tgt]
    sources, targets = (
        [lower[n] for n in lower if n in known]
        for known in (SOURCE_NAMES.split(), TARGET_NAMES.split())
    )
    return (sources[0], targets[0]) if len(sources) == len(targets) == 1 else None


def has_header(rows: Sequence[Cells], *, sources: bool = False) -> bool:
    """Return whether the first row names the columns.

    That it does is likely, too, if its target comes nowhere else, and those of other rows again: to
    read an example as names loses one, and to read names as an example adds a wrong label.

    Args:
        rows: the first ones.
        sources: whether there may be sources alone, so that the name of one is enough.
    """
    first = [cell.strip().lower() for cell in rows[0]] if rows else []
    others = [row for row in rows[1:] if len(row) == len(first)]
    again = any(
        cell and cell == row[i].strip().lower() for row in others for i, cell in enumerate(first)
    )
    if len({*first}) < len(first) or again:
        return False
    if sources and {*first} & {*SOURCE_NAMES.split()}:
        return True
    if len(first) < 2:
        return False
    languages = len(first) == 2 and {*first} <= {*LANGUAGES.split()}
    if choose_columns(first) or question_columns(first) or languages:
        return True
    named = all(any(map(str.isalpha, cell)) and len(cell) <= LONGEST_NAME for cell in first if cell)
    for i, cell in enumerate(first):
        below = [row[i].strip() for row in others if row[i].strip()]
        numbers = len(below) > 2 and all(map(NUMBER.fullmatch, below))
        if numbers and named and cell not in ("", "na", "nan", "null", "none"):
            return True
    places = range(len(first)) if named and len(first) > 2 else [-1]
    comes_again = (min(Counter(row[i] for row in others).values(), default=0) > 1 for i in places)
    return len(others) >= ENOUGH_ROWS and any(comes_again)


def example_columns(names: Sequence[str]) -> list[str]:
    """Return two of the names for an example: those that are known, or else the first and last."""
    names = [name for name in names if name.strip().lower() not in ("", "id", "idx")] or names
    src = next((name for name in names if name.strip().lower() in SOURCE_NAMES.split()), names[0])
    others = [name for name in names if name != src]
    tgt = [name for name in others if name.strip().lower() in TARGET_NAMES.split()] or others
    return [src, *tgt[-1:]]


def choose_by_content(names: Cells | None, rows: Sequence[Cells]) -> tuple[int, int] | None:
    """Return the places of source and target by what columns hold, or None if it is not clear.

    Ids, dates and columns of one value are left out. Of two columns that remain, labels or numbers
    are the target, or else the second is. Of more, the source is the longest text by far, or the
    only one of a known name, and the target the only column of labels or numbers.

    Args:
        names: of the columns, if they have any.
        rows: the first ones.
    """
    width = len(names if names is not None else rows[0] if rows else ())
    full = [row for row in rows if len(row) == width]
    if len(full) < ENOUGH_ROWS:
        return None
    lower = [name.strip().lower() for name in names] if names is not None else [" "] * width
    columns = [[row[i].strip() for row in full if row[i].strip()] for i in range(width)]
    held = [_content(*column) for column in zip(lower, columns, strict=True)]
    if columns[-1] and held[-1] == "nothing" and not {"labels", "numbers"} & {*held}:
        held[-1] = "labels"  # rows may be sorted by them
    kept = [i for i in range(width) if held[i] not in ("ids", "dates", "nothing")]
    texts = [i for i in kept if held[i] == "texts"]
    if not texts or len(kept) < 2 or (width == 2 and not _labels_first(full)):
        return None
    if len(kept) == 2:
        return (kept[0], kept[1]) if held[kept[0]] == "texts" else (kept[1], kept[0])
    sizes = {i: sum(map(len, columns[i])) / len(columns[i]) for i in texts}
    by_size = sorted(texts, key=lambda i: -sizes[i])
    known = [i for i in texts if lower[i] in SOURCE_NAMES.split()]
    if len(known) == 1:
        source = known[0]
    elif len(texts) == 1 or sizes[by_size[0]] >= LONGER * sizes[by_size[1]]:
        source = by_size[0]
    else:
        return None
    targets = [i for i in kept if held[i] != "texts" and i != source]
    named = [i for i in kept if lower[i] in TARGET_NAMES.split() and i != source]
    targets = named if len(named) == 1 else targets
    clear = len(targets) == 1 and len({*columns[targets[0]]}) > 1
    return (source, targets[0]) if clear else None


def _labels_first(rows: Sequence[Cells]) -> bool:
    """Return whether the first of two columns has few labels of the texts in the second."""
    if len(rows) < 2 * FEW_LABELS:
        return False
    labels, texts = ({*column} for column in zip(*rows, strict=True))
    short = 3 * sum(map(len, labels)) / len(labels) < sum(map(len, texts)) / len(texts)
    return len(labels) <= FEW_LABELS and len(texts) >= 0.9 * len(rows) and short


def _content(name: str, cells: Cells) -> str:
    """Return what a column holds: "ids", "dates", "labels", "numbers", "texts" or "nothing"."""
    distinct = len({*cells})
    is_target = name in TARGET_NAMES.split()
    if not distinct or (distinct == 1 and len(cells) >= ENOUGH_ROWS and not is_target):
        return "nothing"
    named = name in ID_NAMES or all(map(UUID.fullmatch, cells))
    if distinct == len(cells) and not is_target and (named or all(map(str.isdecimal, cells))):
        return "ids"
    if all(map(DATE.fullmatch, cells)):
        return "dates"
    if distinct * ROWS_OF_LABEL <= len(cells) and max(map(len, cells)) <= LONGEST_LABEL:
        return "labels"
    return "numbers" if all(map(NUMBER.fullmatch, cells)) else "texts"
