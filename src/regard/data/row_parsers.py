"""Parsers of rows into pairs. A row that cannot be used raises BadLine."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np
from torch import Tensor

from regard.data.conversations import split_conversation
from regard.data.error_hints import BadLine, ErrorHints, shorten
from regard.data.hub_datasets import TRANSLATION
from regard.data.pairs import Format, Pair
from regard.data.stories import answers_of, join_source
from regard.data.text_files import decode

Parser = Callable[[int, Any], Pair]

FEATURE_SEPARATOR: Final = ";"
TWO_COLUMNS: Final = Format("tsv", exact=True)
#: a number in a cell
NUMBER: Final = re.compile(r"[-+]?([0-9]+([.,][0-9]*)?|[.,][0-9]+)([eE][-+]?[0-9]+)?")


def parse_features(text: str) -> tuple[str, ...]:
    """Split features such as `V;PST;3;SG`."""
    parts = (part.strip() for part in text.split(FEATURE_SEPARATOR))
    return tuple(part for part in parts if part)


def parser_for(shape: Format, max_chars: int, files: tuple[str, str] | None = None) -> Parser:
    """Return the parser of rows of a format.

    Args:
        shape: how the source is read.
        max_chars: the most characters that a side may have.
        files: the names of both files, where there are two.
    """
    if shape.kind == "parallel":
        assert files is not None
        return _parallel(files, max_chars)
    if shape == TWO_COLUMNS:
        return _two_columns(max_chars)
    values = _cell_values if shape.kind in ("tsv", "csv", "xlsx") else _item_values
    in_order = shape.kind in ("parquet", "arrow")
    several = replace(shape, references=True)

    def parse(number: int, row: Any) -> Pair:
        if isinstance(row, Pair) and shape.question is None:
            src = row.src if row.frames is None else row.frames
            return _pair(several, max_chars, number, src, [row.tgt, *row.more], row.features)
        found = row if in_order else values(shape, row)
        if values is _cell_values and len(found) == 2 and not shape.references:  # many rows of text
            src, tgt = check_text("source", found[0], max_chars), found[1]
            return Pair(src, check_text("target", tgt, max_chars), number)
        return _pair(shape, max_chars, number, *found)

    return parse


def check_text(side: str, text: Any, max_chars: int) -> str:
    """Return `text`; raises BadLine unless it can be one side of a pair."""
    if text is None or text == "" or (isinstance(text, str) and text.isspace()):
        raise BadLine(f"empty {side}", f"the {side} side is empty", "fill it in or delete the line")
    if not isinstance(text, str):
        several = isinstance(text, list | tuple)
        reason = f"the {side} must be a string, but it is {shorten(text)}"
        fix = "join it to one text, as in a;b" if several else "convert it to a string"
        raise BadLine("not a string", reason, fix)
    if len(text) > max_chars:
        reason = f"the {side} side has {len(text):,} characters, and the limit is {max_chars:,}"
        raise BadLine("too long", reason, lambda hints: hints.also("shorten it", hints.longer))
    return text


def check_unicode(side: str, text: Any) -> None:
    """Raise BadLine for a string that UTF-8 cannot encode, or that contains NUL."""
    if not isinstance(text, str) or (text.isascii() and "\0" not in text):
        return
    if "\0" in text:
        reason = f"there is a NUL character at position {text.index(chr(0))} of the {side}"
        raise BadLine("NUL byte", reason, "remove it")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        reason = f"character {error.start} of the {side} is half of a surrogate pair"
        raise BadLine("invalid UTF-8", reason, "write the whole character") from None


def _two_columns(max_chars: int) -> Parser:
    """Return the parser of most files, separate because it runs for millions of lines."""

    def parse(number: int, raw: bytes) -> Pair:
        text = decode(raw)
        cells = text.split("\t")
        if len(cells) != 2:
            return _pair(TWO_COLUMNS, max_chars, number, *_cell_values(TWO_COLUMNS, cells))
        src, tgt = check_text("source", cells[0], max_chars), cells[1]
        return Pair(src, check_text("target", tgt, max_chars), number)

    return parse


def row_cells(row: Any) -> list[str]:
    """Return the cells of a line, cut at tabs, or of a row of CSV, of which some may be bad."""
    if isinstance(row, BadLine):
        raise row
    if isinstance(row, bytes):
        return decode(row).split("\t")
    text = "".join(row)
    if not text.isascii() or "\0" in text:
        decode(text.encode("utf-8", "surrogateescape"))
    return list(row)


def _cell_values(shape: Format, row: Any) -> Sequence[Any]:
    """Return source, target and, if there is one, features or question of a row of cells."""
    cells = row_cells(row)
    asked = _check_cells(shape, cells)
    src, tgt, *third = (cells[place] for place in asked)
    if shape.references:
        more = [cell for i, cell in enumerate(cells) if i not in asked and cell.strip()]
        return src, [tgt, *more], *third
    return src, tgt, *third


def _check_cells(shape: Format, cells: Sequence[str]) -> list[int]:
    """Return the places of the cells that are asked for; raises BadLine if a row has others."""
    if not "".join(cells).strip():
        raise BadLine("empty line", "the line is empty", "delete it")
    if len(cells) == 1 and shape.kind == "tsv":
        reason = "there is no tab between source and target"
        raise BadLine("missing tab", reason, lambda advice: f"put one there, or {advice.targets}")
    places = (*shape.columns, shape.features, shape.question)
    asked = [place for place in places if isinstance(place, int)]
    if len(cells) <= max(asked):
        reason = f"the line has {len(cells)} columns, and column {max(asked) + 1} is asked for"
        raise BadLine("too few columns", reason, "add what is missing")
    odd = len(cells) > shape.width or (shape.kind != "tsv" and len(cells) < shape.width)
    if shape.width and odd:
        reason = f"the line has {len(cells)} columns where the first one has {shape.width}"
        fix = "add what is missing, or put quotes around cells with a delimiter in them"
        raise BadLine("other number of columns", reason, fix)
    if shape.exact and len(cells) > len(asked):
        reason = f"the line has {len(cells)} columns where {len(asked)} are expected"
        raise BadLine("too many columns", reason, lambda hints: _fewer(hints, asked, shape))
    return asked


def _fewer(advice: ErrorHints, asked: list[int], shape: Format) -> str:
    chosen, more = f"choose with {advice.columns(asked)}", _taken_as(advice)
    return f"{chosen}, or {more}" if more and shape.features is None else chosen


def _taken_as(advice: ErrorHints) -> str:
    """Return the hint about columns beyond source and target."""
    options = [option for option in (advice.features, advice.references) if option]
    return f"take what follows as {' or '.join(options)}" if options else ""


def _item_values(shape: Format, item: Any) -> Sequence[Any]:
    """Return the same of a line with a JSON object, a dictionary or a tuple."""
    if isinstance(item, bytes) or isinstance(shape.columns[0], str):
        return _record_values(shape, json_object(item))
    if isinstance(item, str) or not isinstance(item, Sequence) or len(item) < 2:
        reason = f"an item must be a tuple (source, target), but it is {shorten(item)}"
        raise BadLine("not a pair", reason, "pass two strings for each example")
    if shape.references:
        return item[0], list(item[1:])
    if len(item) > 2 and shape.features is None:
        reason = f"the item has {len(item)} parts where 2 are expected"
        fix = "leave the others out"
        raise BadLine("too many columns", reason, lambda advice: _taken_as(advice) or fix)
    return item[:3]


def _record_values(shape: Format, record: Mapping[str, Any]) -> Sequence[Any]:
    asked = [str(c) for c in (*shape.columns, shape.question) if c is not None]
    if missing := [name for name in asked if name not in record]:
        known = ", ".join(map(repr, record)) or "none"
        reason = f"there is no key {missing[0]!r} among {known}"
        raise BadLine("missing key", reason, lambda advice: advice.choose("add it", list(record)))
    if asked[0] == asked[1]:
        return split_conversation(record[asked[0]])
    values = [record[name] for name in asked]
    return values if shape.features is None else [*values, record.get(str(shape.features), ())]


def json_object(row: Any) -> Mapping[str, Any]:
    """Return the object of a line of JSON, or a row that is one already."""
    if isinstance(row, bytes):
        return json_record(decode(row))
    if isinstance(row, Mapping):
        return row
    reason = f"an item must be a dictionary as the first one is, but it is {shorten(row)}"
    raise BadLine("not a pair", reason, "write all of them in one way")


def json_record(text: str) -> dict[str, Any]:
    """Parse a line with one JSON object."""
    if not text.strip():
        raise BadLine("empty line", "the line is empty", "delete it")
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        where = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        reason = f"invalid JSON{where}"
        raise BadLine("invalid JSON", reason, "write one whole object on each line") from None
    if not isinstance(record, dict):
        reason = f"the line must hold an object with two keys, but it is {shorten(record)}"
        raise BadLine("invalid JSON", reason, 'write {"src": ..., "tgt": ...} on each line')
    return plain_record(record)


def plain_record(record: dict[str, Any]) -> dict[str, Any]:
    """Return an object, or the texts by language that it holds under `translation`."""
    inner = record.get(TRANSLATION)
    return inner if isinstance(inner, dict) else record


def _pair(shape: Format, max_chars: int, number: int, src: Any, tgt: Any, third: Any = ()) -> Pair:
    """Return a pair of values of any type; with references, the target may be a list of strings.

    The third value is the question, where the source is a story, or else features. Numbers of a
    source are checked by `FrameReader`.
    """
    references = shape.references
    if shape.question is not None:
        for name, value in (("story", src), ("question", third)):
            for text in value if isinstance(value, list | tuple) else [value]:
                check_unicode(name, text)
        src, tgt, third, references = join_source(src, third), answers_of(tgt), (), True
    targets = list(tgt) if references and isinstance(tgt, list | tuple) and tgt else [tgt]
    targets = list(map(_written, targets))
    frames = src if isinstance(src, list | tuple | np.ndarray | Tensor | Mapping) else None
    texts = [] if frames is not None else [("source", src)]
    for side, text in (*texts, *(("target", text) for text in targets)):
        check_unicode(side, text)
        check_text(side, text, max_chars)
    more = tuple(targets[1:])
    return Pair("" if texts == [] else src, targets[0], number, more, _features(third), frames)


def _written(target: Any) -> Any:
    """Return a label, labels or a number as JSON, None for NaN, and anything else as it is."""
    value = target.item() if isinstance(target, np.generic) else target
    if isinstance(value, np.ndarray | list | tuple) and all(isinstance(one, str) for one in value):
        return json.dumps(list(value), ensure_ascii=False)
    if isinstance(value, float) and math.isnan(value):
        return None
    return json.dumps(value) if isinstance(value, bool | int | float) else value


def _features(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        check_unicode("features", value)
        return parse_features(value)
    if value is None:
        return ()
    if isinstance(value, list | tuple) and all(isinstance(part, str) for part in value):
        # what a model is asked has them in one text: a list must give the same symbols
        return tuple(name for part in value for name in _features(part))
    reason = f"features must be a string or a list of strings, but they are {shorten(value)}"
    raise BadLine("not a string", reason, "write them as V;PST;3;SG")


def _parallel(files: tuple[str, str], max_chars: int) -> Parser:
    """Return the parser of rows of two raw lines; errors name the file of their side."""

    def parse(number: int, row: tuple[bytes, bytes]) -> Pair:
        sides = []
        for side, raw, file in zip(("source", "target"), row, files, strict=True):
            try:
                sides.append(check_text(side, decode(raw), max_chars))
            except BadLine as bad:
                bad.file = file
                raise
        return Pair(sides[0], sides[1], number)

    return parse
