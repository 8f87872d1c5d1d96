"""An exported folder that reads vectors: it takes numbers as a user has them."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

import regard
from cli.tools import done
from cli.tools import regard as command
from export.tools import FRAMES, assert_found, make_run, run_readme
from regard.data import pad_frames
from regard.data.text_codec import SeriesRows
from regard.decoding import DecodingOptions, decode
from regard.export.decode import Exported
from regard.models import VectorInput
from regard.tasks.inputs.graph_inputs import FrameInputs, ScaledInput

# the run-time shape checks cannot be traced
pytestmark = [pytest.mark.plain, pytest.mark.usefixtures("onnx_registry")]


def tables():
    """Of one frame and more, in odd and even numbers."""
    draw = np.random.default_rng(3)
    mean, scale = np.array(FRAMES.mean), np.array(FRAMES.scale)
    drawn = (mean + 2 * scale * draw.normal(size=(n, 5)) for n in (7, 1, 12, 2, 9))
    return [table.astype(np.float32) for table in drawn]


@pytest.mark.long
@pytest.mark.parametrize(("preset", "stack"), [("bahdanau", 2), ("transformer", 1)])
def test_an_exported_folder_is_the_model(preset, stack, tmp_path, monkeypatch):
    """One test, since each export takes seconds."""
    monkeypatch.chdir(tmp_path)
    run = make_run(tmp_path / "run", preset, src=replace(FRAMES, stack=stack))
    result = command("export", run, "--attention")
    assert done(result) == "run-onnx\n"
    assert "try `echo FILE.npy | python run-onnx/decode.py`" in result.stderr
    folder, model = tmp_path / "run-onnx", regard.load(run, device="cpu")
    assert_searches_are_those_of_the_model(model, Exported(folder))
    assert_padding_does_not_matter(Exported(folder))
    assert_it_says_what_it_takes(folder, stack)
    if preset == "bahdanau":
        assert_decode_needs_no_torch(model, folder)
        with pytest.raises(ValueError, match=r"must be \(frames, 5\), but its shape is \(2, 3\)"):
            Exported(folder)([np.zeros((2, 3))])


def assert_searches_are_those_of_the_model(model, exported):
    given = tables()
    src, lengths = pad_frames(model.source_ids(given))
    for options in ({"beam": 1}, {"beam": 4, "nbest": 3, "max_len": 9}):
        decoding = DecodingOptions(**options)
        found = decode(model.module, src, lengths, decoding, need_weights=True)
        assert_found(exported, given, found, more_than=1, **options)
        assert exported(given, **options) == [out.text for out in model(given, **options)]


def assert_padding_does_not_matter(exported):
    table = tables()[0]
    src = np.full((2, 12, 5), np.nan, np.float32)
    src[:, :7] = table
    alone = exported.first(table[None], np.array([7]))
    padded = exported.first(src, np.array([7, 7]))
    token = np.array([1])
    expected, _, _ = exported.next(token, alone)
    found, _, _ = exported.next(token.repeat(2), padded)
    np.testing.assert_allclose(found, expected.repeat(2, axis=0), atol=1e-4)


def assert_it_says_what_it_takes(folder, stack):
    manifest = json.loads((folder / "manifest.json").read_text())
    source = {"kind": "vectors", "codec": ["text_codec", "VectorSource"]}
    source |= {"features": 5, "stack": stack}
    assert manifest["tokenizers"]["source"] == source
    axis = "source" if stack == 1 else "frames"
    src = {"name": "src", "dtype": "float32", "shape": ["batch", axis, 5]}
    assert manifest["encoder"]["inputs"][0] == src
    graph = onnxruntime.InferenceSession(folder / "encoder.onnx").get_inputs()[0]
    assert (graph.name, graph.shape, graph.type) == ("src", src["shape"], "tensor(float)")
    readme = (folder / "README.md").read_text()
    assert "take each source as it is, a table (frames, 5) of numbers" in readme
    assert ("and joins" in readme) == (stack > 1)
    assert "cut each text" not in readme


def assert_decode_needs_no_torch(model, folder):
    needs, shell, code = run_readme(folder)
    assert needs == ["numpy", "onnxruntime"]
    ones = model([np.ones((9, 5), np.float32)], nbest=3, max_len=40)[0]
    texts = [one.text for one in (ones, *ones.alternatives)]
    assert [line.split("\t")[-1] for line in shell] == [texts[0], *texts]
    assert code[0] == str([texts[0]] * 2)
    given = tables()
    np.save(folder.parent / "a.npy", given[0])
    lines = [str(folder.parent / "a.npy"), *(json.dumps(table.tolist()) for table in given[1:])]
    ran = subprocess.run(
        [sys.executable, folder / "decode.py"],
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=True,
    )
    assert ran.stdout.splitlines() == [out.text for out in model(given)]
    assert ran.stderr == ""


@pytest.mark.parametrize("stack", [1, 2, 3])
def test_what_a_graph_computes_of_frames_is_what_the_model_reads(stack):
    frames = replace(FRAMES, stack=stack)
    adapter = VectorInput(5, 7, stack=stack)
    lengths = torch.tensor([6, 1, 5])
    src = FrameInputs(frames).draw(lengths, torch.Generator().manual_seed(2))
    assert src[1, 1:].isnan().all()
    expected = adapter(torch.from_numpy(frames.encode(src.numpy())), lengths)
    own = ScaledInput(adapter, frames)
    torch.testing.assert_close(own(src, lengths), expected)
    assert own.lengths(lengths).tolist() == adapter.lengths(lengths).tolist()


@pytest.mark.parametrize("stack", [1, 2, 3])
def test_sources_are_as_long_as_positions_ask_for(stack):
    frames, positions = replace(FRAMES, stack=stack), torch.tensor([5, 1, 11])
    lengths = FrameInputs(frames).lengths(positions)
    assert frames.positions(lengths).tolist() == [5, 1, 11]


def test_exported_programs_take_the_digits_that_training_takes():
    side = {"columns": ["a"], "look_back": 1}
    rows = SeriesRows(Path(), {"tokenizers": {"source": side}})
    assert rows.encode(["a\n", "1.5\n"]).tolist() == [[1.5]]
    with pytest.raises(ValueError, match="line 2: the columns must hold numbers"):
        rows.encode(["a\n", "1_0\n"])
