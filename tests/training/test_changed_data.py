"""A run goes on with the data that it began with, or says what has changed."""

import io
import json
import random

import pytest
from rich.console import Console

from regard.errors import DataError
from regard.training import RunFolder, make_config, resume_run, start_run
from training.tools import SETTINGS

# trains real models
pytestmark = pytest.mark.slow

BRIEF = {**SETTINGS, "steps": 2, "eval_every": 2, "save_every": 2, "report": False}
DRAW = random.Random(5)
WORDS = ["".join(DRAW.choices("abcdefgh", k=DRAW.randint(3, 7))) for _ in range(300)]


def write(path, words):
    path.write_text("".join(f"{word}\t{' '.join(reversed(word))}\n" for word in words))
    return path


@pytest.fixture
def file(tmp_path):
    return write(tmp_path / "pairs.tsv", WORDS)


@pytest.fixture
def run(file, tmp_path):
    return start_run(make_config({"data": str(file), **BRIEF}), tmp_path / "run", quiet=True)


def go_on(folder):
    said = io.StringIO()
    resume_run(folder.path, {"steps": 4}, console=Console(file=said, width=1000))
    return said.getvalue()


def content(folder):
    return {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}


def refused(folder):
    """The sentence; no byte has changed."""
    before = content(folder)
    with pytest.raises(DataError) as caught:
        go_on(folder)
    assert content(folder) == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_fewer_lines_are_refused(run, file):
    write(file, WORDS[:60])
    said = refused(run)
    assert said.startswith(f"{file}: it has changed since the run began: restore it, or start")
    assert "--from RUN" in said


def test_a_file_that_is_gone_is_not_needed(run, file):
    file.unlink()
    assert f"{file} is gone, and the run goes on with what it has encoded." in go_on(run)
    assert [row["step"] for row in run.read_metrics()] == [2, 4]


def test_damaged_data_are_built_again_from_the_same_file(run):
    path = run.data / "train.arrow"
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    assert "so it is built again" in go_on(run)
    assert path.read_bytes() == whole


def test_without_its_record_a_run_cannot_tell(run):
    path = run.sources_file
    path.write_bytes(path.read_bytes()[:-9])
    assert refused(run).startswith(f"{path}: it is not JSON that regard has written: restore it")
    path.unlink()
    assert "the record of the data is missing, so that they may have changed" in refused(run)


def test_pairs_from_python(tmp_path):
    pairs = [(word, word[::-1]) for word in WORDS]
    run = start_run(make_config(BRIEF), tmp_path / "run", pairs=pairs, quiet=True)
    assert "pairs is gone" in go_on(run), "they are not needed again"
    with pytest.raises(DataError, match="pairs: it has changed since the run began"):
        resume_run(run.path, {"steps": 6}, pairs=pairs[:200], quiet=True)
    resume_run(run.path, {"steps": 6}, pairs=pairs, quiet=True)


def test_vectors_in_files_of_their_own_that_have_changed(tmp_path):
    import numpy as np

    for i in range(60):
        np.save(tmp_path / f"{i}.npy", np.full((2 + i % 3, 2), i, np.float32))
    file = tmp_path / "vectors.jsonl"
    rows = [{"src": f"{i}.npy", "tgt": f"a b {i % 3}"} for i in range(60)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = make_config({"data": str(file), **BRIEF, "tgt_tokenizer": "space"})
    run = start_run(config, tmp_path / "run", quiet=True)
    np.save(tmp_path / "7.npy", np.full((3, 2), 0.5, np.float32))
    with pytest.raises(DataError, match="the vectors that it names have changed"):
        go_on(run)


def test_a_run_that_was_not_trained_yet(file, tmp_path, monkeypatch):
    def interrupt(*args, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr("regard.training.run._train", interrupt)
    with pytest.raises(KeyboardInterrupt):
        start_run(make_config({"data": str(file), **BRIEF}), tmp_path / "run", quiet=True)
    monkeypatch.undo()
    run = RunFolder(tmp_path / "run")
    write(file, WORDS[:60])
    assert "it has changed" in refused(run)
