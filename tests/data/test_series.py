"""Tables of series: files, times and steps, gaps; windows, scales and seasons."""

import re

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from regard.data import NumberTargets, load_target
from regard.data.series import read_series
from regard.data.series_windows import (
    SeriesScaler,
    SeriesWindows,
    TimeStep,
    find_period,
    time_labels,
)
from regard.errors import ArgumentError, DataError

DAYS = ["2024-01-30", "2024-01-31", "2024-02-01"]


def csv(path, *lines):
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_table_with_times(tmp_path):
    lines = ["day,a,b", *(f"{day},{i},{i / 2}" for i, day in enumerate(DAYS))]
    table = read_series(csv(tmp_path / "x.csv", *lines))
    assert (table.time, table.columns, str(table.step)) == ("day", ("a", "b"), "day")
    assert table.values.tolist() == [[0, 0], [1, 0.5], [2, 1]]
    assert table.labels() == DAYS


def test_without_times_and_names_rows_are_numbered(tmp_path):
    table = read_series(csv(tmp_path / "x.csv", "1.5,2", "2.5,3"))
    assert table.columns == ("column 1", "column 2")
    assert (table.time, table.step.unit, table.labels()) == ("", "rows", ["0", "1"])


def test_parquet_and_python(tmp_path):
    times = np.array(DAYS, "datetime64[s]")
    content = pyarrow.table({"at": times, "a": [1.0, 2.0, 3.0]})
    pyarrow.parquet.write_table(content, tmp_path / "x.parquet")
    from_file = read_series(tmp_path / "x.parquet")
    for table in (from_file, read_series(content), read_series({"at": DAYS, "a": [1, 2, 3]})):
        assert (table.time, table.labels()) == ("at", DAYS)
        assert table.values.ravel().tolist() == [1, 2, 3]
    assert read_series(np.ones((5, 3))).columns == ("column 1", "column 2", "column 3")
    with pytest.raises(ArgumentError, match="be a file, a mapping of columns"):
        read_series(object())
    sent = read_series(
        b"\xef\xbb\xbfat,a\r\n" + "".join(f"{d},{i}\n" for i, d in enumerate(DAYS)).encode()
    )
    assert (sent.name, sent.time, sent.values.ravel().tolist()) == ("file", "at", [0, 1, 2])
    with pytest.raises(ArgumentError, match="be equally long"):
        read_series({"a": [1], "b": [1, 2]})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "the file is empty"),
        ("date,a", "there are no rows"),
        ("date\n2020-01-01", "there is no column beside the time"),
        ("date,a\n2020-01-01,1\n\n2020-01-02,2", "line 3: the line is empty"),
        ("date,a\n2020-01-01,inf", "line 2: the column 'a' has no finite number"),
        (
            "date,a\n2020-01-01,1\n2020-01-02,1\n2020-01-03,1\n2020-01-03 09:00,1",
            "less than a step",
        ),
        ("a,b\n" + 5 * "1,2\n", "line 6: the table has more than 10 cells"),
    ],
)
def test_files_that_are_no_series_are_refused(tmp_path, monkeypatch, content, said):
    monkeypatch.setattr("regard.data.series.MOST_CELLS", 10)
    (tmp_path / "x.csv").write_text(content)
    with pytest.raises(DataError, match=said):
        read_series(tmp_path / "x.csv")


def test_months_end_and_weekends_are_no_gaps():
    ends = ["2023-09-30", "2023-10-31", "2023-11-30", "2024-01-31"]
    months = read_series({"date": ends, "a": [1, 2, 3, 5]}, gaps="fill")
    assert months.step == TimeStep("months", 1)
    assert months.labels() == [*ends[:3], "2023-12-31", ends[3]]
    assert months.values.ravel().tolist() == [1, 2, 3, 4, 5]
    ahead = time_labels(months.step.after(months.times, 2), months.step)
    assert ahead == ["2024-02-29", "2024-03-31"]
    friday = ["2024-02-01", "2024-02-02", "2024-02-05", "2024-02-06"]
    weekdays = read_series({"date": friday, "a": [1, 2, 3, 4]})
    assert weekdays.step == TimeStep("weekdays", 1)
    ahead = weekdays.step.after(weekdays.times[:2], 2)
    assert time_labels(ahead, weekdays.step) == ["2024-02-05", "2024-02-06"]


def test_gaps_are_filled_in_a_straight_line():
    times = ["2024-01-01", "2024-01-02", "2024-01-05"]
    table = read_series({"date": times, "a": [1.0, float("nan"), 9.0]}, gaps="fill")
    assert table.values.ravel().tolist() == [1, 3, 5, 7, 9]
    assert table.filled == 3
    ignored = read_series({"date": times, "a": [1.0, 2.0, 9.0]}, gaps="ignore")
    assert len(ignored) == 3
    uneven = [*times[:2], "2024-01-03", "2024-01-04 12:00", "2024-01-06"]
    moved = read_series({"date": uneven, "a": [1.0, 2.0, 3.0, 6.0, 9.0]}, gaps="fill")
    assert moved.values.ravel().tolist() == [1, 2, 3, 5, 7, 9]
    assert moved.labels()[-1] == "2024-01-06"
    assert "1 rows lie between two steps" in moved.notes[0]


def test_repeated_times_are_averaged_or_taken_as_they_are():
    times = ["2024-01-01", "2024-01-02", "2024-01-02", "2024-01-04"]
    columns = {"date": times, "a": [1.0, 2.0, 4.0, 9.0], "b": [1.0, float("nan"), 3.0, 1.0]}
    filled = read_series(columns, gaps="fill")
    assert filled.values.tolist() == [[1, 1], [3, 3], [6, 2], [9, 1]]
    assert (
        "1 rows have the time of the row before them, and rows of one time are" in filled.notes[0]
    )
    ignored = read_series({"date": times, "a": columns["a"]}, gaps="ignore")
    assert (len(ignored), str(ignored.step)) == (4, "weekday")
    with pytest.raises(DataError, match=r"line 3: the time 2024-01-02 is there twice: .*gaps=fill"):
        read_series(columns)
    with pytest.raises(DataError, match="times must go up"):
        read_series({"date": [*times[1:], times[0]], "a": columns["a"]}, gaps="ignore")
    turned = read_series({"date": times[::-1], "a": columns["a"]}, gaps="ignore")
    assert (turned.values.ravel().tolist(), turned.labels()) == ([9, 4, 2, 1], times)
    assert "its rows go back in time, and are turned round" in turned.notes[0]


#: files of other countries: what their times and numbers are, or why they are refused
FOREIGN = {
    "date;a\n30/01/2024;1,5\n31/01/2024;2\n01/02/2024;-0,25\n": (
        ["2024-01-30", "2024-01-31", "2024-02-01"], [1.5, 2, -0.25]),
    "date,a\n1/30/2024,1\n1/31/2024,2\n2/1/2024,3\n": (
        ["2024-01-30", "2024-01-31", "2024-02-01"], [1, 2, 3]),
    "Zeit;a\n1.2.2024 9:00;1.234,5\n1.2.2024 10:00;7.000\n": (
        ["2024-02-01 09:00", "2024-02-01 10:00"], [1234.5, 7000]),
    "date;a\n2024-01-01;1,234.5\n2024-01-02;2\n": (["2024-01-01", "2024-01-02"], [1234.5, 2]),
    "date,a\n20240101,1\n20240102,2\n": (["2024-01-01", "2024-01-02"], [1, 2]),
    "2024-01-01,1\n2024-01-02,2\n": (["2024-01-01", "2024-01-02"], [1, 2]),
    "time,a\n1704067200,1\n1704153600,2\n": (["2024-01-01", "2024-01-02"], [1, 2]),
    "date,a\n01/01/2024,1\n01/02/2024,2\n01/03/2024,3\n01/01/2025,4\n": "cannot be told apart",
    "date,a\n01/11/2023,1\n01/12/2023,2\n01/01/2024,3\n": (
        ["2023-11-01", "2023-12-01", "2024-01-01"], [1, 2, 3]),
    "date,a\n1/31/24 11:00 PM,1\n2/1/24 12:00 AM,2\n2/1/24 1:00 AM,3\n": (
        ["2024-01-31 23:00", "2024-02-01 00:00", "2024-02-01 01:00"], [1, 2, 3]),
    "Monat,a\nJan 2024,1\nFeb 2024,2\nMar 2024,3\n": (
        ["2024-01-01", "2024-02-01", "2024-03-01"], [1, 2, 3]),
    "date,a\n30 January 2024,1\n31 January 2024,2\n1 February 2024,3\n": (DAYS, [1, 2, 3]),
    "date,a\n30-Jan-24,1\n31-Jan-24,2\n01-Feb-24,3\n": (DAYS, [1, 2, 3]),
    "date,a\n45321,1\n45322,2\n45323,3\n": (DAYS, [1, 2, 3]),
    "date,a\n45321.5,1\n45322,2\n": (["2024-01-30 12:00", "2024-01-31 00:00"], [1, 2]),
    "timestamp,a\n1704067200000,1\n1704153600000,2\n": (["2024-01-01", "2024-01-02"], [1, 2]),
    "period,a\n1974Q4,1\n1975Q1,2\n": (["1974-10-01", "1975-01-01"], [1, 2]),
    "year,quarter,a\n1974,4,1\n1975,1,2\n": (["1974-10-01", "1975-01-01"], [1, 2]),
    "Year,Month,a\n1974,12,1\n1975,1,2\n": (["1974-12-01", "1975-01-01"], [1, 2]),
    "Year,Month,Day,a\n1974,12,1,5\n1975,12,1,6\n": (
        ["1974-01-01", "1975-01-01"], [12, 1, 5, 12, 1, 6]),
    "time,a\n1949.91667,1\n1950.0,2\n1950.08333,3\n": (
        ["1949-12-01", "1950-01-01", "1950-02-01"], [1, 2, 3]),
    "time,a\n-1,1\n0,2\n1,3\n": (["-1", "0", "1"], [1, 2, 3]),
    "date,a\nJan-31-2024,1\nFeb-1-2024,2\n": (["2024-01-31", "2024-02-01"], [1, 2]),
    "Time,a\n2024-01-01T00:00:00+01:00,1\n2024-01-01T01:00:00+01:00,2\n": (
        ["2023-12-31 23:00", "2024-01-01 00:00"], [1, 2]),
    "Date;Time;a;b\n16/12/2006;17:24:00;1;?\n16/12/2006;17:25:00;2;5\n": "'b' has no finite",
    "Date;Time;a\n16/12/2006;17.24.00;1\n16/12/2006;17.25.00;2\n": (
        ["2006-12-16 17:24", "2006-12-16 17:25"], [1, 2]),
    "No,date,a,sky,\n1,2024-01-02,1,dull,\n2,2024-01-01,2,clear,\n": (
        ["2024-01-01", "2024-01-02"], [2, 1]),
    "date;a\n01/02/2024;1\n02/02/2024;2\n": "line 2: day and month of the column 'date' cannot",
    "date;a\n30/01/2024;1\n01/31/2024;2\n": "both numbers of some are above 12",
    "date;a\n2024-01-01;1,234\n2024-01-02;2\n": "'1,234' may have a decimal comma or a comma",
    "date;a\n2024-01-01;1,5\n2024-01-02;2.5\n": "line 3: the column 'a' must hold numbers",
    "date,a\n202401,1\n202402,2\n": "line 2: the column 'date' must hold times, but here it is",
}  # fmt: skip


@pytest.mark.parametrize("content", FOREIGN)
def test_times_and_numbers_of_other_countries(tmp_path, content):
    expected = FOREIGN[content]
    (tmp_path / "x.csv").write_text(content)
    if isinstance(expected, str):
        with pytest.raises(DataError, match=re.escape(expected)):
            read_series(tmp_path / "x.csv")
        return
    table = read_series(tmp_path / "x.csv")
    assert (table.labels(), table.values.ravel().tolist()) == expected
    comma = ";" in content and "," in content
    counted = re.search(r"^45321|^1704067200000|^1949|[+]01:00", content, re.MULTILINE) is not None
    other = 2 * content.startswith("No")  # columns that are left out, and the order of rows
    assert len(table.notes) == comma + ("/" in content or "Zeit" in content) + counted + other
    shown = " ".join(table.notes)
    assert all(cell in shown for cell in re.findall("[-/.0-9]+,[.0-9]+", content)[:1] if comma)


def test_a_missing_column_is_named():
    table = read_series({"a": [1], "b": [2]})
    assert table.select(("b",), "no").values.tolist() == [[2]]
    with pytest.raises(DataError, match="there must be a column 'c', but the columns of numbers"):
        table.select(("c",), "name another")


def windows_of(rows=11, columns=3, look_back=5, horizon=2, targets=2):
    values = np.arange(rows * columns, dtype=np.float32).reshape(rows, columns)
    made = SeriesWindows(
        [values[:7], values], look_back=look_back, horizon=horizon, targets=targets
    )
    return values, made


def test_windows_lie_in_their_stretches():
    values, windows = windows_of()
    assert len(windows) == 1 + 5
    history, future = windows.numbers(np.array([0, 1, 5]))
    assert np.array_equal(history, np.stack([values[:5], values[:5], values[4:9]]))
    assert np.array_equal(future, np.stack([values[5:7], values[5:7], values[9:11]])[:, :, :2])


def scaler(**changes):
    made = SeriesScaler(
        ("a", "b", "c"), 2, (1.0, 2.0, 3.0), (2.0, 4.0, 8.0), "date", TimeStep("months", 1), 4, 5, 6
    )
    return made.__class__(**{**made.__dict__, **changes})


def test_scaling_is_undone():
    values = np.random.default_rng(0).normal(size=(7, 3))
    encoded = scaler().encode(values)
    assert np.allclose(encoded, (values - [1, 2, 3]) / [2, 4, 8], atol=1e-6)
    assert np.allclose(scaler().decode(encoded[:, :2]), values[:, :2], atol=1e-5)


def test_scalers_and_targets_are_saved(tmp_path):
    scaler().save(tmp_path / "src.json")
    from regard.atomic_files import read_checksummed

    content = read_checksummed(tmp_path / "src.json")
    assert SeriesScaler.from_json(tmp_path / "src.json", content) == scaler()
    with pytest.raises(DataError, match="columns"):
        SeriesScaler.from_json("x", {**content, "targets": 4})
    targets = NumberTargets(("a", "b"), (1.0, 2.0), (2.0, 4.0))
    targets.save(tmp_path / "tgt.json")
    assert load_target(tmp_path / "tgt.json") == targets
    with pytest.raises(DataError, match="mean and scale"):
        NumberTargets.from_json("x", {**targets.to_json(), "mean": [1.0]})


def test_a_season_is_found():
    i = np.arange(400.0)
    chance = np.random.default_rng(1).normal(size=400) / 5
    daily = np.stack([np.sin(2 * np.pi * i / 24) + chance, i / 400], axis=1)
    assert find_period(daily, TimeStep("seconds", 3600), 100) == 24
    assert find_period(daily, TimeStep("rows", 1), 100) in (23, 24, 25)
    assert find_period(np.random.default_rng(2).normal(size=(300, 1)), TimeStep("rows", 1), 99) == 1
