"""`regard runs`: every run folder, in its state, from small files alone."""

import json
import shutil

import pytest

from cli.test_startup import modules
from cli.tools import done, regard, sentence


@pytest.fixture
def copy(run, tmp_path):
    """A finished run in a folder of its own, to damage."""
    return shutil.copytree(run, tmp_path / "deep" / "er" / "run")


def listed(folder, *words):
    return json.loads(done(regard("runs", folder, "--json", *words)))


def test_a_stopped_run_can_be_resumed_and_has_the_score_of_its_last_evaluation(copy):
    row = json.loads((copy / "metrics.jsonl").read_text().splitlines()[-1])
    name = [name for name in row if name.startswith("dev_")][1]
    score = f"{name.replace('_', ' ')} {row[name]:.4f}"
    assert listed(copy)[0]["score"] == score
    (copy / "README.md").unlink()
    (found,) = listed(copy)
    assert (found["state"], found["detail"]) == ("can be resumed", "from step 30")
    assert found["score"] == score
    assert "can be resumed from step 30" in done(regard("runs", copy))


def test_a_run_without_an_evaluation_can_be_resumed(copy):
    for name in ("README.md", "metrics.jsonl", "model.safetensors"):
        (copy / name).unlink()
    shutil.rmtree(copy / "checkpoints")
    (found,) = listed(copy)
    assert (found["state"], found["detail"]) == ("can be resumed", "from step 0")
    assert found["score"] is found["weights"] is None


def test_only_runs_are_listed(copy, tmp_path):
    for name, content in (("other", '{"model_type": "bert"}'), ("broken", "{"), ("empty", "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(content)
    shutil.copytree(copy, tmp_path / ".hidden" / "run")
    (tmp_path / "link").symlink_to(copy)
    assert [run["path"] for run in listed(tmp_path)] == [str(copy)]


def test_the_search_is_bounded(copy, tmp_path, monkeypatch):
    assert len(listed(tmp_path, "--depth", "3")) == 1
    assert listed(tmp_path, "--depth", "2") == []
    monkeypatch.setattr("regard.cli.runs.MOST_FOLDERS", 2)
    result = regard("runs", tmp_path)
    assert "the first 2 folders were read" in result.stderr
    assert done(result) == ""


def test_no_runs_and_no_folder(tmp_path):
    result = regard("runs", tmp_path)
    assert done(result) == ""
    assert "there is no run in" in result.stderr
    assert "must be a folder" in sentence(regard("runs", tmp_path / "none"), 2)


def test_torch_is_not_loaded(copy):
    said, loaded = modules("runs", str(copy))
    assert any("finished" in line for line in said)
    assert not loaded & {"torch", "numpy", "pyarrow"}
