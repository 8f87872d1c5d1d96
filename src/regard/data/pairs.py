"""Pairs of source and target, how a file lays them out, and the parsers of its rows."""

import json
import math
import random
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Final, Literal, NamedTuple, TypeVar

import numpy as np
from torch import Tensor

from regard.data.error_hints import BadLine, shorten
from regard.data.stories import answers_of, join_source, split_conversation
from regard.data.text_files import decode

FormatKind = Literal[
    "tsv", "csv", "xlsx", "tokens", "parallel", "jsonl", "parquet", "arrow", "pairs", "text"
]
#: kinds whose rows are cells
CELLS: Final = ("tsv", "csv", "xlsx", "tokens")
#: the column of datasets for translation, whose values are dictionaries by language
TRANSLATION: Final = "translation"
#: what is encoded or written at once
CHUNK_PAIRS: Final = 4096
CHUNK_CHARS: Final = 4_000_000


class RunColumns(tuple[Any, ...]):
    """The columns of a run's own data: those of a file that has none of their names are found."""


def column_name(word: str) -> int | str:
    """Parse a column as a user names it: `2` is a place, and `02` a name."""
    return int(word) if word.isdecimal() and word == str(int(word)) else word


def column_names(words: Sequence[str] | None) -> tuple[int | str, ...] | None:
    """Parse columns as a user names them: `0,2` or `en,fr`."""
    if words is None:
        return None
    return (RunColumns if isinstance(words, RunColumns) else tuple)(map(column_name, words))


def run_columns(words: Sequence[str] | None) -> RunColumns | None:
    """Return the columns of a run's settings, for files other than its own."""
    return None if words is None else RunColumns(words)


class Pair(NamedTuple):
    """One example.

    Attributes:
        src: source text, as it stands in the file; empty for a text that has no source. Where the
            source is numbers, the name of their file, or what tells them from others.
        tgt: target text; of a text without a source, one line or several.
        line: where it was found, counted from 1.
        more: further accepted targets.
        features: symbols that join the source, like the tags of an inflected form.
        frames: the source where it is numbers and no text, as it was given; once `Tables` has read
            it, a float32 array (frames, features).
    """

    src: str
    tgt: str
    line: int
    more: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    frames: Any = None


Item = TypeVar("Item")


def in_chunks(pairs: Iterable[Pair]) -> Iterator[list[Pair]]:
    """Yield some thousand pairs at a time, or fewer if they are long."""
    chunk: list[Pair] = []
    chars = 0
    for pair in pairs:
        chunk.append(pair)
        chars += len(pair.src) + len(pair.tgt)
        # a number takes the room of some letters
        chars += 0 if pair.frames is None else pair.frames.nbytes
        if len(chunk) == CHUNK_PAIRS or chars >= CHUNK_CHARS:
            yield chunk
            chunk, chars = [], 0
    if chunk:
        yield chunk


@dataclass(frozen=True)
class Format:
    """The layout of a source.

    Attributes:
        kind: what sort of source it is.
        columns: where source and target stand: numbers from 0, or names.
        features: where the features stand, if there are any.
        question: where the question stands if the source is a story or passage with one.
        references: whether further columns are further accepted targets.
        exact: whether columns that are not named here are errors.
        header: whether the first line has the names of the columns.
        width: cells that a row must have, as the first one has; 0 if that is not checked.
        numbers: columns that make up the source together, by name, and where they stand.
    """

    kind: FormatKind
    columns: tuple[int | str, int | str] = (0, 1)
    features: int | str | None = None
    question: int | str | None = None
    references: bool = False
    exact: bool = False
    header: bool = False
    width: int = 0
    numbers: tuple[tuple[str, int | str], ...] = ()


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
    """Return the parser of rows of a format."""
    if shape.kind == "parallel":
        assert files is not None
        return _parallel(files, max_chars)
    if shape == TWO_COLUMNS:
        return _two_columns(max_chars)
    values = _cell_values if shape.kind in CELLS else _item_values
    several = replace(shape, references=True)

    def parse(number: int, row: Any) -> Pair:
        if isinstance(row, Pair) and shape.question is None:
            src = row.src if row.frames is None else row.frames
            return _pair(several, max_chars, number, src, [row.tgt, *row.more], row.features)
        found = values(shape, row)
        plain = values is _cell_values and not shape.numbers  # many rows of text
        if plain and len(found) == 2 and not shape.references:
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
        reason = f"the {side} has {len(text):,} characters, and the limit is {max_chars:,}"
        raise BadLine("too long", reason, lambda hints: hints.longer)
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
    if shape.numbers:
        row = {name: cells[place] for name, place in shape.numbers if isinstance(place, int)}
        return row, cells[asked[1]]
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
        raise other_width(cells, shape.width)
    if shape.exact and len(cells) > len(asked):
        reason = f"the line has {len(cells)} columns where {len(asked)} are expected"
        raise BadLine("too many columns", reason, lambda hint: f"choose with {hint.columns(asked)}")
    return asked


def other_width(cells: Sequence[str], width: int) -> BadLine:
    """Return the error for a row that is longer or shorter than the first one."""
    reason = f"the line has {len(cells)} columns where the first one has {width}"
    fix = "add what is missing, or put quotes around cells with a delimiter in them"
    return BadLine("other number of columns", reason, fix)


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
        raise BadLine("too many columns", reason, "leave the others out")
    return item[:3]


def _record_values(shape: Format, record: Mapping[str, Any]) -> Sequence[Any]:
    src, tgt = map(str, shape.columns)
    if shape.numbers:
        return {name: record.get(name) for name, _ in shape.numbers}, record.get(tgt)
    asked = (src, tgt) if shape.question is None else (src, tgt, str(shape.question))
    try:
        values = [record[name] for name in asked]
    except KeyError as error:
        reason = f"there is no key {error} among {', '.join(map(repr, record)) or 'none'}"
        raise BadLine("missing key", reason, "add it") from None
    if src == tgt:
        return split_conversation(record[src])
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
    if shape.question is None and _are_tokens(src):  # those of a story are sentences
        if isinstance(tgt, list | tuple | np.ndarray) and len(tgt) == len(src):
            tgt = _spaced(tgt)
        src = _spaced(src)
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


def _are_tokens(value: Any) -> bool:
    """Return whether a source is a list of words, as tables have it whose targets are tags."""
    several = isinstance(value, list | tuple | np.ndarray) and len(value) > 0
    return several and all(isinstance(one, str) for one in value)


def _spaced(items: Iterable[Any]) -> str:
    return " ".join("_".join(str(one).split()) or "_" for one in items)


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


def joined_source(parts: Sequence[Any], *, has_question: bool) -> Any:
    """Return a source as models are asked: with its question, or its features, after a tab."""
    src, *more = parts or [None]  # of an object without any key
    src = _spaced(src) if _are_tokens(src) and not has_question else src
    if has_question:
        return join_source(src, more[0])
    features = _features(more[0]) if more and isinstance(src, str) else ()
    return src if not features else src.replace("\t", " ") + "\t" + ";".join(features)


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


def draw_sample(items: Iterable[Item], count: int) -> list[Item]:
    """Return `count` of the items, each as likely as any other, and the same ones each time.

    All are read, and `count` are in memory (Vitter, 1985, algorithm R,
    https://doi.org/10.1145/3147.3165). Fewer items are returned as they are.
    """
    rest, draw = iter(items), random.Random(0)
    kept = list(islice(rest, count))
    for seen, item in enumerate(rest, start=len(kept) + 1):
        place = draw.randrange(seen)
        if place < count:
            kept[place] = item
    return kept
