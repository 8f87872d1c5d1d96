"""Read figures and verdicts of the lab from its saved results, for the course."""

import json
import re
from functools import cache
from pathlib import Path
from typing import Any, Final

from regard.lab import Claim, Data, ReportTable
from regard.lab.runner import find

ROOT: Final = Path(__file__).resolve().parents[1]
RESULTS: Final = ROOT / "benchmarks" / "results"


@cache
def data(name: str) -> Data:
    """Return the measured data of an experiment."""
    found: Data = json.loads((RESULTS / "lab" / f"{name}.json").read_text("utf-8"))["data"]
    return found


@cache
def tables(name: str) -> tuple[ReportTable, ...]:
    """Return the tables of an experiment, as the report of the lab prints them."""
    return tuple(find(name).tabulate(data(name)))


@cache
def claims(name: str) -> tuple[Claim, ...]:
    """Return the claims of an experiment with their verdicts."""
    return tuple(find(name).judge(data(name)))


def claim(name: str, text: str) -> Claim:
    """Return the one claim whose text begins as given; raises LookupError unless there is one."""
    found = [one for one in claims(name) if one.text.startswith(text)]
    if len(found) != 1:
        raise LookupError(f"{len(found)} claims of {name} begin with {text!r}")
    return found[0]


def cell(name: str, column: str, **row: str) -> str:
    """Return the cell of a table of an experiment, by its column and by other cells of its row.

    Names in `row` are columns, with `_` for spaces.
    """
    found = set()
    for table in tables(name):
        names = [one.replace(" ", "_") for one in table.columns]
        if column not in table.columns or not row.keys() <= set(names):
            continue
        for cells in table.rows:
            by_name = dict(zip(names, map(str, cells), strict=True))
            if row.items() <= by_name.items():
                found.add(by_name[column.replace(" ", "_")])
    if len(found) != 1:
        raise LookupError(f"{len(found)} cells {column!r} of {name} where {row}")
    return found.pop()


def evidence(name: str, text: str, pattern: str) -> str:
    """Return the group of a pattern in the evidence for a claim."""
    found = re.search(pattern, claim(name, text).evidence)
    if found is None:
        raise LookupError(f"the evidence of {name} for {text!r} has no {pattern!r}")
    return found.group(1)


def gain(model: str, method: str) -> str:
    """Return how faithful an attribution method is on a model, with its interval."""
    found = json.loads((RESULTS / "faithfulness.json").read_text("utf-8"))
    (row,) = (one["plain"][method] for one in found["models"] if one["model"] == model)
    return f"{row['gain']:.3f} ({row['gain_low']:.3f} to {row['gain_high']:.3f})"


def score(recipe: str, figure: str) -> float:
    """Return the mean test score of a recipe over its seeds."""
    path = RESULTS / f"recipes-{recipe}.nvidia-h200.json"
    runs = json.loads(path.read_text("utf-8"))["runs"]
    values = [run["scores"]["test"]["figures"][figure]["value"] for run in runs]
    return float(sum(values) / len(values))


#: names that expressions in `[numbers]` of a chapter may use
HELPERS: Final[dict[str, Any]] = {
    "cell": cell,
    "data": data,
    "evidence": evidence,
    "gain": gain,
    "score": score,
}
