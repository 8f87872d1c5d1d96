"""What turns a run into a bundled model writes a card that says what was measured."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from regard.api import bundled_models
from regard.data import Tokenizer
from regard.kinds import open_kind
from regard.training import RunFolder, make_config

ROOT = Path(__file__).resolve().parents[2]
LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ'"

pytestmark = pytest.mark.slow  # starts processes


def pack_model(*words):
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "pack_model.py"), *map(str, words)],
        capture_output=True,
        text=True,
    )


@pytest.fixture
def run(tmp_path):
    """A run of the dictionary's letters that has learned nothing."""
    folder = RunFolder(tmp_path / "run")
    folder.create()
    config = make_config({"size": "tiny", "hidden": 8, "embed": 4, "data": "/home/me/a.tsv"})
    folder.write_config(config)
    src, tgt = Tokenizer.train("char", [LETTERS]), Tokenizer.train("space", ["AH B EH"])
    src.save(folder.src_tokenizer_file)
    tgt.save(folder.tgt_tokenizer_file)
    torch.manual_seed(2)
    folder.write_model(open_kind(config, src, tgt).build_model().state_dict())
    return folder.path


@pytest.mark.long
def test_a_run_becomes_a_model_with_a_card(run, tmp_path, monkeypatch):
    done = pack_model(run, "-o", tmp_path / "box" / "g2p", "--test-words", 7)
    assert done.returncode == 0, done.stderr
    monkeypatch.setattr(bundled_models, "HOME", tmp_path / "box")
    assert bundled_models.names() == ["g2p"]
    card = bundled_models.card("g2p")
    _, after = done.stdout.splitlines()
    assert card["score"] in after
    assert card["scored on"].startswith("7 test words")
    assert "Apache-2.0" in card["licence"]
    whole = (tmp_path / "box" / "g2p" / "README.md").read_text()
    assert "hidden=8" in whole
    assert "/home/me" not in whole
    assert str(tmp_path) not in whole
    assert "".join(sorted(LETTERS)) in whole
    again = pack_model(run, "-o", tmp_path / "box" / "g2p", "--test-words", 7)
    assert again.returncode == 1
    assert "Traceback" not in again.stderr
    assert "holds a run" in again.stderr
