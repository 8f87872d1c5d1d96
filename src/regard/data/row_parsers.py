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
        return _Parallel(files, max_chars)
    if shape.question is not None:
        known: dict[str, Callable[[Format, Any], list[Any]]]
        known = {"jsonl": _json_values, **dict.fromkeys(("tsv", "csv", "xlsx"), _tsv_values)}
        values = known.get(shape.kind, _row_values)
        return lambda number, row: _question_pair(number, max_chars, *values(shape, row))
    if shape == TWO_COLUMNS:
        return _two_columns(max_chars)
    parse = {
        "tsv": _parse_tsv,
        "csv": _parse_tsv,
        "xlsx": _parse_tsv,
        "jsonl": _parse_json,
        "parquet": _parse_values,
        "arrow": _parse_values,
        "pairs": _parse_item,
    }[shape.kind]
    return lambda number, row: parse(shape, max_chars, number, row)


def _question_pair(number: int, max_chars: int, story: Any, question: Any, answer: Any) -> Pair:
    """Return the pair of a story with its question, and the answers."""
    for name, value in (("story", story), ("question", question)):
        for text in value if isinstance(value, list | tuple) else [value]:
            check_unicode(name, text)
    source = join_source(story, question)
    return _from_values(number, max_chars, source, answers_of(answer), (), True)


def _tsv_values(shape: Format, row: Any) -> list[Any]:
    """Return story, question and answer of a row of a tab-separated or CSV file."""
    cells = row_cells(row)
    places = [c for c in (shape.columns[0], shape.question, shape.columns[1]) if isinstance(c, int)]
    _check_cells(replace(shape, features=shape.question), cells)
    return [cells[place] for place in places]


def _json_values(shape: Format, raw: bytes) -> list[Any]:
    """Return story, question and answer of a line with a JSON object."""
    return _named_values(shape, json_record(decode(raw)))


def _row_values(shape: Format, row: Any) -> list[Any]:
    """Return story, question and answer of a row of Parquet, or of an item from Python."""
    if shape.kind == "pairs":
        return _named_values(shape, _record(row))
    story, answer, question = row
    return [story, question, answer]


def _named_values(shape: Format, record: Mapping[str, Any]) -> list[Any]:
    names = [str(c) for c in (shape.columns[0], shape.question, shape.columns[1])]
    _check_names(record, names)
    return [record[name] for name in names]


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
        raise BadLine("too long", reason, lambda advice: advice.shorter("shorten it"))
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
        raise BadLine(
            "invalid UTF-8",
            f"character {error.start} of the {side} is half of a surrogate pair",
            "write the whole character",
        ) from None


def _two_columns(max_chars: int) -> Parser:
    """Return the parser of most files, separate because it runs for millions of lines."""

    def parse(number: int, raw: bytes) -> Pair:
        text = decode(raw)
        cells = text.split("\t")
        if len(cells) != 2:
            return _parse_cells(TWO_COLUMNS, max_chars, number, cells)
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


def _parse_tsv(shape: Format, max_chars: int, number: int, row: Any) -> Pair:
    return _parse_cells(shape, max_chars, number, row_cells(row))


def _parse_cells(shape: Format, max_chars: int, number: int, cells: Sequence[str]) -> Pair:
    _check_cells(shape, cells)
    asked = [column for column in (*shape.columns, shape.features) if isinstance(column, int)]
    src, tgt, *features = (cells[column] for column in asked)
    more: list[str] = []
    if shape.references:
        more = [cell for i, cell in enumerate(cells) if i not in asked and cell.strip()]
    return Pair(
        check_text("source", src, max_chars),
        check_text("target", tgt, max_chars),
        number,
        tuple(check_text("target", cell, max_chars) for cell in more),
        parse_features(features[0]) if features else (),
    )


def _check_cells(shape: Format, cells: Sequence[str]) -> None:
    if not "".join(cells).strip():
        raise BadLine("empty line", "the line is empty", "delete it")
    if len(cells) == 1 and shape.kind == "tsv":
        reason = "there is no tab between source and target"
        raise BadLine("missing tab", reason, lambda advice: f"put one there, or {advice.targets}")
    asked = [c for c in (*shape.columns, shape.features) if isinstance(c, int)]
    if len(cells) <= max(asked):
        reason = f"the line has {len(cells)} columns, and column {max(asked) + 1} is asked for"
        raise BadLine("too few columns", reason, "add what is missing")
    odd = len(cells) > shape.width or (shape.kind != "tsv" and len(cells) < shape.width)
    if shape.width and odd:
        reason = f"the line has {len(cells)} columns where the first one has {shape.width}"
        fix = "add what is missing, or put quotes around cells with a delimiter in them"
        raise BadLine("other number of columns", reason, fix)
    if shape.exact and len(cells) > len(asked):
        raise BadLine(
            "too many columns",
            f"the line has {len(cells)} columns where {len(asked)} are expected",
            lambda advice: _fewer_columns(advice, asked, shape),
        )


def _fewer_columns(advice: ErrorHints, asked: list[int], shape: Format) -> str:
    chosen, more = f"choose with {advice.columns(asked)}", _taken_as(advice)
    return f"{chosen}, or {more}" if more and shape.features is None else chosen


def _taken_as(advice: ErrorHints) -> str:
    """Return the hint about columns beyond source and target."""
    options = [option for option in (advice.features, advice.references) if option]
    return f"take what follows as {' or '.join(options)}" if options else ""


def _parse_json(shape: Format, max_chars: int, number: int, raw: bytes) -> Pair:
    return _from_record(shape, max_chars, number, json_record(decode(raw)))


def _from_record(shape: Format, max_chars: int, number: int, record: Mapping[str, Any]) -> Pair:
    """Return the pair under the names of the columns."""
    names = [str(column) for column in shape.columns]
    _check_names(record, names)
    if names[0] == names[1]:
        return _from_values(number, max_chars, *split_conversation(record[names[0]]), (), False)
    features = () if shape.features is None else record.get(str(shape.features), ())
    return _from_values(
        number, max_chars, record[names[0]], record[names[1]], features, shape.references
    )


def _check_names(record: Mapping[str, Any], names: Sequence[str]) -> None:
    missing = [name for name in names if name not in record]
    if missing:
        reason = f"there is no key {missing[0]!r} among {_listed(record)}"
        raise BadLine("missing key", reason, lambda advice: advice.choose("add it", list(record)))


def json_record(text: str) -> dict[str, Any]:
    """Parse a line with one JSON object."""
    if not text.strip():
        raise BadLine("empty line", "the line is empty", "delete it")
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        where = f" at character {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise BadLine(
            "invalid JSON", f"invalid JSON{where}", "write one whole object on each line"
        ) from None
    if not isinstance(record, dict):
        reason = f"the line must hold an object with two keys, but it is {shorten(record)}"
        raise BadLine("invalid JSON", reason, 'write {"src": ..., "tgt": ...} on each line')
    return plain_record(record)


def plain_record(record: dict[str, Any]) -> dict[str, Any]:
    """Return an object, or the texts by language that it holds under `translation`."""
    inner = record.get(TRANSLATION)
    return inner if isinstance(inner, dict) else record


def _parse_values(shape: Format, max_chars: int, number: int, row: Sequence[Any]) -> Pair:
    src, tgt, *features = row
    return _from_values(
        number, max_chars, src, tgt, features[0] if features else (), shape.references
    )


def _parse_item(shape: Format, max_chars: int, number: int, item: Any) -> Pair:
    if isinstance(item, Pair):
        features: Any = item.features
        src = item.src if item.frames is None else item.frames
        return _from_values(number, max_chars, src, [item.tgt, *item.more], features, True)
    if isinstance(shape.columns[0], str):
        return _from_record(shape, max_chars, number, _record(item))
    if isinstance(item, str) or not isinstance(item, Sequence) or len(item) < 2:
        reason = f"an item must be a tuple (source, target), but it is {shorten(item)}"
        raise BadLine("not a pair", reason, "pass two strings for each example")
    if len(item) > 2 and shape.features is None and not shape.references:
        raise BadLine(
            "too many columns",
            f"the item has {len(item)} parts where 2 are expected",
            lambda advice: _taken_as(advice) or "leave the others out",
        )
    if shape.references:
        return _from_values(number, max_chars, item[0], list(item[1:]), (), True)
    features = item[2] if len(item) > 2 else ()
    return _from_values(number, max_chars, item[0], item[1], features, False)


def _record(item: Any) -> Mapping[str, Any]:
    if isinstance(item, Mapping):
        return item
    reason = f"an item must be a dictionary as the first one is, but it is {shorten(item)}"
    raise BadLine("not a pair", reason, "write all of them in one way")


def _from_values(
    number: int, max_chars: int, src: Any, tgt: Any, features: Any, references: bool
) -> Pair:
    """Return a pair of values of any type; with references, the target may be a list of strings.

    Numbers of a source are checked by `FrameReader`.
    """
    targets = list(tgt) if references and isinstance(tgt, list | tuple) and tgt else [tgt]
    targets = list(map(_written, targets))
    frames = src if isinstance(src, list | tuple | np.ndarray | Tensor | Mapping) else None
    texts = [] if frames is not None else [("source", src)]
    for side, text in (*texts, *(("target", text) for text in targets)):
        check_unicode(side, text)
        check_text(side, text, max_chars)
    more = tuple(targets[1:])
    return Pair("" if texts == [] else src, targets[0], number, more, _features(features), frames)


def _written(target: Any) -> Any:
    """Return a label or number as JSON writes it, None for NaN, and anything else as it is."""
    value = target.item() if isinstance(target, np.generic) else target
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


class _Parallel:
    """Parser of rows of two raw lines; errors name the file of their side."""

    def __init__(self, files: tuple[str, str], max_chars: int) -> None:
        self.files = files
        self.max_chars = max_chars

    def __call__(self, number: int, row: tuple[bytes, bytes]) -> Pair:
        src, tgt = (
            self._side(side, raw, file)
            for side, raw, file in zip(("source", "target"), row, self.files, strict=True)
        )
        return Pair(src, tgt, number)

    def _side(self, side: str, raw: bytes, file: str) -> str:
        try:
            return check_text(side, decode(raw), self.max_chars)
        except BadLine as bad:
            bad.file = file
            raise


def _listed(record: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, record)) or "none"
