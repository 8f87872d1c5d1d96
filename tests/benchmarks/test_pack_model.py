"""What turns a run into a bundled model writes a card that says what was measured."""

import sys

import pytest
import torch
from safetensors.torch import load

from benchmarks.pages import tables
from benchmarks.tools import pack_model
from regard.api import bundled_models
from regard.data import Tokenizer
from regard.recipes import RECIPE_DIR, result_file
from regard.recipes.recipe import Recipe
from regard.recipes.task_data import RecipeExample, write_evaluation
from untrained import write_run

PLACE = "/home/me/a.tsv"


def run_folder(path, settings, src, tgt, rows):
    """A run of a recipe that has learned nothing, with a test set."""
    given = {"preset": "bahdanau", "size": "tiny", "data": PLACE, "beam": 2, **settings}
    write_run(path, src, tgt, **given, scale=1, seed=2)
    recipe = Recipe("g2p", "cmudict", settings=settings)
    recipe.write(path / RECIPE_DIR)
    write_evaluation(path / RECIPE_DIR, "dev", rows[:1])
    write_evaluation(path / RECIPE_DIR, "test", rows)
    result = result_file.begin(recipe, {"seed": 3, "device": "cpu"}, torch.device("cpu"))
    result["training"] = {"steps": 1234, "minutes": 5.67}
    result_file.write(path, result)
    return path


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """A run of words, whose test set has two groups."""
    src = Tokenizer.train("char", ["ABCDEFGH"])
    tgt = Tokenizer.train("space", ["AH B EH"])
    rows = [
        RecipeExample(word, (said, "B"), group=group)
        for word, said, group in (
            ("ABC", "AH B", "one"),
            ("CAB", "B AH", "one"),
            ("H", "EH", "two"),
            ("ACE", "AH EH", "two"),
            ("BAD", "B AH EH", "two"),
        )
    ]
    return run_folder(
        tmp_path_factory.mktemp("runs") / "words", {"hidden": 64, "embed": 32}, src, tgt, rows
    )


def packed(monkeypatch, run, home, name, *options):
    """Pack a run with the command line, and return its folder."""
    command = ["pack_model.py", str(run), "--name", name, "-o", str(home / name), *options]
    monkeypatch.setattr(sys, "argv", [*command, "--device", "cpu"])
    pack_model.main()
    monkeypatch.setattr(bundled_models, "HOME", home)
    return home / name


@pytest.mark.slow
def test_a_run_becomes_a_model_with_a_card(words, tmp_path, monkeypatch, capsys):
    folder = packed(monkeypatch, words, tmp_path, "g2p")
    before, after = capsys.readouterr().out.splitlines()
    assert bundled_models.names() == ["g2p"]
    card = bundled_models.card("g2p")
    assert str(card.score) in after
    assert str(card.scores_32[0]) in before
    assert [(one.set, one.rows, one.metric) for one in card.scores] == [
        ("test", 5, "per"),
        ("test", 5, "exact"),
        ("test: one", 2, "per"),
        ("test: one", 2, "exact"),
        ("test: two", 3, "per"),
        ("test: two", 3, "exact"),
    ]
    whole, groups = card.scores[:2], card.scores[2:]
    assert all(one.low <= one.value <= one.high and one.signature for one in whole)
    assert all((one.low, one.high) == (None, None) for one in groups)  # of two and three rows
    assert len(card.answers) == len(card.examples)
    assert card.bits == 8
    assert card.ms_per_source > 0
    assert card.trained.startswith("CPU: 1,234 steps in 5.7 minutes, torch ")
    assert card.command == "regard train recipes/g2p seed=3 --data-dir DIR"
    assert {row[0] for row in card.mistakes} <= {"ABC", "CAB", "H", "ACE", "BAD"}
    assert "Carnegie" in (folder / "LICENSE.txt").read_text(encoding="utf-8")
    for file in ("README.md", "card.json", "config.json"):
        text = (folder / file).read_text(encoding="utf-8")
        assert PLACE not in text
        assert str(words) not in text
    stored = load((folder / "model.safetensors").read_bytes())
    assert any(tensor.dtype == torch.int8 for tensor in stored.values())
    assert "`g2p`" in tables.models()
