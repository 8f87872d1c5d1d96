"""`regard export`: what goes wrong is one sentence."""

import json

import pytest

from cli.tools import done, regard, sentence
from export.tools import make_run
from regard.export.folder import ExportResult


@pytest.fixture(scope="module")
def untrained(tmp_path_factory):
    return make_run(tmp_path_factory.mktemp("runs") / "run")


def test_an_unknown_format(untrained):
    said = sentence(regard("export", untrained, "--to", "tflite"), 2)
    assert "onnx" in said
    assert "tflite" in said


def test_what_was_written_as_json(tmp_path, monkeypatch):
    verified = {"largest_difference": 1e-6, "beam": 3, "sources": 9, "equal_predictions": 8}
    manifest = {
        "format": "onnx",
        "tokenizers": {"source": {"kind": "char"}},
        "verified": verified,
    }
    written = ExportResult(tmp_path / "new", 1e-6, manifest)
    monkeypatch.setattr("regard.cli.deployment.export_run", lambda *_, **__: written)
    assert done(regard("export", "run")) == f"{tmp_path / 'new'}\n"
    result = regard("export", "run", "--json")
    assert json.loads(done(result)) == {
        "path": str(tmp_path / "new"),
        "difference": 1e-6,
        "beam": 3,
        "sources": 9,
        "equal_predictions": 8,
    }
    assert "differ from the model" in result.stderr
    assert "predictions for 8 of 9 random sources are equal (beam 3)" in result.stderr
    assert "try `echo TEXT | python" in result.stderr
