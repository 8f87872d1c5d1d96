"""Detection of a file's format from its name and first lines."""

import csv
import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from regard.data.conversations import MESSAGES
from regard.data.error_hints import PYTHON_HINTS, BadLine, Columns, ErrorHints, shorten
from regard.data.pairs import Format, FormatKind
from regard.data.row_parsers import NUMBER, json_record
from regard.data.stories import ANSWER_NAMES, question_columns, squad_questions
from regard.data.text_files import (
    decode,
    display_name,
    format_suffix,
    is_read_once,
    open_bytes,
)
from regard.errors import ArgumentError, DataError
from regard.messages import message
from regard.safe_read import DAMAGE, InvalidJSONError, PathLike, parse_json, read_stream

Head = Sequence[tuple[int, bytes]]
Cells = Sequence[str]

FORMATS: Final = ("auto", "tsv", "csv", "jsonl", "parquet")
JSON_SUFFIXES: Final = (".jsonl", ".ndjson", ".json")
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
FEATURES_KEY: Final = "features"
#: joins the names of two columns that make up the source: a story and a question
JOINED: Final = "+"
TAGS: Final = re.compile(r"[^\s;]+(;[^\s;]+)*")
#: delimiters of files that end in .csv, and how Excel names one in a line before the others
DELIMITERS: Final = ",;\t|"
EXCEL: Final = re.compile(rb"sep=(.)")
#: a cell that CSV quotes, as tab-separated files do not
QUOTED: Final = re.compile(r'"(?:[^"]|"")*""(?:[^"]|"")*"')
#: rows besides the first, from which on targets that come again make a first one that does not odd
ENOUGH_ROWS: Final = 6
#: labels at most, for a first column that may be meant as the target
FEW_LABELS: Final = 10


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
        return "csv"
    if suffix in JSON_SUFFIXES or first.lstrip().startswith((b'{"', b"{ ", b"[{")):
        return "jsonl"
    return "tsv"


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
) -> tuple[Format, str]:
    """Return the roles of the columns of a file of rows, and a note about its first row or "".

    A first row of names is recognised. A third column that looks like features is read as such
    unless an option says otherwise.
    """
    name, first = display_name(source), rows[0] if rows else []
    columns, advice, note = wanted.columns, wanted.advice, ""
    if columns is None and (asked := question_columns(first)):
        columns = (f"{asked[0]}{JOINED}{asked[1]}", asked[2])
    tagged = wanted.features or (wanted.format == "auto" and _looks_like_tags(rows))
    if columns is not None:
        flat = _flat(columns)
        named = any(isinstance(column, str) for column in flat)
        numbers = _header_columns(source, first, flat, advice) if named else flat
        width = len(first) if named or kind == "csv" else 0
        if len(flat) > len(columns):
            return _with_question(kind, numbers, header=named, width=width), ""
        shape = _chosen(kind, numbers, wanted, header=named, width=width)
        return shape, header_note(name, first, shape, advice)
    header = find_header(rows)
    if header == "names":
        places = [first.index(column) for column in _by_name(name, first, advice)]
        rest = [i for i in range(len(first)) if i not in places]
        if tagged and len(rest) == 1:
            places, rest = [*places, *rest], []
        third = places[2] if len(places) > 2 else None
        shape = Format(kind, (places[0], places[1]), third, header=True, width=len(first))
        src, tgt, option = first[places[0]], first[places[1]], advice.columns(places)
        note = message("data.header.used", file=name, src=src, tgt=tgt, option=option)
        names = ", ".join(repr(first[i]) for i in rest)
        return shape, note + (message("data.header.rest", names=names) if rest else "")
    if header:
        option, other = advice.columns(first[:2]), advice.columns((0, 1))
        note = message("data.header.perhaps", file=name, option=option, other=other)
    if wanted.references:
        return Format(kind, references=True), note
    shape = Format(kind, features=2 if tagged else None, exact=True)
    return shape, note or _swapped_note(name, rows, advice) or _quotes_note(name, kind, rows)


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


def find_header(rows: Sequence[Cells], *, sources: bool = False) -> str:
    """Return "names" if the first row names the columns, "perhaps" if it may, and else "".

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
        return ""
    if sources and {*first} & {*SOURCE_NAMES.split()}:
        return "names"
    if len(first) < 2:
        return ""
    languages = len(first) == 2 and {*first} <= {*LANGUAGES.split()}
    if choose_columns(first) or question_columns(first) or languages:
        return "names"
    for i, cell in enumerate(first):
        numbers = len(others) > 2 and all(NUMBER.fullmatch(row[i].strip()) for row in others)
        if numbers and cell.isidentifier() and cell not in ("na", "nan", "null", "none"):
            return "names"
    targets = Counter(row[-1] for row in others)
    if len(others) < ENOUGH_ROWS or min(targets.values()) < 2:
        return ""
    return "names" if {*first} & {*SOURCE_NAMES.split(), *TARGET_NAMES.split()} else "perhaps"


def _by_name(file: str, names: Cells, advice: ErrorHints) -> tuple[str, str]:
    """Return the names of source and target; raises DataError if they are not clear."""
    if found := choose_columns(names):
        return found
    if len(names) == 2:
        return names[0], names[1]
    reason = f"its columns are {', '.join(names)}, and which are source and target is not clear"
    raise DataError(file, 1, reason, advice.choose("leave the others out", _guessed(names)))


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
        return _header_columns(file, first, wanted, advice)
    asked = question_columns([*first, ANSWER_NAMES[0]]) if named else None
    if asked:
        return [first.index(asked[0]), first.index(asked[1])]
    if named and (chosen := choose_columns(first)):
        return [first.index(chosen[0])]
    known = [i for i, name in enumerate(lower) if named and name in SOURCE_NAMES.split()]
    if len(known) == 1 or len(first) == 1 or (not named and len(first) == 2):
        return known or [0]
    reason = f"its columns are {', '.join(first)}, and which is the source is not clear"
    raise DataError(file, 1, reason, f"name it, as in {advice.columns(_guessed(first)[:1])}")


def _guessed(names: Sequence[str]) -> list[str]:
    """Return two of the names for an example: those that are known, or else the first and last."""
    names = [name for name in names if name.strip().lower() not in ("", "id", "idx")] or names
    src = next((name for name in names if name.strip().lower() in SOURCE_NAMES.split()), names[0])
    others = [name for name in names if name != src]
    tgt = [name for name in others if name.strip().lower() in TARGET_NAMES.split()] or others
    return [src, *tgt[-1:]]


def _swapped_note(file: str, rows: Sequence[Cells], advice: ErrorHints) -> str:
    """Return a warning if the first of two columns looks like labels of the second; else ""."""
    both = [row for row in rows if len(row) == 2]
    if len(both) < 2 * FEW_LABELS:
        return ""
    labels, texts = (Counter(column) for column in zip(*both, strict=True))
    short = 3 * sum(map(len, labels)) / len(labels) < sum(map(len, texts)) / len(texts)
    if len(labels) > FEW_LABELS or len(texts) < 0.9 * len(both) or not short:
        return ""
    option = advice.columns((1, 0))
    return message("data.swapped", file=file, count=len(labels), option=option)


def _quotes_note(file: str, kind: FormatKind, rows: Sequence[Cells]) -> str:
    """Return a warning if cells of a tab-separated file are quoted as in CSV; else ""."""
    quoted = kind == "tsv" and any(QUOTED.fullmatch(cell) for row in rows for cell in row)
    return message("data.quoted", file=file) if quoted else ""


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
        raise ArgumentError(
            "columns",
            "name a story, a question and an answer where columns are joined",
            repr(columns),
            "write story+question,answer",
        )
    story, question, answer = columns
    return Format(kind, (story, answer), question=question, header=header, width=width)


def _chosen(kind: Any, columns: Columns, wanted: ReadOptions, **more: Any) -> Format:
    flat = _flat(columns)
    if len(flat) > len(columns):
        return _with_question(kind, flat, **more)
    third = columns[2] if len(columns) == 3 else None
    return Format(kind, (columns[0], columns[1]), third, references=wanted.references, **more)


def _header_columns(
    source: PathLike, first: Cells, columns: Columns, advice: ErrorHints
) -> list[int]:
    names = [cell.strip() for cell in first]
    wanted = [column.strip() if isinstance(column, str) else column for column in columns]
    missing = [column for column in wanted if isinstance(column, str) and column not in names]
    if missing:
        raise DataError(
            display_name(source),
            1,
            f"there is no column {missing[0]!r} among {', '.join(map(repr, names))}",
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


def jsonl_format(source: PathLike, head: Head, wanted: ReadOptions) -> Format:
    """Return the roles of the keys of JSON objects, by the first valid line."""
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
    names = [str(key) for key in first]
    if wanted.columns is None and len(names) == 2 and choose_columns(names) is None:
        return Format("pairs", (names[0], names[1]), references=wanted.references)
    if wanted.columns is None:
        return _named("pairs", name, 1, [*names, FEATURES_KEY], wanted)
    _check_names(wanted.columns, "the pairs are dictionaries")
    return _chosen("pairs", wanted.columns, wanted)


def _check_names(columns: Columns, where: str) -> None:
    if any(isinstance(column, int) for column in columns):
        raise ArgumentError("columns", f"be names where {where}", repr(columns), "name its keys")


def parquet_format(source: PathLike, names: Sequence[str], wanted: ReadOptions) -> Format:
    """Return the roles of the columns of a Parquet table."""
    if wanted.columns is None and len(names) == 2 and choose_columns(names) is None:
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
            wanted.advice.choose("check the names", _guessed(names)),
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
    if asked := question_columns(names):
        return _with_question(kind, asked)
    if chosen := choose_columns(names):
        return Format(kind, chosen, features, references=wanted.references)
    known = " or ".join(f"{src}/{tgt}" for src, tgt in (*KEYS, ("text", "label")))
    names = [name for name in names if name != FEATURES_KEY]
    found = ", ".join(names)
    raise DataError(
        file,
        line,
        f"source and target are expected as {known}, but the names are {found}",
        wanted.advice.choose("rename them", _guessed(names) if names else []),
        kind="missing key",
    )


def json_document(source: PathLike, head: Head) -> list[Any] | None:
    """Return the examples of a file that is one JSON value, or None if it has one on each line.

    That is an array, an object with an array `data`, or SQuAD as it is published.
    """
    first = head[0][1].strip() if head else b""
    if not (first.startswith(b"[") or first == b"{" or _holds_data(first)):
        return None
    name = display_name(source)
    if is_read_once(source):
        raise DataError(name, None, "one JSON value is no stream", "save it as a file first")
    with open_bytes(source) as stream:
        try:
            found = parse_json(read_stream(stream, name))
        except (InvalidJSONError, *DAMAGE) as error:
            reason = f"the file must hold JSON, but it cannot be read ({error})"
            raise DataError(name, None, reason, "write one object on each line") from None
    rows = found.get("data") if isinstance(found, dict) else found
    if isinstance(rows, list) and all(isinstance(r, dict) and "paragraphs" in r for r in rows):
        rows = squad_questions(name, rows)
    if not isinstance(rows, list) or not rows:
        reason = f"it must be a list of examples, but it is {shorten(found)}"
        raise DataError(name, None, reason, "write one object on each line")
    return rows


def _holds_data(first: bytes) -> bool:
    """Return whether a line begins as an object with an array `data` does, as SQuAD is."""
    return re.match(rb'\{\s*("version"\s*:\s*"[^"]*"\s*,\s*)?"data"\s*:\s*\[', first) is not None
