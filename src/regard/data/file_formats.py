"""The roles of the columns of a table: source, target, features or question.

They are those that an option names, or those of known names, or they follow from what columns hold.
"""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from regard.data.error_hints import PYTHON_HINTS, BadLine, Columns, ErrorHints
from regard.data.pairs import NUMBER, Format, FormatKind, RunColumns, column_name, json_object
from regard.data.stories import ANSWER_NAMES, MESSAGES, PAIR_LABELS, question_columns
from regard.data.table_files import ENOUGH_ROWS, Table
from regard.errors import ArgumentError, DataError
from regard.messages import message

Cells = Sequence[str]

FORMATS: Final = ("auto", "tsv", "csv", "jsonl", "parquet")
FEATURES_KEY: Final = "features"
#: as a source: all columns of numbers beside the target
ALL: Final = "*"
#: further names of targets, where sources are columns of numbers, and cells without a number
NUMBER_TARGETS: Final = ("y", "species", "quality", "diagnosis")
BLANKS: Final = ("", "na", "n/a", "nan", "null", "none", "?")
#: joins the names of two columns that make up the source: a story and a question
JOINED: Final = "+"
TAGS: Final = re.compile(r"[^\s;]+(;[^\s;]+)*")
#: a cell in quotes, and one that CSV quotes, as tab-separated files do not
IN_QUOTES: Final = re.compile(r'".+"')
QUOTED: Final = re.compile(r'"(?:[^"]|"")*""(?:[^"]|"")*"')
KEYS: Final = (("src", "tgt"), ("source", "target"), ("input", "output"))
#: names of columns in public datasets, in lower case; one source and one target are recognised
SOURCE_NAMES: Final = """
    src source input text sentence review tweet comment content message utterance question query
    prompt instruction article document word words tokens image picture file filename file_name
    path audio
"""
TARGET_NAMES: Final = """
    tgt target output label labels class category sentiment intent emotion topic answer summary
    headline translation transcript transcription completion response pronunciation phonemes tags
    ner_tags pos_tags score rating stars
"""
LANGUAGES: Final = """
    en de fr es it pt nl ru zh ja ko ar hi tr pl cs sv da fi el he vi th id uk ro hu english german
    french spanish italian portuguese dutch russian chinese japanese korean arabic
"""
#: characters of a name at most
LONGEST_NAME: Final = 40
#: names of columns that number or name the rows
ID_NAMES: Final = ("", "id", "idx", "index", "no", "nr", "row", "uuid", "guid", "key", "unnamed: 0")
#: how other names of such columns end
ID_ENDINGS: Final = ("_id", "-id", " id")
UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}|[0-9a-f]{24,64}")
DATE: Final = re.compile(
    r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}|\d{1,2}[-/.]\d{1,2}[-/.]\d{2,4})([ T].{4,})?", re.ASCII
)
#: labels at most, where the first of two columns is the target
FEW_LABELS: Final = 10
#: the share of rows at most whose target comes nowhere else, where the first row has names if its
#: own does not: by Good and Turing, the chance that an example of the same data would
ONLY_ONCE: Final = 0.1
#: characters of a label at most, and rows of each on average at least
LONGEST_LABEL: Final = 60
ROWS_OF_LABEL: Final = 3
#: the source is this many times as long as any other text
LONGER: Final = 2.0


class TableLayout(NamedTuple):
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
        if not isinstance(self.columns, RunColumns) or self.columns[0] == ALL:
            return self.columns
        flat = _flat(self.columns, names if by_name else ())
        words = [column for column in flat if isinstance(column, str)]
        known = {name.strip() for name in names}
        fits = any(word.strip() in known for word in words)
        if not words and not by_name:
            fits = all(type(c) is int and c < len(names) for c in _flat(self.columns[:1]))
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


def table_layout(table: Table, wanted: ReadOptions) -> TableLayout:
    """Return the roles of the columns of a table; raises DataError if they are not clear."""
    if table.has_records:
        return _records_layout(table, wanted)
    if table.kind != "pairs":
        layout = _cells_layout(table, wanted)
        rows = table.head_cells
        quoted = all(map(IN_QUOTES.fullmatch, rows[0] if rows else [""]))
        quoted = quoted or any(QUOTED.fullmatch(cell) for row in rows for cell in row)
        if table.kind != "tsv" or not quoted:
            return layout
        return layout._replace(
            note=f"{layout.note} {message('data.quoted', file=table.name)}".strip()
        )
    if not isinstance(wanted.columns, RunColumns):
        wanted.check_unused("columns")
    shape = Format("pairs", features=2 if wanted.features else None, references=wanted.references)
    return TableLayout(shape)


def _cells_layout(table: Table, wanted: ReadOptions) -> TableLayout:
    """Return the roles of columns of cells: a first row of names is recognised.

    A third column that looks like features is read as such unless an option says otherwise.
    """
    name, kind, rows, advice = table.name, table.kind, table.head_cells, wanted.advice
    first = rows[0] if rows else []
    columns = wanted.columns_for(first)
    named = has_header(rows)
    names = [cell.strip() for cell in first] if named else [*map(str, range(len(first)))]
    below = rows[int(named) :]
    if chosen := _numbers_layout(table, columns, names, below, wanted, header=named):
        return chosen
    tagged = wanted.features or (wanted.format == "auto" and _looks_like_tags(rows))
    if columns is not None:
        flat = _flat(columns)
        named = any(isinstance(column, str) for column in flat)
        numbers = _places(name, 1, first, flat, advice) if named else flat
        width = len(first) if named or kind != "tsv" else 0
        joined = len(flat) > len(columns)
        return TableLayout(_chosen(kind, numbers, wanted, joined=joined, header=named, width=width))
    if named:
        return _header_layout(name, kind, rows, wanted, tagged=tagged)
    choice = None if tagged or wanted.references else choose_by_content(None, rows)
    if choice is None:
        exact = Format(kind, features=2 if tagged else None, exact=True)
        return TableLayout(Format(kind, references=True) if wanted.references else exact)
    shown = [message("data.column", number=place) for place in choice]
    others = [str(place) for place in range(len(first)) if place not in choice]
    note = _chosen_note(name, shown, others, advice)
    return TableLayout(Format(kind, choice, width=len(first)), note, choice)


def _header_layout(
    file: str, kind: FormatKind, rows: Sequence[Cells], wanted: ReadOptions, *, tagged: bool
) -> TableLayout:
    """Return the roles of the columns of a file whose first row has their names."""
    first, advice = rows[0], wanted.advice
    roles = _find_roles(file, 1, first, rows[1:], wanted)
    found = first.index(roles.source), first.index(roles.target)
    question = None if roles.question is None else first.index(roles.question)
    rest = [i for i in range(len(first)) if i not in (*found, question)]
    features = rest.pop() if tagged and len(rest) == 1 and question is None else None
    shape = Format(kind, found, features, question, header=True, width=len(first))
    others = [first[i] for i in rest]
    note = _chosen_note(file, roles.shown, others, advice)
    if roles.known and kind != "tokens":  # which has no line of names
        option = advice.columns([*found, *([features] if features is not None else [])])
        src, tgt = roles.shown
        note = message("data.header.used", file=file, src=src, tgt=tgt, option=option)
        note += left_out(others)
    return TableLayout(shape, note, roles.recorded(by_name=False))


def _records_layout(table: Table, wanted: ReadOptions) -> TableLayout:
    """Return the roles of the keys of objects, or of the columns of a table of named columns."""
    kind, file, records = table.kind, table.name, _records(table)
    line = next(iter(records), None) if table.names is None else None
    keys = list(table.names or map(str, records[line] if line else ()))
    columns = wanted.columns_for(keys, by_name=True)
    plain = [key for key in keys if key != FEATURES_KEY]
    rows = [[_cell(record.get(key)) for key in plain] for record in records.values()]
    if chosen := _numbers_layout(table, columns, plain, rows, wanted):
        return chosen
    if columns is not None:
        flat = _flat(columns, keys)
        joined = len(flat) > len(columns)
        if table.names is not None:
            flat = [keys[place] for place in _places(file, None, keys, flat, wanted.advice)]
        elif any(isinstance(column, int) for column in flat):
            where = "the source is JSON" if kind == "jsonl" else "the pairs are dictionaries"
            rule = f"be names where {where}"
            raise ArgumentError("columns", rule, repr(columns), "name its keys")
        return TableLayout(_chosen(kind, flat, wanted, joined=joined))
    if MESSAGES in keys:
        return TableLayout(Format(kind, (MESSAGES, MESSAGES)))
    if not keys:
        return TableLayout(Format(kind, KEYS[0], FEATURES_KEY, references=wanted.references))
    roles = _find_roles(file, line, plain, rows, wanted)
    features = FEATURES_KEY if table.names is None or FEATURES_KEY in keys else None
    shape = Format(kind, roles[:2], features, references=wanted.references)
    if roles.question is not None:
        shape = Format(kind, roles[:2], question=roles.question)
    others = [key for key in plain if key not in roles[:3]]
    note = "" if roles.known else _chosen_note(file, roles.shown, others, wanted.advice)
    return TableLayout(shape, note.strip(), roles.recorded(by_name=True))


def _records(table: Table) -> dict[int, Mapping[str, Any]]:
    """Return the first objects by their line, without bad lines."""
    found = {}
    for number, row in table.head:
        try:
            found[number] = json_object(row)
        except BadLine:
            continue
    return found


def _cell(value: Any) -> str:
    """Return a value as the text of a cell; "" for what is neither text, number nor labels."""
    if isinstance(value, str):
        return value
    labels = isinstance(value, list) and all(isinstance(part, str | int) for part in value)
    return json.dumps(value) if labels or isinstance(value, bool | int | float) else ""


def source_rows_layout(
    table: Table, columns: Columns | None, advice: ErrorHints, features: bool
) -> tuple[Cells, tuple[list[int], bool], bool]:
    """Return names of columns, `source_columns`, and whether the names come first.

    The source has no place if a row of cells is one: there are no names, and none was asked for.
    """
    wanted = ReadOptions(columns=columns, advice=advice)
    if table.has_records:
        first = next(iter(_records(table).values()), {})
        names, named = list(table.names or map(str, first)), True
    else:
        rows = table.head_cells
        names = [cell.strip() for cell in rows[0]] if rows else []
        by_name = any(isinstance(column, str) for column in wanted.columns_for(names) or ())
        named = by_name or has_header(rows, sources=True)
    asked = columns is not None and not isinstance(columns, RunColumns)
    if table.kind == "tsv" and not asked and not (named and names[1:]):
        return names, ([], False), False
    if not names:
        return names, ([0], False), False
    own = wanted.columns_for(names, by_name=table.has_records and table.names is None)
    chosen = source_columns(
        table.name,
        names,
        own,
        advice,
        named=named,
        by_name=table.has_records,
        features=features,
    )
    return names, chosen, named and not table.has_records


class Roles(NamedTuple):
    """The names of the columns of source and target, and of the question if the source has one.

    `known` says whether names tell which are which; else other files are read by the same.
    """

    source: str
    target: str
    question: str | None = None
    known: bool = True

    @property
    def shown(self) -> tuple[str, str]:
        """The source, with its question, and the target, as an option names them."""
        return JOINED.join(filter(None, (self.source, self.question))), self.target

    def recorded(self, *, by_name: bool) -> tuple[str, ...]:
        """Return the columns to read other files by, where names do not say.

        Other lines may have names that are numbers, which are places there.
        """
        plain = not any(JOINED in n or (n.isdecimal() and not by_name) for n in self[:2])
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
    fix = f"choose two of these, as in {wanted.advice.columns([names[0], names[-1]])}"
    held = _held(names, rows)
    if list(held.values()).count("numbers") > 1 and "texts" not in held.values():
        some = ", ".join([*names[:8], "..."][: len(names)] if len(names) > 8 else names)
        reason = f"its columns are {some}, and which of them is the target is not clear"
        last = next((name for name in names if held.get(name) == "labels"), names[-1])
        fix = f"name it, as in {wanted.advice.columns([ALL, last])}, which reads the other numbers"
    raise DataError(file, line, reason, fix, kind="missing key")


def _chosen_note(file: str, shown: Sequence[str], others: Sequence[str], advice: ErrorHints) -> str:
    option = advice.columns(("A", "B"))
    note = message("data.chosen", file=file, src=shown[0], tgt=shown[1], option=option)
    return note + left_out(others)


def left_out(names: Sequence[str]) -> str:
    """Return a sentence about columns that are not used, or ""."""
    listed = ", ".join(map(repr, names))
    return message("data.header.rest", names=listed) if names else ""


def source_columns(
    file: str,
    first: Cells,
    columns: Columns | None,
    advice: ErrorHints,
    *,
    named: bool = True,
    by_name: bool = True,
    features: bool = False,
) -> tuple[list[int], bool]:
    """Return the places of the source, and of its question or features, and whether it is one."""
    lower = [name.strip().lower() for name in first]
    if columns is not None:
        keys = first if by_name else ()
        wanted, more = _flat(columns[:1], keys), _flat(columns[2:3], keys)
        return _places(file, None, first, [*wanted, *more], advice), len(wanted) > 1
    targets = (ANSWER_NAMES[0], PAIR_LABELS[0])
    if named and (asked := question_columns([*first, *targets])):
        return [first.index(asked[0]), first.index(asked[1])], True
    known = [i for i, name in enumerate(lower) if named and name in SOURCE_NAMES.split()]
    used = known
    if named and (chosen := choose_columns(first)):
        known, used = [first.index(chosen[0])], [first.index(name) for name in chosen]
    if len(known) == 1 or len(first) == 1 or (not named and len(first) == 2):
        rest = [i for i in range(len(first)) if i not in used] if features and named else []
        return [*(known or [0]), *(rest if len(rest) == 1 else [])], False
    reason = f"its columns are {', '.join(first)}, and which is the source is not clear"
    raise DataError(file, 1, reason, f"name it, as in {advice.columns(first[:1])}")


def _flat(columns: Columns, keys: Cells = ()) -> list[int | str]:
    """Return the columns with a joined one in two, as `story+question` and `0+1` are.

    A number is a place, unless it is one of the keys of records.
    """
    parts = [part for column in columns for part in str(column).split(JOINED)]
    return [part if part in keys else column_name(part) for part in parts]


def _chosen(
    kind: Any,
    columns: Columns,
    wanted: ReadOptions,
    *,
    joined: bool,
    header: bool = False,
    width: int = 0,
) -> Format:
    """Return the format of source, target and features; or of story, question and answer."""
    src, tgt, *more = columns
    third = more[0] if more else None
    if not joined:
        references = wanted.references
        return Format(kind, (src, tgt), third, None, references, header=header, width=width)
    if len(columns) != 3 or third is None:
        rule = "name a story, a question and an answer where columns are joined"
        raise ArgumentError("columns", rule, repr(columns), "write story+question,answer")
    return Format(kind, (src, third), question=tgt, header=header, width=width)


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


def _looks_like_tags(rows: Sequence[Cells]) -> bool:
    """Return whether most rows have three columns, and the third always holds features."""
    thirds = [row[2] for row in rows if len(row) == 3]
    if any(len(row) > 3 for row in rows) or not all(map(TAGS.fullmatch, thirds)):
        return False
    return any(";" in cell for cell in thirds) and 2 * len(thirds) > len(rows)


def choose_columns(names: Sequence[str]) -> tuple[str, str] | None:
    """Return the names of source and target if they are known ones, and one of each."""
    lower = {name.strip().lower(): name for name in reversed(names)}
    for src, tgt in KEYS:
        if src in lower and tgt in lower:
            return lower[src], lower[tgt]
    sources, targets, languages = (
        [lower[n] for n in lower if n in known]
        for known in (SOURCE_NAMES.split(), TARGET_NAMES.split(), LANGUAGES.split())
    )
    if len(sources) == len(targets) == 1:
        return sources[0], targets[0]
    languages = [name for name in names if name in languages and name.lower() not in ID_NAMES]
    return (languages[0], languages[1]) if len(languages) == 2 < len(names) else None


def has_header(rows: Sequence[Cells], *, sources: bool = False) -> bool:
    """Return whether the first row names the columns.

    That it does is likely, too, if its target comes nowhere else, and those of most other rows
    again: to read an example as names loses one, and to read names as an example adds a wrong
    label. Of more than two columns, one known name is enough.
    """
    first = [cell.strip().lower() for cell in rows[0]] if rows else []
    others = [row for row in rows[1:] if len(row) == len(first)]
    again = any(
        cell and cell == row[i].strip().lower() for row in others for i, cell in enumerate(first)
    )
    if len({*first}) < len(first) or again:
        return False
    known = {*SOURCE_NAMES.split(), *(("id",) if len(first) > 2 else ())}
    if (sources or len(first) > 2) and {*first} & known:
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
    first_is_target = named and len(first) == 2 and _labels_first(others)
    places = range(len(first)) if named and len(first) > 2 else [0 if first_is_target else -1]
    counts = ([*Counter(row[i] for row in others).values()] for i in places)
    comes_again = any(often.count(1) <= ONLY_ONCE * len(others) for often in counts)
    return len(others) >= ENOUGH_ROWS and comes_again


def _held(names: Cells, rows: Sequence[Cells]) -> dict[str, str]:
    """Return what named columns hold: "numbers", whatever they mean, or as `_content` says."""
    found = {}
    for name, column in zip(names, zip(*rows, strict=False), strict=False):
        cells = [cell.strip() for cell in column if cell.strip().lower() not in BLANKS]
        numbers = bool(cells) and all(map(NUMBER.fullmatch, cells))
        counts = numbers and name.strip().lower() in ID_NAMES
        content = "ids" if counts else _content(name.strip().lower(), cells)
        found[name] = "numbers" if numbers and not counts else content
    if (last := names[-1]) in found and found[last] == "nothing":
        found[last] = "labels"  # rows may be sorted by them
    return found


def choose_numbers(names: Cells, rows: Sequence[Cells]) -> str | None:
    """Return the target of a table of numbers, which is one of known names or of labels.

    None if it is not clear, or if there are texts beside the numbers.
    """
    full = [row for row in rows if len(row) == len(names)]
    if len(full) < ENOUGH_ROWS or choose_columns(names) or question_columns(names):
        return None
    held = _held(names, full)
    numbers = [name for name in names if held[name] == "numbers"]
    if "texts" in held.values() or not numbers:
        return None
    able = [name for name in names if held[name] in ("numbers", "labels")]
    known = {*TARGET_NAMES.split(), *NUMBER_TARGETS}
    for found in (
        [name for name in able if name.strip().lower() in known],
        [name for name in able if held[name] == "labels"],
    ):
        # of two columns the second is the target, as in all pairs
        if len(found) == 1 and numbers != found and (names[2:] or found[0] == names[1]):
            return found[0]
    columns = {name: {row[names.index(name)].strip() for row in full} for name in numbers}
    whole = [name for name in numbers if all(cell.isdecimal() for cell in columns[name])]
    few = len(whole) == 1 and ROWS_OF_LABEL * len(columns[whole[0]]) <= len(full)
    if len(able) == len(numbers) > 2 and few:
        return whole[0]
    fraction = any("." in cell for cell in columns[numbers[0]])
    return numbers[1] if len(names) == len(numbers) == 2 and fraction else None


def _numbers_layout(
    table: Table,
    columns: Columns | None,
    names: Cells,
    rows: Sequence[Cells],
    wanted: ReadOptions,
    *,
    header: bool = False,
) -> TableLayout | None:
    """Return the layout of a table whose source is its columns of numbers; None of any other."""
    asked = columns is not None and columns[0] == ALL
    if not asked and (columns is not None or wanted.features or wanted.references):
        return None
    target = str(columns[1]) if columns and asked else choose_numbers(names, rows)
    if target is None:
        return None
    _places(table.name, 1, names, [target], wanted.advice)
    held = _held(names, rows)
    of_run = isinstance(columns, RunColumns)
    chosen = [n for n in names if n != target and (of_run or held.get(n) == "numbers")]
    if not chosen:
        reason = f"there is no column of numbers beside the target {target!r}"
        raise DataError(table.name, 1, reason, "name another target, or add numbers")
    place = {name: name if table.has_records else names.index(name) for name in names}
    shape = Format(
        table.kind,
        (place[chosen[0]], place[target]),
        header=header,
        width=0 if table.has_records else len(names),
        numbers=tuple((name, place[name]) for name in chosen),
    )
    shown = ", ".join(chosen[:3]) + ", ..." * (len(chosen) > 3)
    option = wanted.advice.columns((ALL, "A"))
    told = {"file": table.name, "count": len(chosen), "names": shown, "target": target}
    note = message("data.numbers", **told, option=option)
    others = [name for name in names if name not in (*chosen, target)]
    return TableLayout(shape, "" if of_run else note + left_out(others), (ALL, target))


def choose_by_content(names: Cells | None, rows: Sequence[Cells]) -> tuple[int, int] | None:
    """Return the places of source and target by what columns hold, or None if it is not clear.

    Ids, dates and columns of one value are left out. Of two columns that remain, labels or numbers
    are the target, or else the second is. Of more, the source is the longest text by far, or the
    only one of a known name or without the name of a target, and the target the only column of
    labels or numbers, or with such a name.
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
    texts = [i for i in texts if lower[i] not in TARGET_NAMES.split()] or texts
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
    named = name in ID_NAMES or name.endswith(ID_ENDINGS) or all(map(UUID.fullmatch, cells))
    if distinct == len(cells) and not is_target and (named or all(map(str.isdecimal, cells))):
        return "ids"
    if all(map(DATE.fullmatch, cells)):
        return "dates"
    if distinct * ROWS_OF_LABEL <= len(cells) and max(map(len, cells)) <= LONGEST_LABEL:
        return "labels"
    return "numbers" if all(map(NUMBER.fullmatch, cells)) else "texts"
