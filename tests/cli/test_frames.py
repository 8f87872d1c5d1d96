"""Runs whose sources are vectors, by the command line and in Python."""

import json

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch

import regard
from cli.tools import SMALL, done, sentence
from cli.tools import regard as command
from sounds import spoken, write_jsonl, write_npy

# trains or decodes with real models: not part of `make check`
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("frames")


def train(folder, name, *settings):
    data = write_jsonl(folder / f"{name}.jsonl", spoken(300))
    small = SMALL if "preset=transformer" not in settings else ("size=tiny", "dim=32", "heads=2")
    done(command("train", data, "-o", folder / name, "-q", *small, *settings))
    return folder / name


@pytest.fixture(scope="module")
def run(folder):
    """A run that has heard sounds for a moment, two frames joined to one."""
    return train(folder, "run", "steps=30", "eval_every=30", "warmup=200", "stack=2")


@pytest.fixture(scope="module")
def model(run):
    return regard.load(run)


@pytest.fixture(scope="module")
def rows():
    return spoken(7, seed=5)


@pytest.mark.usefixtures("plain_steps")
def test_answers_are_the_same_in_whatever_form_sources_come(run, model, rows, tmp_path):
    tables = [table for table, _ in rows]
    jsonl = write_jsonl(tmp_path / "a.jsonl", rows)
    names = write_npy(tmp_path / "b.tsv", rows)
    (tmp_path / "names.txt").write_text(
        "".join(line.split("\t")[0] + "\n" for line in names.read_text().splitlines())
    )
    column = pyarrow.array([table.tolist() for table in tables])
    pyarrow.parquet.write_table(pyarrow.table({"src": column}), tmp_path / "c.parquet")
    files = [tmp_path / "b" / f"{i}.npy" for i in range(len(rows))]
    by_name = done(command("predict", run, jsonl)).splitlines()
    assert len(by_name) == len(rows)
    assert len(set(by_name)) > 1
    assert done(command("predict", run, tmp_path / "names.txt")).splitlines() == by_name
    assert done(command("predict", run, tmp_path / "c.parquet")).splitlines() == by_name
    assert done(command("predict", run, *files)).splitlines() == by_name
    assert done(command("predict", run, files[3])).splitlines() == by_name[3:4]
    assert done(command("predict", run, stdin=jsonl.read_text())).splitlines() == by_name
    given = (
        tables,
        [torch.from_numpy(table) for table in tables],
        [table.tolist() for table in tables],
        files,
        iter(tables),
    )
    for several in given:
        assert [out.text for out in model(several)] == by_name
    for one in (tables[3], torch.from_numpy(tables[3]), tables[3].tolist(), files[3]):
        assert model(one).text == by_name[3]
    assert model(str(files[3])).text == by_name[3]
    assert [out.text for out in model(np.stack([tables[3]] * 2))] == by_name[3:4] * 2


def test_bad_lines_keep_their_place(run, rows, tmp_path):
    good = json.dumps({"src": rows[0][0].tolist()})
    lines = [good, '{"src": [[1]]}', "none.npy", good]
    (tmp_path / "in.jsonl").write_text("\n".join(lines) + "\n")
    result = command("predict", run, tmp_path / "in.jsonl", "--skip-bad")
    found = done(result).splitlines()
    assert len(found) == 4
    assert found[0] == found[3]
    assert found[1:3] == ["", ""]
    assert "2 bad lines were left out" in result.stderr
    said = sentence(command("predict", run, tmp_path / "none.jsonl"), 1)
    assert said == (
        f"{tmp_path / 'none.jsonl'}: there is no such file: check the name, or the folder you are "
        "in."
    )
