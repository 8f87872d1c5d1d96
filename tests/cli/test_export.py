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


def test_an_unknown_precision(untrained):
    said = sentence(regard("export", untrained, "--precision", "int4"), 2)
    assert "--precision must be one of 32, int8, but it is 'int4'" in said


@pytest.mark.parametrize(
    ("words", "fix"),
    [
        (["--precision", "int8"], "`translate.py --precision int8` converts the weights"),
        (["--attention"], "export to onnx for it"),
    ],
)
def test_options_of_onnx_alone(words, fix, untrained):
    said = sentence(regard("export", untrained, "--to", "ctranslate2", *words), 2)
    assert f"{words[0]} must be left out for ctranslate2" in said
    assert fix in said


def test_sources_to_check_that_are_none(untrained, tmp_path):
    out = tmp_path / "new"
    said = sentence(regard("export", untrained, "-o", out, "--check", tmp_path / "no.txt"), 1)
    assert "no.txt: there is no such file" in said
    (tmp_path / "empty.txt").touch()
    said = sentence(regard("export", untrained, "-o", out, "--check", tmp_path / "empty.txt"), 2)
    assert "--check must have a source at least" in said
    assert not out.exists()


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
