"""Runs whose sources are pictures, by the command line and in Python."""

import json

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from PIL import Image

import regard
from cli.tools import done, sentence
from cli.tools import regard as command
from pictures import COLOURS, SIDES, caption, drawn, write_classes, write_set

# trains or decodes with real models: not part of `make check`
pytestmark = pytest.mark.slow

SMALL = (
    "preset=show-attend-tell",
    "embed=8",
    "hidden=16",
    "layers=1",
    "device=cpu",
    "report=false",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("pictures")


@pytest.fixture(scope="module")
def data(folder):
    return write_set(folder, 60)


@pytest.fixture(scope="module")
def run(folder, data):
    """A run that tells two colours and two sides."""
    settings = ("patch=2", "steps=60", "eval_every=60", "lr=0.02", "beam=1", "dropout=0")
    done(command("train", data, "-o", folder / "run", "-q", *SMALL, *settings))
    return folder / "run"


@pytest.fixture(scope="module")
def model(run):
    return regard.load(run, device="cpu")


@pytest.fixture(scope="module")
def picture(folder):
    Image.fromarray(drawn("blue", "right", 99)).save(folder / "one.png")
    return folder / "one.png"


def test_it_learns_colours_and_sides(model):
    for colour in COLOURS:
        for side in SIDES:
            assert model(drawn(colour, side, 77)).text == caption(colour, side)


def test_answers_are_the_same_in_whatever_form_pictures_come(run, model, picture, tmp_path):
    text = caption("blue", "right")
    assert done(command("predict", run, picture)).splitlines() == [text]
    assert done(command("predict", run, picture, picture)).splitlines() == [text] * 2
    (tmp_path / "names.txt").write_text(f"{picture}\n{picture}\n")
    assert done(command("predict", run, tmp_path / "names.txt")).splitlines() == [text] * 2
    assert done(command("predict", run, stdin=f"{picture}\n")).splitlines() == [text]
    (tmp_path / "a.jsonl").write_text(json.dumps({"src": str(picture)}) + "\n")
    assert done(command("predict", run, tmp_path / "a.jsonl")).splitlines() == [text]
    table = pyarrow.table({"src": [drawn("blue", "right", 99).tolist()]})
    pyarrow.parquet.write_table(table, tmp_path / "a.parquet")
    assert done(command("predict", run, tmp_path / "a.parquet")).splitlines() == [text]
    array = drawn("blue", "right", 99)
    several = (array, torch.from_numpy(array), Image.fromarray(array), str(picture), picture)
    assert [model(one).text for one in several] == [text] * 5
    assert [out.text for out in model(np.stack([array, array]))] == [text] * 2


def test_a_folder_for_each_class_is_labelled_data(tmp_path):
    data = write_classes(tmp_path / "data")
    settings = ("patch=2", "steps=40", "eval_every=40", "lr=0.02", "dropout=0")
    done(command("train", data, "-o", tmp_path / "run", *SMALL, "-q", *settings))
    shown = done(command("predict", tmp_path / "run", data / "red" / "0.png"))
    assert shown.strip() == "red"
    whole = done(command("predict", tmp_path / "run", data / "red")).splitlines()
    names = sorted((data / "red").iterdir())
    assert whole == done(command("predict", tmp_path / "run", *names)).splitlines()
    (tmp_path / "none").mkdir()
    said = sentence(command("predict", tmp_path / "run", tmp_path / "none"), 1)
    assert "a folder must hold pictures, recordings or .npy files, but this one has none" in said
    assert "24 pairs" in done(command("evaluate", tmp_path / "run", data))
