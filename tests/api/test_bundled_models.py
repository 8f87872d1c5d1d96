"""Models of the package, by name."""

from pathlib import Path

import pytest

import regard
from api.test_output import run_folder
from regard.api import bundled_models
from regard.errors import ArgumentError
from regard.training import RunError

CARD = """# abc

| | |
|---|---|
| what it is | letters to letters |
| score | 7.5% wrong |

| letters | words | error |
|---|---|---|
| 1 to 3 | 12 | 5% |
"""


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A package with two models and something else, and an empty folder to stand in."""
    home = tmp_path / "home"
    for name in ("abc", "xyz"):
        run_folder(home / name, "bahdanau")
    (home / "abc" / "data").rmdir()
    (home / "abc" / "README.md").write_text(CARD)
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


def test_what_can_be_a_run(home):
    Path("xyz").write_text("a file")
    Path("folder").mkdir()
    assert [name for name in ("abc", "xyz", "folder", "none") if bundled_models.is_run(name)] == [
        "abc",
        "folder",
    ]


def test_the_first_is_taken_where_none_is_named(home):
    assert bundled_models.first() == Path("abc")


@pytest.mark.plain
def test_without_any_model_one_must_be_named(tmp_path, monkeypatch):
    monkeypatch.setattr(bundled_models, "HOME", tmp_path)
    with pytest.raises(ArgumentError, match="no model is bundled"):
        bundled_models.first()
    with pytest.raises(RunError, match="is no folder"):
        regard.load("abc")


def test_the_card_tells_its_first_table(home):
    found = bundled_models.card("abc")
    assert found["what it is"] == "letters to letters"
    assert found["score"] == "7.5% wrong"
    size = sum(file.stat().st_size for file in (home / "abc").iterdir())
    assert found["size"] == f"{size / 1e6:.1f} MB"
    assert "1 to 3" not in found
