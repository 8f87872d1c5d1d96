"""Series from a file to a forecast: train, stop and resume, predict, evaluate, show; bad input."""

import csv
import io
import json
import math
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import regard as package
from cli.tools import done, regard, sentence
from regard.data.series import recognise_series
from regard.errors import ArgumentError, DataError
from regard.models import NumberOutput
from regard.models.forecasters import patch_count
from regard.tasks.inputs.series import SeriesInput, SeriesOptions
from regard.tasks.outputs.forecast import _rank_correlation, over_time
from regard.training import RunFolder, make_config, new_config, start_run

SIZES = {"horizon": 5, "look_back": 13, "patch_len": 5, "stride": 3}
TINY = {"dim": 8, "heads": 2, "feed_forward": 8, "layers": 1, "device": "cpu"}
BRIEF = {**SIZES, **TINY, "steps": 12, "eval_every": 6, "lr": 1e-2}
BRIEF |= {"report": False, "save_every": 3}
FIRST = datetime(2020, 1, 1)


def write(path, rows=130, change=None, header="date,load,temperature"):
    """Two hourly series with a season of six hours; `change` alters the cells of a row."""
    chance = np.random.default_rng(3)
    lines = [header] if header else []
    for i in range(rows):
        load = 5 + math.sin(math.pi * i / 3) + 0.1 * chance.normal()
        cells = [str(FIRST + timedelta(hours=i)), f"{load:.4f}", f"{20 - 2 * load + i / 99:.4f}"]
        cells = cells if change is None else change(i, cells)
        lines += [",".join(cells)] if cells else []
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write(tmp_path_factory.mktemp("series") / "load.csv")


@pytest.fixture(scope="module")
def run(data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run") / "run"
    return start_run(make_config({"data": str(data), **BRIEF}), folder, quiet=True).path


def rows_of(text):
    return list(csv.DictReader(io.StringIO(text)))


def test_a_setting_of_series_makes_it_one(run):
    config = RunFolder(run).read_config()
    assert config.preset == "transformer"
    assert config.task_options["horizon"] == 5
    model = package.load(run, device="cpu")
    assert str(model.task) == "series to forecast"
    assert model.task.input.encoder.columns == ("load", "temperature")
    assert model.task.input.encoder.period == 6
    assert str(model.task.input.encoder.step) == "hour"
    assert "2 series, a row for each hour" in repr(model)


def table(rows, header="date,a,b", cells=None):
    """A table of days; `cells` returns those after the date."""
    days = (FIRST + timedelta(days=i) for i in range(rows))
    lines = [f"{day:%Y-%m-%d},{cells(i)}" for i, day in enumerate(days)]
    return "\n".join([header, *lines]) + "\n"


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        (table(40, cells=lambda i: f"{i},{i % 7}"), ("a", "b")),
        (table(40, "date,a,b,sky", lambda i: f"{i},{i % 7},{'sun' if i % 3 else 'rain'}"), "ab"),
        (
            "\n".join(f"{math.sin(i / 9)}\t{i}\t{i // 2}" for i in range(60)),
            ("column 1", "column 2", "column 3"),
        ),
        ("\n".join(f"{i:b}\t{i:o}" for i in range(1, 60)), None),  # pairs
        # reviews with a date, a table that is not in order, one of anything, and too few rows
        (table(40, "date,text,label", lambda i: f"this is the review number {i},{i % 2}"), None),
        (table(40, cells=lambda i: f"good film {i},{i % 2}"), None),
        ("date,a\n" + "\n".join(f"2020-01-{1 + i * 7 % 30:02},{i}" for i in range(60)), None),
        ("\n".join(f"{i * 7 % 31},{i * 5 % 3}" for i in range(60)), None),
        (table(9, cells=lambda i: f"{i},{i}"), None),
        ("good film\tpos\n" * 40, None),
        ("", None),
    ],
)
def test_what_is_recognised(text, numbers, tmp_path):
    (tmp_path / "table.csv").write_text(text)
    found = recognise_series(tmp_path / "table.csv")
    assert (found and found.numbers) == (numbers and tuple(numbers))


def test_columns_without_numbers_are_left_out_and_few_gaps_filled(tmp_path):
    day = ["rain", "sun", "fog"]
    text = table(100, "date,a,b,sky", lambda i: f"{i if i != 30 else ''},{i % 7},{day[i % 3]}")
    (tmp_path / "table.csv").write_text(text)
    said = []
    config = make_config({"data": str(tmp_path / "table.csv")})
    found = SeriesInput.choose_options(config, config.data, said.append)
    assert found["targets"] == ("a", "b")
    assert found["gaps"] == "fill"
    assert found["look_back"] == 12  # of 70 rows for training, up to a quarter
    assert said == [f"{config.data}: the columns sky hold no numbers, and are left out."]


def test_a_forecaster_begins_as_least_squares(data, tmp_path):
    settings = {"data": str(data), "horizon": 5, "look_back": 13, "patch_len": 5, "stride": 3}
    config = make_config({**settings, **TINY, "steps": 1, "lr": 1e-9})
    run = start_run(config, tmp_path / "run", quiet=True)
    assert [row["step"] for row in run.read_metrics()] == [0, 1]
    model = package.load(run.path, device="cpu")
    values = np.loadtxt(data, delimiter=",", skiprows=1, usecols=(1, 2))
    scaler = model.task.input.encoder
    scaled = (values - scaler.mean) / scaler.scale
    cut = np.concatenate([[scaled[i : i + 18, j] for i in range(91 - 17)] for j in range(2)])
    less = np.insert(cut - cut[:, 12:13], 13, 1.0, axis=1)
    errors = []
    for ridge in (1e-3, 1e-2, 0.03):
        square = less[:, :14].T @ less[:, :14] + ridge * len(less) * np.eye(14)
        weight = np.linalg.solve(square, less[:, :14].T @ less[:, 14:])
        last = np.insert(scaled[-13:] - scaled[-1], 13, 1.0, axis=0)
        errors.append(np.abs(weight.T @ last + scaled[-1] - scaler.encode(model(data).point)))
    assert min(error.max() for error in errors) < 1e-4


def test_training_that_does_not_help_leaves_the_start(data, tmp_path):
    config = make_config({"data": str(data), **BRIEF, "lr": 10.0, "clip": 1e6})
    run = start_run(config, tmp_path / "run", quiet=True)
    assert min(run.read_metrics(), key=lambda row: row["dev_mse"])["step"] == 0
    weights = load_file(run.path / "model.safetensors")
    assert not weights["network.head.weight"].any()


def test_rows_are_split_in_the_order_of_time(run, data):
    scaler = package.load(run, device="cpu").task.input.encoder
    values = np.loadtxt(data, delimiter=",", skiprows=1, usecols=(1, 2))
    assert np.allclose(scaler.mean, values[:91].mean(axis=0))  # 70% of 130 rows
    assert np.allclose(scaler.scale, values[:91].std(axis=0))
    last_seen = FIRST + timedelta(hours=103)
    assert scaler.seen_until == (last_seen - datetime(1970, 1, 1)).total_seconds()


def test_predictions_continue_the_file(run, data):
    found = rows_of(done(regard("predict", run, data, "--device", "cpu")))
    assert [row["date"] for row in found] == [f"2020-01-06 {10 + i}:00" for i in range(5)]
    for row in found:
        low, point, high = (float(row[f"load{end}"]) for end in ("_0.1", "", "_0.9"))
        assert low <= point <= high
        assert 0 < point < 10


def test_predictions_depend_on_the_last_rows_alone(run, data, tmp_path):
    longer = package.load(run, device="cpu")(data)
    last = tmp_path / "last.csv"
    lines = data.read_text().splitlines()
    last.write_text("\n".join([lines[0], *lines[-13:]]))
    shorter = package.load(run, device="cpu")(last)
    assert longer.times == shorter.times
    assert np.allclose(longer.point, shorter.point)
    far = rows_of(replace(longer, point=longer.point + 1e9).text)
    assert np.allclose([float(row["load"]) - 1e9 for row in far], longer.point[:, 0], atol=1e-5)


def test_evaluation_counts_unseen_windows_beside_the_baselines(run, data):
    said = done(regard("evaluate", run, data, "--device", "cpu", "--json"))
    found = json.loads(said)
    # 26 test rows have 22 windows of 5 steps, the first of which reads dev rows
    assert found["examples"].startswith("22 windows from 2020-01-05 08:00 on")
    assert [row["model"] for row in found["scores"]] == [
        "transformer", "repeat last value", "seasonal naive (6)", "linear",
    ]  # fmt: skip
    assert found["scores"][1]["coverage"] is None  # NaN is no JSON
    model = package.load(run, device="cpu")
    values = np.loadtxt(data, delimiter=",", skiprows=1, usecols=(1, 2))
    scaled = (values - model.task.input.encoder.mean) / model.task.input.encoder.scale
    errors = [scaled[i : i + 5] - scaled[i - 1] for i in range(104, 126)]
    assert found["scores"][1]["mse"] == pytest.approx(np.mean(np.square(errors)), rel=1e-5)
    assert found["scores"][1]["mae"] == pytest.approx(np.mean(np.abs(errors)), rel=1e-5)


def test_rows_of_another_file_are_unseen_and_a_new_run_has_seen_its_own(tmp_path):
    def numbered(name, rows, digit=""):
        change = lambda i, cells: [cell + digit for cell in cells[1:]]  # noqa: E731
        return write(tmp_path / name, rows, change, "load,temperature")

    files = numbered("a.csv", 130), numbered("longer.csv", 150), numbered("other.csv", 150, "5")
    run = start_run(make_config({"data": str(files[0]), **BRIEF}), tmp_path / "run", quiet=True)
    model = package.load(run.path, device="cpu")
    more = "windows from 104 on, which the run has not seen"
    said = [f"22 {more}", f"42 {more}", "133 windows"]
    assert [model.evaluate(file).examples for file in files] == said
    with pytest.raises(DataError, match="all of its rows are training or dev rows"):
        model.evaluate(numbered("shorter.csv", 50))
    # another order of columns, one that is new, and more rows
    header = "temperature,load,c"
    own = write(tmp_path / "b.csv", 200, lambda i, cells: [*cells[:0:-1], str(i % 7)], header)
    settings = {"data": str(own), "start": str(run.path), "steps": 1, "device": "cpu"}
    tuned = start_run(new_config(settings), tmp_path / "tuned", quiet=True)
    scaler = package.load(tuned.path, device="cpu").task.input.encoder
    assert scaler.columns == ("temperature", "load", "c")
    assert scaler.mean[:2] == model.task.input.encoder.mean[::-1]
    assert scaler.seen_until == 159


@pytest.mark.sample(1)
@pytest.mark.slow
@pytest.mark.parametrize("preset", ["bahdanau", "self-attentive", "rnn"])
def test_other_presets_forecast(data, tmp_path, preset):
    sizes = {"embed": 5, "hidden": 6, "layers": 1, "steps": 2, "device": "cpu", "report": False}
    config = make_config({"data": str(data), "preset": preset, **SIZES, **sizes})
    run = start_run(config, tmp_path / "run", quiet=True).path
    model = package.load(run, device="cpu")
    assert model(data).point.shape == (5, 2)
    view = model.trace(data)
    if preset == "rnn":
        assert view.attention is None
    else:
        assert view.attention.shape == (2, 5, 13)
        assert (view.attention.sum(axis=2) <= 1 + 1e-5).all()


def test_exogenous_columns_are_read_and_not_forecast(data, tmp_path):
    settings = {"targets": "load", "exogenous": "temperature", **BRIEF, "steps": 2, "skip": False}
    run = start_run(make_config({"data": str(data), **settings}), tmp_path / "run", quiet=True)
    model = package.load(run.path, device="cpu")
    found = model(data)
    assert found.names == ("load",)
    assert found.header == ["date", "load", "load_0.1", "load_0.9"]
    warmer = write(
        tmp_path / "warmer.csv",
        change=lambda i, cells: [*cells[:2], f"{float(cells[2]) + math.sin(i):.4f}"],
    )
    assert not np.allclose(model(warmer).point, found.point)


@pytest.mark.sample(3)
@pytest.mark.slow
@pytest.mark.parametrize("ending", ["html", "svg", "png", "json"])
def test_a_forecast_is_drawn(run, data, tmp_path, ending):
    file = tmp_path / f"picture.{ending}"
    done(regard("show", run, data, "-o", file, "--device", "cpu"))
    content = file.read_bytes()
    if ending == "png":
        assert content.startswith(b"\x89PNG")
    else:
        assert b"2020-01-06 10:00" in content or b"2020-01-06 14:00" in content


def test_what_mattered_is_checked(run, data, tmp_path):
    said = done(regard("check", run, data, "-o", tmp_path / "x.json", "--device", "cpu"))
    assert "load: the forecast changes most, by " in said
    assert "rank correlation with attention" in said
    found = json.loads((tmp_path / "x.json").read_text())
    assert np.array(found["mattered"]).shape == (2, 13)


def test_a_straight_line_does_not_matter_where_the_history_is_one(run):
    model = package.load(run, device="cpu")
    hours = [str(FIRST + timedelta(hours=i)) for i in range(13)]
    line = {"date": hours, "load": np.arange(13.0), "temperature": np.full(13, 20.0)}
    view = model.check(line)
    inner = np.s_[:, 1:-1]  # the ends have one neighbour alone
    assert np.abs(view.mattered[inner]).max() < 1e-4


def test_the_median_may_be_on_either_side_of_the_forecast(run):
    output = package.load(run, device="cpu").task.output
    output.options = output.options.model_copy(update={"quantiles": (0.1, 0.5, 0.9)})
    output._offsets = None
    numbers = torch.tensor([1.0, 2.0, 0.0, 0.5]).expand(1, 5, 2, 4)  # the point is the mean
    found = output.estimates(lambda *_, **__: NumberOutput(numbers, torch.ones(1, 2), {}), None)
    assert found.quantiles[0, 0, 0].tolist() == [0.0, 1.0, 1.0]


@pytest.mark.parametrize(("patch_len", "stride"), [(5, 3), (1, 1), (2, 4)])
def test_attention_over_time_sums_to_1(patch_len, stride):
    options = SeriesOptions(look_back=12, patch_len=patch_len, stride=stride)
    count = patch_count(12, patch_len, stride)
    found = over_time({"encoder-self": (torch.rand(1, 1, count, count).softmax(-1),)}, options)
    assert found.sum() == pytest.approx(1)


def test_equals_share_a_rank():
    found = _rank_correlation(np.arange(5.0), np.array([0.0, 0.0, 0.0, 0.0, 5.0]))
    assert found == pytest.approx(0.5**0.5)  # as scipy.stats.spearmanr has it


def cell(row, column, text):
    def change(i, cells):
        return [*cells[:column], text, *cells[column + 1 :]] if i == row else cells

    return change


BAD = {
    "a gap in time": (
        {"change": lambda i, cells: None if i == 50 else cells},
        "line 52: there must be a row for each hour, but from 2020-01-03 01:00 to 2020-01-03 03:00 "
        "there is a gap",
    ),
    "NaN": ({"change": cell(7, 1, "nan")}, "line 9: the column 'load' has no finite number here"),
    "an empty cell": ({"change": cell(7, 2, "")}, "line 9: the column 'temperature' has no finite"),
    "text": (
        {"change": cell(7, 1, "high")},
        "line 9: the column 'load' must hold numbers, but here it is 'high'",
    ),
    "unsorted": (
        {"change": cell(7, 0, "2019-12-31 00:00:00")},
        "line 9: times must go up, but 2019-12-31 00:00 follows 2020-01-01 06:00",
    ),
    "twice": (
        {"change": cell(7, 0, "2020-01-01 06:00:00")},
        "line 9: the time 2020-01-01 06:00 is there twice",
    ),
    "no time": ({"change": cell(7, 0, "noon")}, "line 9: the column 'date' must hold times"),
    "too few rows": (
        {"rows": 20},
        "the train rows must be at least look_back \\+ horizon, 18, but of 20 rows they are 14",
    ),
    "a long line": (
        {"change": lambda i, cells: [*cells, "1"] if i == 7 else cells},
        "line 9: the line must have 3 cells like the first, but it has 4",
    ),
    "one name twice": ({"header": "date,load,load"}, "line 1: two columns are named 'load'"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_named(tmp_path, name):
    how, said = BAD[name]
    file = write(tmp_path / "bad.csv", **how)
    with pytest.raises(DataError, match=said):
        start_run(make_config({"data": str(file), **BRIEF}), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run").exists()


def test_a_constant_column_is_told_and_forecast(tmp_path, capsys):
    file = write(tmp_path / "flat.csv", change=lambda i, cells: [cells[0], cells[1], "7.5"])
    run = start_run(make_config({"data": str(file), **BRIEF}), tmp_path / "run")
    assert "the column 'temperature' is constant in the training rows" in capsys.readouterr().err
    found = package.load(run.path, device="cpu")(file)
    assert np.allclose(found.point[:, 1], 7.5, atol=0.1)


def daily(i, cells):
    return [str(FIRST + timedelta(days=i)), *cells[1:]]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"header": "date,load,humidity"}, "there must be a column 'temperature', but the columns"),
        ({"change": daily}, "a row for each hour, as in training, but there is one for each"),
        ({"rows": 12}, "there must be 13 rows, which the model reads, but there are 12"),
        ({"rows": 1}, "there must be 13 rows, which the model reads, but there are 1"),
    ],
)
def test_other_tables_are_refused_in_prediction(run, tmp_path, how, said):
    file = write(tmp_path / "other.csv", **how)
    assert said in sentence(regard("predict", run, file, "--device", "cpu"), 1)


def test_what_forecasters_cannot_do_is_told(run, data):
    assert "use `regard predict`" in sentence(regard("align", run, data), 1)


def test_a_forecaster_that_goes_step_by_step_is_not_exported(data, tmp_path):
    own = {**BRIEF, "preset": "rnn", "embed": 4, "hidden": 4, "steps": 1}
    own = {name: value for name, value in own.items() if name not in TINY or name == "device"}
    start_run(make_config({"data": str(data), **own}), tmp_path / "run", quiet=True)
    said = sentence(regard("export", tmp_path / "run", "-o", tmp_path / "graph"), 1)
    assert "the preset rnn writes one after another: export a run of transformer" in said
    assert not (tmp_path / "graph").exists()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"preset": "conv"}, "preset must be one of transformer, bahdanau, self-attentive, rnn"),
        ({"quantiles": "0.9,0.1"}, "quantiles must"),
        ({"split": "1,2"}, "split must"),
        ({"split": "0.7,0.3,0.5"}, "split must be three shares"),
        ({"horizon": 10**9}, "horizon must"),
        ({"exogenous": "load", "targets": "load"}, "exogenous must not be forecast as well"),
        ({"tgt_tokenizer": "word"}, "tgt_tokenizer must be left out for series"),
        ({"metric": "bleu"}, "metric must be mse, mae or loss for series"),
        ({"patch_len": 99}, "patch_len must be at most look_back"),
        ({"tied": "output"}, "tied must be left out for series"),
        ({"period": 14}, "period must be at most look_back, 13, but it is 14"),
    ],
)
def test_settings_that_make_no_sense_are_refused(data, tmp_path, settings, said):
    with pytest.raises(ArgumentError, match=said):
        start_run(
            make_config({"data": str(data), **SIZES, **settings}), tmp_path / "run", quiet=True
        )
