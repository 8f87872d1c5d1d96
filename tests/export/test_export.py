"""What an exported folder answers is what the model answers."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress

import numpy as np
import onnx
import onnxruntime
import pytest
import safetensors.torch
import torch

import regard
from cli.tools import done
from cli.tools import regard as command
from export.tools import SOURCES, assert_found, make_run
from regard.data import pad
from regard.decoding import DecodingOptions, greedy
from regard.errors import ArgumentError
from regard.export import ExportError, export
from regard.export.decode import Exported
from regard.export.graphs import Ports
from regard.symbols import EOS, UNK

# the run-time shape checks cannot be traced
pytestmark = pytest.mark.plain

OPSET = onnx.helper.make_opsetid("", 20)
GREEDY = DecodingOptions(beam=1)
LONG = ("self-attentive", "transformer", "gnmt", "luong")
PRESETS = ["bahdanau", *(pytest.param(name, marks=pytest.mark.long) for name in LONG)]
# decode.py, where neither torch nor regard can be imported
WITHOUT_TORCH = """
import os, runpy, sys
sys.modules["torch"] = sys.modules["regard"] = sys.modules["tokenizers"] = None
sys.path.insert(0, os.path.dirname(sys.argv[1]))  # as `python decode.py` has it
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
def test_an_exported_folder_is_the_model(preset, tmp_path, monkeypatch):
    """One test, since each export takes seconds."""
    monkeypatch.chdir(tmp_path)
    run = make_run(tmp_path / "run", preset, features=["V", "PST"])
    result = command("export", run, "--attention")
    assert done(result) == "run-onnx\n"
    assert "differ from the model's by" in result.stderr
    folder, model = tmp_path / "run-onnx", regard.load(run, device="cpu")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run", "run-onnx"]
    assert_answers_are_those_of_greedy_search(model, Exported(folder))
    assert_weights_are_those_of_the_model(model, Exported(folder))
    assert_manifest_names_what_the_graphs_have(folder)
    if preset == "bahdanau":
        assert_decode_needs_no_torch(model, folder)


def assert_answers_are_those_of_greedy_search(model, exported):
    rows = model.source_ids([*SOURCES, "Ab\tV;PST", "", "what is not known"])
    found = [several[0] for several in greedy(model.module, *pad(rows), GREEDY)]
    assert_found(exported, rows, found, more_than=3)


def assert_weights_are_those_of_the_model(model, exported):
    src, lengths = pad(model.source_ids(SOURCES))
    found = [one[0] for one in greedy(model.module, src, lengths, GREEDY, need_weights=True)]
    state, tokens = exported.first(src.numpy(), lengths.numpy()), np.full(len(src), 1)
    for step in range(3):
        _, state, looked = exported.next(tokens, state)
        for i, one in enumerate(found):
            for layer, weights in zip(one.attention["cross"], looked, strict=True):
                if step < layer.shape[1]:
                    ours = layer[:, step].numpy()
                    np.testing.assert_allclose(weights[i, :, : ours.shape[1]], ours, atol=1e-4)
        tokens = np.array([[*one.tokens, 2, 2, 2][step] for one in found])


def assert_manifest_names_what_the_graphs_have(folder):
    manifest = json.loads((folder / "manifest.json").read_text())
    for graph in ("encoder", "step"):
        session = onnxruntime.InferenceSession(folder / f"{graph}.onnx")
        for role, ports in (("inputs", session.get_inputs()), ("outputs", session.get_outputs())):
            named = [(port["name"], port["shape"]) for port in manifest[graph][role]]
            assert named == [(port.name, port.shape) for port in ports]
    assert manifest["symbols"] == {"pad": 0, "bos": 1, "eos": 2, "unk": 3}
    assert manifest["verified"]["largest_difference"] <= 1e-4


def assert_decode_needs_no_torch(model, folder):
    texts = [*SOURCES, "ABC", "", "zzz", "\u00e4a", "a\rb"]
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, folder / "decode.py"],
        # as files of other systems begin, where the machine's own encoding is another
        input=b"\xef\xbb\xbf" + "".join(f"{text}\n" for text in texts).encode(),
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        check=True,
    )
    assert ran.stdout.decode().splitlines() == [out.text for out in model(texts, beam=1)]
    assert ran.stderr == b""


@pytest.mark.slow
def test_an_exported_tagger_writes_as_many_tokens_as_it_reads(tmp_path):
    run = make_run(tmp_path / "run", "rnn")
    weights = safetensors.torch.load_file(run / "model.safetensors")
    weights["output.bias"][EOS] = 9.0  # it would end at once,
    weights["output.bias"][UNK] = 8.0  # or write what leaves no trace
    safetensors.torch.save_file(weights, run / "model.safetensors")
    model, exported = regard.load(run, device="cpu"), Exported(export(run, tmp_path / "new").path)
    assert_answers_are_those_of_greedy_search(model, exported)
    rows = model.source_ids([*SOURCES, ""])
    assert list(map(len, exported.greedy(rows)[0])) == [len(row) - 1 for row in rows]


def test_what_differs_from_the_model_is_not_left(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run")
    monkeypatch.setattr("regard.export.graphs.write_graphs", write_uniform_graphs)
    with pytest.raises(ExportError, match=r"largest difference is \d.*nothing was kept"):
        export(run, tmp_path / "new" / "exported")
    assert list((tmp_path / "new").iterdir()) == []


def test_nothing_is_written_where_a_link_leads_nowhere(tmp_path):
    run, link = make_run(tmp_path / "run"), tmp_path / "link"
    link.symlink_to(tmp_path / "nowhere")
    with pytest.raises(ArgumentError, match=r"-o must be a new folder, but it is .*link, which"):
        export(run, link)


def test_graphs_that_do_not_run_are_reported(tmp_path, monkeypatch):
    run = make_run(tmp_path / "run")
    monkeypatch.setattr("regard.export.graphs.write_graphs", write_no_graphs)
    with pytest.raises(ExportError, match=r"must run by onnxruntime.*nothing was kept"):
        export(run, tmp_path / "exported")
    assert not (tmp_path / "exported").exists()


def write_uniform_graphs(model, given, folder, *, attention):
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


def write_no_graphs(model, given, folder, *, attention):
    for name in ("encoder.onnx", "step.onnx"):
        (folder / name).write_bytes(b"no graph")
    return Ports([], [], [], [])


def test_an_interrupt_that_the_exporter_swallows_ends_the_export(monkeypatch, tmp_path):
    def swallow(*args, **options):
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(torch.onnx, "export", swallow)
    with pytest.raises(KeyboardInterrupt):
        export("g2p", tmp_path / "new")
    assert not list(tmp_path.iterdir())
