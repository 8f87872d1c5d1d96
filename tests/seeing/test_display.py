"""One function writes all files, by their ending."""

import csv

import numpy as np
import pytest

from regard.errors import ArgumentError
from regard.seeing import save
from seeing.tools import of_labels, translation


def table(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("ending", "start"),
    [
        ("svg", b"<svg"),
        ("csv", b"kind,layer"),
        ("json", b"{"),
    ],
)
def test_the_ending_says_what_is_written(tmp_path, ending, start):
    path = tmp_path / f"x.{ending}"
    save(translation(), path)
    assert path.read_bytes().startswith(start)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("name", ["x.gif", "svg"])
def test_any_other_ending_is_refused(tmp_path, name):
    with pytest.raises(ArgumentError, match=r"\.html, \.svg, \.png, \.pdf, \.csv, \.json"):
        save(translation(), tmp_path / name)


def test_csv_is_exact(tmp_path):
    trace = of_labels(["a", "b", "a"], ["x", "y"], heads=2, layers=2)
    save(trace, tmp_path / "x.csv", layer="all", head="all")
    rows = table(tmp_path / "x.csv")
    assert len(rows) == 2 * 2 * 2 * 3
    for row in rows:
        layer, head, i, j = (int(row[name]) for name in ("layer", "head", "row", "column"))
        assert np.float32(row["weight"]) == trace.maps[layer].weights[head, i, j]
        assert row["input"] == "aba"[j]
        assert row["output"] == "xy"[i]
