"""`regard models`: what is in the box."""

import json

import pytest

from api.bundled import card
from cli.tools import done, regard, sentence


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A package with a model, and another without a card."""
    monkeypatch.setattr("regard.api.bundled_models.HOME", tmp_path)
    for name in ("abc", "bare"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_bytes(b" " * 1_240_000)
    card("abc").write(tmp_path / "abc")
    return tmp_path


def test_each_model_is_told_by_its_card(home):
    found = [line.split(maxsplit=1) for line in done(regard("models")).splitlines()[1:]]
    assert [[cell.strip() for cell in row] for row in found] == [
        ["abc", "letters to letters"],
        ["size", "1.2 MB"],
        ["score", "exactly right 75.00% (95% interval 50.00% to 87.50%)"],
        ["licence", "Apache-2.0; its data: of nobody"],
        ["try", "regard show abc 'a b'"],
        ["bare"],
        ["size", "1.2 MB"],
    ]


def test_models_as_json(home):
    result = regard("models", "--json")
    first, second = json.loads(done(result))
    assert second == {"name": "bare", "bytes": 1_240_000}
    size, example = first.pop("bytes"), first.pop("example")
    assert first == card("abc").model_dump(mode="json")
    assert size == sum(file.stat().st_size for file in (home / "abc").iterdir())
    assert example == "regard show abc 'a b'"
    assert json.loads(done(regard("models", "abc", "--json"))) | {} == {
        **first, "bytes": size, "example": example
    }  # fmt: skip
    assert result.stderr == ""


def test_the_card_of_one_model(home, monkeypatch):
    assert done(regard("models", "abc")).startswith("# abc\n\nA model that comes with regard")
    monkeypatch.setenv("REGARD_LANG", "zh")
    assert "| 用途 | 字母到字母 |" in done(regard("models", "abc"))
    assert "bare 没有模型卡" in regard("models", "bare").stderr


def test_a_name_that_is_no_bundled_model(home):
    said = sentence(regard("models", "abd"), 2)
    assert "must be a bundled model (abc, bare), but it is 'abd'" in said
