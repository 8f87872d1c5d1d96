"""Models of the package, by name."""

from itertools import zip_longest
from pathlib import Path

import pytest

import regard
from api.bundled import card
from api.test_output import run_folder
from regard.api import bundled_models
from regard.errors import ArgumentError, DataError
from regard.symbols import SYMBOLS, UNK
from regard.training import RunError


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A package with two models and something else, and an empty folder to stand in."""
    home = tmp_path / "home"
    for name in ("abc", "xyz"):
        run_folder(home / name, "bahdanau")
    (home / "abc" / "data").rmdir()
    card("abc").write(home / "abc")
    (home / "words").mkdir()
    (tmp_path / "here").mkdir()
    monkeypatch.setattr(bundled_models, "HOME", home)
    monkeypatch.chdir(tmp_path / "here")
    return home


@pytest.mark.parametrize("name", ["xyz", Path("xyz")])
def test_a_name_is_a_run(home, name, capsys):
    model = regard.load(name)
    assert model.path == home / "xyz"
    assert model.info.name == "xyz"
    assert model("abc").text == regard.load(home / "xyz")("abc").text
    assert capsys.readouterr().err == ""


def test_a_folder_of_that_name_goes_first_and_the_user_is_told(home, capsys):
    run_folder(Path("abc"), "luong-dot")
    assert regard.load("abc").path == Path("abc")
    said = capsys.readouterr().err
    assert said.startswith("regard: abc is a folder here, which is used")
    assert str(home / "abc") in said


@pytest.mark.plain
@pytest.mark.parametrize("name", ["words", "runs/abc", "abd", ""])
def test_an_unknown_name_lists_those_that_are_known(home, name):
    with pytest.raises(RunError, match=r"abc, xyz|no config\.json") as error:
        regard.load(name)
    assert "must be a run folder" in str(error.value)


@pytest.mark.plain
def test_without_any_model_one_must_be_named(tmp_path, monkeypatch):
    monkeypatch.setattr(bundled_models, "HOME", tmp_path)
    with pytest.raises(ArgumentError, match="no model is bundled"):
        bundled_models.default()
    with pytest.raises(RunError, match="is no folder"):
        regard.load("abc")


@pytest.mark.plain
@pytest.mark.parametrize(
    "change", [('"beam": 5', '"beam": "wide"'), ('"name"', '"title"'), ("{", "")]
)
def test_a_damaged_card_is_one_sentence(home, change):
    file = home / "abc" / "card.json"
    file.write_text(file.read_text().replace(*change, 1))
    with pytest.raises(DataError, match=r"card\.json"):
        bundled_models.card("abc")


@pytest.mark.sample(3)
@pytest.mark.slow
@pytest.mark.parametrize("name", bundled_models.names())
def test_the_examples_of_a_bundled_model_are_answered_as_its_card_says(name):
    model, said = regard.load(name, device="cpu"), bundled_models.card(name)
    assert len(said.answers) == (0 if said.continues else len(said.examples))
    for text, answer in zip_longest(said.examples, said.answers):
        trace = model.trace("", text) if said.continues else model.trace(text)
        tokens = (*trace.source.tokens, *trace.target.tokens)
        assert not any(token.text == SYMBOLS[UNK] for token in tokens)
        assert trace.target.text == (text if said.continues else answer)
