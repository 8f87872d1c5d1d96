"""A run as it is given away: smaller, and as good."""

import json

import pytest
import torch
from safetensors.torch import load

from benchmarks.tools.pack_model import halved, pack
from regard.data import Tokenizer
from regard.tasks import open_task
from regard.training import RunError, RunFolder, make_config

SIZES = {"size": "tiny", "hidden": 8, "embed": 4}


@pytest.fixture
def run(tmp_path):
    """A run that was never trained, of capitals, made on some machine."""
    folder = RunFolder(tmp_path / "run")
    folder.create()
    places = {"data": "/home/me/pairs.tsv", "dev": "/home/me/dev.tsv", "threads": 3, "beam": 2}
    config = make_config({"device": "cpu", **places, **SIZES})
    folder.write_config(config)
    src, tgt = Tokenizer.train("char", ["ABC"]), Tokenizer.train("space", ["x y"])
    src.save(folder.src_tokenizer_file)
    tgt.save(folder.tgt_tokenizer_file)
    torch.manual_seed(3)
    folder.write_model(open_task(config, src, tgt).build_model().state_dict())
    folder.card_file.write_text("a card")
    folder.append_metrics({"step": 5})
    return folder


@pytest.fixture
def packed(run, tmp_path):
    folder = RunFolder(tmp_path / "box" / "abc")
    pack(run, folder, src_case="upper")
    return folder


def test_weights_are_stored_in_half_and_used_whole(run, packed):
    stored = load(packed.model_file.read_bytes())
    assert {weight.dtype for weight in stored.values()} == {torch.float16}
    before, after = (folder.load().model.state_dict() for folder in (run, packed))
    assert {weight.dtype for weight in after.values()} == {torch.float32}
    for name, weight in before.items():
        torch.testing.assert_close(after[name], weight, rtol=2**-11, atol=1e-7)


def test_nothing_is_said_of_the_machine(packed):
    text = packed.config_file.read_text()
    assert "/home/me" not in text
    config = json.loads(text)["config"]
    own = {name: config[name] for name in ("data", "dev", "threads", "device", "beam", "src_case")}
    assert own == {
        "data": "", "dev": None, "threads": None, "device": "auto", "beam": 2, "src_case": "upper"
    }  # fmt: skip


def test_a_folder_with_a_run_is_left_alone(run, packed):
    with pytest.raises(RunError, match="holds a run"):
        pack(run, packed)


def test_whole_numbers_stay_and_large_ones_are_refused():
    found = halved({"count": torch.tensor([70_000]), "weight": torch.tensor([0.1])})
    assert found["count"].tolist() == [70_000]
    with pytest.raises(RunError, match=r"weight reach 70000"):
        halved({"weight": torch.tensor([0.1, -70_000.0])})
