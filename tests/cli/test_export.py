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
    manifest = {"program": "decode.py", "tokenizers": {"source": {"kind": "char"}}}
    written = ExportResult(tmp_path / "new", 1e-6, manifest)
    monkeypatch.setattr("regard.cli.deployment.export_run", lambda *_, **__: written)
    assert done(regard("export", "run")) == f"{tmp_path / 'new'}\n"
    result = regard("export", "run", "--json")
    assert json.loads(done(result)) == {
        "path": str(tmp_path / "new"),
        "difference": 1e-6,
    }
    assert "differ from the model" in result.stderr
    assert "try `echo TEXT | python" in result.stderr
