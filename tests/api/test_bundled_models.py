"""Models of the package, by name."""

from itertools import zip_longest
from pathlib import Path

import pytest

import regard
from api.bundled import card
from api.test_output import run_folder
from regard.api import bundled_models
from regard.api.bundled_models import render
from regard.errors import ArgumentError, DataError
from regard.messages import use_language
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


def test_names_are_those_of_folders_with_a_run(home):
    assert bundled_models.names() == ["abc", "xyz"]


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


def test_a_card_is_read_as_it_was_written(home):
    assert bundled_models.card("abc") == card("abc")
    assert bundled_models.card("xyz") is None
    size = sum(file.stat().st_size for file in (home / "abc").iterdir())
    assert bundled_models.size("abc") == size


@pytest.mark.plain
@pytest.mark.parametrize(
    "change", [('"beam": 5', '"beam": "wide"'), ('"name"', '"title"'), ("{", "")]
)
def test_a_damaged_card_is_one_sentence(home, change):
    file = home / "abc" / "card.json"
    file.write_text(file.read_text().replace(*change, 1))
    with pytest.raises(DataError, match=r"card\.json"):
        bundled_models.card("abc")


def test_the_page_of_a_card_has_its_facts_in_both_languages():
    page = render(card(), 2_340_000)
    for fact in (
        "| what it is | letters to letters |",
        "| score | exactly right 75.00% (95% interval 50.00% to 87.50%) |",
        "| scored on | 12 rows of the set `test`, which it has not seen; beam 5 |",
        "| stored in | 8 bits per weight: exactly right 75.00% (in 32 bits 80.00%); ",
        "| size | 2.3 MB |",
        "| speed | 7 ms per source, one at a time (median; threads: 2) |",
        "regard show abc 'a b'\nregard show abc cab\necho 'a b' | regard predict abc\n",
        "- It is small.",
        r"| a\|b | c | d |",
        '"lr": 0.5',
        "From nobody. The terms are in LICENSE.txt",
    ):
        assert fact in page
    with use_language("zh"):
        chinese = render(card(), 2_340_000)
    for fact in ("| 用途 | 字母到字母 |", "| 大小 | 2.3 MB |", "- 它很小。", "50.00% 至 87.50%"):
        assert fact in chinese
    assert "letters to letters" not in chinese


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
