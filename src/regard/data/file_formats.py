"""Detection of a file's format from its name and first lines."""

import csv
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from regard.data.column_choice import (
    ENOUGH_ROWS,
    KEYS,
    SOURCE_NAMES,
    Cells,
    choose_by_content,
    choose_columns,
    example_columns,
    has_header,
)
from regard.data.conversations import MESSAGES
from regard.data.error_hints import PYTHON_HINTS, BadLine, Columns, ErrorHints
from regard.data.pairs import Format, FormatKind, RunColumns
from regard.data.row_parsers import json_record
from regard.data.stories import ANSWER_NAMES, PAIR_LABELS, question_columns
from regard.data.table_files import COLUMN_FILES
from regard.data.text_files import decode, display_name, format_suffix
from regard.errors import ArgumentError, DataError
from regard.messages import message
from regard.safe_read import PathLike

Head = Sequence[tuple[int, bytes]]

FORMATS: Final = ("auto", "tsv", "csv", "jsonl", "parquet")
JSON_SUFFIXES: Final = (".jsonl", ".ndjson", ".json")
FEATURES_KEY: Final = "features"
#: joins the names of two columns that make up the source: a story and a question
JOINED: Final = "+"
TAGS: Final = re.compile(r"[^\s;]+(;[^\s;]+)*")
#: delimiters of files that end in .csv, and how Excel names one in a line before the others
DELIMITERS: Final = ",;\t|"
EXCEL: Final = re.compile(rb"sep=(.)")
#: a cell that CSV quotes, as tab-separated files do not
QUOTED: Final = re.compile(r'"(?:[^"]|"")*""(?:[^"]|"")*"')


class FileLayout(NamedTuple):
    """The format of a source, with what should be said about it.

    Attributes:
        format: the roles of its columns.
        note: sentences about what may be meant in another way, or "".
        columns: those of the source and the target, as an option names them, if known names do not
            say which they are: another file must be read by the same.
    """

    format: Format
    note: str = ""
    columns: tuple[int | str, ...] = ()


@dataclass(frozen=True)
class ReadOptions:
    """The options of `read_pairs`; see there."""

    format: str = "auto"
    columns: Columns | None = None
    features: bool = False
    references: bool = False
    advice: ErrorHints = PYTHON_HINTS

    def columns_for(self, names: Sequence[str], *, by_name: bool = False) -> Columns | None:
        """Return the columns that are asked for, or None.

        Columns of a run are None if a file has none of their names, or if it has only names and
        they are numbers.
        """
        if not isinstance(self.columns, RunColumns):
            return self.columns
        flat = _flat(self.columns)
        words = [column for column in flat if isinstance(column, str)]
        known = {name.strip() for name in names}
        fits = (not words and not by_name) or any(word.strip() in known for word in words)
        return self.columns if fits else None

    def check(self) -> None:
        """Raise ArgumentError for an invalid option, or options that exclude each other."""
        if self.format not in FORMATS:
            rule = f"be one of {', '.join(FORMATS)}"
            raise ArgumentError("format", rule, repr(self.format), "choose one")
        write = self.advice.columns
        if self.columns is not None and not self._columns_fit(self.columns):
            raise ArgumentError(
                "columns",
                "name source, target and, if there is one, features, by number from 0 or by name",
                repr(self.columns),
                f"write {write((0, 1))}, {write(('en', 'fr'))} or, with features, "
                f"{write((0, 1, 2))}",
            )
        if self.features and self.references:
            rule = "be left out if there are features"
            raise ArgumentError("references", rule, True, "choose one of the two")

    def check_unused(self, *names: str) -> None:
        """Raise ArgumentError if options are given that are for one file."""
        if "format" in names and self.format != "auto":
            rule = "be left out unless the source is one file"
            raise ArgumentError("format", rule, repr(self.format), "leave it out")
        if "columns" in names and self.columns is not None:
            rule = "be left out unless the source is one file or dictionaries"
            raise ArgumentError("columns", rule, repr(self.columns), "leave it out")

    def _columns_fit(self, columns: Columns) -> bool:
        if isinstance(columns, str) or not isinstance(columns, Sequence):
            return False
        if len(columns) not in ((3,) if self.features else (2, 3)):
            return False
        return all(isinstance(c, str) or (isinstance(c, int) and c >= 0) for c in columns)


def columns_kind(source: PathLike, wanted: ReadOptions) -> str:
    """Return "parquet" or "arrow" if a file has columns by its name or the options, else ""."""
    if wanted.format == "auto":
        return COLUMN_FILES.get(format_suffix(source), "")
    return "parquet" if wanted.format == "parquet" else ""


def kind_of(source: PathLike, wanted: ReadOptions, head: Head) -> str:
    """Detect the format of a file of lines from its name or its first lines."""
    suffix, first = format_suffix(source), head[0][1] if head else b""
    if wanted.format != "auto":
        return wanted.format
    if first.startswith(b"PAR1"):
        return "parquet"
    if suffix == ".csv":
        return "csv"
    if suffix in JSON_SUFFIXES or first.lstrip().startswith((b'{"', b"{ ", b"[{")):
        return "jsonl"
    return "csv" if _is_delimited(head, ";|" if suffix in ("", ".txt") else DELIMITERS) else "tsv"


def _is_delimited(head: Head, delimiters: str) -> bool:
    """Return whether lines without any tab have the same number of another delimiter each."""
    if len(head) < ENOUGH_ROWS or any(b"\t" in line for _, line in head):
        return False
    counts = ({line.count(sign.encode()) for _, line in head} for sign in delimiters)
    return any(len(found) == 1 and 0 not in found for found in counts)


def csv_rows(name: str, head: Head, rest: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, Any]]:
    """Yield the rows of a CSV file as cells, numbered by the line that they begin on.

    A row that is no CSV is a BadLine. The delimiter is that which cuts most of the first lines into
    as many cells as the first; raises DataError if two of them do.
    """
    named = EXCEL.fullmatch(head[0][1]) if head else None
    head = head[1:] if named else head
    delimiter = named[1].decode("latin-1") if named else _find_delimiter(name, head)
    return _parsed_rows(head, rest, delimiter)


def _find_delimiter(name: str, head: Head) -> str:
    best, most = [DELIMITERS[0]], 0
    for delimiter in DELIMITERS:
        widths = [len(row) for _, row in _parsed_rows(head, (), delimiter) if type(row) is list]
        same = sum(width == widths[0] > 1 for width in widths)
        if same >= max(1, most):
            best, most = ([*best, delimiter] if same == most else [delimiter]), same
    if best == [",", ";"] and not any(re.search(rb"[^0-9],|,[^0-9]", line) for _, line in head):
        return ";"  # numbers with a decimal comma
    if len(best) > 1:
        reason = f"{best[0]!r} and {best[1]!r} cut its lines equally well"
        raise DataError(name, None, reason, f"write sep={best[0]} on a line before the others")
    return best[0]


def _parsed_rows(
    head: Head, rest: Iterable[tuple[int, bytes]], delimiter: str
) -> Iterator[tuple[int, Any]]:
    last = head[0][0] - 1 if head else 0

    def texts() -> Iterator[str]:
        nonlocal last
        for number, raw in itertools.chain(head, rest):
            last = number
            # `row_cells` refuses what is no UTF-8: a bad line must not end the reader
            yield raw.decode("utf-8", "surrogateescape") + "\n"

    reader = csv.reader(texts(), delimiter=delimiter, strict=True)
    while True:
        first = last + 1
        try:
            yield first, next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            fix = 'write a quote inside of quotes twice, as in "say ""hi"""'
            yield first, BadLine("invalid CSV", f"the row is no CSV ({error})", fix)


def table_format(
    source: PathLike, kind: FormatKind, rows: Sequence[Cells], wanted: ReadOptions
) -> FileLayout:
    """Return the roles of the columns of a file of rows.

    A first row of names is recognised. A third column that looks like features is read as such
    unless an option says otherwise.
    """
    name, first = display_name(source), rows[0] if rows else []
    columns, advice = wanted.columns_for(first), wanted.advice
    tagged = wanted.features or (wanted.format == "auto" and _looks_like_tags(rows))
    if columns is not None:
        flat = _flat(columns)
        named = any(isinstance(column, str) for column in flat)
        numbers = _places(name, 1, first, flat, advice) if named else flat
        width = len(first) if named or kind != "tsv" else 0
        if len(flat) > len(columns):
            return FileLayout(_with_question(kind, numbers, header=named, width=width))
        shape = _chosen(kind, numbers, wanted, header=named, width=width)
        return FileLayout(shape, header_note(name, first, shape, advice))
    if has_header(rows):
        return _header_layout(name, kind, rows, wanted, tagged=tagged)
    choice = None if tagged or wanted.references else choose_by_content(None, rows)
    if choice is None:
        quoted = kind == "tsv" and any(QUOTED.fullmatch(cell) for row in rows for cell in row)
        note = message("data.quoted", file=name) if quoted else ""
        exact = Format(kind, features=2 if tagged else None, exact=True)
        return FileLayout(Format(kind, references=True) if wanted.references else exact, note)
    shown = [message("data.column", number=place + 1) for place in choice]
    others = [str(place) for place in range(len(first)) if place not in choice]
    note = _chosen_note(name, shown, others, advice)
    return FileLayout(Format(kind, choice, width=len(first)), note, choice)


def _header_layout(
    file: str, kind: FormatKind, rows: Sequence[Cells], wanted: ReadOptions, *, tagged: bool
) -> FileLayout:
    """Return the roles of the columns of a file whose first row has their names."""
    first, advice = rows[0], wanted.advice
    roles = _find_roles(file, 1, first, rows[1:], wanted)
    found = first.index(roles.source), first.index(roles.target)
    question = None if roles.question is None else first.index(roles.question)
    rest = [i for i in range(len(first)) if i not in (*found, question)]
    features = rest.pop() if tagged and len(rest) == 1 and question is None else None
    shape = Format(kind, found, features, question, header=True, width=len(first))
    others = [first[i] for i in rest]
    note = _chosen_note(file, roles.shown(), others, advice)
    if roles.known:
        src, tgt = roles.shown()
        option = advice.columns([*found, *([features] if features is not None else [])])
        note = message("data.header.used", file=file, src=src, tgt=tgt, option=option)
        note += _left_out(others)
    return FileLayout(shape, note, roles.recorded())


class Roles(NamedTuple):
    """The names of the columns of source and target, and of the question if the source has one.

    `known` says whether names tell which are which; else other files are read by the same.
    """

    source: str
    target: str
    question: str | None = None
    known: bool = True

    def shown(self) -> tuple[str, str]:
        """Return the source, with its question, and the target, as an option names them."""
        return JOINED.join(filter(None, (self.source, self.question))), self.target

    def recorded(self) -> tuple[str, ...]:
        """Return the columns to read other files by, where names do not say."""
        plain = not any(JOINED in name or name.isdecimal() for name in self[:2])
        return (self.source, self.target) if plain and not self.known else ()


def _find_roles(
    file: str, line: int | None, names: Cells, rows: Sequence[Cells], wanted: ReadOptions
) -> Roles:
    """Return the roles of named columns; raises DataError if they are not clear."""
    if asked := question_columns(names):
        return Roles(asked[0], asked[2], asked[1])
    if chosen := choose_columns(names):
        return Roles(*chosen)
    if choice := choose_by_content(names, rows):
        return Roles(names[choice[0]], names[choice[1]], known=False)
    if len(names) == 2:
        return Roles(names[0], names[1], known=False)
    reason = f"its columns are {', '.join(names)}, and which are source and target is not clear"
    fix = wanted.advice.choose("leave the others out", example_columns(names))
    raise DataError(file, line, reason, fix, kind="missing key")


def _chosen_note(file: str, shown: Sequence[str], others: Sequence[str], advice: ErrorHints) -> str:
    option = advice.columns(("A", "B"))
    note = message("data.chosen", file=file, src=shown[0], tgt=shown[1], option=option)
    return note + _left_out(others)


def _left_out(names: Sequence[str]) -> str:
    listed = ", ".join(map(repr, names))
    return message("data.header.rest", names=listed) if names else ""


def source_columns(
    file: str, first: Cells, columns: Columns | None, *, named: bool, advice: ErrorHints
) -> list[int]:
    """Return the places of the source, and of its features or question, in a table of sources.

    Args:
        file: in messages.
        first: the names of its columns, or the first row.
        columns: those of pairs, of which the target may be missing here; None finds the source.
        named: whether the first row has names.
        advice: how to choose one.
    """
    lower = [name.strip().lower() for name in first]
    if columns is not None:
        wanted = [*_flat(columns[:1]), *columns[2:3]]
        return _places(file, 1, first, wanted, advice)
    targets = (ANSWER_NAMES[0], PAIR_LABELS[0])
    asked = question_columns([*first, *targets]) if named else None
    if asked:
        return [first.index(asked[0]), first.index(asked[1])]
    if named and (chosen := choose_columns(first)):
        return [first.index(chosen[0])]
    known = [i for i, name in enumerate(lower) if named and name in SOURCE_NAMES.split()]
    if len(known) == 1 or len(first) == 1 or (not named and len(first) == 2):
        return known or [0]
    reason = f"its columns are {', '.join(first)}, and which is the source is not clear"
    raise DataError(file, 1, reason, f"name it, as in {advice.columns(example_columns(first)[:1])}")


def _flat(columns: Columns) -> list[int | str]:
    """Return the columns with a joined one in two, as `story+question` and `0+1` are."""
    flat: list[int | str] = []
    for column in columns:
        parts = column.split(JOINED) if isinstance(column, str) else [column]
        flat += [
            int(c) if isinstance(c, str) and c.isascii() and c.isdecimal() else c for c in parts
        ]
    return flat


def _with_question(kind: Any, columns: Columns, *, header: bool = False, width: int = 0) -> Format:
    """Return the format of stories, questions and answers."""
    if len(columns) != 3:
        rule = "name a story, a question and an answer where columns are joined"
        raise ArgumentError("columns", rule, repr(columns), "write story+question,answer")
    story, question, answer = columns
    return Format(kind, (story, answer), question=question, header=header, width=width)


def _chosen(kind: Any, columns: Columns, wanted: ReadOptions, **more: Any) -> Format:
    flat = _flat(columns)
    if len(flat) > len(columns):
        return _with_question(kind, flat, **more)
    third = columns[2] if len(columns) == 3 else None
    return Format(kind, (columns[0], columns[1]), third, references=wanted.references, **more)


def _places(
    file: str, line: int | None, names: Cells, columns: Columns, advice: ErrorHints
) -> list[int]:
    """Return the places of columns by name or number; raises DataError for one that is missing.

    Rows of lines, whose names stand in line 1, may be longer than the first.
    """
    names = [name.strip() for name in names]
    wanted = [column.strip() if isinstance(column, str) else column for column in columns]
    for column in wanted:
        known = column in names if isinstance(column, str) else line or column < len(names)
        if not known:
            raise DataError(
                file,
                line,
                f"there is no column {column!r} among {', '.join(map(repr, names))}",
                f"name columns that stand in the first line, or give their numbers from 0, as in "
                f"{advice.columns((0, 1))}",
            )
    return [names.index(column) if isinstance(column, str) else column for column in wanted]


def header_note(file: str, cells: Sequence[Any], shape: Format, advice: ErrorHints | None) -> str:
    """Return a warning if the first pair, which is read as one, looks like a header; else "".

    Args:
        file: name of the source in messages.
        cells: of its first row.
        shape: the format of the source.
        advice: how to select columns by name, if that is possible.
    """
    asked = [c for c in (*shape.columns, shape.features) if isinstance(c, int) and c < len(cells)]
    names = [cells[column] for column in asked if isinstance(cells[column], str)]
    known = choose_columns(names[:2]) if len(names) == len(asked) else None
    if known is None or shape.header:
        return ""
    fix = message("data.header.delete")
    if advice is not None:
        option = advice.columns([*known, *names[2:]])
        fix += message("data.header.leave-out", option=option)
    return message("data.header", file=file, fix=fix)


def _looks_like_tags(rows: Sequence[Cells]) -> bool:
    """Return whether most rows have three columns, and the third always holds features."""
    thirds = [row[2] for row in rows if len(row) == 3]
    if any(len(row) > 3 for row in rows) or not all(map(TAGS.fullmatch, thirds)):
        return False
    return any(";" in cell for cell in thirds) and 2 * len(thirds) > len(rows)


def jsonl_format(source: PathLike, head: Head, wanted: ReadOptions) -> FileLayout:
    """Return the roles of the keys of JSON objects, by the first lines."""
    records = []
    for number, raw in head:
        try:
            records.append((number, json_record(decode(raw))))
        except BadLine:
            continue
    if not records:
        columns = wanted.columns_for((), by_name=True)
        shape = Format("jsonl", KEYS[0], FEATURES_KEY, references=wanted.references)
        return FileLayout(shape if columns is None else _chosen("jsonl", columns, wanted))
    first = records[0][0]
    return records_format("jsonl", display_name(source), first, [r for _, r in records], wanted)


def items_format(some: Sequence[Any], wanted: ReadOptions, name: str = "pairs") -> FileLayout:
    """Return the roles of the parts of Python objects, by the first ones.

    Args:
        some: tuples, or dictionaries with keys as in JSON.
        wanted: the caller's options.
        name: what messages call the source.
    """
    if some and isinstance(some[0], Mapping):
        records = [record for record in some if isinstance(record, Mapping)]
        return records_format("pairs", name, 1, records, wanted)
    if not isinstance(wanted.columns, RunColumns):
        wanted.check_unused("columns")
    features = 2 if wanted.features else None
    return FileLayout(Format("pairs", features=features, references=wanted.references))


def records_format(
    kind: FormatKind,
    file: str,
    line: int | None,
    records: Sequence[Mapping[str, Any]],
    wanted: ReadOptions,
    names: Sequence[str] | None = None,
) -> FileLayout:
    """Return the roles of the keys of objects, or of the columns of a table of named columns.

    Args:
        kind: of the source.
        file: its name in messages.
        line: that of the first record, in messages.
        records: the first ones.
        wanted: the caller's options.
        names: of the columns of a table; else the keys of the first record.
    """
    keys = [str(key) for key in records[0]] if names is None else list(names)
    columns = wanted.columns_for(keys, by_name=True)
    if columns is not None and names is not None:
        flat = _flat(columns)
        found = [names[place] for place in _places(file, None, names, flat, wanted.advice)]
        joined = [JOINED.join(found[:2]), *found[2:]] if len(flat) > len(columns) else found
        return FileLayout(_chosen(kind, joined, wanted))
    if columns is not None:
        where = "the source is JSON" if kind == "jsonl" else "the pairs are dictionaries"
        if any(isinstance(column, int) for column in columns):
            rule = f"be names where {where}"
            raise ArgumentError("columns", rule, repr(columns), "name its keys")
        return FileLayout(_chosen(kind, columns, wanted))
    if MESSAGES in keys:
        return FileLayout(Format(kind, (MESSAGES, MESSAGES)))
    rows = [[_cell(record.get(key)) for key in keys] for record in records]
    plain = [i for i, key in enumerate(keys) if key != FEATURES_KEY]
    roles = _find_roles(
        file, line, [keys[i] for i in plain], [[row[i] for i in plain] for row in rows], wanted
    )
    features = FEATURES_KEY if names is None or FEATURES_KEY in keys else None
    shape = Format(kind, roles[:2], features, references=wanted.references)
    if roles.question is not None:
        shape = Format(kind, roles[:2], question=roles.question)
    others = [keys[i] for i in plain if keys[i] not in roles[:3]]
    note = "" if roles.known else _chosen_note(file, roles.shown(), others, wanted.advice)
    return FileLayout(shape, note.strip(), roles.recorded())


def _cell(value: Any) -> str:
    """Return a value as the text of a cell; "" for what is neither text, number nor labels."""
    if isinstance(value, str):
        return value
    labels = isinstance(value, list) and all(isinstance(part, str) for part in value)
    return json.dumps(value) if labels or isinstance(value, bool | int | float) else ""
