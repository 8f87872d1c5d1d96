"""Tables of answers: what `regard predict -o answers.csv` writes."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any, Final

from regard import extras
from regard.api.tables import answer_row
from regard.atomic_files import atomic_output
from regard.data import lazy_pyarrow as arrow
from regard.errors import DataError
from regard.tasks import Forecast

#: endings of files that are tables
SUFFIXES: Final = (".csv", ".tsv", ".jsonl", ".parquet", ".xlsx")
#: further labels of a row, which have probabilities without being asked for
LABELS: Final = 3


def is_table_file(path: Path) -> bool:
    """Return whether a file is a table by its ending; raises if the writer is not installed."""
    found = path.suffix.lower() in SUFFIXES and not path.is_dir()
    if found and path.suffix.lower() == ".xlsx":
        extras.require("openpyxl", extra="excel", for_=f"-o {path}")
    return found


def answer_rows(model: Any, source: Any, output: Any, others: int) -> list[dict[str, Any]]:
    """Return source, answer, confidence and alternatives; of a forecast, a row for each time.

    A source that was left out has an error as its output, and an empty row.
    """
    if isinstance(output, DataError):
        return [{"source": None, "answer": None}]
    if isinstance(output, Forecast):
        time, *names = output.header
        rows = csv.DictReader(io.StringIO(output.text))
        return [{time: row[time], **{name: float(row[name]) for name in names}} for row in rows]
    values = getattr(model, "label_values", {})
    return [{"source": source, **answer_row(output, values, others)}]


def write_table(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows to a file, in the format of its ending; lists are JSON in cells of text."""
    suffix = path.suffix.lower()
    names = list(dict.fromkeys(name for row in rows for name in row))
    cells = [names, *([_cell(row.get(name)) for name in names] for row in rows)]
    with atomic_output(path) as file:
        if suffix == ".jsonl":
            file.writelines(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)
        elif suffix == ".parquet":
            arrow.parquet.write_table(arrow.Table.from_pylist(list(rows)), file)
        elif suffix == ".xlsx":
            _write_workbook(file, cells)
        else:
            text = io.TextIOWrapper(file, "utf-8", newline="", write_through=True)
            csv.writer(text, delimiter="\t" if suffix == ".tsv" else ",").writerows(cells)
            text.detach()


def _cell(value: Any) -> Any:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, list) else value


def _write_workbook(file: IO[bytes], rows: Sequence[Sequence[Any]]) -> None:
    from openpyxl import Workbook
    from openpyxl.cell import WriteOnlyCell
    from openpyxl.cell.cell import ILLEGAL_CHARACTERS_RE

    book = Workbook(write_only=True)
    sheet = book.create_sheet("answers")
    for row in rows:
        cells = [WriteOnlyCell(sheet) for _ in row]
        for cell, value in zip(cells, row, strict=True):
            cell.value = ILLEGAL_CHARACTERS_RE.sub("", value) if isinstance(value, str) else value
            if cell.data_type == "f":
                cell.data_type = "s"  # a text that begins with = is no formula
        sheet.append(cells)
    book.save(file)
