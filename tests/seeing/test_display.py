"""One function writes all files, by their ending."""

import csv
import subprocess
import sys

import numpy as np
import pytest

from regard.errors import ArgumentError
from regard.seeing import display, save
from seeing.tools import HOSTILE, of_labels, translation


def table(path):
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    ("ending", "start"),
    [
        ("svg", b"<svg"),
        ("png", b"\x89PNG"),
        ("pdf", b"%PDF"),
        ("csv", b"kind,layer"),
        ("json", b"{"),
        ("SVG", b"<svg"),
    ],
)
def test_the_ending_says_what_is_written(tmp_path, ending, start):
    path = tmp_path / f"x.{ending}"
    save(translation(), path)
    assert path.read_bytes().startswith(start)
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize("name", ["x.gif", "x", "svg", "x.svgz"])
def test_any_other_ending_is_refused(tmp_path, name):
    with pytest.raises(ArgumentError, match=r"\.html, \.svg, \.png, \.pdf, \.csv, \.json"):
        save(translation(), tmp_path / name)


def test_options_choose_the_view(tmp_path):
    save(translation(), tmp_path / "x.csv", special="hide")
    assert {row["input"] for row in table(tmp_path / "x.csv")} == {"the", "unhappy", "cat"}
    save(translation(), tmp_path / "x.csv", words=False)
    assert len(table(tmp_path / "x.csv")) == 4 * 5


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


def test_csv_has_probabilities_and_hidden_mass(tmp_path):
    save(translation(), tmp_path / "x.csv", special="hide")
    first = table(tmp_path / "x.csv")[0]
    assert float(first["probability"]) == 0.9
    assert float(first["hidden"]) == pytest.approx(0.04)
    assert first["head"] == "mean"


def test_csv_keeps_hostile_tokens(tmp_path):
    save(of_labels(HOSTILE, ["x"]), tmp_path / "x.csv")
    expected = [label.replace("\ud800", r"\ud800") for label in HOSTILE]
    assert [row["input"] for row in table(tmp_path / "x.csv")] == expected


def test_a_picture_of_all_heads_is_refused(tmp_path):
    with pytest.raises(ArgumentError, match="one map here"):
        display.save(of_labels("ab", "xy", heads=2), tmp_path / "x.svg", head="all")


def test_svg_csv_and_json_need_no_matplotlib():
    code = (
        "import sys, regard, regard.seeing\n"
        "trace = regard.show([[0.5, 0.5]]).trace\n"
        "str(trace.show()), trace._repr_html_()\n"
        "assert 'matplotlib' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
