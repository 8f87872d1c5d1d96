"""Detection of a file's format from its name and first lines."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from regard.data.conversations import MESSAGES
from regard.data.error_hints import PYTHON_HINTS, BadLine, Columns, ErrorHints
from regard.data.pairs import Format
from regard.data.row_parsers import json_record
from regard.data.stories import question_columns
from regard.data.text_files import decode, display_name, format_suffix
from regard.errors import ArgumentError, DataError
from regard.messages import message
from regard.safe_read import PathLike

Head = Sequence[tuple[int, bytes]]

FORMATS: Final = ("auto", "tsv", "jsonl", "parquet")
JSON_SUFFIXES: Final = (".jsonl", ".ndjson", ".json")
KEYS: Final = (("src", "tgt"), ("source", "target"), ("input", "output"))
FEATURES_KEY: Final = "features"
#: joins the names of two columns that make up the source: a story and a question
JOINED: Final = "+"
TAGS: Final = re.compile(r"[^\s;]+(;[^\s;]+)*")


@dataclass(frozen=True)
class ReadOptions:
    """The options of `read_pairs`; see there."""

    format: str = "auto"
    columns: Columns | None = None
    features: bool = False
    references: bool = False
    advice: ErrorHints = PYTHON_HINTS

    def check(self) -> None:
        """Raise ArgumentError for an invalid option, or options that exclude each other."""
        if self.format not in FORMATS:
            raise ArgumentError(
                "format", f"be one of {', '.join(FORMATS)}", repr(self.format), "choose one"
            )
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
            raise ArgumentError(
                "references", "be left out if there are features", True, "choose one of the two"
            )

    def check_no_format(self) -> None:
        """Raise ArgumentError if a format is given."""
        if self.format != "auto":
            raise _only_for_one_file("format", self.format)

    def check_no_columns(self) -> None:
        """Raise ArgumentError if columns are given."""
        if self.columns is not None:
            raise _only_for_one_file("columns", self.columns)

    def _columns_fit(self, columns: Columns) -> bool:
        if isinstance(columns, str) or not isinstance(columns, Sequence):
            return False
        if len(columns) not in ((3,) if self.features else (2, 3)):
            return False
        return all(isinstance(c, str) or (isinstance(c, int) and c >= 0) for c in columns)


def _only_for_one_file(name: str, value: object) -> ArgumentError:
    rule = "be left out unless the source is one file"
    if name == "columns":
        rule += " or dictionaries"
    return ArgumentError(name, rule, repr(value), "leave it out")


def is_parquet(source: PathLike, wanted: ReadOptions) -> bool:
    """Return whether a file is Parquet by its name or by the options."""
    by_name = wanted.format == "auto" and format_suffix(source) == ".parquet"
    return wanted.format == "parquet" or by_name


def kind_of(source: PathLike, wanted: ReadOptions, head: Head) -> str:
    """Detect the format of a file from its name or its first line."""
    suffix, first = format_suffix(source), head[0][1] if head else b""
    if wanted.format != "auto":
        return wanted.format
    if first.startswith(b"PAR1"):
        return "parquet"
    if suffix == ".csv":
        raise DataError(
            display_name(source),
            None,
            "comma-separated files are not read",
            "save it with tabs between the columns, or as JSON lines",
        )
    if suffix in JSON_SUFFIXES or first.lstrip().startswith((b'{"', b"{ ", b"[{")):
        return "jsonl"
    return "tsv"


def tsv_format(source: PathLike, head: Head, wanted: ReadOptions) -> Format:
    """Return the roles of the columns of a tab-separated file.

    A third column that looks like features is read as such unless an option says otherwise.
    """
    columns = wanted.columns
    if columns is None and (named := question_columns(_cells(head))):
        columns = (f"{named[0]}{JOINED}{named[1]}", named[2])
    if columns is not None:
        flat = _flat(columns)
        named_ones = any(isinstance(column, str) for column in flat)
        numbers = _header_columns(source, head, flat, wanted.advice) if named_ones else flat
        if len(flat) > len(columns):
            return _with_question("tsv", numbers, header=named_ones)
        if named_ones:
            return _chosen("tsv", numbers, wanted, header=True)
    if columns is not None:
        return _chosen("tsv", columns, wanted)
    if wanted.references:
        return Format("tsv", references=True)
    tagged = wanted.features or (wanted.format == "auto" and _looks_like_tags(head))
    return Format("tsv", features=2 if tagged else None, exact=True)


def _cells(head: Head) -> list[str]:
    """Return the cells of the first line."""
    return head[0][1].decode("utf-8", "replace").rstrip("\r\n").split("\t") if head else []


def _flat(columns: Columns) -> list[int | str]:
    """Return the columns with a joined one in two, as `story+question` and `0+1` are."""
    flat: list[int | str] = []
    for column in columns:
        parts = column.split(JOINED) if isinstance(column, str) else [column]
        flat += [int(c) if isinstance(c, str) and c.isdecimal() else c for c in parts]
    return flat


def _with_question(kind: Any, columns: Columns, *, header: bool = False) -> Format:
    """Return the format of stories, questions and answers."""
    if len(columns) != 3:
        raise ArgumentError(
            "columns",
            "name a story, a question and an answer where columns are joined",
            repr(columns),
            "write story+question,answer",
        )
    story, question, answer = columns
    return Format(kind, (story, answer), question=question, header=header)


def _chosen(kind: Any, columns: Columns, wanted: ReadOptions, *, header: bool = False) -> Format:
    flat = _flat(columns)
    if len(flat) > len(columns):
        return _with_question(kind, flat, header=header)
    third = columns[2] if len(columns) == 3 else None
    return Format(
        kind, (columns[0], columns[1]), third, references=wanted.references, header=header
    )


def _header_columns(
    source: PathLike, head: Head, columns: Columns, advice: ErrorHints
) -> list[int]:
    names = _cells(head)
    missing = [column for column in columns if isinstance(column, str) and column not in names]
    if missing:
        raise DataError(
            display_name(source),
            1,
            f"there is no column {missing[0]!r} among {', '.join(map(repr, names))}",
            f"name columns that stand in the first line, or give their numbers from 0, as in "
            f"{advice.columns((0, 1))}",
        )
    return [names.index(column) if isinstance(column, str) else column for column in columns]


def header_note(file: str, cells: Sequence[Any], shape: Format, advice: ErrorHints | None) -> str:
    """Return a warning if the first pair looks like a header; otherwise "".

    Args:
        file: name of the source in messages.
        cells: of its first row.
        shape: the format of the source.
        advice: how to select columns by name, if that is possible.
    """
    asked = [c for c in (*shape.columns, shape.features) if isinstance(c, int) and c < len(cells)]
    names = [str(cells[column]) for column in asked]
    for known in KEYS:
        if sorted(map(str.lower, names[:2])) == sorted(known):
            first = sorted(names[:2], key=lambda name: known.index(name.lower()))
            fix = message("data.header.delete")
            if advice is not None and not (shape.references and len(cells) > 2):
                option = advice.columns([*first, *names[2:]])
                fix += message("data.header.leave-out", option=option)
            return message("data.header", file=file, fix=fix)
    return ""


def _looks_like_tags(head: Head) -> bool:
    """Return whether most lines have three columns, and the third always holds features."""
    lines = tagged = 0
    several = False
    for _, raw in head:
        try:
            cells = decode(raw).split("\t")
        except BadLine:
            continue
        lines += 1
        if len(cells) > 3 or (len(cells) == 3 and not TAGS.fullmatch(cells[2])):
            return False
        tagged += len(cells) == 3
        several = several or (len(cells) == 3 and ";" in cells[2])
    return several and 2 * tagged > lines


def jsonl_format(source: PathLike, head: Head, wanted: ReadOptions) -> Format:
    """Return the roles of the keys of JSON objects, by the first valid line."""
    if head and head[0][1].lstrip().startswith(b"["):
        raise DataError(
            display_name(source),
            1,
            "this is one JSON array, and not an object on each line",
            "convert it with `jq -c '.[]'`",
        )
    if wanted.columns is not None:
        _check_names(wanted.columns, "the source is JSON")
        return _chosen("jsonl", wanted.columns, wanted)
    for number, raw in head:
        try:
            names = list(json_record(decode(raw)))
        except BadLine:
            continue
        return _named("jsonl", display_name(source), number, [*names, FEATURES_KEY], wanted)
    return Format("jsonl", KEYS[0], FEATURES_KEY, references=wanted.references)


def items_format(first: Any, wanted: ReadOptions, name: str = "pairs") -> Format:
    """Return the roles of the parts of Python objects, by the first one.

    Args:
        first: a tuple, or a dictionary with keys as in JSON.
        wanted: the caller's options.
        name: what messages call the source.
    """
    if not isinstance(first, Mapping):
        wanted.check_no_columns()
        features = 2 if wanted.features else None
        return Format("pairs", features=features, references=wanted.references)
    if wanted.columns is None:
        return _named("pairs", name, 1, [*map(str, first), FEATURES_KEY], wanted)
    _check_names(wanted.columns, "the pairs are dictionaries")
    return _chosen("pairs", wanted.columns, wanted)


def _check_names(columns: Columns, where: str) -> None:
    if any(isinstance(column, int) for column in columns):
        raise ArgumentError("columns", f"be names where {where}", repr(columns), "name its keys")


def parquet_format(source: PathLike, names: Sequence[str], wanted: ReadOptions) -> Format:
    """Return the roles of the columns of a Parquet table."""
    if wanted.columns is None and len(names) == 2:
        return Format("parquet", (names[0], names[1]), references=wanted.references)
    if wanted.columns is None:
        return _named("parquet", display_name(source), None, names, wanted)
    numbered = dict(enumerate(names))
    columns = _flat(wanted.columns)
    wrong = [column for column in columns if column not in numbered and column not in names]
    if wrong:
        raise DataError(
            display_name(source),
            None,
            f"there is no column {wrong[0]!r} among {', '.join(map(repr, names))}",
            wanted.advice.choose("check the names", names),
        )
    chosen = [names[column] if isinstance(column, int) else column for column in columns]
    if len(columns) > len(wanted.columns):
        return _with_question("parquet", chosen)
    return _chosen("parquet", chosen, wanted)


def _named(
    kind: Any, file: str, line: int | None, names: Sequence[str], wanted: ReadOptions
) -> Format:
    """Return the format of a source with named columns; raises DataError for unknown names."""
    features = FEATURES_KEY if FEATURES_KEY in names else None
    if MESSAGES in names:
        return Format(kind, (MESSAGES, MESSAGES))
    for src, tgt in KEYS:
        if src in names and tgt in names:
            return Format(kind, (src, tgt), features, references=wanted.references)
    if asked := question_columns(names):
        return _with_question(kind, asked)
    known = " or ".join(f"{src}/{tgt}" for src, tgt in KEYS)
    found = ", ".join(name for name in names if name != FEATURES_KEY)
    raise DataError(
        file,
        line,
        f"source and target are expected as {known}, but the names are {found}",
        wanted.advice.choose("rename them", [name for name in names if name != FEATURES_KEY]),
        kind="missing key",
    )
