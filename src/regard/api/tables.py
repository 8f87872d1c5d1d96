"""Tables of pandas, polars, pyarrow and datasets: examples for a model, and its answers.

No library is imported: what a caller gives brings its own.
"""

import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from regard import safe_read
from regard.atomic_files import write_atomic
from regard.data import FrameScaler, read_pairs
from regard.data.error_hints import PYTHON_HINTS, BadLine
from regard.data.file_formats import ALL, JOINED, TARGET_NAMES, ReadOptions, source_columns
from regard.data.pairs import column_names, joined_source, run_columns
from regard.data.table_files import HEAD
from regard.data.tokenizers import FEW_LABELS
from regard.errors import ArgumentError, DataError
from regard.tasks import Task
from regard.tasks.inputs.base import TABLE_ROWS, is_table
from regard.training.run_folder import LABELS

HINTS: Final = PYTHON_HINTS._replace(
    columns=lambda named: f"target={named[1]!r}" if named[0] == ALL else f"source={named[0]!r}"
)
COLUMN_HINTS: Final = PYTHON_HINTS._replace(columns=lambda columns: f"table[{list(columns)!r}]")


def table_rows(table: Any) -> list[dict[str, Any]]:
    """Return a dictionary for each row of a table."""
    make = next(name for name in TABLE_ROWS if hasattr(table, name))
    return [{str(k): v for k, v in row.items()} for row in getattr(table, make)(*TABLE_ROWS[make])]


def choose_named(
    rows: Sequence[Any], source: str | Sequence[str] | None, target: str | None
) -> tuple[str, str]:
    """Return the columns of source and target; one that is not named is chosen as in files."""
    names = [str(name) for name in rows[0]] if rows else []
    several = isinstance(source, Iterable) and not isinstance(source, str)
    parts = [] if source is None else [*map(str, source if several else [source])]
    target = None if target is None else str(target)
    for role, name in (*(("source", part) for part in parts), ("target", target)):
        if name is not None and name not in names:
            rule = f"be one of the columns, {', '.join(names)}"
            raise ArgumentError(role, rule, repr(name), "choose one of them")
    if parts and target is not None:
        numbers = len(parts) > 2 or (several and all(_is_number(rows[0][part]) for part in parts))
        return ALL if numbers else JOINED.join(parts), target
    taken = {name: name for name in names}
    if target is not None:
        other = [n for n in names if n != target and n.strip().lower() not in TARGET_NAMES.split()]
        taken = {**{name: name for name in other}, "label": target}
    some = [{name: row.get(own) for name, own in taken.items()} for row in rows[:HEAD]]
    try:
        shape = read_pairs(some, advice=HINTS).format
    except DataError:
        if target is None or not some:
            raise
        reason = f"its columns are {', '.join(names)}, and which is the source is not clear"
        fix = f"name it, as in {HINTS.columns([next(iter(taken))])}"
        raise DataError("table", None, reason, fix) from None
    if shape.numbers and not parts:
        return ALL, target or str(shape.columns[1])
    found = [shape.columns[0], *([] if shape.question is None else [shape.question])]
    return JOINED.join(parts or map(str, found)), target or str(shape.columns[1])


def table_sources(task: Task, table: Any) -> list[Any]:
    """Return the sources of a table, in the columns that the run was trained on."""
    rows = table_rows(table)
    if isinstance(task.input.encoder, FrameScaler) and task.input.encoder.columns:
        return rows
    names = list(rows[0]) if rows else []
    wanted = ReadOptions(columns=column_names(run_columns(task.settings.columns)))
    own = wanted.columns_for(names, by_name=True)
    features = bool(task.input.feature_names)
    if not rows:
        return []
    places, question = source_columns("table", names, own, COLUMN_HINTS, features=features)
    parts = [[row[names[place]] for place in places] for row in rows]
    try:
        return [joined_source(some, has_question=question) for some in parts]
    except BadLine as bad:
        raise DataError("table", None, bad.reason, bad.fixed_by(COLUMN_HINTS)) from None


def pair_with(columns: Sequence[str] | None, sources: Any, targets: Any) -> list[Any]:
    """Return sources and targets side by side, under the names of columns if there are some."""
    left, right = _items(sources), _items(targets)
    if len(left) != len(right):
        what = f"{len(left):,} sources and {len(right):,} targets"
        raise ArgumentError("X and y", "be of one length", what, "give one for each")
    pairs = list(zip(left, right, strict=True))
    if columns and columns[0] == ALL:
        return [{**row, columns[1]: target} for row, target in pairs]
    return [dict(zip(columns, pair, strict=False)) for pair in pairs] if columns else pairs


def column_values(values: Any) -> Any:
    """Return the values of a column of pyarrow as Python has them, and anything else as it is."""
    is_column = hasattr(values, "to_pylist") and not is_table(values)
    return values.to_pylist() if is_column else values


def _items(values: Any) -> list[Any]:
    """Return the items of a list, a column or an array; of a table of one column, its cells.

    The rows of a table of several columns, or of an array of two axes, are numbers by column.
    """
    if is_table(values):
        rows = table_rows(values)
        return rows if rows and len(rows[0]) > 1 else [v for row in rows for v in row.values()]
    if isinstance(values, np.ndarray) and values.ndim == 2:
        return [dict(zip(map(str, range(len(row))), row, strict=True)) for row in values.tolist()]
    flat = getattr(values, "ndim", 1) == 1 and hasattr(values, "tolist")
    return list(values.tolist() if flat else column_values(values))


def target_settings(targets: Sequence[Any], given: Iterable[str]) -> dict[str, Any]:
    """Return the settings that follow from targets given apart, unless some are given.

    Floats are numbers to predict; so are integers of which few come again. Other targets that come
    again are labels.
    """
    if {"numbers", "tgt_tokenizer", "task_options"}.intersection(given) or not targets:
        return {}
    values = list(map(_plain, targets))
    kinds = {*map(type, values)}
    few = 2 * len({*map(str, values)}) <= min(len(values), 2 * FEW_LABELS)
    if kinds <= {int, float} and (float in kinds or not few):
        return {"numbers": True}
    return {"tgt_tokenizer": "label"} if few and kinds <= {int, bool, str} else {}


def answer_row(output: Any, values: Mapping[str, Any], others: int) -> dict[str, Any]:
    """Return answer, confidence and, if asked for, alternatives of an output, as tables have them.

    The confidence is the probability of a label among all labels, or that of all tokens of a text;
    a number has none. Several labels, and the probability of each, are lists. Labels that were no
    texts in training are their `values`.
    """
    if not hasattr(output, "log_prob"):
        return {"answer": getattr(output, "value", output.text)}
    shares = dict(getattr(output, "probabilities", {}))
    if shares and not getattr(output.probabilities, "exclusive", True):
        rows = [{"answer": values.get(one, one), "confidence": shares[one]} for one in shares]
        chosen = rows[: len(output.tokens)]
        row = {name: [each[name] for each in chosen] for name in ("answer", "confidence")}
        return {**row, **({"alternatives": rows[len(chosen) :][:others]} if others else {})}
    for one in (output, *output.alternatives):
        shares.setdefault(one.text, math.exp(min(one.log_prob, 0.0)))
    ranked = dict.fromkeys((output.text, *shares))
    found = [{"answer": values.get(text, text), "confidence": shares[text]} for text in ranked]
    return {**found[0], **({"alternatives": found[1 : others + 1]} if others else {})}


def table_like(table: Any, rows: list[dict[str, Any]], types: Mapping[str, Any]) -> Any:
    """Return rows as a table of the library of another one, with its index; see `column_type`."""
    library = type(table).__module__.partition(".")[0]
    module: Any = sys.modules[library]
    dtypes = {"answer": types[library]} if library in types else {}
    if library == "pandas":
        frame = module.DataFrame(rows, table.index, list(rows[0]) if rows else ["answer"])
        return frame.astype(dtypes)
    if library == "polars":
        return module.DataFrame(rows).cast(dtypes)
    if library == "pyarrow":
        return module.Table.from_pylist(rows)
    return module.Dataset.from_list(rows) if library == "datasets" else rows


def column_type(table: Any, columns: Sequence[str] | None) -> dict[str, Any]:
    """Return the type of the targets in a table of pandas or polars, by the library's name."""
    library = type(table).__module__.partition(".")[0]
    known = library in ("pandas", "polars") and columns and columns[1] in table.columns
    return {library: table[columns[1]].dtype} if known and columns else {}


def _is_number(value: Any) -> bool:
    return isinstance(_plain(value), int | float)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def write_labels(folder: Path, targets: Iterable[Any]) -> dict[str, Any]:
    """Keep in a run folder which labels are no texts; returns them by how targets are written."""
    values = map(_plain, targets)
    labels = {json.dumps(v): v for v in values if isinstance(v, bool | int | float)}
    if labels:
        write_atomic(folder / LABELS, json.dumps(list(labels.values())).encode())
    return labels


def read_labels(folder: Path) -> dict[str, Any]:
    """Return what `write_labels` has kept."""
    path = folder / LABELS
    values = safe_read.read_json(path, inside=folder) if path.exists() else ()
    return {json.dumps(value): value for value in (values if isinstance(values, list) else ())}
