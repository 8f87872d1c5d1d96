"""Runs that predict numbers: a number with its trace, and a forecast with its figure."""

import base64

import numpy as np
import pytest

import regard
from cli.tools import done
from cli.tools import regard as command
from regard.seeing.trace.storage import from_json
from regard.serve.served_models import Models
from serve.conftest import client_of
from serve.test_http_errors import error
from tasks.life import BRIEF
from tasks.toys import TOYS


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A run of ratings and one of series, with their data."""
    path = tmp_path_factory.mktemp("numbers")
    for name, toy in (("ratings", TOYS["numbers of texts"]), ("load", TOYS["series"])):
        data = toy.write(path, 120, 1)
        done(command("train", data, "-o", path / name, *BRIEF, *toy.settings))
    return path


@pytest.fixture(scope="module")
def client(folder):
    models = Models.load([folder / "ratings", folder / "load"], device="cpu")
    with client_of(models) as client:
        yield client


def sent(content, model="load"):
    return {"model": model, "file": base64.b64encode(content).decode()}


def test_a_number_is_answered_with_its_trace(client, folder):
    found = from_json(client.post("/api/run", json={"text": "old tree"}).json())
    right = regard.load(folder / "ratings", device="cpu")("old tree")
    assert found.target.text == right.text
    assert found.source.labels == ["old", "tree", "</s>"]
    checked = client.post("/api/check", json={"text": "old tree"}).json()
    assert "change" in checked["derived"]


def test_a_forecast_is_answered_with_its_figure(client, folder):
    content = (folder / "series-1.csv").read_bytes()
    found = client.post("/api/run", json=sent(content)).json()
    right = regard.load(folder / "load", device="cpu")(folder / "series-1.csv")
    assert found["format"] == "regard-forecast"
    assert np.allclose(found["point"], right.point)
    assert np.allclose(found["quantiles"], right.quantiles)
    assert found["times"] == list(right.times)
    assert found["figure"].startswith("<svg")
    assert found["mattered"] is None
    checked = client.post("/api/check", json=sent(content)).json()
    assert np.array(checked["mattered"]).shape == (2, 12)
    assert checked["notes"][0].startswith("load: the forecast changes most")


@pytest.mark.parametrize(
    "more", [{"target": "3"}, {"beam": 2}, {"kinds": ["cross"]}, {"max_len": 4}]
)
def test_options_of_tokens_are_refused(client, more):
    told = error(client.post("/api/run", json={"text": "old tree", **more}), 422, "invalid")
    assert "must be left out for a model that predicts numbers" in str(told)


def test_what_is_no_series_is_refused_and_no_file_is_opened(client, folder):
    path = folder / "series-1.csv"
    for wrong in (
        {"model": "load", "text": str(path)},
        {"model": "load", "file": str(path)},
        sent(b""),
        sent(b"date,load,heat\n"),
        sent(b"date,load\n2020-01-01,3\n"),
        sent(b"\0\xff" * 50),
        sent(path.read_bytes()[:200]),
        sent(path.read_bytes().replace(b"5.", b"nan,", 1)),
    ):
        told = error(client.post("/api/run", json=wrong), 422, "invalid")
        assert "series-1" not in str(told)
