"""`regard export`: what goes wrong is one sentence."""

import json
import sys

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
    manifest = {"format": "onnx", "tokenizers": {"source": {"kind": "char"}}}
    written = ExportResult(tmp_path / "new", 1e-6, manifest)
    monkeypatch.setattr("regard.cli.deployment.export_run", lambda *_, **__: written)
    assert done(regard("export", "run")) == f"{tmp_path / 'new'}\n"
    result = regard("export", "run", "--json")
    assert json.loads(done(result)) == {"path": str(tmp_path / "new"), "difference": 1e-6}
    assert "differ from the model" in result.stderr
    assert "try `echo TEXT | python" in result.stderr


def test_a_folder_that_exists(untrained, tmp_path):
    said = sentence(regard("export", untrained, "-o", tmp_path), 2)
    assert str(tmp_path) in said
    assert "exists" in said


def test_a_run_that_is_none(tmp_path):
    assert "run folder" in sentence(regard("export", tmp_path / "nothing"), 1)


def test_a_run_without_a_model(untrained, tmp_path):
    (tmp_path / "config.json").write_bytes((untrained / "config.json").read_bytes())
    assert "--resume" in sentence(regard("export", tmp_path, "-o", tmp_path / "new"), 1)
    assert not (tmp_path / "new").exists()


def test_a_language_model(tmp_path):
    run = make_run(tmp_path / "run", "lm-rnn")
    assert "language model" in sentence(regard("export", run, "-o", tmp_path / "new"), 1)


@pytest.mark.parametrize(
    ("missing", "words"),
    [({"onnxruntime"}, "onnxruntime is"), ({"onnx", "onnxscript"}, "onnx and onnxscript are")],
)
def test_a_missing_extra(missing, words, untrained, tmp_path, monkeypatch):
    for name in missing:
        monkeypatch.setitem(sys.modules, name, None)
    said = sentence(regard("export", untrained, "-o", tmp_path / "new"), 1)
    assert f"{words} not installed" in said
    assert "regard[onnx]" in said
