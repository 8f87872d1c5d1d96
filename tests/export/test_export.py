"""What an exported folder answers is what the model answers."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx
import onnxruntime
import pytest
import safetensors.torch
import torch

import regard
from cli.tools import done
from cli.tools import regard as command
from export.tools import SOURCES, assert_found, assert_hypotheses, make_run, run_readme
from regard.data import pad
from regard.decoding import DecodingOptions, decode
from regard.export import ExportError, export
from regard.export.decode import Exported
from regard.export.graphs import Ports
from regard.symbols import EOS, UNK

# the run-time shape checks cannot be traced
pytestmark = [pytest.mark.plain, pytest.mark.usefixtures("onnx_registry")]

OPSET = onnx.helper.make_opsetid("", 20)
LONG = (
    *("transformer", "self-attentive", "gnmt", "luong", "rnn-dot", "seq2seq", "memory"),
    *("monotonic", "conv", "pointer", "rnn"),
)
SEARCHES = [
    {"beam": 1},
    {"beam": 5, "nbest": 3},
    {"beam": 13, "nbest": 2, "length_penalty": 0.0},  # wider than the vocabulary
    {"beam": 4, "nbest": 4, "max_len": 3, "length_penalty": 2.0},
]


class ExportedRun(NamedTuple):
    """A run, its folder, and what the command said."""

    run: Path
    folder: Path
    said: str


def export_run(home, preset):
    """Export a run by the command."""
    run = make_run(home / "run", preset, features=["V", "PST"])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        result = command("export", run)
    assert done(result) == "run-onnx\n"
    return ExportedRun(run, home / "run-onnx", result.stderr)


@pytest.fixture(scope="module")
def bahdanau(tmp_path_factory):
    return export_run(tmp_path_factory.mktemp("bahdanau"), "bahdanau")


def many_sources(count=40):
    draw = random.Random(1)
    texts = ["".join(draw.choices("abcdefgh ", k=draw.randint(1, 12))) for _ in range(count)]
    return [*texts, "Ab\tV;PST", "", "what is not known"]


def assert_searches_are_those_of_the_model(model, exported, count=40):
    rows = model.source_ids(many_sources(count))
    for options in SEARCHES:
        expected = []
        for start in range(0, len(rows), 41):  # other batches than those of the folder
            src, lengths = pad(rows[start : start + 41])
            decoding = DecodingOptions(**options)
            expected += decode(model.module, src, lengths, decoding, need_weights=True)
        found = exported.search(rows, 17, **options)
        assert_hypotheses(found, expected)
    assert_found(exported, rows[-9:], expected[-9:], **options)


@pytest.mark.slow
def test_an_exported_folder_is_the_model(bahdanau):
    assert "differ from the model's by" in bahdanau.said
    home = bahdanau.run.parent
    assert sorted(path.name for path in home.iterdir()) == ["run", "run-onnx"]
    model, exported = regard.load(bahdanau.run, device="cpu"), Exported(bahdanau.folder)
    assert_searches_are_those_of_the_model(model, exported)
    assert_manifest_names_what_the_graphs_have(bahdanau.folder)
    weights = exported.search(model.source_ids(SOURCES), nbest=2)[1][1].attention
    assert [layer.shape[0] for layer in weights] == [1]
    texts = many_sources()
    assert exported(texts) == [out.text for out in model(texts)]


@pytest.mark.long
@pytest.mark.parametrize("preset", LONG)
def test_an_exported_folder_of_any_preset_is_the_model(preset, tmp_path):
    found = export_run(tmp_path, preset)
    model, exported = regard.load(found.run, device="cpu"), Exported(found.folder)
    assert_searches_are_those_of_the_model(model, exported, count=100)
    assert_manifest_names_what_the_graphs_have(found.folder)


def assert_manifest_names_what_the_graphs_have(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    for graph in ("encoder", "step"):
        session = onnxruntime.InferenceSession(folder / f"{graph}.onnx")
        for role, ports in (("inputs", session.get_inputs()), ("outputs", session.get_outputs())):
            named = [(port["name"], port["shape"]) for port in manifest[graph][role]]
            assert named == [(port.name, port.shape) for port in ports]
    assert manifest["symbols"] == {"pad": 0, "bos": 1, "eos": 2, "unk": 3}
    assert manifest["verified"]["largest_difference"] <= 1e-4


@pytest.mark.slow
def test_the_readme_works_as_typed(bahdanau):
    folder = shutil.copytree(bahdanau.folder, bahdanau.run.parent / "copy" / "onnx")
    needs, shell, code = run_readme(folder)
    assert needs == ["numpy", "onnxruntime"]
    texts, model = ["some text", "some more"], regard.load(bahdanau.run, device="cpu")
    best = [out.text for out in model(texts)]
    three = model(texts[:1], nbest=3, max_len=40)[0]
    rows = [
        f"1\t{rank}\t{one.score:.4f}\t{one.text}"
        for rank, one in enumerate((three, *three.alternatives), start=1)
    ]
    assert shell[0] == best[0]
    assert_rows(shell[1:], rows)
    assert (folder / "predictions.txt").read_text().splitlines() == best
    assert code[0] == str(best)


@pytest.mark.slow
def test_each_line_is_predicted_as_regard_predict_does(bahdanau):
    texts = [*SOURCES, "ABC", "", "zzz", "\u00e4a", "a\rb"]
    ran = run_decode(
        bahdanau.folder,
        *("--batch", "2", "--nbest", "2", "--threads", "1"),
        # as files of other systems begin, where the machine's own encoding is another
        given=b"\xef\xbb\xbf" + "".join(f"{text}\n" for text in texts).encode(),
        PYTHONIOENCODING="latin-1",
    )
    predicted = command("predict", bahdanau.run, "--nbest", 2, stdin="\n".join(texts) + "\n")
    assert_rows(ran.stdout.decode().splitlines(), done(predicted).splitlines())
    assert ran.stderr == b""


def assert_rows(found, expected):
    """The same numbers, ranks and texts, with scores that rounding may change in the last digit."""
    theirs, ours = ([line.split("\t") for line in lines] for lines in (found, expected))
    assert [row[:2] + row[3:] for row in theirs] == [row[:2] + row[3:] for row in ours]
    scores = [float(row[2]) for row in theirs]
    assert scores == pytest.approx([float(row[2]) for row in ours], abs=2e-4)


def run_decode(folder, *options, given=b"abc\n", **environment):
    words, env = [sys.executable, folder / "decode.py", *options], {**os.environ, **environment}
    return subprocess.run(words, input=given, env=env, capture_output=True)


@pytest.mark.slow
def test_what_goes_wrong_in_the_program_is_one_sentence(bahdanau, tmp_path):
    def said(folder, *options, **environment):
        ran = run_decode(folder, *options, **environment)
        assert ran.returncode == 1
        (line,) = ran.stderr.decode().splitlines()
        return line

    assert said(bahdanau.folder, "--beam", "0") == (
        "decode.py: beam must be at least 1, but it is 0: choose a larger number."
    )
    assert said(bahdanau.folder, "--beam", "2", "--nbest", "3") == (
        "decode.py: nbest must be at most beam = 2, but it is 3: set beam=3, or ask for fewer."
    )
    assert "batch must be at least 1" in said(bahdanau.folder, "--batch", "0")
    assert "nowhere.txt" in said(bahdanau.folder, "nowhere.txt")
    broken = shutil.copytree(bahdanau.folder, tmp_path / "broken")
    (broken / "step.onnx").unlink()
    assert "must have step.onnx, but" in said(broken)
    (tmp_path / "none" / "onnxruntime").mkdir(parents=True)
    missing = "raise ModuleNotFoundError('no', name='onnxruntime')\n"
    (tmp_path / "none" / "onnxruntime" / "__init__.py").write_text(missing)
    assert said(bahdanau.folder, PYTHONPATH=str(tmp_path / "none")) == (
        "decode.py needs onnxruntime, which is not installed: pip install onnxruntime"
    )


@pytest.mark.long
def test_an_exported_tagger_writes_as_many_tokens_as_it_reads(tmp_path):
    run = make_run(tmp_path / "run", "rnn")
    weights = safetensors.torch.load_file(run / "model.safetensors")
    weights["output.bias"][EOS] = 9.0  # it would end at once,
    weights["output.bias"][UNK] = 8.0  # or write what leaves no trace
    safetensors.torch.save_file(weights, run / "model.safetensors")
    model, exported = regard.load(run, device="cpu"), Exported(export(run, tmp_path / "new").path)
    assert_searches_are_those_of_the_model(model, exported)
    rows = model.source_ids([*SOURCES, ""])
    lengths = [len(found[0].tokens) for found in exported.search(rows)]
    assert lengths == [len(row) - 1 for row in rows]


def test_options_cut_no_set_of_labels(tmp_path):
    pairs = [(f"{a} {b}", f"{a}|{b}") for a in "abc" for b in "def"] * 9
    settings = {"separator": "|", "size": "tiny", "steps": 40, "report": False, "quiet": True}
    model = regard.fit(pairs, output=tmp_path / "run", device="cpu", **settings)
    exported, texts = Exported(export(tmp_path / "run", tmp_path / "new").path), ["a d", "c f"]
    found = [output.text for output in model.predict(texts, beam=1, nbest=2, max_len=1)]
    assert exported(texts, beam=3, nbest=2, max_len=1) == found
    assert any("|" in text for text in found)


def write_uniform_graphs(model, given, folder):
    """Graphs that find all 12 target tokens equally likely."""
    ids, scores = onnx.TensorProto.INT64, onnx.TensorProto.FLOAT
    save_graph(
        folder / "encoder.onnx",
        [onnx.helper.make_node("Cast", ["lengths"], ["state.x"], to=scores)],
        [("src", ids, ["batch", "source"]), ("lengths", ids, ["batch"])],
        [("state.x", scores, ["batch"])],
    )
    row = onnx.numpy_helper.from_array(np.full((1, 12), -np.log(12), np.float32))
    nodes = [
        onnx.helper.make_node("Constant", [], ["row"], value=row),
        onnx.helper.make_node("Constant", [], ["axis"], value_ints=[1]),
        onnx.helper.make_node("Unsqueeze", ["state.x", "axis"], ["column"]),
        onnx.helper.make_node("Sub", ["column", "column"], ["zeros"]),
        onnx.helper.make_node("Add", ["zeros", "row"], ["log_probs"]),
    ]
    inputs = [("tokens", ids, ["batch"]), ("state.x", scores, ["batch"])]
    save_graph(folder / "step.onnx", nodes, inputs, [("log_probs", scores, ["batch", 12])])
    return Ports([], [], [], [])


def save_graph(path, nodes, inputs, outputs):
    info = onnx.helper.make_tensor_value_info
    ports = ([info(*port) for port in side] for side in (inputs, outputs))
    graph = onnx.helper.make_graph(nodes, path.stem, *ports)
    onnx.save(onnx.helper.make_model(graph, ir_version=10, opset_imports=[OPSET]), path)


def write_no_graphs(model, given, folder):
    """Graphs of an operator that does not exist."""
    ids = onnx.TensorProto.INT64
    for name in ("encoder.onnx", "step.onnx"):
        node = onnx.helper.make_node("NoSuchOperator", ["src"], ["x"])
        save_graph(folder / name, [node], [("src", ids, ["batch"])], [("x", ids, ["batch"])])
    return Ports([], [], [], [])


@pytest.mark.parametrize("write", [write_uniform_graphs, write_no_graphs])
def test_graphs_that_differ_from_the_model_or_do_not_run_are_not_left(write, tmp_path, monkeypatch):
    run = make_run(tmp_path / "run")
    monkeypatch.setattr("regard.export.graphs.write_graphs", write)
    why = "must run by onnxruntime" if write is write_no_graphs else r"largest difference is \d"
    with pytest.raises(ExportError, match=f"{why}.*nothing was kept"):
        export(run, tmp_path / "new" / "exported")
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.usefixtures("default_signals")
def test_an_interrupt_that_the_exporter_swallows_ends_the_export(monkeypatch, tmp_path):
    def swallow(*args, **options):
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(torch.onnx, "export", swallow)
    with pytest.raises(KeyboardInterrupt):
        export("g2p", tmp_path / "new")
    assert not list(tmp_path.iterdir())
