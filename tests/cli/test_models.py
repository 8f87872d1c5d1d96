"""`regard models`: what is in the box."""

import json

from cli.tools import done, regard

CARD = """# abc

| | |
|---|---|
| what it is | letters to letters |
| score | 7.5% wrong |
| licence | of nobody |
"""


def test_each_model_is_told_by_its_card(tmp_path, monkeypatch):
    monkeypatch.setattr("regard.api.bundled_models.HOME", tmp_path)
    for name, text in (("abc", CARD), ("bare", "")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_bytes(b" " * 1_240_000)
        (tmp_path / name / "README.md").write_text(text)
    found = [line.split(maxsplit=1) for line in done(regard("models")).splitlines()[1:]]
    assert [[cell.strip() for cell in row] for row in found] == [
        ["abc", "letters to letters"],
        ["size", "1.2 MB"],
        ["score", "7.5% wrong"],
        ["licence", "of nobody"],
        ["bare"],
        ["size", "1.2 MB"],
    ]


def test_models_as_json(tmp_path, monkeypatch):
    monkeypatch.setattr("regard.api.bundled_models.HOME", tmp_path)
    assert json.loads(done(regard("models", "--json"))) == []
    (tmp_path / "abc").mkdir()
    (tmp_path / "abc" / "config.json").write_bytes(b" " * 1_240_000)
    (tmp_path / "abc" / "README.md").write_text(CARD)
    result = regard("models", "--json")
    assert json.loads(done(result)) == [
        {
            "name": "abc",
            "what it is": "letters to letters",
            "score": "7.5% wrong",
            "licence": "of nobody",
            "size": "1.2 MB",
        }
    ]
    assert result.stderr == ""


def test_an_empty_box(tmp_path, monkeypatch):
    monkeypatch.setattr("regard.api.bundled_models.HOME", tmp_path)
    result = regard("models")
    assert done(result) == ""
    assert "no model is bundled" in result.stderr
