"""Tokens of a foreign tokenizer that would act if they were let: in the terminal and in files."""

import re
import unicodedata

import pytest

from cli.tools import done, regard
from pretrained import hostile

pytestmark = pytest.mark.slow  # transformers takes seconds to load


@pytest.fixture(scope="module")
def folders(hugging, tmp_path_factory):
    root = tmp_path_factory.mktemp("hostile")
    return [hostile.save(hugging, root / name, seed) for seed, name in enumerate(("one", "two"))]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    return hostile.write_texts(tmp_path_factory.mktemp("hostile") / "texts.txt")


def unsafe(text):
    """Characters that a terminal obeys, or that turn the text around them."""
    categories = {char: unicodedata.category(char) for char in set(text) - {"\n"}}
    return sorted(char for char, kind in categories.items() if kind in ("Cc", "Cf"))


@pytest.mark.sample(2)
@pytest.mark.parametrize(
    "options",
    [
        ("show", "--max-len", 2),
        ("show", "--max-len", 2, "--list"),
        ("show", "--max-len", 2, "--plain"),
        ("check", "--target", hostile.TOKENS[0], "--methods", "gradient"),
    ],
)
def test_the_terminal_obeys_no_token(folders, options, monkeypatch):
    monkeypatch.setenv("COLUMNS", "600")
    command, *rest = options
    shown = done(regard(command, folders[0], hostile.TEXT, *rest))
    assert unsafe(shown) == []
    assert "</script" in shown  # which is shown as what it is


def test_no_token_becomes_markup(folders, texts, tmp_path):
    for name, file in hostile.write_pages(folders, texts, tmp_path).items():
        text = file.read_text(encoding="utf-8")
        assert "<img/src" not in text, name
        assert "<svg/onload" not in text, name
        assert "<script>document.title" not in text, name
        body = re.sub(r"(?s)<script.*?</script>|<style.*?</style>", "", text)
        assert unsafe(body) == [], name
        assert "default-src &#39;none&#39;" in text.replace("'", "&#39;"), name
